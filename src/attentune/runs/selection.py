"""Ranks the trials of a search: by score, or by mean and deviation over three parts of the rows (pure functions)."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.data.splits import stratified_folds
from attentune.inference.predictions import values_of
from attentune.metrics.metrics import METRICS

RULES = ("score", "three-parts")
PARTS = 3
_SMALLEST = 1e-6  # probabilities are written with six decimals


@dataclass(frozen=True)
class SelectionCriterion:
    """How trials are ranked: by mean - k std, or mean + k std where lower scores are better."""

    rule: str = "score"  # "score", the mean over seeds; or "three-parts", the mean over three parts of the rows
    k: float = 1.0  # the weight of the standard deviation; ignored for "score"
    metric: str = "accuracy"  # the metric's name

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
    """The outcome of a trial."""

    name: str  # "trial-0001" and so on
    params: dict[str, Any]  # the point of the space
    settings: dict[str, Any]  # the point's settings, by dotted name
    status: str  # "done", "pruned", "failed" or "running"
    scores: tuple[float, ...] = ()  # the scores of each seed, or of each seed's parts
    value: float | None = None  # the ranking value; None if the trial is not done or its score is undefined
    seconds: float = 0.0  # the wall time of all its runs
    message: str = ""  # why it failed, or its score when it was pruned

    @property
    def mean(self) -> float | None:
        """The mean of its scores."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """The standard deviation of its scores (n - 1)."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def ranked(
    trials: Sequence[TrialOutcome],
    criterion: SelectionCriterion,
    *,
    loss: Callable[[TrialOutcome], float | None] = lambda trial: None,
) -> list[TrialOutcome]:
    """Sort trials: best first, those without a value last. The sort is stable."""
    order = {"done": 0, "pruned": 1, "failed": 2, "running": 3}
    times = Counter(trial.value for trial in trials)

    def place(trial: TrialOutcome) -> tuple[Any, ...]:
        if trial.value is None:
            return (True, 0.0, math.inf, order[trial.status])
        lost = loss(trial) if times[trial.value] > 1 else None
        return (False, criterion.key(trial.value), math.inf if lost is None else lost, order[trial.status])

    return sorted(trials, key=place)  # stable


def part_scores(predictions: str, metric: str, *key: int | str) -> list[float]:
    """Return the metric on each of three stratified parts of the rows."""
    labels, predicted, _ = _columns(predictions)
    return [
        METRICS[metric].score(labels[places], predicted[places]) for places in stratified_folds(labels, PARTS, *key)
    ]


def prediction_loss(predictions: str) -> float | None:
    """Return the mean cross-entropy of a run's predictions; None without probabilities, as of scores."""
    labels, _, probabilities_NC = _columns(predictions)
    if not probabilities_NC.size:
        return None
    likely_NC = probabilities_NC.clip(_SMALLEST, 1 - _SMALLEST)
    if labels.ndim == 1:
        return float(-np.log(likely_NC[np.arange(len(labels)), labels]).mean())
    return float(-np.log(np.where(labels == 1, likely_NC, 1 - likely_NC)).mean())


def _columns(predictions: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels and predictions, as arrays of `values_of`, and (N, C) probabilities; C = 0 for scores."""
    header, *rows = csv.reader(io.StringIO(predictions))
    names = [name[2:] for name in header[3:] if name.startswith("p_")]
    several = header[1] == "labels"
    labels, predicted = (values_of([row[place] for row in rows], names, several=several) for place in (1, 2))
    probabilities_NC = np.array([row[3 : 3 + len(names)] for row in rows], dtype=np.float64)
    return labels, predicted, probabilities_NC
