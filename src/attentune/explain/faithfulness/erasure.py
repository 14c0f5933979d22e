"""Texts with some of their tokens erased, in one of three ways, and what a model says of them.

All of it is done on token ids: no text is put together and tokenised again.
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

# By the mask token in a token's place; by leaving the token out, so that the text grows shorter; by hiding it from
# attention, so that it keeps its place but no other token looks at it.
# ERASER's bins (DeYoung et al. 2020, section 4.2).
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
ERASURES = ("mask", "delete", "attention")

_QUESTIONS_AT_ONCE = 8192


class Eraser:
    """What a model says of rows of which tokens were erased, each erased row asked but once.

    Args:
        scorer: the model and the rows.
        erasure: one of `ERASURES`.

    Attributes:
        asked: how many erased rows have gone through the model.
    """

    def __init__(self, scorer: Scorer, erasure: str) -> None:
        self._scorer, self._erasure = scorer, erasure
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self.asked = 0

    def probabilities(self, rows: Sequence[int] | np.ndarray, erased: Sequence[np.ndarray]) -> np.ndarray:
        """(M, C) float64, the classes' probabilities of these rows without these tokens.

        Args:
            rows: (M,) their numbers, each as often as you like.
            erased: for each of them the places to erase, in any order.
        """
        places = [np.sort(own).astype(np.int64) for own in erased]
        keys = [(int(row), own.tobytes()) for row, own in zip(rows, places, strict=True)]
        new = {key: own for key, own in zip(keys, places, strict=True) if key not in self._known}
        names = list(new)
        for begin in range(0, len(names), _QUESTIONS_AT_ONCE):
            part = names[begin : begin + _QUESTIONS_AT_ONCE]
            logits_MC = self._ask(np.array([row for row, _ in part]), [new[key] for key in part])
            answers = probabilities_of(logits_MC, self._scorer.label_space)
            self._known |= dict(zip(part, answers, strict=True))
        self.asked += len(names)
        if not keys:
            return np.zeros((0, self._scorer.label_space.num_labels))
        return np.stack([self._known[key] for key in keys])

    def _ask(self, rows_M: np.ndarray, places: list[np.ndarray]) -> np.ndarray:
        """(M, C) logits."""
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
    """These rows, one after the other, each without the tokens at its places.

    Args:
        features: the split's tokens.
        rows_M: which rows, one as often as you like.
        places: for each of them the places within it to leave out.
    """
    kept = []
    for row, own in zip(rows_M, places, strict=True):
        span = features.row(int(row))
        kept.append(np.delete(np.arange(span.start, span.stop), own))
    flat = np.concatenate(kept)
    seconds = features.second_starts
    if seconds is not None:
        gone = [np.count_nonzero(own < seconds[row]) for row, own in zip(rows_M, places, strict=True)]
        seconds = seconds[rows_M] - np.array(gone)
    return replace(
        features,
        ids=features.ids[flat],
        type_ids=None if features.type_ids is None else features.type_ids[flat],
        special=features.special[flat],
        starts=np.concatenate([[0], np.cumsum([len(own) for own in kept])]).astype(np.int64),
        full_lengths=features.full_lengths[rows_M],
        second_starts=seconds,
    )


@dataclass(frozen=True)
class ProbabilityDrops:
    """What erasing does to each of N rows, at each of K bins.

    Attributes:
        whole_NC: the classes' probabilities of the rows as they are.
        without_NKC: those without the first tokens of the order.
        only_NKC: those of the first tokens alone.
        target_N: the class that was explained.
    """

    whole_NC: np.ndarray
    without_NKC: np.ndarray
    only_NKC: np.ndarray
    target_N: np.ndarray

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
    """What erasing in these orders does.

    Args:
        eraser: asks the model.
        rows: (N,) the rows' numbers.
        orders: of each row its ordinary tokens' places, the most important first; none empty.
        target_N: the classes explained.
        shares: the bins.
    """
    counts = [top_counts(len(order), shares) for order in orders]
    first = [order[:count] for order, own in zip(orders, counts, strict=True) for count in own]
    rest = [order[count:] for order, own in zip(orders, counts, strict=True) for count in own]
    nothing = [np.zeros(0, dtype=np.int64)] * len(rows)
    spread = np.repeat(rows, len(shares))
    found = eraser.probabilities(np.concatenate([rows, spread, spread]), [*nothing, *first, *rest])
    whole_NC, without, only = np.split(found, [len(rows), len(rows) + len(spread)])
    shape = (len(rows), len(shares), -1)
    return ProbabilityDrops(whole_NC, without.reshape(shape), only.reshape(shape), target_N)


@dataclass(frozen=True)
class NaopcBounds:
    """The least and the greatest mean fall of each of N rows, over the orders that the search has seen."""

    lower_N: np.ndarray
    upper_N: np.ndarray

    def normalised(self, falls_N: np.ndarray) -> np.ndarray:
        """(N,) 0 at the lower limit, 1 at the upper one; NaN where they are one."""
        width_N = self.upper_N - self.lower_N
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(width_N > 1e-9, (falls_N - self.lower_N) / width_N, np.nan)


def mean_drops(eraser: Eraser, rows: np.ndarray, orders: Sequence[np.ndarray], target_N: np.ndarray) -> np.ndarray:
    """(N,) the mean fall of the target's probability while token after token is erased, the last one included."""
    owner = np.repeat(np.arange(len(rows)), [len(order) for order in orders])
    erased = [order[:count] for order in orders for count in range(1, len(order) + 1)]
    drop_M = _whole(eraser, rows, target_N)[owner] - _chance(eraser, rows[owner], erased, target_N[owner])
    return np.bincount(owner, weights=drop_M, minlength=len(rows)) / np.bincount(owner, minlength=len(rows))


def find_naopc_bounds(
    eraser: Eraser, rows: np.ndarray, places: Sequence[np.ndarray], target_N: np.ndarray, *, beam: int
) -> NaopcBounds:
    """The limits of `mean_drops` over all orders of these places, by beam search.

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
    """(N,) the greatest mean of sign x fall; all rows take each step together, so that batches are full."""
    beams: list[dict[frozenset[int], float]] = [{frozenset(): 0.0} for _ in rows]
    for size in range(1, max(len(own) for own in places) + 1):
        grown = [_grown(held, own) if size <= len(own) else {} for held, own in zip(beams, places, strict=True)]
        owner = np.repeat(np.arange(len(rows)), [len(sets) for sets in grown])
        erased = [np.fromiter(gone, dtype=np.int64) for sets in grown for gone in sets]
        drop_M = whole_N[owner] - sign * _chance(eraser, rows[owner], erased, target_N[owner])
        begin = 0
        for row, sets in enumerate(grown):
            if sets:
                sums = {gone: total + drop_M[begin + n] for n, (gone, total) in enumerate(sets.items())}
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


def ranked(scores_T: np.ndarray, ordinary: np.ndarray, *key: int | str) -> np.ndarray:
    """The places of a row's ordinary tokens, the highest score first.

    Equal scores come in an order drawn by lot: in the text's own order a method that says nothing would look as good
    as the first words are.

    Args:
        scores_T: of each token of the row.
        ordinary: the places to rank.
        key: what the lot is a function of, such as the seed and the row.
    """
    lot = numpy_generator("ties", *key).random(len(ordinary))
    return ordinary[np.lexsort((lot, -scores_T[ordinary]))]


def top_counts(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """How many of `count` tokens each share stands for: rounded up, so at least one."""
    # Rounded first: 0.1 x 30 is a little more than 3 in binary numbers.
    return [min(count, max(1, math.ceil(round(share * count, 9)))) for share in shares]
