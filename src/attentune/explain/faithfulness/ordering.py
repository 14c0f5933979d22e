"""From methods to orders of tokens, the most important first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.attribution.base import Settings
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.faithfulness.erasure import ERASURES
from attentune.explain.faithfulness.ranking import ranked

# The floor: what an order drawn by lot reaches.
FLOOR = "random"
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
    seeds = [settings.seed + draw for draw in range(measures.draws if name == FLOOR else 1)]
    draws = [explainer.attributions(name, settings=replace(settings, seed=seed)) for seed in seeds]
    features = explainer.probe.features
    orders = [
        [ranked(found.scores, features.ordinary_positions(row), seed, row) for row, found in enumerate(attributions)]
        for seed, attributions in zip(seeds, draws, strict=True)
    ]
    return Ranked(draws[0], orders)
