"""Erases tokens of texts in one of three ways and measures the drop in the predicted probability.

Erasure works on token ids; texts are not tokenised again.

Source: comprehensiveness and sufficiency of ERASER (DeYoung et al. 2020, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.attribution.base import Scorer
from attentune.data.tokenization import Features
from attentune.inference.scoring import score_rows
from attentune.metrics.metrics import probabilities_of
from attentune.seeding import numpy_generator

# ERASER's bins (DeYoung et al. 2020, section 4.2).
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
# Replace by the mask token; delete, which shortens the text; or exclude from attention, which keeps positions.
ERASURES = ("mask", "delete", "attention")

_ROWS_AT_ONCE = 8192


class Eraser:
    """Predicts rows with erased tokens and caches the predictions."""

    def __init__(self, scorer: Scorer, erasure: str) -> None:
        self._scorer, self._erasure = scorer, erasure
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self.predicted = 0

    def probabilities(self, rows: Sequence[int] | np.ndarray, erased: Sequence[np.ndarray]) -> np.ndarray:
        """Predict class probabilities of rows with erased tokens."""
        places = [np.sort(positions).astype(np.int64) for positions in erased]
        keys = [(int(row), positions.tobytes()) for row, positions in zip(rows, places, strict=True)]
        new = {key: positions for key, positions in zip(keys, places, strict=True) if key not in self._known}
        names = list(new)
        for begin in range(0, len(names), _ROWS_AT_ONCE):
            part = names[begin : begin + _ROWS_AT_ONCE]
            logits_MC = self._predict(np.array([row for row, _ in part]), [new[key] for key in part])
            answers = probabilities_of(logits_MC, self._scorer.label_space)
            self._known |= dict(zip(part, answers, strict=True))
        self.predicted += len(names)
        if not keys:
            return np.zeros((0, self._scorer.label_space.num_labels))
        return np.stack([self._known[key] for key in keys])

    def _predict(self, rows_M: np.ndarray, places: list[np.ndarray]) -> np.ndarray:
        """Compute the logits of erased rows, (M, C)."""
        scorer = self._scorer
        features, numbers = scorer.features, rows_M
        if self._erasure == "delete":
            features, numbers = without_tokens(features, rows_M, places), np.arange(len(rows_M))
        return score_rows(
            scorer.model,
            features,
            pad_token_id=scorer.pad_token_id,
            accelerator=scorer.accelerator,
            rows=numbers,
            mask_token_id=scorer.mask_token_id,
            masked=places if self._erasure == "mask" else None,
            attention_excluded=places if self._erasure == "attention" else None,
        ).logits_NC


def without_tokens(features: Features, rows_M: np.ndarray, places: Sequence[np.ndarray]) -> Features:
    """Select rows and delete tokens from each."""
    remaining_indices = []
    for row, erased in zip(rows_M, places, strict=True):
        span = features.row(int(row))
        remaining_indices.append(np.delete(np.arange(span.start, span.stop), erased))
    flat = np.concatenate(remaining_indices)
    seconds = features.second_starts
    if seconds is not None:
        gone = [np.count_nonzero(erased < seconds[row]) for row, erased in zip(rows_M, places, strict=True)]
        seconds = seconds[rows_M] - np.array(gone)
    return replace(
        features,
        ids=features.ids[flat],
        type_ids=None if features.type_ids is None else features.type_ids[flat],
        special=features.special[flat],
        starts=np.concatenate([[0], np.cumsum([len(remaining) for remaining in remaining_indices])]).astype(np.int64),
        full_lengths=features.full_lengths[rows_M],
        second_starts=seconds,
    )


@dataclass(frozen=True)
class ProbabilityDrops:
    """Class probabilities of N rows before and after erasing, for K shares of tokens."""

    whole_NC: np.ndarray  # of the original rows
    without_NKC: np.ndarray  # without the top-ranked tokens
    only_NKC: np.ndarray  # with only the top-ranked tokens
    target_N: np.ndarray  # ids of the explained classes

    @property
    def comprehensiveness(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | text without the tokens); high is good."""
        return self._drop(self.without_NKC)

    @property
    def sufficiency(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | the tokens alone); low is good."""
        return self._drop(self.only_NKC)

    def _drop(self, erased_NKC: np.ndarray) -> np.ndarray:
        rows = np.arange(len(self.target_N))
        return self.whole_NC[rows, self.target_N][:, None] - erased_NKC[rows, :, self.target_N]


def probability_drops(
    eraser: Eraser,
    rows: np.ndarray,
    orders: Sequence[np.ndarray],
    target_N: np.ndarray,
    shares: Sequence[float] = SHARES,
) -> ProbabilityDrops:
    """Erase the top-ranked tokens of each row, and all others, at several shares."""
    counts = [top_counts(len(order), shares) for order in orders]
    first = [order[:count] for order, row_counts in zip(orders, counts, strict=True) for count in row_counts]
    rest = [order[count:] for order, row_counts in zip(orders, counts, strict=True) for count in row_counts]
    nothing = [np.zeros(0, dtype=np.int64)] * len(rows)
    spread = np.repeat(rows, len(shares))
    probabilities = eraser.probabilities(np.concatenate([rows, spread, spread]), [*nothing, *first, *rest])
    whole_NC, without, only = np.split(probabilities, [len(rows), len(rows) + len(spread)])
    shape = (len(rows), len(shares), -1)
    return ProbabilityDrops(whole_NC, without.reshape(shape), only.reshape(shape), target_N)


@dataclass(frozen=True)
class NaopcBounds:
    """The lowest and highest mean drop of each of N rows over all orders of its tokens, as found by beam search."""

    lower_N: np.ndarray
    upper_N: np.ndarray

    def normalised(self, drops_N: np.ndarray) -> np.ndarray:
        """Scale mean drops to 0 at the lower bound and 1 at the upper bound; NaN where the bounds coincide."""
        width_N = self.upper_N - self.lower_N
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(width_N > 1e-9, (drops_N - self.lower_N) / width_N, np.nan)


def mean_drops(eraser: Eraser, rows: np.ndarray, orders: Sequence[np.ndarray], target_N: np.ndarray) -> np.ndarray:
    """Compute the mean drop of the target's probability while all tokens are erased one after another (AOPC)."""
    owner = np.repeat(np.arange(len(rows)), [len(order) for order in orders])
    erased = [order[:count] for order in orders for count in range(1, len(order) + 1)]
    drop_M = _unerased_probability(eraser, rows, target_N)[owner] - _target_probability(
        eraser, rows[owner], erased, target_N[owner]
    )
    return np.bincount(owner, weights=drop_M, minlength=len(rows)) / np.bincount(owner, minlength=len(rows))


def find_naopc_bounds(
    eraser: Eraser, rows: np.ndarray, places: Sequence[np.ndarray], target_N: np.ndarray, *, beam: int
) -> NaopcBounds:
    """Search for the bounds of `mean_drops` over all orders of these positions, by beam search.

    A prediction depends on the set of erased tokens, not on their order. A beam that holds all sets of one size (20 for
    6 tokens, 70 for 8) finds the exact bounds; a smaller one may find narrower bounds.
    """
    whole_N = _unerased_probability(eraser, rows, target_N)
    upper_N, lower_N = (
        sign * _best(eraser, rows, places, target_N, sign * whole_N, beam=beam, sign=sign) for sign in (1.0, -1.0)
    )
    return NaopcBounds(lower_N, upper_N)


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
    """Find the highest mean of sign x drop, (N,); all rows advance together, which fills batches."""
    beams: list[dict[frozenset[int], float]] = [{frozenset(): 0.0} for _ in rows]
    for size in range(1, max(len(positions) for positions in places) + 1):
        grown = [
            _grown(held, positions) if size <= len(positions) else {}
            for held, positions in zip(beams, places, strict=True)
        ]
        owner = np.repeat(np.arange(len(rows)), [len(sets) for sets in grown])
        erased = [np.fromiter(gone, dtype=np.int64) for sets in grown for gone in sets]
        drop_M = whole_N[owner] - sign * _target_probability(eraser, rows[owner], erased, target_N[owner])
        begin = 0
        for row, sets in enumerate(grown):
            if sets:
                sums = {gone: total + drop_M[begin + n] for n, (gone, total) in enumerate(sets.items())}
                beams[row] = dict(sorted(sums.items(), key=lambda entry: -entry[1])[:beam])
                begin += len(sets)
    return np.array([max(held.values()) / len(positions) for held, positions in zip(beams, places, strict=True)])


def _grown(held: dict[frozenset[int], float], places: np.ndarray) -> dict[frozenset[int], float]:
    """Extend all sets by one token, each with the highest sum of drops of the orders leading to it."""
    grown: dict[frozenset[int], float] = {}
    for gone, total in held.items():
        for place in places.tolist():
            if place not in gone:
                more = gone | {place}
                grown[more] = max(total, grown.get(more, -np.inf))
    return grown


def _unerased_probability(eraser: Eraser, rows: np.ndarray, target_N: np.ndarray) -> np.ndarray:
    return _target_probability(eraser, rows, [np.zeros(0, dtype=np.int64)] * len(rows), target_N)


def _target_probability(
    eraser: Eraser, rows: np.ndarray, erased: Sequence[np.ndarray], target_M: np.ndarray
) -> np.ndarray:
    """Predict the probability of the target, (M,)."""
    return eraser.probabilities(rows, erased)[np.arange(len(rows)), target_M]


def ranked(scores_T: np.ndarray, ordinary: np.ndarray, *key: int | str) -> np.ndarray:
    """Sort the positions of a row's non-special tokens by score, highest first.

    Ties are ordered at random: in text order a constant method would get the merit of the first words.
    """
    tie_breaks = numpy_generator("ties", *key).random(len(ordinary))
    return ordinary[np.lexsort((tie_breaks, -scores_T[ordinary]))]


def top_counts(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """Convert shares of `count` tokens to numbers of tokens, rounded up to at least one."""
    # Rounded first, since 0.1 x 30 exceeds 3 in floating point.
    return [min(count, max(1, math.ceil(round(share * count, 9)))) for share in shares]
