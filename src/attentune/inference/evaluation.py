"""What a run gets right and wrong on labelled rows: scores with intervals, by class, confusions, worst errors."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import DataError
from attentune.inference.scoring import Evaluator
from attentune.metrics.calibration import error_of, soft_cross_entropy
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import METRICS, predictions_of, probabilities_of
from attentune.metrics.rejection import (
    IN_SCOPE_SCORE,
    REJECTED,
    is_right,
    maximum_probability,
    rejection_scores,
    separation,
)
from attentune.seeding import numpy_generator

# Bootstrap resamples; fewer for many rows, whose intervals are narrow and whose scores take long.
_RESAMPLES, _MANY_ROWS, _FEWER_RESAMPLES = 1000, 5000, 200


@dataclass(frozen=True)
class ScoredMetric:
    """A score with its 95 % interval over rows; NaN where it is undefined."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, or of one label of several."""

    name: str  # the class
    # precision, recall, f1: 0 for 0 / 0.
    precision: float
    recall: float
    f1: float
    rows: int  # the number of rows with this class
    predicted: int  # the number of rows that are predicted as it


@dataclass(frozen=True)
class RowError:
    row: int  # its index in the split
    id: str
    # label, prediction: the true and the predicted label as text.
    label: str
    prediction: str
    size: float  # how wrong: the predicted class's probability minus the true one's


@dataclass(frozen=True)
class SplitEvaluation:
    split: str  # its name
    rows: int  # the number of rows
    metrics: tuple[ScoredMetric, ...]  # the scores, most important first
    classes: tuple[ClassScores, ...]  # by class; empty for scores
    confusion: np.ndarray | None  # (C, C) counts, rows are true classes; None for scores and several labels
    calibration_error: float | None  # the expected calibration error; None for scores
    errors: tuple[RowError, ...]  # the wrong rows, worst first; for scores all rows
    predictions: np.ndarray  # (N,) class ids or scores, or (N, C) ones and zeros
    out_of_scope: dict[str, Any] | None = None  # how well texts of no class are told apart, where there are some

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the errors and predictions, ready for JSON."""
        return {
            "rows": self.rows,
            "intervals": {one.name: [one.low, one.high] for one in self.metrics},
            "classes": [asdict(one) for one in self.classes],
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "calibration_error": self.calibration_error,
            "wrong_rows": len(self.errors) if self.classes else None,
        }


def evaluate_split(
    split: str, rows: TextRows, logits_NC: np.ndarray, label_space: LabelSpace, metrics: Sequence[str]
) -> SplitEvaluation:
    if rows.labels is None or not len(rows):
        raise DataError(f"{split}: has no labels to score against; use predict for such rows.")
    labels, predictions = np.asarray(rows.labels), predictions_of(logits_NC, label_space)
    scored = []
    for name in metrics:
        value, low, high = score_interval(
            METRICS[name],
            labels,
            predictions,
            generator=numpy_generator("evaluate", 0),  # the same resamples for all metrics
            resamples=_RESAMPLES if len(rows) <= _MANY_ROWS else _FEWER_RESAMPLES,
        )
        scored.append(ScoredMetric(name, value, low, high))
    if rows.targets is not None:
        entropy_N = soft_cross_entropy(logits_NC, rows.targets, label_space)
        value, half = float(entropy_N.mean()), 1.96 * float(entropy_N.std()) / len(rows) ** 0.5
        scored.append(ScoredMetric("soft_cross_entropy", value, value - half, value + half))
    is_regression = label_space.task_type == "regression"
    single = not is_regression and not label_space.is_multilabel
    ids = np.arange(label_space.num_labels)
    return SplitEvaluation(
        split=split,
        rows=len(rows),
        metrics=tuple(scored),
        classes=() if is_regression else _by_class(labels, predictions, label_space),
        confusion=confusion_matrix(labels, predictions, labels=ids) if single else None,
        calibration_error=None if is_regression else error_of(logits_NC, labels, label_space),
        errors=row_errors(rows, predictions, probabilities_of(logits_NC, label_space), label_space),
        predictions=predictions,
    )


def evaluate_out_of_scope(evaluator: Evaluator, split: str, outside: Evaluator) -> dict[str, Any]:
    """Say how well the rows of a split that was predicted are told from the texts of no class of another evaluator.

    By the score of the run, and what its threshold keeps and loses; without one by the maximum probability.
    """
    rejection = evaluator.rejection
    sides = ((evaluator, split), (outside, "input"))
    columns = [one.rejection_columns(name) for one, name in sides]
    known_N, unknown_N = (
        np.array(found[IN_SCOPE_SCORE]) if rejection else maximum_probability(one.logits[name], one.label_space)
        for found, (one, name) in zip(columns, sides, strict=True)
    )
    found = {
        "score": "probability" if rejection is None else rejection.score,
        "rows": len(known_N),
        "out_of_scope_rows": len(unknown_N),
        **separation(known_N, unknown_N),
    }
    if rejection is not None:
        right_N = is_right(evaluator.logits[split], np.asarray(evaluator.splits[split].labels), evaluator.label_space)
        found |= {"accuracy": float(right_N.mean())}
        known_rejected_N, unknown_rejected_N = (np.array(one[REJECTED]) for one in columns)
        found |= rejection_scores(known_rejected_N, unknown_rejected_N, right_N)
    return found


def _by_class(labels: np.ndarray, predictions: np.ndarray, label_space: LabelSpace) -> tuple[ClassScores, ...]:
    ids = list(range(label_space.num_labels))
    precision, recall, f1, rows = precision_recall_fscore_support(labels, predictions, labels=ids, zero_division=0.0)
    as_sets_NC = predictions if label_space.is_multilabel else predictions[:, None] == ids
    predicted = as_sets_NC.sum(axis=0)
    return tuple(
        ClassScores(name, float(precision[k]), float(recall[k]), float(f1[k]), int(rows[k]), int(predicted[k]))
        for k, name in enumerate(label_space.names)
    )


def row_errors(
    rows: TextRows, predictions: np.ndarray, shares_NC: np.ndarray, label_space: LabelSpace
) -> tuple[RowError, ...]:
    """Return the wrong rows, worst first; for scores all rows."""
    every, labels = np.arange(len(rows)), np.asarray(rows.labels)
    if label_space.task_type == "regression":
        size_N, wrong = np.abs(labels - predictions), every
    elif label_space.is_multilabel:
        size_N = np.abs(shares_NC - labels).max(axis=1)
        wrong = np.flatnonzero((labels != predictions).any(axis=1))
    else:
        size_N = shares_NC[every, predictions] - shares_NC[every, labels]
        wrong = np.flatnonzero(labels != predictions)
    order = wrong[np.argsort(-size_N[wrong], kind="stable")]
    return tuple(
        RowError(
            int(row),
            rows.ids[row],
            label_space.text_of(labels[row]),
            label_space.text_of(predictions[row]),
            float(size_N[row]),
        )
        for row in order
    )
