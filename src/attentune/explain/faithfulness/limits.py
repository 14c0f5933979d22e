"""Of a short text the best and the worst order to erase it in, and where between the two an order stands.

Source: Normalized AOPC (Edin et al., ACL 2025): how far erasing can change a model's mind at all differs from model to
model and text to text; so the mean fall is given as a share of the way from the least to the greatest possible one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attentune.explain.faithfulness.erasure import Eraser


@dataclass(frozen=True)
class Limits:
    """The least and the greatest mean fall of each of N rows, over the orders that the search has seen."""

    lower_N: np.ndarray
    upper_N: np.ndarray

    def normalised(self, falls_N: np.ndarray) -> np.ndarray:
        """(N,) 0 at the lower limit, 1 at the upper one; NaN where they are one."""
        width_N = self.upper_N - self.lower_N
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(width_N > 1e-9, (falls_N - self.lower_N) / width_N, np.nan)


def mean_falls(eraser: Eraser, rows: np.ndarray, orders: Sequence[np.ndarray], target_N: np.ndarray) -> np.ndarray:
    """(N,) the mean fall of the target's probability while token after token is erased, the last one included."""
    owner = np.repeat(np.arange(len(rows)), [len(order) for order in orders])
    erased = [order[:count] for order in orders for count in range(1, len(order) + 1)]
    fall_M = _whole(eraser, rows, target_N)[owner] - _chance(eraser, rows[owner], erased, target_N[owner])
    return np.bincount(owner, weights=fall_M, minlength=len(rows)) / np.bincount(owner, minlength=len(rows))


def find_limits(
    eraser: Eraser, rows: np.ndarray, places: Sequence[np.ndarray], target_N: np.ndarray, *, beam: int
) -> Limits:
    """The limits of `mean_falls` over all orders of these places, by beam search.

    What is left of a text depends on which tokens are gone, not on their order. So a beam that holds all sets of tokens
    of one size (20 for 6 tokens, 70 for 8) finds the exact limits; a narrower one finds limits that are not wider.

    Args:
        eraser: asks the model.
        rows: (N,) the rows' numbers.
        places: of each row those that are erased; none empty.
        target_N: the classes explained.
        beam: how many sets of tokens are kept at each size.
    """
    whole_N = _whole(eraser, rows, target_N)
    upper_N, lower_N = (
        sign * _best(eraser, rows, places, target_N, sign * whole_N, beam=beam, sign=sign) for sign in (1.0, -1.0)
    )
    return Limits(lower_N, upper_N)


def _best(
    eraser: Eraser,
    rows: np.ndarray,
    places: Sequence[np.ndarray],
    target_N: np.ndarray,
    whole_N: np.ndarray,
    *,
    beam: int,
    sign: float,
) -> np.ndarray:
    """(N,) the greatest mean of sign x fall; all rows take each step together, so that batches are full."""
    beams: list[dict[frozenset[int], float]] = [{frozenset(): 0.0} for _ in rows]
    for size in range(1, max(len(own) for own in places) + 1):
        grown = [_grown(held, own) if size <= len(own) else {} for held, own in zip(beams, places, strict=True)]
        owner = np.repeat(np.arange(len(rows)), [len(sets) for sets in grown])
        erased = [np.fromiter(gone, dtype=np.int64) for sets in grown for gone in sets]
        fall_M = whole_N[owner] - sign * _chance(eraser, rows[owner], erased, target_N[owner])
        begin = 0
        for row, sets in enumerate(grown):
            if sets:
                sums = {gone: total + fall_M[begin + n] for n, (gone, total) in enumerate(sets.items())}
                beams[row] = dict(sorted(sums.items(), key=lambda entry: -entry[1])[:beam])
                begin += len(sets)
    return np.array([max(held.values()) / len(own) for held, own in zip(beams, places, strict=True)])


def _grown(held: dict[frozenset[int], float], places: np.ndarray) -> dict[frozenset[int], float]:
    """All sets with one token more, each with the greatest sum of falls on a way to it."""
    grown: dict[frozenset[int], float] = {}
    for gone, total in held.items():
        for place in places.tolist():
            if place not in gone:
                more = gone | {place}
                grown[more] = max(total, grown.get(more, -np.inf))
    return grown


def _whole(eraser: Eraser, rows: np.ndarray, target_N: np.ndarray) -> np.ndarray:
    return _chance(eraser, rows, [np.zeros(0, dtype=np.int64)] * len(rows), target_N)


def _chance(eraser: Eraser, rows: np.ndarray, erased: Sequence[np.ndarray], target_M: np.ndarray) -> np.ndarray:
    """(M,) the probability of the target."""
    return eraser.probabilities(rows, erased)[np.arange(len(rows)), target_M]
