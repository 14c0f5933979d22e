"""Tests over seeds that take no distribution for granted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

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
