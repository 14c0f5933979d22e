"""The scores of one method on one task, by seed: what every comparison starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attentune.stats.estimate import Estimate, mean_over_seeds, mean_over_seeds_and_examples


@dataclass(frozen=True)
class Runs:
    """One method's runs on one task, one a seed.

    Two methods are compared seed by seed, so a seed must mean the same to both: the same training rows in the same
    order, the same examples, and the same start of whatever parts they share.

    Attributes:
        method: its name.
        task: its name.
        metric: its name.
        scores: by seed; NaN (or None) where the metric is undefined, as a correlation with a constant is.
        examples: by seed, (N,) values whose mean is the score, in the same order in all runs of the task: correctness
            for accuracy, errors for a mean error, `jackknife_values` for any other metric. Without them a comparison
            takes the examples as given.
        greater_is_better: the metric's direction.
        guess: what the majority guess scores, where that is known. Runs at or below it count as collapsed, and an
            undefined score counts as it.
        overlap: of cross-validation, whose runs share training rows, the rows scored on over the rows trained on: with
            K folds 1 / (K - 1). 0 where runs were drawn apart.
    """

    method: str
    task: str
    metric: str
    scores: Mapping[int, float | None]
    examples: Mapping[int, np.ndarray] | None = None
    greater_is_better: bool = True
    guess: float | None = None
    overlap: float = 0.0

    def score(self, seed: int) -> float:
        """The score of a seed, the guess's where it is undefined; NaN if that is not known either."""
        score = self.scores.get(seed)
        if score is None or not math.isfinite(score):
            return math.nan if self.guess is None else self.guess
        return score

    def seeds(self) -> list[int]:
        """The seeds with a score, ascending."""
        return [seed for seed in sorted(self.scores) if math.isfinite(self.score(seed))]

    def collapsed(self) -> list[int]:
        """The seeds whose run scores no better than the majority guess, or has no defined score."""
        sign = 1.0 if self.greater_is_better else -1.0
        found = []
        for seed in sorted(self.scores):
            score = self.scores[seed]
            undefined = score is None or not math.isfinite(score)
            if undefined or (self.guess is not None and sign * (self.score(seed) - self.guess) <= 1e-12):
                found.append(seed)
        return found

    def example_values(self, seeds: list[int]) -> np.ndarray | None:
        """(S, N) the example values of these seeds; None unless all have theirs.

        Raises:
            ValueError: the values of two seeds differ in number, or do not have the score as their mean.
        """
        if self.examples is None or not seeds or any(seed not in self.examples for seed in seeds):
            return None
        rows = [np.asarray(self.examples[seed], dtype=np.float64) for seed in seeds]
        if not all(np.isfinite(row).all() for row in rows):
            return None
        shapes = {row.shape for row in rows}
        if len(shapes) > 1 or len(rows[0].shape) != 1 or rows[0].size < 2:
            raise ValueError(f"{self._name()}: example values have shapes {sorted(shapes)}; expected one (N,) for all")
        for seed, row in zip(seeds, rows, strict=True):
            if not math.isclose(row.mean(), self.score(seed), rel_tol=1e-5, abs_tol=1e-6):
                raise ValueError(
                    f"{self._name()}, seed {seed}: the example values have the mean {row.mean():g}, but the score is "
                    f"{self.score(seed):g}; for a metric that is no mean over examples pass its jackknife_values"
                )
        return np.stack(rows)

    def _name(self) -> str:
        return f"{self.method} on {self.task} ({self.metric})"


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
