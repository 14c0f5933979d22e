"""The interface of all baselines, each a linear model of features of the texts, and their files.

scikit-learn fits them: logistic regression for classes, one per label for multi-label tasks, ridge for scores.
"""

from __future__ import annotations

import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import save
from scipy import sparse
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression, Ridge

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import row_groups, stratified_folds, stratified_sample
from attentune.errors import ConfigError, DataError
from attentune.io.files import write_bytes, write_text

BASELINE_FILE, WEIGHTS_FILE = "baseline.json", "baseline.safetensors"


class Baseline(ABC):
    """A linear model of features of texts or pairs, for every type of task."""

    name: ClassVar[str]  # its name in the registry
    compares_pairs: ClassVar[bool] = False  # whether single texts have no such features
    reads_columns: ClassVar[bool] = False  # whether it reads the columns beside the texts too
    strengths: ClassVar[tuple[float, ...]] = ()  # inverse strengths of the penalty to choose from
    standardises: ClassVar[bool] = False

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.label_space: LabelSpace | None = None
        self.is_pair = False
        self.notes: tuple[str, ...] = ()
        self.linear: LinearModel  # once fitted; its features are not standardised
        self.penalty: Penalty | None = None  # once fitted; None for a baseline without one

    def fit(self, rows: TextRows, label_space: LabelSpace, penalty: Penalty | None = None) -> Self:
        """Fit the labels of rows, weighted by `rows.weights` if they have weights; choose the penalty if None."""
        if rows.labels is None or len(rows) == 0:
            raise DataError(f"{rows.source}: got no labelled rows, expected at least one to fit {self.name} on.")
        if (reason := self.misfit(is_pair=rows.pairs is not None, has_columns=bool(rows.extra))) is not None:
            raise ConfigError(f"baseline: {self.name} {reason}; expected frozen-linear, tfidf-linear or majority.")
        self.label_space, self.is_pair, self.penalty = label_space, rows.pairs is not None, penalty
        self.linear, self.notes = self._fit(rows, rows.labels, label_space)
        return self

    @classmethod
    def misfit(cls, *, is_pair: bool, has_columns: bool) -> str | None:
        """Return why the baseline does not fit such rows; None if it does."""
        if cls.compares_pairs and not is_pair:
            return "needs pairs of texts, but the rows are single texts"
        if cls.reads_columns and not has_columns:
            return "needs columns beside the text (--extra_columns), but the rows have none"
        return None

    def _fit(self, rows: TextRows, labels: np.ndarray, space: LabelSpace) -> tuple[LinearModel, tuple[str, ...]]:
        notes: tuple[str, ...] = ()
        limit = self._affordable_rows(rows)
        if limit < len(rows):
            notes = (f"Fitted on a stratified sample of {limit:,} of {len(rows):,} training rows.",)
            rows = rows.take(stratified_sample(labels, limit, self._sampling_key, self.seed))
        rows = rows if self.reads_columns else with_class_names(rows, space)
        model, self.penalty = fit_linear(
            self._features_to_fit(rows),
            np.asarray(rows.labels),
            space,
            weights=rows.weights,
            strengths=self.strengths,
            seed=self.seed,
            standardise=self.standardises and not has_many_classes(space, is_pair=self.is_pair),
            groups=row_groups(rows, near=False),
            penalty=self.penalty,
        )
        return model, (*notes, self.penalty.note)

    def logits(self, rows: TextRows) -> np.ndarray:
        """Return (N, C) float64 log-probabilities, logits of labels, or scores."""
        space = self.label_space
        if space is None:
            raise ValueError(f"{self.name}: call fit first")
        if (rows.pairs is not None) != self.is_pair:
            kinds = ("single texts", "pairs of texts")
            raise DataError(f"{rows.source}: got {kinds[not self.is_pair]}, expected {kinds[self.is_pair]}.")
        if len(rows) == 0:
            return np.zeros((0, space.num_labels))
        return np.asarray(self._predict(rows, space), dtype=np.float64)

    def cut_lengths(self, rows: TextRows) -> np.ndarray:
        """Return (N,) the tokens that are read of a row that is longer; 0 for a row that is read whole."""
        return np.zeros(len(rows), dtype=np.int64)

    def infrequent(self, rows: TextRows) -> dict[str, str]:
        """Return, for each column with a category that has no indicator of its own, the first such one."""
        return {}

    def save(self, folder: Path) -> None:
        """Write `baseline.json` and `baseline.safetensors` into an existing folder."""
        arrays, settings = self._state()
        content = {
            "name": self.name,
            "is_pair": self.is_pair,
            "label_space": None if self.label_space is None else asdict(self.label_space),
            "notes": list(self.notes),
            "settings": {"seed": self.seed, **settings},
        }
        write_bytes(Path(folder) / WEIGHTS_FILE, save({**self.linear.arrays(), **arrays}))
        write_text(Path(folder) / BASELINE_FILE, json.dumps(content, indent=1) + "\n")

    # What a kind of baseline defines.

    _sampling_key: ClassVar[str] = ""  # of the random sample, if there are more rows than can be afforded

    def _affordable_rows(self, rows: TextRows) -> int:
        return len(rows)

    @abstractmethod
    def _features(self, rows: TextRows) -> Matrix:
        """Return the (N, F) features of rows."""

    def _features_to_fit(self, rows: TextRows) -> Matrix:
        return self._features(rows)

    def _predict(self, rows: TextRows, space: LabelSpace) -> np.ndarray:
        return self.linear.logits(self._features(rows), space)

    @abstractmethod
    def _num_features(self) -> int:
        """Return F."""

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what `_restored` needs besides the linear model and the seed: arrays, and settings for JSON."""
        return {}, {}

    @classmethod
    def _restored(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        return cls(seed=int(settings["seed"]))


Matrix = Any  # a NumPy array or a sparse matrix of scipy

# From this number of classes on, single texts of a class are few and its name says much (results/intents).
MANY_CLASSES = 20


def has_many_classes(space: LabelSpace, *, is_pair: bool) -> bool:
    """Whether single texts have so many classes that the names of these are trained on."""
    return space.task_type == "classification" and not is_pair and space.num_labels >= MANY_CLASSES


def with_class_names(rows: TextRows, space: LabelSpace) -> TextRows:
    """Add a row for each of many classes with its name as the text: "card arrival" for card_arrival, none for c7."""
    is_many = has_many_classes(space, is_pair=rows.pairs is not None)
    if rows.labels is None or rows.targets is not None or not is_many:
        return rows
    texts = [re.sub(r"[\W_]+|(?<=[a-z])(?=[A-Z])", " ", name).strip() for name in space.names]
    named = [number for number, text in enumerate(texts) if re.search(r"[^\W\d_]{3}", text)]
    ids = tuple(f"name of {space.names[number]}" for number in named)
    names = TextRows(ids, tuple(texts[number] for number in named), None, np.array(named, np.int64), rows.source)
    return rows.joined(names)


# Rows that the regularisation is chosen on, and folds; the final fit uses all rows.
CHOICE_ROWS, CHOICE_FOLDS = 1000, 3
_ITERATIONS, _CHOICE_ITERATIONS = 1000, 100
# Of many classes on sparse features. CLINC150, two thirds of 7,500 rows: loss .312 on the others after 2.9 s, .311 of
# L-BFGS after 8.2 s (results/auto/limit.md).
_PASSES = 15
_LARGEST_LOSS = 50.0
_SCALES = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


@dataclass(frozen=True)
class LinearModel:
    weights_PD: np.ndarray  # one row of weights per output
    bias_P: np.ndarray  # one bias per output
    classes_P: np.ndarray  # the number of the class of each output; classes without an output did not occur in training
    absent: float = 0.0  # the probability of each class without an output

    def logits(self, features_ND: Matrix, label_space: LabelSpace) -> np.ndarray:
        """Return (N, C) log-probabilities, logits of labels, or scores; see `Baseline.logits`."""
        outputs_NP = np.asarray(features_ND @ self.weights_PD.T) + self.bias_P
        if label_space.task_type in ("regression", "multi_label"):
            return outputs_NP
        missing = label_space.num_labels - len(self.classes_P)
        logits_NC = np.full((len(outputs_NP), label_space.num_labels), np.log(self.absent) if missing else 0.0)
        logits_NC[:, self.classes_P] = log_softmax(outputs_NP, axis=1) + np.log1p(-missing * self.absent)
        return logits_NC

    def arrays(self) -> dict[str, np.ndarray]:
        return {f.name: np.ascontiguousarray(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> LinearModel:
        return cls(arrays["weights_PD"], arrays["bias_P"], arrays["classes_P"], arrays["absent"].item())

    def check(self, label_space: LabelSpace, features: int) -> None:
        """Check that a model from a file fits these labels and this number of features."""
        outputs, wanted, ids = len(self.classes_P), label_space.num_labels, self.classes_P.tolist()
        counts = range(1, wanted + 1) if label_space.task_type in ("classification", "ordinal") else (wanted,)
        shapes = (self.weights_PD.shape, self.bias_P.shape) == ((outputs, features), (outputs,))
        if not shapes or outputs not in counts or len(set(ids) & set(range(wanted))) < outputs:
            got = f"weights of shape {self.weights_PD.shape} and {outputs} outputs"
            raise ValueError(f"{got} do not fit {wanted} labels and {features} features")
        if not 0 <= self.absent * (wanted - outputs) < 1 or (outputs < wanted and self.absent <= 0):
            raise ValueError("classes without an output have no probability")


@dataclass(frozen=True)
class Penalty:
    """The inverse strength of the penalty, the factor of the outputs, and how they were chosen."""

    strength: float
    scale: float
    note: str


def fit_linear(
    features_ND: Matrix,
    labels: np.ndarray,
    label_space: LabelSpace,
    *,
    weights: np.ndarray | None,
    strengths: Sequence[float],
    seed: int,
    standardise: bool,
    groups: np.ndarray | None = None,
    penalty: Penalty | None = None,
) -> tuple[LinearModel, Penalty]:
    """Fit a linear model; without a penalty, C is chosen by the loss in cross-validation within these rows.

    Of many classes a scale of the outputs is chosen too: a strong penalty predicts best there, but too uncertainly.
    """
    weights = np.ones(len(labels)) if weights is None else weights
    mean_D, scale_D = np.zeros(features_ND.shape[1]), np.ones(features_ND.shape[1])
    if standardise:
        mean_D, deviation_D = features_ND.mean(axis=0), features_ND.std(axis=0)
        scale_D = np.where(deviation_D > 1e-9 * np.maximum(1.0, np.abs(mean_D)), deviation_D, 1.0)
        features_ND = (features_ND - mean_D) / scale_D
    if penalty is None:
        penalty = _choose_penalty(features_ND, labels, label_space, weights, sorted(strengths), seed, groups)
    strength, scale = penalty.strength, penalty.scale
    reduced = _Reduced.of(features_ND)
    model = reduced.expand(_fit(reduced.coordinates, labels, label_space, weights, strength, _ITERATIONS))
    if scale != 1.0:
        model = replace(model, weights_PD=scale * model.weights_PD, bias_P=scale * model.bias_P)
    if standardise:
        weights_PD = model.weights_PD / scale_D
        model = LinearModel(weights_PD, model.bias_P - weights_PD @ mean_D, model.classes_P, model.absent)
    # As a file has them: a product with weights of another memory order differs in the last bit.
    return replace(model, weights_PD=np.ascontiguousarray(model.weights_PD)), penalty


def _choose_penalty(
    features_ND: Matrix,
    labels: np.ndarray,
    label_space: LabelSpace,
    weights: np.ndarray,
    strengths: Sequence[float],
    seed: int,
    groups: np.ndarray | None,
) -> Penalty:
    middle = strengths[len(strengths) // 2]
    sampled = ""
    if len(labels) > CHOICE_ROWS:
        chosen = stratified_sample(labels, CHOICE_ROWS, "baseline strength", seed)
        features_ND, labels, weights = features_ND[chosen], labels[chosen], weights[chosen]
        groups = None if groups is None else np.unique(groups[chosen], return_inverse=True)[1]
        sampled = f" (a sample of {CHOICE_ROWS:,} rows)"
    # With fewer rows a fold would have hardly any to learn from.
    if len(labels) < 2 * CHOICE_FOLDS:
        return Penalty(middle, 1.0, f"C = {middle:g}: {len(labels)} rows are too few to choose it.")
    if groups is not None and len(np.unique(groups)) < CHOICE_FOLDS:
        groups = None
    folds = stratified_folds(labels, CHOICE_FOLDS, "baseline strength", seed, groups=groups)
    scales = _SCALES if has_many_classes(label_space, is_pair=False) else (1.0,)
    losses = np.zeros((len(strengths), len(scales)))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(labels)), fold)
        reduced = _Reduced.of(features_ND[rest])
        for number, strength in enumerate(strengths):
            inputs = (reduced.coordinates, labels[rest], label_space, weights[rest])
            model = reduced.expand(_fit(*inputs, strength, _CHOICE_ITERATIONS))
            logits = model.logits(features_ND[fold], label_space)
            for place, scale in enumerate(scales):
                row_losses = _losses(scale * logits, labels[fold], label_space)
                losses[number, place] += float(weights[fold] @ row_losses)
    best, place = divmod(int(losses.argmin()), len(scales))
    strength, scale = strengths[best], scales[place]
    scaled = "" if scale == 1.0 else f", outputs times {scale:g}"
    how = f"chosen by {CHOICE_FOLDS}-fold cross-validation on the training rows{sampled}."
    return Penalty(strength, scale, f"C = {strength:g}{scaled}, {how}")


@dataclass(frozen=True)
class _Reduced:
    """Features of few rows in as many dimensions as rows, which span the weights: fits the same model faster."""

    features_ND: Matrix
    coordinates: Matrix  # (N, R) coordinates of the rows
    dual_NR: np.ndarray | None  # from weights of the coordinates to weights of the rows; None if not reduced

    @classmethod
    def of(cls, features_ND: Matrix) -> _Reduced:
        rows, width = features_ND.shape
        if rows >= width or rows > CHOICE_ROWS:
            return cls(features_ND, features_ND, None)
        products_NN = features_ND @ features_ND.T
        dense_NN = products_NN.toarray() if sparse.issparse(products_NN) else products_NN
        values_R, vectors_NR = np.linalg.eigh(dense_NN)
        kept = values_R > max(values_R[-1], 0.0) * 1e-10
        if not kept.any():
            return cls(features_ND, features_ND, None)
        roots_R, vectors_NR = np.sqrt(values_R[kept]), vectors_NR[:, kept]
        return cls(features_ND, vectors_NR * roots_R, vectors_NR / roots_R)

    def expand(self, model: LinearModel) -> LinearModel:
        if self.dual_NR is None:
            return model
        weights_DP = self.features_ND.T @ (self.dual_NR @ model.weights_PD.T)
        return LinearModel(np.asarray(weights_DP).T, model.bias_P, model.classes_P, model.absent)


def _losses(logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace) -> np.ndarray:
    if label_space.task_type == "regression":
        return (logits_NC[:, 0] - labels) ** 2
    if label_space.is_multilabel:
        return np.logaddexp(0.0, np.where(labels > 0, -logits_NC, logits_NC)).mean(axis=1)
    # A class that a fold has not seen must not outweigh all other rows.
    chosen_N = logits_NC[np.arange(len(labels)), labels] - logsumexp(logits_NC, axis=1)
    return np.minimum(-chosen_N, _LARGEST_LOSS)


def _fit(
    features_ND: Matrix,
    labels: np.ndarray,
    label_space: LabelSpace,
    weights: np.ndarray,
    strength: float,
    iterations: int,
) -> LinearModel:
    if label_space.task_type == "regression":
        ridge = _quiet(Ridge(alpha=1.0 / strength, solver="auto"), features_ND, labels, weights)
        return LinearModel(np.atleast_2d(ridge.coef_), np.atleast_1d(ridge.intercept_), np.zeros(1, dtype=np.int64))

    def logistic(targets: np.ndarray) -> Any:
        model = LogisticRegression(C=strength, max_iter=iterations)
        if sparse.issparse(features_ND) and has_many_classes(label_space, is_pair=False):
            # Near the solution in a third of the time: L-BFGS keeps 20 copies of the weights, here millions.
            model.set_params(solver="saga", max_iter=_PASSES, random_state=0)
        return _quiet(model, features_ND, targets, weights)

    if label_space.is_multilabel:
        fitted = [_label_output(labels[:, label], features_ND.shape[1], logistic) for label in range(labels.shape[1])]
        return LinearModel(
            np.stack([weights_D for weights_D, _ in fitted]),
            np.array([bias for _, bias in fitted]),
            np.arange(labels.shape[1]),
        )
    classes_P = np.unique(labels).astype(np.int64)
    absent = 1.0 / (len(labels) + label_space.num_labels) if len(classes_P) < label_space.num_labels else 0.0
    if len(classes_P) == 1:
        return LinearModel(np.zeros((1, features_ND.shape[1])), np.zeros(1), classes_P, absent)
    model = logistic(labels)
    weights_PD, bias_P = model.coef_, model.intercept_
    if len(classes_P) == 2:  # scikit-learn has one output for two classes
        weights_PD = np.concatenate([np.zeros_like(weights_PD), weights_PD])
        bias_P = np.concatenate([np.zeros_like(bias_P), bias_P])
    return LinearModel(weights_PD, bias_P, classes_P, absent)


def _label_output(ones_N: np.ndarray, features: int, logistic: Callable[[np.ndarray], Any]) -> tuple[np.ndarray, float]:
    """Weights and bias of one label; a constant for a label that all rows or no rows have."""
    count, rows = int(ones_N.sum()), len(ones_N)
    if count in (0, rows):
        return np.zeros(features), float(np.log((count + 0.5) / (rows - count + 0.5)))
    model = logistic(ones_N)
    return model.coef_[0], float(model.intercept_[0])


def _quiet(model: Any, features_ND: Matrix, targets: np.ndarray, weights: np.ndarray) -> Any:
    with warnings.catch_warnings():
        # The weakest regularisation may not converge within the iterations; its loss decides whether it is chosen. Many
        # classes of few rows are no scores.
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(features_ND, targets, sample_weight=weights)
