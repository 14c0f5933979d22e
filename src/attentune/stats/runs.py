"""The scores of one method on one task by seed: the input of every comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attentune.stats.estimate import Estimate, mean_over_seeds, mean_over_seeds_and_examples


@dataclass(frozen=True)
class Runs:
    """The runs of one method on one task, one per seed.

    Two methods are compared seed by seed, so a seed must mean the same for both: the same training rows in the same
    order, the same examples, and the same initial weights of the parts that they share.
    """

    method: str  # the name of the method
    task: str  # the name of the task
    metric: str  # the name of the metric
    scores: Mapping[int, float | None]  # the score by seed
    # By seed, (N,) values whose mean is the score, in the same order in all runs of the task: correctness for accuracy,
    # errors for a mean error, `jackknife_values` for any other metric. Without them a comparison treats the examples as
    # fixed.
    examples: Mapping[int, np.ndarray] | None = None
    greater_is_better: bool = True  # the direction of the metric
    majority_score: float | None = None  # the score of always predicting the majority class, if known
    overlap: float = 0.0  # for cross-validation

    def score(self, seed: int) -> float:
        """Return the score of a seed, the majority score if it is undefined, or NaN if that is unknown too."""
        score = self.scores.get(seed)
        if score is None or not math.isfinite(score):
            return math.nan if self.majority_score is None else self.majority_score
        return score

    def seeds(self) -> list[int]:
        """List the seeds with a score, ascending."""
        return [seed for seed in sorted(self.scores) if math.isfinite(self.score(seed))]

    def collapsed(self) -> list[int]:
        """List the seeds whose run scores no better than the majority class, or has no defined score."""
        sign, majority = 1.0 if self.greater_is_better else -1.0, self.majority_score
        collapsed = []
        for seed in sorted(self.scores):
            score = self.scores[seed]
            undefined = score is None or not math.isfinite(score)
            if undefined or (majority is not None and sign * (self.score(seed) - majority) <= 1e-12):
                collapsed.append(seed)
        return collapsed

    def example_values(self, seeds: list[int]) -> np.ndarray | None:
        """Return the (S, N) values per example of these seeds; None unless all of them have values."""
        if self.examples is None or not seeds or any(seed not in self.examples for seed in seeds):
            return None
        rows = [np.asarray(self.examples[seed], dtype=np.float64) for seed in seeds]
        if not all(np.isfinite(row).all() for row in rows):
            return None
        shapes = {row.shape for row in rows}
        if len(shapes) > 1 or len(rows[0].shape) != 1 or rows[0].size < 2:
            raise ValueError(
                f"{self._name()}: example values have shapes {sorted(shapes)}; expected the same (N,) for all seeds"
            )
        for seed, row in zip(seeds, rows, strict=True):
            if not math.isclose(row.mean(), self.score(seed), rel_tol=1e-5, abs_tol=1e-6):
                raise ValueError(
                    f"{self._name()}, seed {seed}: the example values have the mean {row.mean():g}, but the score is "
                    f"{self.score(seed):g}; for a metric that is not a mean over examples pass its jackknife_values"
                )
        return np.stack(rows)

    def _name(self) -> str:
        return f"{self.method} on {self.task} ({self.metric})"


@dataclass(frozen=True)
class Summary:
    """Mean and spread of one method's scores on one task, in the unit of the metric."""

    method: str  # the name of the method
    task: str  # the name of the task
    metric: str  # the name of the metric
    mean: float  # the mean over seeds; NaN without a score
    sd: float  # the sample standard deviation over seeds; NaN for fewer than two
    low: float  # the lower bound of the interval of the mean; NaN for fewer than two seeds
    high: float  # the upper bound
    over: str  # what the interval treats as random: "seeds", "seeds and examples", or "folds"
    seeds: int  # the number of seeds with a score
    examples: int | None  # the number of examples; None if they are treated as fixed
    collapsed: tuple[int, ...]  # the seeds whose run scores no better than the majority class, or has no defined score


def summarise(runs: Runs, *, confidence: float = 0.95) -> Summary:
    """Summarise the runs of a method, with the same kind of interval as its comparisons."""
    seeds = runs.seeds()
    scores_S = np.array([runs.score(seed) for seed in seeds])
    estimate, examples = estimate_mean(scores_S, runs.example_values(seeds), confidence, runs.overlap)
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


def estimate_mean(
    scores_S: np.ndarray, values_SN: np.ndarray | None, confidence: float, overlap: float = 0.0
) -> tuple[Estimate, int | None]:
    """Estimate the mean over seeds and examples if there are values per example and two seeds, else over seeds."""
    if values_SN is None or len(scores_S) < 2:
        return mean_over_seeds(scores_S, confidence=confidence, overlap=overlap), None
    return mean_over_seeds_and_examples(values_SN, confidence=confidence), values_SN.shape[1]
