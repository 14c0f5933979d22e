"""How far two lists of scores put a text's tokens into the same order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.stats import kendalltau, spearmanr

from attentune.explain.explainer import Attribution


def agreements(
    first: Sequence[Attribution], second: Sequence[Attribution], places: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) Kendall's tau-b and (N,) Spearman's rho of each row; NaN where a row has fewer than two tokens.

    Scores that are equal to the last digit agree fully, even where all of a text's are the same; if one list alone has
    a single value for all tokens, it puts them in no order, and the two are taken not to agree (0).

    Args:
        first: scores of each row.
        second: others of the same rows.
        places: of each row the tokens that are compared.
    """
    found = [
        _agreement(one.scores[own], other.scores[own]) for one, other, own in zip(first, second, places, strict=True)
    ]
    taus, rhos = zip(*found, strict=True)
    return np.array(taus), np.array(rhos)


def _agreement(first_T: np.ndarray, second_T: np.ndarray) -> tuple[float, float]:
    if len(first_T) < 2:
        return float("nan"), float("nan")
    if np.array_equal(first_T, second_T):
        return 1.0, 1.0
    if np.ptp(first_T) == 0 or np.ptp(second_T) == 0:
        return 0.0, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(kendalltau(first_T, second_T).statistic), float(spearmanr(first_T, second_T).statistic)
