"""Ranks the trials of a search: by score, or by mean and deviation over three parts of the rows (pure functions)."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.data.splits import stratified_folds
from attentune.inference.predictions import values_of
from attentune.metrics.metrics import METRICS

RULES = ("score", "three-parts")
PARTS = 3


@dataclass(frozen=True)
class SelectionCriterion:
    """How trials are ranked: by mean - k std, or mean + k std where lower scores are better.

    Attributes:
        rule: "score", the mean over seeds; or "three-parts", the mean over three parts of the rows.
        k: the weight of the standard deviation; ignored for "score".
        metric: the metric's name.
    """

    rule: str = "score"
    k: float = 1.0
    metric: str = "accuracy"

    @property
    def greater_is_better(self) -> bool:
        """Whether a higher score is better."""
        return METRICS[self.metric].greater_is_better

    def value(self, scores: Sequence[float]) -> float | None:
        """Return the ranking value of a trial with these scores; None if one of them is undefined."""
        if not scores or not all(math.isfinite(score) for score in scores):
            return None
        mean = statistics.fmean(scores)
        if self.rule == "score":
            return mean
        return mean - (self.k if self.greater_is_better else -self.k) * statistics.stdev(scores)

    def key(self, value: float) -> float:
        """Return a sort key: the best value has the lowest."""
        return -value if self.greater_is_better else value


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial.

    Attributes:
        name: "trial-0001" and so on.
        params: the point of the space.
        settings: the point's settings, by dotted name.
        status: "done", "pruned", "failed" or "running".
        scores: the scores of each seed, or of each seed's parts; intermediate scores of a pruned trial are excluded.
        value: the ranking value; None if the trial is not done or its score is undefined.
        seconds: the wall time of all its runs.
        message: why it failed, or its score when it was pruned.
    """

    name: str
    params: dict[str, Any]
    settings: dict[str, Any]
    status: str
    scores: tuple[float, ...] = ()
    value: float | None = None
    seconds: float = 0.0
    message: str = ""

    @property
    def mean(self) -> float | None:
        """The mean of its scores."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """The standard deviation of its scores (n - 1)."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def ranked(trials: Sequence[TrialOutcome], criterion: SelectionCriterion) -> list[TrialOutcome]:
    """Sort trials: best first, those without a value last. The sort is stable."""
    order = {"done": 0, "pruned": 1, "failed": 2, "running": 3}

    def place(trial: TrialOutcome) -> tuple[Any, ...]:
        return (trial.value is None, 0.0 if trial.value is None else criterion.key(trial.value), order[trial.status])

    return sorted(trials, key=place)  # stable


def part_scores(predictions: str, metric: str, *key: int | str) -> list[float]:
    """Return the metric on each of three stratified parts of the rows.

    Args:
        predictions: a run's predictions with labels, as CSV text from `predictions_csv`.
        metric: the metric's name.
        key: the key of the random generator that cuts the parts.
    """
    labels, predicted = _columns(predictions)
    return [
        METRICS[metric].score(labels[places], predicted[places]) for places in stratified_folds(labels, PARTS, *key)
    ]


def _columns(predictions: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions, as arrays of `values_of`."""
    header, *rows = csv.reader(io.StringIO(predictions))
    names = [name[2:] for name in header[3:] if name.startswith("p_")]
    several = header[1] == "labels"
    labels, predicted = (values_of([row[place] for row in rows], names, several=several) for place in (1, 2))
    return labels, predicted
