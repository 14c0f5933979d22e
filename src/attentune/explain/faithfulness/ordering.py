"""From methods to orders of tokens, the most important first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import kendalltau, spearmanr

from attentune.attribution.base import Settings
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.faithfulness.erasure import ERASURES, ranked

# The floor: what an order drawn by lot reaches.
RANDOM_BASELINE = "random"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measures:
    """What is measured, beside the methods.

    Attributes:
        erasures: some of `ERASURES`.
        settings: of the methods; the seed also decides ties, the floor's draws and the resamples.
        draws: random orders that the floor is the mean of.
        beam: sets of tokens kept in the search for the limits; 0 leaves the normalised form out.
        beam_tokens: texts of up to so many ordinary tokens have their limits searched.
    """

    erasures: Sequence[str] = ERASURES
    settings: Settings = Settings()
    draws: int = 5
    beam: int = 5
    beam_tokens: int = 12


@dataclass(frozen=True)
class Ranked:
    """What a method says of each row.

    Attributes:
        attributions: of each row; those of the first draw where there are several.
        orders: for each draw, of each row its ordinary tokens' places, the most important first.
    """

    attributions: list[Attribution]
    orders: list[list[np.ndarray]]


def rank(explainer: Explainer, name: str, measures: Measures, tell: Progress) -> Ranked:
    """What a method says of the predicted class of each row, of the floor several times over."""
    tell(f"scores by {name}")
    settings = measures.settings
    seeds = [settings.seed + draw for draw in range(measures.draws if name == RANDOM_BASELINE else 1)]
    draws = [explainer.attributions(name, settings=replace(settings, seed=seed)) for seed in seeds]
    features = explainer.scorer.features
    orders = [
        [ranked(found.scores, features.non_special_positions(row), seed, row) for row, found in enumerate(attributions)]
        for seed, attributions in zip(seeds, draws, strict=True)
    ]
    return Ranked(draws[0], orders)


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
