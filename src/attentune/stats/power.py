"""Minimum detectable effects: the smallest true differences that a number of rows, or of seeds and examples, can show.

The power analysis of NLP test sets with McNemar's test follows Card et al., "With Little Power Comes Great
Responsibility" (EMNLP 2020). statsmodels has no power of McNemar's test, and its t test power fails to converge at the
levels that Holm's correction needs.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from attentune.stats.estimate import half_width

DEFAULT_DISAGREEMENT = 0.1
DEFAULT_CORRELATION = 0.8


def minimum_detectable_accuracy_difference(
    n: int, disagreement: float = DEFAULT_DISAGREEMENT, power: float = 0.8, alpha: float = 0.05
) -> float:
    """Compute the smallest true difference in accuracy of two models on the same `n` rows that McNemar's test detects.

    With b and c the rows that only the first, or only the second model gets right, the two-sided test rejects where
    |b - c| / sqrt(b + c) exceeds the normal quantile (no continuity correction). If exactly one model is right on a
    share d of the rows, b - c has mean n g and variance n (d - g^2) at a true difference g. The power is reached when

        g sqrt(n) = z_alpha sqrt(d) + z_power sqrt(d - g^2)

    which is solved here for g. The difference cannot exceed d; if the solution would, the models are assumed to
    disagree on exactly as many rows as the difference needs (d = g).

    The exact (binomial) test is slightly more conservative: on 20 to 5,000 rows it detects these differences with a
    power of 75 to 79 % (by simulation).

    Source: Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43,
    1987; McNemar, Psychometrika 12, 1947.
    """
    z_alpha, z_power = ndtri([1 - alpha / 2, power]).tolist()
    if n < z_alpha**2:
        return math.nan
    # The larger root of the squared equation for d = 1; for another d it is sqrt(d) times that, for d = g its square.
    root = (math.sqrt(n) * z_alpha + z_power * math.sqrt(n + z_power**2 - z_alpha**2)) / (n + z_power**2)
    return min(1.0, root * max(math.sqrt(disagreement), root))


def minimum_detectable_correlation_difference(
    n: int, baseline: float = DEFAULT_CORRELATION, power: float = 0.8, alpha: float = 0.05
) -> float:
    """Compute the smallest increase over a `baseline` correlation that is detected on `n` rows.

    Fisher's z = artanh(r) has a variance of about 1 / (n - 3), so the difference of two independent ones has twice
    that variance, and the detected increase of z is (z_alpha + z_power) sqrt(2 / (n - 3)).

    This treats the two correlations as independent. Those of two models on the same rows are positively dependent, so a
    paired test detects smaller increases: the result is an upper bound.

    Source: Fisher, Metron 1, 1921; Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd edition 1988,
    chapter 4.
    """
    z_alpha, z_power = ndtri([1 - alpha / 2, power]).tolist()
    if n <= 3:
        return math.nan
    increase_of_z = (z_alpha + z_power) * math.sqrt(2 / (n - 3))
    return math.tanh(math.atanh(baseline) + increase_of_z) - baseline


_STEPS = 2000


def minimum_detectable_effect(
    seeds: int,
    seed_sd: float,
    *,
    examples: int = 2,
    example_sd: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """Compute the smallest true difference that the intervals of `stats.estimate` distinguish from zero.

    The seed variance is estimated from few seeds, so the width of the interval is itself random: the power is averaged
    over its chi-square distribution. The example variance is treated as known. Without it the result equals the
    paired t test's (noncentral t).
    """
    error = math.hypot(seed_sd / math.sqrt(seeds), example_sd / math.sqrt(examples))
    if error == 0:
        return math.nan
    # In units of the standard error, so that the search does not depend on the metric's unit.
    seed_share = seed_sd**2 / seeds / error**2
    variance_ratio_K = chi2.ppf((np.arange(_STEPS) + 0.5) / _STEPS, seeds - 1) / (seeds - 1)
    widths_K = half_width(
        (seed_share * variance_ratio_K, seeds - 1), (np.full(_STEPS, 1.0 - seed_share), examples - 1), alpha
    )

    def missing_power(difference: float) -> float:
        rejected_K = ndtr(difference - widths_K) + ndtr(-difference - widths_K)
        return float(rejected_K.mean()) - power

    return error * float(brentq(missing_power, 0.0, float(widths_K.max()) + 10.0))
