"""Paired tests of two methods: over examples (two trained models on the same rows) and over seeds.

The tests over examples compare two trained models and say nothing about other seeds. The sign-flip test over seeds
makes few assumptions, but its p cannot fall below 2 / 2^S with S seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, chi2, permutation_test

from attentune.stats.estimate import bootstrap_of_mean

# From this many discordant rows on, McNemar's statistic is close enough to chi-square.
_FEW_DISCORDANT = 25
# Up to this many differences, all 2^16 = 65,536 sign patterns are enumerated.
_EXACT_SEEDS = 16
# Values that are permuted at once.
_VALUES_PER_BATCH = 4_000_000


@dataclass(frozen=True)
class McNemarResult:
    p: float  # two-sided
    only_first: int  # the number of rows that only the first model gets right
    only_second: int  # the number of rows that only the second model gets right


@dataclass(frozen=True)
class BootstrapTestResult:
    """A mean difference with its 95 % percentile interval over resamples of the examples, and the two-sided p."""

    difference: float
    low: float
    high: float
    p: float


def mcnemar_test(first_N: np.ndarray, second_N: np.ndarray) -> McNemarResult:
    """Run McNemar's test on the correctness of two models on the same rows.

    Null hypothesis: among the rows on which exactly one of the two trained models is right, each model is right
    equally often. With fewer than 25 such rows p is exact (binomial); with more it is from chi-square without the
    continuity correction, which would be too conservative.

    Source: McNemar, Psychometrika 12, 1947; on the continuity correction Fagerland, Lydersen and Laake, BMC Medical
    Research Methodology 13:91, 2013.
    """
    first_N, second_N = np.asarray(first_N), np.asarray(second_N)
    if first_N.ndim != 1 or first_N.shape != second_N.shape:
        raise ValueError(f"answers have shapes {first_N.shape} and {second_N.shape}; expected the same shape (N,)")
    for correct_N in (first_N, second_N):
        if not np.isin(correct_N, (0, 1)).all():
            raise ValueError(f"answers contain {np.unique(correct_N)[:5]}; expected only True and False, or 1 and 0")
    first_right_N, second_right_N = first_N.astype(bool), second_N.astype(bool)
    only_first = int((first_right_N & ~second_right_N).sum())
    only_second = int((second_right_N & ~first_right_N).sum())
    return McNemarResult(mcnemar_p(only_first, only_second), only_first, only_second)


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Compute the p of `mcnemar_test` from the two counts of rows on which exactly one model is right."""
    discordant = only_first + only_second
    if discordant < _FEW_DISCORDANT:
        return min(1.0, 2 * float(binom.cdf(min(only_first, only_second), discordant, 0.5)))
    return float(chi2.sf((only_first - only_second) ** 2 / discordant, 1))


def paired_bootstrap_test(
    differences_N: np.ndarray,
    *,
    generator: np.random.Generator,
    resamples: int = 10_000,
) -> BootstrapTestResult:
    """Run the paired bootstrap test over examples.

    Null hypothesis: over all examples that could have been sampled, the two trained models have the same mean score.
    Examples are resampled with replacement, keeping the answers of both models together. p is the share of resamples
    whose mean is at least as far from the observed mean as the observed mean is from zero, and at least 2 / 2^N with N
    examples that differ, below which no exact test of as many signs goes.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 16.4; in NLP: Berg-Kirkpatrick,
    Burkett and Klein, EMNLP 2012.
    """
    differences_N = np.asarray(differences_N, dtype=np.float64)
    if differences_N.ndim != 1 or len(differences_N) < 2:
        raise ValueError(f"differences have shape {differences_N.shape}; expected (N,) with at least 2 examples")
    mean = float(differences_N.mean())
    result = bootstrap_of_mean(differences_N, generator=generator, resamples=resamples)
    low, high = result.confidence_interval
    rounding = 1e-12 * np.abs(differences_N).max()
    at_least_as_far = int((np.abs(result.bootstrap_distribution - mean) >= abs(mean) - rounding).sum())
    least = min(1.0, 2.0 ** (1 - np.count_nonzero(differences_N)))
    p = max((1 + at_least_as_far) / (1 + resamples), least)
    return BootstrapTestResult(mean, float(low), float(high), p)


def jackknife_values(
    statistic: Callable[[np.ndarray], float], rows: int, *, alike_N: np.ndarray | None = None
) -> np.ndarray:
    """Compute the jackknife pseudo-values of a metric that is not a mean over examples (F1, Matthews, Pearson).

    The mean of the values is the metric, and their spread over examples is the metric's sampling spread, so they can
    be used wherever correctness per example can:
    value_i = metric + (N - 1) (mean of all leave-one-out metrics - the one without i).

    Source: Tukey's pseudo-values, centered on the metric; Efron and Tibshirani, 1993, chapter 11.
    """
    if rows < 2:
        raise ValueError(f"rows is {rows}; expected at least 2, because each row is left out in turn")
    every_N = np.arange(rows)
    _, firsts, group_N = np.unique(every_N if alike_N is None else alike_N, return_index=True, return_inverse=True)
    without_N = np.array([statistic(np.delete(every_N, row)) for row in firsts])[group_N]
    return pseudo_values(statistic(every_N), without_N)


def pseudo_values(whole: float, without_N: np.ndarray) -> np.ndarray:
    """Compute the values of `jackknife_values` from the metric of all rows, and of all but each."""
    return whole + (len(without_N) - 1) * (without_N.mean() - without_N)


def sign_flip_test(differences_S: np.ndarray, *, generator: np.random.Generator | None = None) -> float:
    """Compute the two-sided p of the paired permutation test on the mean, exact up to 16 differences other than zero.

    Null hypothesis: within each seed the scores of the two methods are exchangeable, so each difference is equally
    likely to have the opposite sign. All 2^S sign patterns are enumerated, and p is the share of them whose mean is at
    least as far from zero as the observed one. With few seeds p has a lower bound: 0.25 for 3 seeds, 0.0625 for 5,
    0.002 for 10.

    Source: Fisher, "The Design of Experiments", 1935, section 21.
    """
    differences_S = _checked(differences_S)
    return float(sign_flip_p(differences_S[differences_S != 0], generator=generator))  # a zero has no sign to flip


def smallest_p(seeds: int) -> float:
    """Return the smallest p that `sign_flip_test` can give: 2 / 2^S, if all differences have the same sign."""
    if seeds > _EXACT_SEEDS:
        return 2.0 / (2**_EXACT_SEEDS + 1)
    return min(1.0, 2.0 ** (1 - seeds))


def sign_flip_p(values_S: np.ndarray, *, generator: np.random.Generator | None = None) -> np.ndarray:
    """Compute the p of `sign_flip_test` for (..., S) values, of shape (...)."""
    values_S = np.asarray(values_S, dtype=np.float64)
    if values_S.shape[-1] < 2:
        return np.ones(values_S.shape[:-1])
    total = np.abs(values_S).sum(axis=-1, keepdims=True)
    scaled_S = values_S / np.where(total == 0, 1.0, total)
    result = permutation_test(
        (scaled_S,),
        # Rounded, so that sums which are equal up to floating-point error are ties.
        lambda flipped_S, axis: np.round(flipped_S.sum(axis=axis), 9),
        permutation_type="samples",  # of one sample: flips the signs
        vectorized=True,
        n_resamples=2**_EXACT_SEEDS,
        batch=max(1, _VALUES_PER_BATCH // values_S.size),
        axis=-1,
        rng=generator or np.random.default_rng(0),
    )
    return np.asarray(result.pvalue)


def _checked(differences_S: np.ndarray) -> np.ndarray:
    differences_S = np.asarray(differences_S, dtype=np.float64)
    if differences_S.ndim != 1 or not len(differences_S) or not np.isfinite(differences_S).all():
        raise ValueError(f"differences are {differences_S}; expected one finite number per seed, for at least one seed")
    return differences_S
