"""Estimate a mean over seeds, or over seeds and examples, with its confidence interval and p value.

The values are usually differences of two methods, paired by seed (and example), and the null hypothesis is that their
mean is zero. All functions accept leading axes, for many data sets at once.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import stdtrit

# Resampled values that are held in memory at once.
_VALUES_PER_BATCH = 4_000_000


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float],
    rows: int,
    *,
    generator: np.random.Generator,
    resamples: int = 1000,
) -> tuple[float, float]:
    """Compute the 95 % percentile bootstrap interval of a statistic of rows.

    Two statistics whose generators have the same key see the same resamples.
    """
    if rows < 2:
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        # Undefined resamples are counted below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (np.arange(rows),), statistic, n_resamples=resamples, method="percentile", vectorized=False, rng=generator
        )
    values = result.bootstrap_distribution
    defined = values[np.isfinite(values)]
    if len(defined) < 0.9 * resamples:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, (0.025, 0.975))
    return float(low), float(high)


def bootstrap_mean(
    values_N: np.ndarray, *, generator: np.random.Generator, resamples: int = 1000
) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval of a mean over examples; it ignores the variation between seeds."""
    if len(values_N) < 2:
        return float("nan"), float("nan")
    result = bootstrap_of_mean(values_N, generator=generator, resamples=resamples)
    low, high = result.confidence_interval
    return float(low), float(high)


def bootstrap_of_mean(values_N: np.ndarray, *, generator: np.random.Generator, resamples: int) -> Any:
    """Run `scipy.stats.bootstrap` with a 95 % interval for the mean of (N,) values, in batches of bounded size."""
    batch = max(1, _VALUES_PER_BATCH // len(values_N))
    return stats.bootstrap(
        (values_N,),
        np.mean,
        n_resamples=resamples,
        method="percentile",
        vectorized=True,
        batch=batch,
        rng=generator,
    )


def wilson_interval(successes: float, rows: float) -> tuple[float, float]:
    """Compute Wilson's 95 % score interval of a proportion; NaN for no rows. Numbers may be effective ones.

    Unlike the mean +- 1.96 standard errors it stays within 0 and 1, and has a positive width at 0 and 1.

    Source: Wilson, JASA 22, 1927.
    """
    if rows == 0:
        return float("nan"), float("nan")
    return _wilson_ends(successes / rows, _NORMAL_QUANTILE**2 / rows)


_NORMAL_QUANTILE = 1.959963984540054  # of 0.975


def _wilson_ends(share: float, excess: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval; `excess`: z^2 variance / (p (1 - p)), z^2 / N for N independent rows."""
    centre, radius = share + excess / 2, math.sqrt(excess * (share * (1 - share) + excess / 4))
    return max(0.0, (centre - radius) / (1 + excess)), min(1.0, (centre + radius) / (1 + excess))


_BISECTIONS = 50
_SMALLEST_LOG10_P = -100.0
# A variance below this share of the largest squared value is rounding error: of means, of differences of mean squares.
_ROUNDING = 1e-24
_ROUNDING_OF_SQUARES = 1e-13


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; each field has the leading shape of the values (a number for one data set)."""

    value: np.ndarray  # the mean
    low: np.ndarray  # the lower bound of the interval
    high: np.ndarray  # the upper bound
    p: np.ndarray  # two-sided, for the null hypothesis that the true mean is zero; NaN as above
    seed_variance: np.ndarray  # the part of the variance of the mean that more seeds would reduce
    example_variance: np.ndarray  # the part that only more examples would reduce; 0 if examples are treated as fixed


def mean_over_seeds(values_S: np.ndarray, *, confidence: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Estimate the mean of one number per seed, with the t interval.

    Null hypothesis of p: over all seeds that could have been drawn, the mean is zero, for these examples. For paired
    differences this is the paired t test. It assumes independent and approximately normal values; in
    cross-validation they are not, because folds share training rows. With `overlap` the variance of the mean is
    (1 / S + overlap) times the variance of the values instead of 1 / S times: the corrected resampled t test.

    Source: Nadeau and Bengio, Machine Learning 52, 2003, section 3; for repeated folds Bouckaert and Frank, PAKDD 2004.
    """
    values_S = np.asarray(values_S, dtype=np.float64)
    seeds = values_S.shape[-1]
    mean = values_S.mean(axis=-1) if seeds else np.full(values_S.shape[:-1], np.nan)
    if seeds < 2:
        nothing = np.full_like(mean, np.nan)
        return Estimate(mean, nothing, nothing, nothing, nothing, np.zeros_like(mean))
    variance = _without_rounding(values_S.var(axis=-1, ddof=1), np.abs(values_S).max(axis=-1)) * (1 / seeds + overlap)
    return _estimate(mean, (variance, seeds - 1), (np.zeros_like(variance), 1), confidence)


def mean_over_seeds_and_examples(values_SN: np.ndarray, *, confidence: float = 0.95) -> Estimate:
    """Estimate the mean of one number per seed and example, with both treated as random samples.

    Null hypothesis of p: over all seeds and all examples that could have been drawn, the mean is zero.

    Seeds and examples are crossed random effects: value = mean + seed + example + residual. With the mean squares MS of
    a two-way table without replication, the mean has the variance

        MS_seed / (S N)  +  max(0, MS_example - MS_residual) / (S N)

    The first part is the variance between the means of the seeds, the second is added by the examples. The half-widths
    of the two parts, each with the t quantile of its own degrees of freedom, add as squares (modified large-sample
    method). So the interval is never narrower than the t interval over seeds, and equal to it if the examples add
    nothing; p is the level at which the interval just touches zero. The approximation is conservative:
    docs/statistics.md has the measured rates.

    Source: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4; Graybill and Wang, JASA 75, 1980.
    """
    values_SN = np.asarray(values_SN, dtype=np.float64)
    seeds, examples = values_SN.shape[-2:]
    if seeds < 2 or examples < 2:
        raise ValueError(f"values are {seeds} seeds x {examples} examples; expected at least 2 of each")
    by_seed_S, by_example_N = values_SN.mean(axis=-1), values_SN.mean(axis=-2)
    mean = by_seed_S.mean(axis=-1)
    largest = np.abs(values_SN).max(axis=(-2, -1))
    square_sum = (values_SN**2).sum(axis=(-2, -1)) - seeds * examples * mean**2
    seed_sum = examples * (seeds - 1) * by_seed_S.var(axis=-1, ddof=1)
    example_sum = seeds * (examples - 1) * by_example_N.var(axis=-1, ddof=1)
    rest_mean_square = np.maximum(square_sum - seed_sum - example_sum, 0.0) / ((seeds - 1) * (examples - 1))
    example_mean_square = example_sum / (examples - 1)
    seed_variance = _without_rounding(by_seed_S.var(axis=-1, ddof=1), largest) / seeds
    left_over = np.maximum(example_mean_square - rest_mean_square, 0.0)
    example_variance = _without_rounding(left_over, largest, _ROUNDING_OF_SQUARES) / (seeds * examples)
    return _estimate(mean, (seed_variance, seeds - 1), (example_variance, examples - 1), confidence)


def bounded_interval(estimate: Estimate, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the interval of a mean of values within `bounds`; it stays within them.

    Between two bounds: Wilson's score interval, with the estimated variance of the mean in place of that of a
    proportion. An end p is as far from the mean m as the half-width allows if the variance at p is to that at m as
    p (1 - p) to m (1 - m). Above one bound: the interval of the logarithm.

    Source: Wilson, JASA 22, 1927; for estimated variances Kott and Carr, Journal of Official Statistics 13, 1997.
    """
    (low, high), mean, width = bounds, float(estimate.value), float(estimate.high - estimate.value)
    if not math.isfinite(width) or not low < mean < high or math.isinf(low):
        return float(estimate.low), float(estimate.high)
    if math.isinf(high):
        ratio = math.exp(width / (mean - low))
        return low + (mean - low) / ratio, low + (mean - low) * ratio
    share = (mean - low) / (high - low)
    ends = _wilson_ends(share, (width / (high - low)) ** 2 / (share * (1 - share)))
    return low + (high - low) * ends[0], low + (high - low) * ends[1]


def _without_rounding(variance: np.ndarray, largest: np.ndarray, share: float = _ROUNDING) -> np.ndarray:
    return np.where(variance <= share * largest**2, 0.0, variance)


def _estimate(
    mean: np.ndarray, seed: tuple[np.ndarray, int], example: tuple[np.ndarray, int], confidence: float
) -> Estimate:
    """Build the estimate from the two parts of the variance, each with its degrees of freedom."""
    width = half_width(seed, example, 1.0 - confidence)
    certain = seed[0] + example[0] == 0
    # All values are equal: p is 1 for a mean of zero; otherwise there is no variance to compare the mean with.
    width = np.where(certain & (mean != 0), np.nan, width)
    p = np.where(certain, np.where(mean == 0, 1.0, np.nan), _p_value(np.abs(mean), seed, example))
    # [()] turns the 0-d arrays of one data set into numbers.
    return Estimate(mean, mean - width, mean + width, p[()], seed[0][()], example[0][()])


def half_width(seed: tuple[np.ndarray, int], example: tuple[np.ndarray, int], alpha: float | np.ndarray) -> np.ndarray:
    """Compute half the width of the interval at level `alpha`, from (variance, degrees of freedom) of the two parts."""
    tail = np.asarray(alpha) / 2.0
    return np.sqrt(stdtrit(seed[1], tail) ** 2 * seed[0] + stdtrit(example[1], tail) ** 2 * example[0])


def _p_value(distance: np.ndarray, seed: tuple[np.ndarray, int], example: tuple[np.ndarray, int]) -> np.ndarray:
    """Find the level at which the half-width is the distance of the mean from zero, by bisection on its logarithm."""
    low, high = np.full_like(distance, _SMALLEST_LOG10_P), np.zeros_like(distance)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        too_wide = half_width(seed, example, 10.0**middle) > distance
        low, high = np.where(too_wide, middle, low), np.where(too_wide, high, middle)
    return 10.0 ** ((low + high) / 2.0)
