"""How small a difference a set of rows can show: plan an evaluation before reading much into its figures.

The idea of asking this of NLP's test sets, and of McNemar's test for it, follows Card et al., "With Little Power Comes
Great Responsibility" (EMNLP 2020).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from attentune.stats.estimate import half_width_of

DEFAULT_DISAGREEMENT = 0.1
DEFAULT_CORRELATION = 0.8


def smallest_detectable_accuracy_gap(
    n: int, disagreement: float = DEFAULT_DISAGREEMENT, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest true gap in accuracy between two models, scored on the same `n` rows, that McNemar's test will find.

    With b and c the rows that only the first, or only the second model gets right, the two-sided test rejects where
    |b - c| / sqrt(b + c) exceeds the normal quantile (no continuity correction). Where just one is right on a share d
    of the rows, b - c has mean n g and variance n (d - g^2) at a true gap g, which is found with the given power when

        g sqrt(n) = z_alpha sqrt(d) + z_power sqrt(d - g^2)

    (Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43, 1987;
    McNemar, Psychometrika 12, 1947), which is solved here for g. A gap cannot exceed d; where the solution would, the
    two models are taken to disagree on just as many rows as the gap needs (d = g).

    The exact (binomial) test is a little more cautious: on 20 to 5,000 rows it finds these gaps with a power of 75 to
    79 % (by simulation).

    Args:
        n: rows that both models are scored on.
        disagreement: the assumed share of rows, in (0, 1], on which exactly one of the two models is right.
        power: the chance, from 0.5 to below 1, of finding a gap of that size.
        alpha: the chance of a false alarm where there is no gap, two-sided.

    Returns:
        The gap as a share of rows, at most 1; NaN where `n` is too small for even the largest gap (below 4 rows at
        alpha = 0.05).

    Raises:
        ValueError: for a `disagreement`, `power` or `alpha` outside its range.
    """
    z_alpha, z_power = _quantiles(power, alpha)
    if not 0 < disagreement <= 1:
        raise ValueError(f"disagreement is {disagreement}; expected a share above 0 and at most 1")
    if n < z_alpha**2:
        return math.nan
    # The larger root of the squared equation for d = 1; for another d it is sqrt(d) times that, for d = g its square.
    root = (math.sqrt(n) * z_alpha + z_power * math.sqrt(n + z_power**2 - z_alpha**2)) / (n + z_power**2)
    return min(1.0, root * max(math.sqrt(disagreement), root))


def smallest_detectable_correlation_gap(
    n: int, baseline: float = DEFAULT_CORRELATION, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest rise above a `baseline` correlation that a comparison of two correlations on `n` rows will find.

    Fisher's z = artanh(r) has a variance of about 1 / (n - 3), so the difference of two independent ones has twice
    that, and the rise in z that is found with the wished power is (z_alpha + z_power) sqrt(2 / (n - 3)) (Fisher, Metron
    1, 1921; Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd edition 1988, chapter 4).

    This treats the two correlations as independent. Two models scored on the same rows are not: their correlations rise
    and fall together, so a paired test finds smaller rises than this. Read the figure as an upper bound.

    Args:
        n: rows that both models are scored on.
        baseline: the weaker model's true correlation, in (-1, 1). The higher it is, the smaller the rise.
        power: the chance, from 0.5 to below 1, of finding a rise of that size.
        alpha: the chance of a false alarm where there is no rise, two-sided.

    Returns:
        The rise, below 1 - `baseline` by construction (and close to it where `n` is tiny); NaN for 3 rows or fewer.

    Raises:
        ValueError: for a `baseline`, `power` or `alpha` outside its range.
    """
    z_alpha, z_power = _quantiles(power, alpha)
    if not -1 < baseline < 1:
        raise ValueError(f"baseline is {baseline}; expected a correlation between -1 and 1, both left out")
    if n <= 3:
        return math.nan
    rise_in_z = (z_alpha + z_power) * math.sqrt(2 / (n - 3))
    return math.tanh(math.atanh(baseline) + rise_in_z) - baseline


def _quantiles(power: float, alpha: float) -> tuple[float, float]:
    if not 0.5 <= power < 1:
        raise ValueError(f"power is {power}; expected a chance from 0.5 to below 1")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; expected a chance between 0 and 1")
    return float(ndtri(1 - alpha / 2)), float(ndtri(power))


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
