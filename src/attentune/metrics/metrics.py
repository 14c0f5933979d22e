"""Metrics, with the names used by GLUE in the `evaluate` library, and whether greater is better."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.metrics.confusion import SCORES_OF_SUMS, ConfusionSums, ratio
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


def _sample_f1(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    sizes_N = (labels + predictions).sum(axis=1)  # 0 if a row has no labels and none are predicted, which is right
    return np.where(sizes_N == 0, 1.0, ratio(2.0 * (labels & predictions).sum(axis=1), sizes_N))


# Metrics that are the mean of these (N,) values of rows.
VALUES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda labels, predictions: labels == predictions,
    "subset_accuracy": lambda labels, predictions: (labels == predictions).all(axis=1),
    "hamming_loss": lambda labels, predictions: (labels != predictions).mean(axis=1),
    "f1_samples": _sample_f1,
    "mean_absolute_error": lambda labels, predictions: np.abs(labels - predictions),
    "mean_squared_error": lambda labels, predictions: (labels - predictions) ** 2,
}


def weighted_score(name: str, labels: np.ndarray, predictions: np.ndarray) -> Callable[[np.ndarray], float] | None:
    """Return a function from the (N,) weights of rows to their score, from sums; None for correlations and the like.

    For resamples, in which the weight of a row is how often it was drawn: much faster than scoring copies of rows.
    """
    if name in VALUES:
        values_N = VALUES[name](labels, predictions)
        return lambda weights: float(weights @ values_N / weights.sum())
    if (of_sums := SCORES_OF_SUMS.get(name)) is None:
        return None
    if labels.ndim == 1:
        return lambda weights: float(of_sums(ConfusionSums.of_rows(labels, predictions, weights)))
    parts_NC = [part.astype(np.float64) for part in (labels & predictions, labels, predictions)]

    def score(weights: np.ndarray) -> float:
        hits_C, true_C, predicted_C = (weights @ part_NC for part_NC in parts_NC)
        return float(of_sums(ConfusionSums(hits_C, true_C, predicted_C, is_sets=True)))

    return score


def _score_of(name: str) -> Score:
    def score(labels: np.ndarray, predictions: np.ndarray) -> float:
        if (weighted := weighted_score(name, labels, predictions)) is not None:
            return weighted(np.ones(len(labels)))
        # The correlation with a constant is undefined, not zero.
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return float("nan")
        from scipy import stats  # imported late: it takes a second, and predicting does not need it

        return float((stats.pearsonr if name == "pearson" else stats.spearmanr)(labels, predictions).statistic)

    return score


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


_NEEDS = {
    "accuracy": "classes",
    "balanced_accuracy": "classes",
    "f1": "two classes",
    "precision": "two classes",
    "recall": "two classes",
    "f1_macro": "classes or sets",
    "f1_micro": "classes or sets",
    "f1_weighted": "classes or sets",
    "precision_macro": "classes or sets",
    "recall_macro": "classes or sets",
    "f1_samples": "sets",
    "subset_accuracy": "sets",
    "hamming_loss": "sets",
    "matthews_correlation": "classes",
    "quadratic_weighted_kappa": "classes",
    "pearson": "an order",
    "spearmanr": "an order",
    "mean_absolute_error": "an order",
    "mean_squared_error": "an order",
}
_ERRORS = ("hamming_loss", "mean_absolute_error", "mean_squared_error")
METRICS = _MetricTable([Metric(name, _score_of(name), name not in _ERRORS, needs) for name, needs in _NEEDS.items()])


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
    """Choose the metric that selects the best model: the wanted one, otherwise the task's first."""
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
