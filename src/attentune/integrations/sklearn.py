"""scikit-learn estimators that classify or score texts or pairs of texts.

They work in pipelines, `cross_val_score`, `GridSearchCV` and `CalibratedClassifierCV`. Each `fit` writes a run folder,
a temporary one unless `output_dir` is set, so `attentune explain` and the other commands work on it too.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from attentune.config import Config, load_config
from attentune.config.parse import did_you_mean
from attentune.data.dataset import FROM_PYTHON, LabelSpace, TaskData, TextRows, check_each, checked_texts, is_missing
from attentune.data.labels import label_key
from attentune.data.splits import split_rows
from attentune.errors import InputError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train

_METRICS = {"classification": ("accuracy", "f1_macro"), "regression": ("pearson", "spearmanr", "mean_absolute_error")}


class _TextEstimator(BaseEstimator):
    """Base class of the estimators: parameters, reading texts, training, predicting and pickling."""

    classes_: np.ndarray

    def __init__(
        self,
        *,
        preset: str = "bert",
        model_name_or_path: str = "embedded",
        learning_rate: float | None = None,
        num_train_epochs: float | None = None,
        per_device_train_batch_size: int | None = None,
        max_length: int = 128,
        alpha: float | None = None,
        settings: Mapping[str, Any] | None = None,
        validation_share: float = 0.0,
        random_state: int = 42,
        output_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.preset = preset
        self.model_name_or_path = model_name_or_path
        self.learning_rate = learning_rate
        self.num_train_epochs = num_train_epochs
        self.per_device_train_batch_size = per_device_train_batch_size
        self.max_length = max_length
        self.alpha = alpha
        self.settings = settings
        self.validation_share = validation_share
        self.random_state = random_state
        self.output_dir = output_dir
        self.verbose = verbose

    def _train(self, X: Any, labels_N: np.ndarray, space: LabelSpace, sample_weight: Any) -> None:
        rows = self._rows(X, labels_N, sample_weight, reset=True)
        splits, kept = {"train": rows}, ""
        if self.validation_share:
            remaining, cut, kept = split_rows(rows, self.validation_share, self._seed(), "validation")
            splits = {"train": rows.take(remaining), "validation": replace(rows.take(cut), weights=None)}
        data = TaskData(FROM_PYTHON, space, _METRICS[space.task_type], splits, (kept.strip(),) if kept else ())
        own: dict[str, Any] = {
            "preset": self.preset,
            "training.learning_rate": self.learning_rate,
            "training.num_train_epochs": self.num_train_epochs,
            "training.per_device_train_batch_size": self.per_device_train_batch_size,
            "training.eval_strategy": None if self.validation_share else "no",
        }
        if self.alpha is not None:
            own["objective.alpha"] = self.alpha
        display = ProgressDisplay(quiet=not self.verbose)
        self._fit_by(lambda config: train(config, data=data, display=display, with_baselines=False), space, own)

    def _fit_by(self, program: Callable[[Config], Any], space: LabelSpace, own: dict[str, Any]) -> None:
        """Train with the shared and an estimator's own settings, and load the run."""
        temporary = tempfile.TemporaryDirectory(prefix="attentune-")
        folder = Path(temporary.name) / "run" if self.output_dir is None else Path(self.output_dir)
        shared = {
            "model.name_or_path": str(self.model_name_or_path),
            "data.max_length": self.max_length,
            "data.task_type": space.task_type,
            "training.seed": self._seed(),
            "training.output_dir": str(folder),
            "training.overwrite_output_dir": True,
        }
        self.result_ = program(load_config(overrides=shared | own | dict(self.settings or {})))
        self.run_ = Predictor.load(folder)
        # Only now, since it removes the folder of the previous run. A pickle of the run needs it.
        self._temporary = temporary

    def _rows(self, X: Any, labels_N: np.ndarray | None = None, sample_weight: Any = None, *, reset: bool) -> TextRows:
        texts, pairs = self._texts(X, reset=reset)
        weights = weights_of(sample_weight, len(texts))
        return TextRows(tuple(map(str, range(len(texts)))), texts, pairs, labels_N, "X", weights=weights)

    def _texts(self, X: Any, *, reset: bool) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Return the first texts, and the second texts of pairs or None; with `reset`, note which of both they are."""
        names = list(X.columns) if hasattr(X, "columns") else None
        if reset:
            self._columns = names
        elif names is not None and self._columns is not None:
            missing = [name for name in self._columns if name not in names]
            if missing:
                hint = did_you_mean(str(missing[0]), list(map(str, names)))
                raise ValueError(
                    f"X: there is no column {missing[0]!r}, which was fitted on.{hint}"
                    f" Columns here: {', '.join(map(repr, names))}."
                )
            X = X[self._columns]
        texts, pairs = texts_of(X)
        got = 1 if pairs is None else 2
        if reset:
            self.n_features_in_ = got
        elif got != self.n_features_in_:
            raise ValueError(f"X has {got} texts a row, but this was fitted on {self.n_features_in_}.")
        return texts, pairs

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        raise ValueError(f"random_state: got {self.random_state!r}, expected a whole number, such as 42.")

    def _logits(self, X: Any) -> np.ndarray:
        """Return the (N, C) logits."""
        check_is_fitted(self, "run_")
        return predict_rows(self.run_, self._rows(X, reset=False))

    def predict(self, X: Any) -> np.ndarray:
        """Return the (N,) predicted classes or scores."""
        predictions_N = predictions_of(self._logits(X), self.run_.label_space)
        if self.run_.label_space.task_type == "regression":
            return predictions_N.astype(np.float64)
        return self.classes_[predictions_N.astype(np.int64)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Include the files of the run as bytes, since its folder may not exist when the state is restored."""
        state = dict(super().__getstate__())
        run, _ = state.pop("run_", None), state.pop("_temporary", None)
        if run is not None:
            # An ensemble has the folders of its members beside its own.
            members = (run.folder / folder for folder in getattr(run, "folders", ()))
            state["_files"] = {
                path.relative_to(run.folder).as_posix(): path.read_bytes()
                for folder in (run.folder, *members)
                for path in sorted(folder.iterdir())
                if path.is_file()
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self._temporary = tempfile.TemporaryDirectory(prefix="attentune-")
            folder = Path(self._temporary.name)
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            self.run_ = Predictor.load(folder)


class AttentuneClassifier(ClassifierMixin, _TextEstimator):
    """Classify texts or pairs of texts.

    Args:
        preset: the method, such as "ssa-hybrid"; `attentune list presets` lists them.
        model_name_or_path: the encoder; "embedded" needs no network.
        learning_rate: as in the TrainingArguments of transformers, like the next two; None for the value that suits the
            encoder's size (`attentune.training.prepare`).
        num_train_epochs: the number of passes over the rows; None for what suits their number.
        per_device_train_batch_size: the number of rows in a batch; None for what suits their number and length.
        max_length: the maximum length of a text, or a pair of texts, in tokens.
        alpha: the weight of the task loss relative to the token loss, for presets with token labels; None for the
            value of the preset.
        settings: other settings by dotted name; they override all arguments.
        validation_share: the fraction of rows that is held out and scored after each epoch; 0 trains on all rows.
        random_state: an integer seed; equal seeds give equal models on the same machine.
        output_dir: the run folder; a temporary one if None.
        verbose: whether to show progress on standard error.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: the number of texts in a row, 1 or 2.
        run_: the trained `Predictor`.
        result_: the `RunResult`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AttentuneClassifier:
        """Train the classifier.

        Args:
            X: N texts, N pairs of texts, or an array or data frame of one or two columns of texts.
            y: (N,) classes of any sortable type.
            sample_weight: (N,) factors of the losses of the rows, divided by their mean; all 1 if None.

        Returns:
            The estimator itself.

        Raises:
            ValueError: X, y or sample_weight is invalid, their lengths differ, or y has fewer than two classes.
            AttentuneError: a setting is invalid, or training fails.
        """
        check_consistent_length(X, y)
        space, labels_N, classes = _classes_of(y)
        self._train(X, labels_N, space, sample_weight)
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the (N, C) probabilities, in the order of `classes_`."""
        return probabilities_of(self._logits(X), self.run_.label_space)


class AttentuneRegressor(RegressorMixin, _TextEstimator):
    """Predict scores of texts or pairs of texts; the arguments are those of `AttentuneClassifier`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AttentuneRegressor:
        """Train the regressor on (N,) target scores; else as `AttentuneClassifier.fit`."""
        check_consistent_length(X, y)
        self._train(X, scores_of(y), LabelSpace("regression"), sample_weight)
        return self


class AttentuneAuto(_TextEstimator):
    """Find and train the best model for texts or pairs of texts within a time limit, as `attentune auto` does.

    Args:
        time_limit: the time for `fit`, such as "90s", "10m" or "1h", or a number of seconds.
        task_type: "classification" or "regression"; None for regression if y holds numbers with fractions.
        model_name_or_path: the encoder; "embedded" needs no network.
        encoders: several encoders to try; default: `model_name_or_path`.
        portfolio: names of members to try; default: all that fit the rows.
        exclude: names of members to leave out.
        deliver: "best", or "single" for one encoder that learns from the best.
        metric: the metric that decides; default: accuracy, or Pearson's correlation.
        max_length: the maximum length of a text, or a pair of texts, in tokens.
        jobs: worker processes; default: one per core on a CPU, else one.
        settings: settings of all members by dotted name.
        random_state: an integer seed.
        output_dir: the run folder; a temporary one if None.
        verbose: whether to show progress on standard error.

    Attributes:
        classes_: the classes, sorted; only for classification.
        n_features_in_: the number of texts in a row, 1 or 2.
        run_: the delivered `Predictor`.
        result_: the `AutoResult`, with the leaderboard and the estimate for new rows.
    """

    def __init__(
        self,
        *,
        time_limit: str | float = "10m",
        task_type: str | None = None,
        model_name_or_path: str = "embedded",
        encoders: Sequence[str] | None = None,
        portfolio: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        deliver: str = "best",
        metric: str | None = None,
        max_length: int = 128,
        jobs: int | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: int = 42,
        output_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.time_limit = time_limit
        self.task_type = task_type
        self.model_name_or_path = model_name_or_path
        self.encoders = encoders
        self.portfolio = portfolio
        self.exclude = exclude
        self.deliver = deliver
        self.metric = metric
        self.max_length = max_length
        self.jobs = jobs
        self.settings = settings
        self.random_state = random_state
        self.output_dir = output_dir
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AttentuneAuto:
        """Find and train the best model; arguments as for `AttentuneClassifier.fit`, with classes or scores as y."""
        from attentune.automl.auto import auto
        from attentune.automl.budget import parse_duration
        from attentune.automl.work import AutoProgress

        check_consistent_length(X, y)
        space, labels_N, classes = self._labelled(y)
        rows = self._rows(X, labels_N, sample_weight, reset=True)
        search = functools.partial(
            auto,
            data=TaskData(FROM_PYTHON, space, _METRICS[space.task_type], {"train": rows}),
            time_limit_s=parse_duration(self.time_limit),
            encoders=tuple(self.encoders or ()),
            portfolio=self.portfolio,
            exclude=tuple(self.exclude),
            deliver=self.deliver,
            jobs=self.jobs,
            display=AutoProgress(quiet=not self.verbose),
        )
        self._fit_by(search, space, {"training.metric_for_best_model": self.metric})
        if classes is not None:
            self.classes_ = classes
        return self

    def _labelled(self, y: Any) -> tuple[LabelSpace, np.ndarray, np.ndarray | None]:
        """Return the label space of y, class ids or scores, and the classes."""
        if self.task_type not in (None, "classification", "regression"):
            raise ValueError(f"task_type: got {self.task_type!r}, expected classification or regression.")
        check_one_column(y)
        values_N = np.asarray(y)
        has_fractions = values_N.dtype.kind == "f" and bool(np.any(values_N != np.floor(values_N)))
        if self.task_type == "regression" or (self.task_type is None and has_fractions):
            return LabelSpace("regression"), scores_of(values_N), None
        return _classes_of(y)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the (N, C) probabilities, in the order of `classes_`.

        Raises:
            AttributeError: scores have no probabilities.
        """
        logits_NC = self._logits(X)
        if self.run_.label_space.task_type == "regression":
            raise AttributeError("predict_proba: scores have no probabilities; use predict.")
        return probabilities_of(logits_NC, self.run_.label_space)

    def score(self, X: Any, y: Any) -> float:
        """Return the metric that decided, on these rows; negated if less is better, as scikit-learn's scorers do."""
        from attentune.metrics.metrics import METRICS

        if self.run_.label_space.task_type == "regression":
            labels_N = scores_of(y)
        else:
            names_N = labels_of(y)
            unknown = sorted(set(names_N.tolist()) - set(self.classes_.tolist()), key=str)
            if unknown:
                raise ValueError(f"y: got the class {unknown[0]!r}, which was not fitted on.")
            labels_N = np.searchsorted(self.classes_, names_N)
        predictions_N = predictions_of(self._logits(X), self.run_.label_space)
        metric = METRICS[self.result_.metric]
        return (1.0 if metric.greater_is_better else -1.0) * metric.score(labels_N, predictions_N)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.task_type == "regression":
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        else:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags


def _classes_of(y: Any) -> tuple[LabelSpace, np.ndarray, np.ndarray]:
    """Return the label space of y, the (N,) class ids, and the sorted classes, whose names must differ as text."""
    classes, labels_N = np.unique(labels_of(y, stacklevel=4), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    if len(names) < 2:
        raise ValueError(f"y: got one class ({', '.join(names)}), expected at least 2.")
    if len(set(names)) < len(names):
        raise ValueError(f"y: got classes that read the same as text ({', '.join(names)}); rename them.")
    return LabelSpace("classification", names), labels_N.astype(np.int64), classes


def labels_of(y: Any, *, stacklevel: int = 3) -> np.ndarray:
    """Return the (N,) class labels, of any sortable type."""
    check_one_column(y)
    _check_labels(y)
    labels_N = column_or_1d(np.asarray(y), warn=True)
    if labels_N.dtype.kind == "f":
        expected = "a class (unknown label type: continuous numbers; AttentuneRegressor takes them)"
        check_each(labels_N.tolist(), "y", lambda label: label == np.floor(label), expected)
    twins: dict[str, str] = {}  # texts that a file would hold for one class
    for name in sorted({label for label in labels_N.tolist() if isinstance(label, str)}):
        if (other := twins.setdefault(label_key(name), name)) != name:
            warnings.warn(
                f"y: the classes {other!a} and {name!a} are equal but for invisible characters or zeros; they are two"
                " classes here. Write one of them in all rows if they are one.",
                UserWarning,
                stacklevel=stacklevel,
            )
    return labels_N


def check_one_column(y: Any) -> None:
    """Refuse several labels a row where NumPy would make one object of them; equal lists are left to scikit-learn."""
    if y is None or issparse(y):
        got = "None" if y is None else f"a sparse matrix of shape {y.shape}"
        raise ValueError(f"y should be a 1d array, got {got} instead.")
    if not hasattr(y, "__iter__") or (hasattr(y, "ndim") and y.ndim != 1):
        return
    for place, value in enumerate(y):
        if isinstance(value, (set, frozenset, dict)) or (
            isinstance(value, (list, tuple, np.ndarray)) and (hasattr(y, "ndim") or len(value) != len(y[0]))
        ):
            raise ValueError(
                f"y should be a 1d array, got {str(value)[:60]} in row {place} instead. Several labels a row are"
                " trained from a file: attentune train --task_type multi_label."
            )


def _check_labels(y: Any) -> None:
    """Check the labels as they are given, since NumPy makes texts of gaps and numbers beside texts."""
    if isinstance(y, np.ndarray) and y.dtype.kind in "iubU":
        return
    values = y.tolist() if hasattr(y, "tolist") else y.to_list() if hasattr(y, "to_list") else y
    if not isinstance(values, (list, tuple)) or any(isinstance(value, (list, tuple, np.ndarray)) for value in values):
        return  # not one column, which scikit-learn names
    check_each(values, "y", lambda label: not is_missing(label), "a label in each row; NaN and None are none")
    check_each(
        values,
        "y",
        lambda label: not isinstance(label, bytes) and label not in (float("inf"), float("-inf")),
        "a text or a number; infinity and bytes are no classes",
    )
    first = next(iter(values), "")
    kind = "text" if isinstance(first, str) else "number"
    check_each(
        values,
        "y",
        lambda label: isinstance(label, str) == isinstance(first, str),
        f"a {kind} as in row 0 ({first!r}): labels of one type",
    )


def scores_of(y: Any) -> np.ndarray:
    """Return the (N,) scores."""
    check_one_column(y)
    values_N = column_or_1d(np.asarray(y), warn=True)
    check_each(values_N.tolist(), "y", _is_score, "a finite number in each row; None, NaN and infinity are none")
    return np.asarray(values_N, dtype=np.float64)


def _is_score(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def weights_of(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Return the (N,) weights scaled to a mean of 1, so that only their ratios matter; None if all are equal."""
    if sample_weight is None:
        return None
    weights_N = np.asarray(column_or_1d(np.asarray(sample_weight)), dtype=np.float64)
    if len(weights_N) != rows or not (np.isfinite(weights_N).all() and (weights_N >= 0).all() and weights_N.any()):
        raise ValueError(
            f"sample_weight: got {len(weights_N)} values from {weights_N.min(initial=np.inf):g} to"
            f" {weights_N.max(initial=-np.inf):g}, expected a number of at least 0 for each of {rows}"
            " rows, not all zero."
        )
    return None if np.ptp(weights_N) == 0 else weights_N / weights_N.mean()


def texts_of(X: Any) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Read the texts of X."""
    if isinstance(X, str):
        raise ValueError("X: got one text, expected a list of texts: put it in [brackets].")
    if issparse(X):
        raise TypeError("X: got a sparse matrix, expected texts or pairs of texts, without a vectorizer before.")
    rows = np.asarray(X).tolist() if hasattr(X, "__array__") else list(X)
    if not rows:
        raise ValueError("X: got no rows (0 sample(s)), expected at least 1.")
    columns = [_row(row, place) for place, row in enumerate(rows)]
    width = max(map(len, columns))
    for part in range(width):
        values = [row[part] if part < len(row) else "" for row in columns]
        checked_texts(values, "X" if width == 1 else f"X, text {part + 1}")
    lengths = {len(row) for row in columns}
    if not lengths <= {1} and not lengths <= {2}:
        raise ValueError(f"X: got rows of {', '.join(map(str, sorted(lengths)))} texts, expected 1 or 2 in each.")
    firsts = tuple(row[0] for row in columns)
    return firsts, tuple(row[1] for row in columns) if lengths == {2} else None


def _row(row: Any, place: int) -> Sequence[Any]:
    texts = list(row) if isinstance(row, (list, tuple, np.ndarray)) else [row]
    if not texts:
        raise InputError(f"X: row {place} is empty, expected a text or two.")
    return texts
