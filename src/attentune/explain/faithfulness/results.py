"""Results of the faithfulness evaluation: means over texts with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import Interval, bootstrap_mean


@dataclass(frozen=True)
class MethodScore:
    """Scores of one method under one kind of erasure.

    Attributes:
        method: a key of `attribution.registry.METHODS`.
        signed: whether the method's scores can be negative.
        erasure: one of `ERASURES`.
        comprehensiveness: mean drop in probability without the top-ranked tokens; high is good.
        sufficiency: mean drop with only the top-ranked tokens; low is good.
        difference: comprehensiveness minus the first method's, paired by text; None for the first method.
        bins: (K,) comprehensiveness and (K,) sufficiency at each share of tokens.
        naopc_comprehensiveness: normalised AOPC of the short texts; 1 is the best possible order, 0 the worst.
        naopc_sufficiency: the same of the reversed order; low is good.
        naopc_rows: the number of texts behind these two.
    """

    method: str
    signed: bool
    erasure: str
    comprehensiveness: Interval
    sufficiency: Interval
    difference: Interval | None
    bins: dict[str, list[float]]
    naopc_comprehensiveness: Interval | None = None
    naopc_sufficiency: Interval | None = None
    naopc_rows: int = 0


@dataclass(frozen=True)
class MethodCost:
    """The mean cost of a method per text in this evaluation: passes (see `Explanation.passes`) and seconds."""

    method: str
    passes: float
    seconds: float


@dataclass(frozen=True)
class FaithfulnessReport:
    """The report of `measure_faithfulness`.

    Attributes:
        run: the run's folder.
        rows: number of texts evaluated.
        left_out: number of texts left out because all their tokens are special.
        accuracy: on these rows; None without labels.
        shares: shares of tokens erased (the bins).
        draws: random orders that the random baseline averages over.
        beam: beam width of the search for NAOPC bounds; 0 for none.
        beam_tokens: maximum number of tokens of a text for that search.
        precision: arithmetic precision of the model.
        seed: of all random choices.
        scores: one per method and erasure.
        costs: one per method.
    """

    run: str
    rows: int
    left_out: int
    accuracy: float | None
    shares: list[float]
    draws: int
    beam: int
    beam_tokens: int
    precision: str
    seed: int
    scores: list[MethodScore]
    costs: list[MethodCost]


def mean_interval(values_N: np.ndarray, seed: int) -> Interval:
    """Compute the mean of finite values with its 95 % bootstrap interval; equal numbers of rows share resamples."""
    known = values_N[np.isfinite(values_N)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    generator = numpy_generator("faithfulness", seed, len(known))
    low, high = bootstrap_mean(known[None], over="examples", generator=generator)
    return Interval(float(known.mean()), low, high)
