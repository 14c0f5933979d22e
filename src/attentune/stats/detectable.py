"""How small a true difference so many seeds and examples can show."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2

from attentune.stats.estimate import half_width_of

_STEPS = 2000


def smallest_detectable_difference(
    seeds: int,
    seed_sd: float,
    *,
    examples: int = 2,
    example_sd: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """The true difference that the interval of `estimate` tells from zero with the given power.

    The seeds' part of the variance is estimated from few seeds, so the interval's width is itself a matter of luck: the
    power is averaged over a chi-square spread of it. The examples' part is taken as known. Without it this is the
    power of the paired t test (the noncentral t).

    Args:
        seeds: how many, 2 or more.
        seed_sd: the standard deviation over seeds of the two methods' paired differences, in the metric's unit.
        examples: how many.
        example_sd: the standard deviation over examples of the difference that remains with endless seeds; 0 where the
            examples are taken as given.
        alpha: the chance of a false alarm, two-sided; in a family of M comparisons alpha / M is on the safe side.
        power: the chance of finding a difference of that size.

    Returns:
        The difference, in the unit of `seed_sd`; NaN where nothing varies.

    Raises:
        ValueError: fewer than 2 seeds or examples, a negative spread, or chances out of range.
    """
    _check(seeds, examples, seed_sd, example_sd, alpha, power)
    error = math.hypot(seed_sd / math.sqrt(seeds), example_sd / math.sqrt(examples))
    if error == 0:
        return math.nan
    # In units of the standard error, so that the search does not depend on the metric's unit.
    seed_share = seed_sd**2 / seeds / error**2
    luck_K = chi2.ppf((np.arange(_STEPS) + 0.5) / _STEPS, seeds - 1) / (seeds - 1)
    widths_K = half_width_of((seed_share * luck_K, seeds - 1), (np.full(_STEPS, 1.0 - seed_share), examples - 1), alpha)

    def missing_power(difference: float) -> float:
        found = ndtr(difference - widths_K) + ndtr(-difference - widths_K)
        return float(found.mean()) - power

    return error * float(brentq(missing_power, 0.0, float(widths_K.max()) + 10.0))


def _check(seeds: int, examples: int, seed_sd: float, example_sd: float, alpha: float, power: float) -> None:
    if seeds < 2 or examples < 2:
        raise ValueError(f"seeds is {seeds} and examples {examples}; expected at least 2 of each")
    if not (seed_sd >= 0 and example_sd >= 0):
        raise ValueError(f"seed_sd is {seed_sd} and example_sd {example_sd}; expected no less than 0")
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise ValueError(f"alpha is {alpha} and power {power}; expected 0 < alpha < power < 1")
