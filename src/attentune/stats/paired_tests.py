"""Tests over examples: two trained models on the same rows. They say nothing of other seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, chi2, rankdata

# McNemar's statistic is near enough to chi-square from here on.
_FEW_DISCORDANT = 25


@dataclass(frozen=True)
class McNemar:
    """McNemar's test.

    Attributes:
        p: two-sided.
        only_first: rows that only the first model gets right.
        only_second: rows that only the second model gets right.
        exact: whether p is the exact binomial one.
    """

    p: float
    only_first: int
    only_second: int
    exact: bool


@dataclass(frozen=True)
class Resampled:
    """A mean difference with its percentile interval over resamples of the examples, and p."""

    difference: float
    low: float
    high: float
    p: float


def mcnemar_test(first_N: np.ndarray, second_N: np.ndarray) -> McNemar:
    """McNemar's test on two models' right and wrong answers to the same rows.

    Null hypothesis: of the rows on which just one of these two trained models is right, each is as often right as the
    other (McNemar, Psychometrika 12, 1947). Below 25 such rows p is exact (a fair coin's), from there on it is
    chi-square's, without the continuity correction, which would make it too cautious (Fagerland, Lydersen and Laake,
    BMC Medical Research Methodology 13:91, 2013).

    Args:
        first_N: (N,), true or 1 where the first model is right.
        second_N: (N,), the same of the second model, the rows in the same order.

    Raises:
        ValueError: the two are not of one length, or hold something else than right and wrong.
    """
    first_N, second_N = np.asarray(first_N), np.asarray(second_N)
    if first_N.ndim != 1 or first_N.shape != second_N.shape:
        raise ValueError(f"answers are of shapes {first_N.shape} and {second_N.shape}; expected (N,), twice the same")
    for answers_N in (first_N, second_N):
        if not np.isin(answers_N, (0, 1)).all():
            raise ValueError(f"answers hold {np.unique(answers_N)[:5]}; expected true and false, or 1 and 0, only")
    right_N, also_N = first_N.astype(bool), second_N.astype(bool)
    only_first, only_second = int((right_N & ~also_N).sum()), int((also_N & ~right_N).sum())
    return McNemar(mcnemar_p(only_first, only_second), only_first, only_second, _exact(only_first, only_second))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """The p of `mcnemar_test`, from the two counts of rows on which just one model is right."""
    discordant = only_first + only_second
    if _exact(only_first, only_second):
        return min(1.0, 2.0 * float(binom.cdf(min(only_first, only_second), discordant, 0.5)))
    return float(chi2.sf((only_first - only_second) ** 2 / discordant, 1))


def _exact(only_first: int, only_second: int) -> bool:
    return only_first + only_second < _FEW_DISCORDANT


def paired_bootstrap_test(
    differences_N: np.ndarray,
    *,
    generator: np.random.Generator,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Resampled:
    """The paired bootstrap over examples.

    Null hypothesis: over all examples that could have been drawn, these two trained models score alike. Examples are
    drawn with replacement, both models' answers together. p is the share of resamples whose mean lies at least as far
    from the mean seen as that lies from zero (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section
    16.4; Berg-Kirkpatrick, Burkett and Klein, EMNLP 2012, for NLP).

    Args:
        differences_N: (N,), the two models' difference on each example: in correctness, in error, or in
            `jackknife_values`.
        generator: draws the resamples.
        resamples: how many; p cannot fall below 1 / (resamples + 1).
        confidence: of the interval.
    """
    differences_N = np.asarray(differences_N, dtype=np.float64)
    if differences_N.ndim != 1 or len(differences_N) < 2:
        raise ValueError(f"differences are of shape {differences_N.shape}; expected (N,) with 2 examples or more")
    examples = len(differences_N)
    mean = differences_N.mean()
    # A few million places at a time, however many rows there are.
    chunk = max(1, 4_000_000 // examples)
    parts = [
        differences_N[generator.integers(examples, size=(min(chunk, resamples - done), examples))].mean(axis=1)
        for done in range(0, resamples, chunk)
    ]
    means_R = np.concatenate(parts)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means_R, (tail, 1.0 - tail))
    slack = 1e-12 * np.abs(differences_N).max()
    further = int((np.abs(means_R - mean) >= abs(mean) - slack).sum())
    return Resampled(float(mean), float(low), float(high), (1 + further) / (1 + resamples))


def jackknife_values(
    statistic: Callable[[np.ndarray], float], rows: int, *, alike_N: np.ndarray | None = None
) -> np.ndarray:
    """(N,) what each example adds to a metric that is no mean over examples (F1, Matthews, Pearson).

    Their mean is the metric, and their spread over examples is the metric's own, so that such a metric can go wherever
    correctness per example can: value_i = metric + (N - 1) (mean of all leave-one-out metrics - the one without i)
    (Tukey's pseudo-values, set to the metric's own mean; Efron and Tibshirani, 1993, chapter 11).

    Args:
        statistic: from row numbers to the metric of those rows.
        rows: how many rows there are. The statistic is asked once more than that.
        alike_N: (N,) equal numbers for rows that it makes no difference which of is left out, such as rows of the same
            label and prediction. The statistic is then asked once for all of them.

    Raises:
        ValueError: fewer than 2 rows.
    """
    if rows < 2:
        raise ValueError(f"rows is {rows}; expected 2 or more, since each is left out in turn")
    every_N = np.arange(rows)
    _, firsts, kind_N = np.unique(every_N if alike_N is None else alike_N, return_index=True, return_inverse=True)
    without_N = np.array([statistic(np.delete(every_N, row)) for row in firsts])[kind_N]
    return statistic(every_N) + (rows - 1) * (without_N.mean() - without_N)


# Up to here all patterns of signs are gone through; 2 to the power 16.
_EXACT_SEEDS = 16


@dataclass(frozen=True)
class Outcome:
    """What a test says.

    Attributes:
        p: two-sided.
        smallest_p: what p could at best have been with so many values; a test that cannot reach 0.05 cannot reject.
        statistic: the number that was tested.
        note: what a reader of p must know; may be empty.
    """

    p: float
    smallest_p: float
    statistic: float
    note: str = ""


def sign_flip_test(differences_S: np.ndarray, *, generator: np.random.Generator | None = None) -> Outcome:
    """The exact paired permutation test on the mean.

    Null hypothesis: within each seed the two methods' scores could as well be swapped, so each difference is as likely
    with the other sign. All 2^S patterns of signs are gone through, and p is the share of them whose mean is at least
    as far from zero as the one seen (Fisher, "The Design of Experiments", 1935, section 21). With few seeds p has a
    floor: 0.25 for 3 seeds, 0.0625 for 5, 0.002 for 10.

    Args:
        differences_S: (S,), the two methods' differences, seed by seed.
        generator: draws 65,535 patterns of signs where there are more than 16 differences other than zero; a fixed one
            by default.
    """
    differences_S = _checked(differences_S)
    return _outcome(differences_S, float(differences_S.mean()), "sign-flip", generator)


def wilcoxon_test(differences_S: np.ndarray, *, generator: np.random.Generator | None = None) -> Outcome:
    """Wilcoxon's signed-rank test, exact also with ties.

    Null hypothesis: the differences are spread alike to both sides of zero. The ranks of their sizes take the place of
    the differences themselves, so one wild seed weighs no more than its rank (Wilcoxon, Biometrics Bulletin 1, 1945).
    Zeros are left out, ties share their mean rank, and p has the floor of `sign_flip_test`.

    Args:
        differences_S: (S,), the two methods' differences, seed by seed.
        generator: as for `sign_flip_test`.
    """
    ranks_S = signed_ranks(_checked(differences_S))
    return _outcome(ranks_S, float(ranks_S[ranks_S > 0].sum()), "Wilcoxon", generator)


def smallest_p(seeds: int) -> float:
    """What p of these tests can at best be: 2 / 2^S, where all differences have one sign."""
    return min(1.0, max(2.0 ** (1 - seeds), 2.0**-_EXACT_SEEDS))


def signed_ranks(differences_S: np.ndarray) -> np.ndarray:
    """(..., S) ranks of the sizes with the signs of the differences; zeros get 0 and count for no rank."""
    differences_S = np.asarray(differences_S, dtype=np.float64)
    sizes_S = np.where(differences_S == 0, np.nan, np.abs(differences_S))
    # Equal scores may differ in their last bits after subtraction: those are ties.
    ranks_S = rankdata(np.round(sizes_S, 12), axis=-1, nan_policy="omit")
    return np.where(differences_S == 0, 0.0, np.sign(differences_S) * ranks_S)


def sign_flip_p(values_S: np.ndarray, *, generator: np.random.Generator | None = None) -> np.ndarray:
    """(...) p of `sign_flip_test` for (..., S) values: the share of sign patterns with a sum as far from zero."""
    values_S = np.asarray(values_S, dtype=np.float64)
    seeds = values_S.shape[-1]
    if seeds <= _EXACT_SEEDS:
        signs_KS = np.array(list(itertools.product((1.0, -1.0), repeat=seeds)))
    else:
        generator = generator or np.random.default_rng(0)
        signs_KS = generator.choice((1.0, -1.0), size=(2**_EXACT_SEEDS, seeds))
        signs_KS[0] = 1.0  # The pattern seen is one of those possible; without it p could be 0.
    sums_K = np.abs(values_S @ signs_KS.T)
    slack = 1e-9 * np.abs(values_S).sum(axis=-1, keepdims=True)
    return (sums_K >= np.abs(values_S.sum(axis=-1, keepdims=True)) - slack).mean(axis=-1)


def _outcome(values_S: np.ndarray, statistic: float, name: str, generator: np.random.Generator | None) -> Outcome:
    values_S = values_S[values_S != 0]  # A zero has no sign to flip.
    floor = smallest_p(len(values_S))
    note = ""
    if floor > 0.05:
        note = f"with {len(values_S)} differences other than zero the {name} test cannot give a p below {floor:g}"
    return Outcome(float(sign_flip_p(values_S, generator=generator)), floor, statistic, note)


def _checked(differences_S: np.ndarray) -> np.ndarray:
    differences_S = np.asarray(differences_S, dtype=np.float64)
    if differences_S.ndim != 1 or not len(differences_S) or not np.isfinite(differences_S).all():
        raise ValueError(f"differences are {differences_S}; expected one finite number a seed, of one seed or more")
    return differences_S
