"""One method on one task in numbers: a cell of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attentune.stats.estimate import Estimate, mean_over_seeds, mean_over_seeds_and_examples
from attentune.stats.runs import Runs


@dataclass(frozen=True)
class Summary:
    """Mean and spread of one method's scores on one task, in the metric's own unit.

    Attributes:
        method: its name.
        task: its name.
        metric: its name.
        mean: over seeds; NaN without a score.
        sd: the standard deviation over seeds, with S - 1; NaN for fewer than two.
        low: the lower end of the mean's interval; NaN for fewer than two seeds.
        high: its upper end.
        over: what the interval takes for drawn: "seeds", "seeds and examples", or "folds".
        seeds: how many have a score.
        examples: how many were used; None where they are taken as given.
        collapsed: the seeds whose run scores no better than the majority guess, or has no defined score.
    """

    method: str
    task: str
    metric: str
    mean: float
    sd: float
    low: float
    high: float
    over: str
    seeds: int
    examples: int | None
    collapsed: tuple[int, ...]


def summarise(runs: Runs, *, confidence: float = 0.95) -> Summary:
    """The summary of a method's runs, with the interval that its comparisons use too."""
    seeds = runs.seeds()
    scores_S = np.array([runs.score(seed) for seed in seeds])
    estimate, examples = estimate_of(scores_S, runs.example_values(seeds), confidence, runs.overlap)
    return Summary(
        method=runs.method,
        task=runs.task,
        metric=runs.metric,
        mean=float(estimate.value),
        sd=float(scores_S.std(ddof=1)) if len(seeds) > 1 else math.nan,
        low=float(estimate.low),
        high=float(estimate.high),
        over="folds" if runs.overlap else "seeds" if examples is None else "seeds and examples",
        seeds=len(seeds),
        examples=examples,
        collapsed=tuple(runs.collapsed()),
    )


def estimate_of(
    scores_S: np.ndarray, values_SN: np.ndarray | None, confidence: float, overlap: float = 0.0
) -> tuple[Estimate, int | None]:
    """Over seeds and examples where there are values of examples and two seeds, over seeds alone otherwise."""
    if values_SN is None or len(scores_S) < 2:
        return mean_over_seeds(scores_S, confidence=confidence, overlap=overlap), None
    return mean_over_seeds_and_examples(values_SN, confidence=confidence), values_SN.shape[1]
