"""What was found of methods of explanation: means over texts with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import Interval, bootstrap_mean


@dataclass(frozen=True)
class MethodScore:
    """One method under one erasure.

    Attributes:
        method: a key of `explain.methods.METHODS`.
        signed: whether its scores speak for the class and against it.
        erasure: one of `explain.erasure.ERASURES`.
        comprehensiveness: the mean fall without the first tokens; high is good.
        sufficiency: the mean fall with nothing but them; low is good.
        difference: comprehensiveness minus the first method's, text by text; None for that one itself.
        bins: (K,) comprehensiveness and (K,) sufficiency at each of the shares.
        naopc_comprehensiveness: the normalised form, of the short texts; 1 is the best order there is, 0 the worst.
        naopc_sufficiency: that of the order turned round; low is good.
        naopc_rows: of how many texts.
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
    """What a method's scores cost in this run of the command: texts through the model and seconds, a text."""

    method: str
    passes: float
    seconds: float


@dataclass(frozen=True)
class FaithfulnessReport:
    """What `measure_faithfulness` found.

    Attributes:
        run: the run's folder.
        rows: how many texts were measured.
        left_out: how many had no ordinary token.
        accuracy: on these rows, where they have labels.
        shares: the bins.
        draws: how many random orders the floor is the mean of.
        beam: of the search for the limits; 0: not searched.
        beam_tokens: the most tokens of a text whose limits were searched.
        precision: the arithmetic.
        seed: of what is drawn.
        scores: by method and erasure.
        costs: by method.
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
    """The mean with its 95 % bootstrap interval over the rows; of as many rows all means see the same resamples."""
    known = values_N[np.isfinite(values_N)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    generator = numpy_generator("faithfulness", seed, len(known))
    low, high = bootstrap_mean(known[None], over="examples", generator=generator)
    return Interval(float(known.mean()), low, high)
