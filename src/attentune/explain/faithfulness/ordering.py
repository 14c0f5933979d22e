"""Ranks tokens by the scores of attribution methods, and compares rankings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import kendalltau, spearmanr

from attentune.attribution.base import Settings
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.faithfulness.erasure import ERASURES, ranked

# The baseline method: a random order of tokens.
RANDOM_BASELINE = "random"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measures:
    """Options of the evaluation.

    Attributes:
        erasures: some of `ERASURES`.
        settings: options of the methods; the seed also seeds ties, the random baseline and the bootstrap.
        draws: random orders that the random baseline averages over.
        beam: beam width of the search for NAOPC bounds; 0 skips the normalised AOPC.
        beam_tokens: search for bounds only in texts of at most so many non-special tokens.
    """

    erasures: Sequence[str] = ERASURES
    settings: Settings = Settings()
    draws: int = 5
    beam: int = 5
    beam_tokens: int = 12


@dataclass(frozen=True)
class Ranked:
    """The rankings of a method.

    Attributes:
        attributions: one per row; those of the first draw if there are several.
        orders: for each draw and row the positions of the non-special tokens, most important first.
    """

    attributions: list[Attribution]
    orders: list[list[np.ndarray]]


def rank(explainer: Explainer, name: str, measures: Measures, tell: Progress) -> Ranked:
    """Rank each row's tokens by a method's scores for the predicted class; several draws for the random baseline."""
    tell(f"scores by {name}")
    settings = measures.settings
    seeds = [settings.seed + draw for draw in range(measures.draws if name == RANDOM_BASELINE else 1)]
    draws = [explainer.attributions(name, settings=replace(settings, seed=seed)) for seed in seeds]
    features = explainer.scorer.features
    orders = [
        [
            ranked(attribution.scores, features.non_special_positions(row), seed, row)
            for row, attribution in enumerate(attributions)
        ]
        for seed, attributions in zip(seeds, draws, strict=True)
    ]
    return Ranked(draws[0], orders)


def agreements(
    first: Sequence[Attribution], second: Sequence[Attribution], places: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute rank correlations of two lists of scores, row by row.

    Identical scores agree fully (1), even if all are the same; if only one list is constant, the agreement is 0.

    Args:
        first: one attribution per row.
        second: others of the same rows.
        places: for each row the token positions to compare.

    Returns:
        Kendall's tau-b (N,) and Spearman's rho (N,); NaN for rows with fewer than two tokens.
    """
    pairs = [
        _agreement(one.scores[row_places], other.scores[row_places])
        for one, other, row_places in zip(first, second, places, strict=True)
    ]
    taus, rhos = zip(*pairs, strict=True)
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
