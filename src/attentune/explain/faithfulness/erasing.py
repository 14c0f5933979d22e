"""Evaluates all methods under one kind of erasure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attentune.attribution.base import Scorer
from attentune.attribution.registry import METHODS
from attentune.explain.faithfulness.erasure import Eraser, NaopcBounds, find_naopc_bounds, mean_drops, probability_drops
from attentune.explain.faithfulness.ordering import Measures, Ranked
from attentune.explain.faithfulness.results import MethodScore, mean_interval


class Erasing:
    """Evaluates the rankings of all methods under one kind of erasure.

    Attributes:
        probability_drops: for each method, one entry per draw.
    """

    def __init__(self, scorer: Scorer, erasure: str, ranks: dict[str, Ranked], measures: Measures) -> None:
        self._erasure, self._ranks, self._measures = erasure, ranks, measures
        self._eraser = Eraser(scorer, erasure)
        self._target_N = np.array([found.target for found in next(iter(ranks.values())).attributions])
        rows = np.arange(len(self._target_N))
        self.probability_drops = {
            name: [probability_drops(self._eraser, rows, orders, self._target_N) for orders in own.orders]
            for name, own in ranks.items()
        }
        places = [scorer.features.ordinary_positions(int(row)) for row in rows]
        self._short = np.array([row for row in rows if len(places[row]) <= measures.beam_tokens], dtype=np.int64)
        self._bounds: NaopcBounds | None = None
        if measures.beam and len(self._short):
            chosen, targets = [places[row] for row in self._short], self._target_N[self._short]
            self._bounds = find_naopc_bounds(self._eraser, self._short, chosen, targets, beam=measures.beam)

    def scores(self) -> list[MethodScore]:
        """Return one `MethodScore` per method."""
        first = next(iter(self._ranks))
        base_N = _mean([own.comprehensiveness for own in self.probability_drops[first]]).mean(axis=1)
        return [self._score(name, None if name == first else base_N) for name in self._ranks]

    def _score(self, name: str, base_N: np.ndarray | None) -> MethodScore:
        seed = self._measures.settings.seed
        comprehensiveness_NK = _mean([own.comprehensiveness for own in self.probability_drops[name]])
        sufficiency_NK = _mean([own.sufficiency for own in self.probability_drops[name]])
        whole_N = comprehensiveness_NK.mean(axis=1)
        bins = {
            "comprehensiveness": comprehensiveness_NK.mean(axis=0).tolist(),
            "sufficiency": sufficiency_NK.mean(axis=0).tolist(),
        }
        line = MethodScore(
            name,
            METHODS[name].signed,
            self._erasure,
            mean_interval(whole_N, seed),
            mean_interval(sufficiency_NK.mean(axis=1), seed),
            None if base_N is None else mean_interval(whole_N - base_N, seed),
            bins,
        )
        if self._bounds is None:
            return line
        forwards_N, backwards_N = (self._normalised(name, step) for step in (1, -1))
        return replace(
            line,
            naopc_comprehensiveness=mean_interval(forwards_N, seed),
            naopc_sufficiency=mean_interval(backwards_N, seed),
            naopc_rows=int(np.isfinite(forwards_N).sum()),
        )

    def _normalised(self, name: str, step: int) -> np.ndarray:
        """Compute the normalised AOPC of short rows by order (step 1) or reversed order (-1), averaged over draws."""
        assert self._bounds is not None
        targets = self._target_N[self._short]
        draws = [
            mean_drops(self._eraser, self._short, [orders[row][::step] for row in self._short], targets)
            for orders in self._ranks[name].orders
        ]
        return _mean([self._bounds.normalised(own) for own in draws])


def _mean(draws: list[np.ndarray]) -> np.ndarray:
    return np.mean(draws, axis=0)
