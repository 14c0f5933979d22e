"""Metrics, with the names used by GLUE in the `evaluate` library, and whether greater is better."""

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.plugins import load_plugin, plugin_names
from attentune.stats.verdict import class_probabilities, predict_labels

Score = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Metric:
    """A metric over labels and predictions: (N,) class ids or scores, or multi-label (N, C) ones and zeros.

    Attributes:
        needs: the labels it is defined for: "classes", "two classes", "an order" (ordinal classes or scores), "sets"
            (multi-label), or "classes or sets".
    """

    name: str
    score: Score
    greater_is_better: bool = True
    needs: str = "classes"


# scikit-learn and scipy are imported when a metric is computed: they take a second, and predicting needs neither.


def _correlation(function: str) -> Score:
    def score(labels: np.ndarray, predictions: np.ndarray) -> float:
        # The correlation with a constant is undefined, not zero.
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return float("nan")
        return float(getattr(importlib.import_module("scipy.stats"), function)(labels, predictions).statistic)

    return score


def _averaged(function: str, average: str) -> Score:
    """F1, precision or recall: of the second class ("binary"), or averaged over classes; 0 for 0 / 0."""

    def score(labels: np.ndarray, predictions: np.ndarray) -> float:
        # For samples, no labels and no predictions are correct; for classes, 0 / 0 counts as 0.
        compute = getattr(importlib.import_module("sklearn.metrics"), function)
        return float(compute(labels, predictions, average=average, zero_division=float(average == "samples")))

    return score


def _balanced_accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean([np.mean(predictions[labels == label] == label) for label in np.unique(labels)]))


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # for a single label scikit-learn returns 0, as GLUE does, but warns about the shape
        return float(matthews_corrcoef(labels, predictions))


def _quadratic_kappa(labels: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import cohen_kappa_score

    if np.array_equal(labels, predictions):
        return 1.0
    # Include all classes in between, so that distances do not depend on which classes occur.
    both = np.concatenate([labels, predictions])
    classes = np.arange(both.min(), both.max() + 1)
    return float(cohen_kappa_score(labels, predictions, labels=classes, weights="quadratic"))


# With a constant prediction they count as 0.
CORRELATIONS = ("matthews_correlation", "quadratic_weighted_kappa", "pearson", "spearmanr")


class _MetricTable(Mapping[str, Metric]):
    """Our metrics, and metrics of other packages, which are imported when the table is first read."""

    def __init__(self, own: Sequence[Metric]) -> None:
        self._own = {metric.name: metric for metric in own}

    @cached_property
    def _all(self) -> dict[str, Metric]:
        found = dict(self._own)
        for name in plugin_names("attentune.metrics"):
            metric = load_plugin("attentune.metrics", name)
            if not isinstance(metric, Metric) or metric.name in found:
                what = f"the name {metric.name}" if isinstance(metric, Metric) else type(metric).__name__
                raise ConfigError(f"{name}: got {what}, expected an attentune.metrics.metrics.Metric with a new name.")
            found[metric.name] = metric
        return found

    def __getitem__(self, name: str) -> Metric:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def bounds(self, name: str) -> tuple[float, float]:
        """Return the lowest and the highest value of a metric; metrics of other packages may have any."""
        if name in ("mean_absolute_error", "mean_squared_error") or name not in self._own:
            return (0.0 if name in self._own else -math.inf), math.inf
        return (-1.0 if name in CORRELATIONS else 0.0), 1.0


METRICS = _MetricTable(
    (
        Metric("accuracy", lambda labels, predictions: float(np.mean(labels == predictions))),
        Metric("balanced_accuracy", _balanced_accuracy),
        Metric("f1", _averaged("f1_score", "binary"), needs="two classes"),
        Metric("precision", _averaged("precision_score", "binary"), needs="two classes"),
        Metric("recall", _averaged("recall_score", "binary"), needs="two classes"),
        Metric("f1_macro", _averaged("f1_score", "macro"), needs="classes or sets"),
        Metric("f1_micro", _averaged("f1_score", "micro"), needs="classes or sets"),
        Metric("f1_weighted", _averaged("f1_score", "weighted"), needs="classes or sets"),
        Metric("precision_macro", _averaged("precision_score", "macro"), needs="classes or sets"),
        Metric("recall_macro", _averaged("recall_score", "macro"), needs="classes or sets"),
        Metric("f1_samples", _averaged("f1_score", "samples"), needs="sets"),
        Metric(
            "subset_accuracy",
            lambda labels, predictions: float(np.mean((labels == predictions).all(axis=1))),
            needs="sets",
        ),
        Metric(
            "hamming_loss",
            lambda labels, predictions: float(np.mean(labels != predictions)),
            greater_is_better=False,
            needs="sets",
        ),
        Metric("matthews_correlation", _matthews),
        Metric("quadratic_weighted_kappa", _quadratic_kappa),
        Metric("pearson", _correlation("pearsonr"), needs="an order"),
        Metric("spearmanr", _correlation("spearmanr"), needs="an order"),
        Metric(
            "mean_absolute_error",
            lambda labels, predictions: float(np.mean(np.abs(labels - predictions))),
            greater_is_better=False,
            needs="an order",
        ),
        Metric(
            "mean_squared_error",
            lambda labels, predictions: float(np.mean((labels - predictions) ** 2)),
            greater_is_better=False,
            needs="an order",
        ),
    )
)


def predictions_of(logits_NC: np.ndarray, label_space: LabelSpace) -> np.ndarray:
    """Return the predictions of logits: (N,) class ids or scores, or multi-label (N, C) int64 ones and zeros.

    Thresholds and ordinal predictions are applied by `stats.verdict.predict_labels`.
    """
    if label_space.task_type == "regression":
        return logits_NC[:, 0]
    is_plain = label_space.thresholds is None and label_space.ordinal_prediction == "argmax"
    if is_plain and not label_space.is_multilabel:
        return logits_NC.argmax(axis=1)  # no probabilities are needed
    return predict_labels(
        probabilities_of(logits_NC, label_space),
        task_type=label_space.task_type,
        ordinal_prediction=label_space.ordinal_prediction,
        thresholds=label_space.thresholds,
    )


def probabilities_of(logits_NC: np.ndarray, label_space: LabelSpace) -> np.ndarray:
    """Return the (N, C) softmax of the logits in float64; for multi-label the sigmoid."""
    return class_probabilities(logits_NC, is_multilabel=label_space.is_multilabel)


def score_predictions(
    names: Sequence[str], labels: np.ndarray, logits_NC: np.ndarray, label_space: LabelSpace
) -> dict[str, float]:
    """Compute metrics of predictions, by name; NaN if one is undefined."""
    predictions = predictions_of(logits_NC, label_space)
    return {name: METRICS[name].score(labels, predictions) for name in names}


def choose_metric(wanted: str | None, names: Sequence[str], label_space: LabelSpace) -> Metric:
    """Choose the metric that selects the best model: the wanted one, otherwise the task's first.

    Raises:
        ConfigError: the wanted metric does not exist, or is not defined for this task.
    """
    if wanted is None:
        return METRICS[names[0]]
    name = wanted.removeprefix("eval_")  # transformers' spelling
    has = {
        "classes": label_space.task_type in ("classification", "ordinal"),
        "two classes": label_space.task_type in ("classification", "ordinal") and label_space.num_labels == 2,
        "an order": label_space.task_type in ("regression", "ordinal"),
        "sets": label_space.is_multilabel,
        "classes or sets": label_space.task_type != "regression",
    }
    usable = [metric.name for metric in METRICS.values() if has[metric.needs]]
    if name not in usable:
        turned = ["_".join(reversed(name.replace("-", "_").split("_")))]  # macro-F1 for f1_macro
        near = did_you_mean(turned[0].lower(), usable) or did_you_mean(name, usable)
        raise ConfigError(f"training.metric_for_best_model: got {wanted!r}, expected one of {', '.join(usable)}.{near}")
    return METRICS[name]
