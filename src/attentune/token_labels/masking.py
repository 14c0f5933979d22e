"""Random masks over ordinary tokens, functions of a key alone."""

from __future__ import annotations

import numpy as np

from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator


def random_mask(features: Features, row: int, share: float, *key: int | str) -> np.ndarray:
    """The places of `row` to mask: a random share of its ordinary tokens, at least one where there is any.

    Source: SSA (Kou et al. 2020, section 3.2), which masks 30 %.

    Args:
        features: the split's tokens.
        row: the row's number.
        share: from 0 to 1; rounded to whole tokens.
        key: what the choice is a function of, such as (seed, epoch, row, copy).

    Returns:
        Places within the row, ascending, int64; empty if the share is 0 or no token is ordinary.
    """
    ordinary = features.non_special_positions(row)
    if share <= 0 or len(ordinary) == 0:
        return np.zeros(0, dtype=np.int64)
    count = min(max(1, round(share * len(ordinary))), len(ordinary))
    return np.sort(numpy_generator("mask", *key).choice(ordinary, size=count, replace=False))


def spread_copies(rows: int, ratio: float, *key: int | str) -> np.ndarray:
    """Which rows are used, and how often, when `ratio` x `rows` are wanted.

    Each row is used floor(ratio) times and a random part once more.

    Returns:
        (round(ratio * rows),) row numbers, ascending.
    """
    whole, rest = divmod(round(ratio * rows), rows) if rows else (0, 0)
    extra = numpy_generator("copies", *key).choice(rows, size=rest, replace=False) if rest else np.zeros(0, np.int64)
    return np.sort(np.concatenate([np.repeat(np.arange(rows), whole), extra])).astype(np.int64)


def random_spans(
    features: Features, row: int, *, chance: float, rm_threshold: float, key: tuple[int, ...]
) -> np.ndarray:
    """The places of `row` that random spans mask, as SSA's released program draws them; often none in short texts.

    Each ordinary token starts a span with the given chance: it ends at a random place in the quarter of the text that
    the token stands in and runs 3, 2 or 1 tokens to the left, but not out of the quarter.

    Args:
        features: the split's tokens.
        row: the row's number.
        chance: the released `aug_threshold`.
        rm_threshold: of one draw p a span is 3 long if p is above it, else 2 if p is above 2 x it - 1, else 1.
        key: what the choice is a function of.

    Returns:
        Places within the row, ascending, int64.
    """
    ordinary = features.non_special_positions(row)
    count = len(ordinary)
    generator = numpy_generator("spans", *key)
    starting = np.flatnonzero(generator.random(count) < chance)
    where, lengths = generator.random(len(starting)), generator.random(len(starting))
    chosen: set[int] = set()
    for token, share, p in zip(starting, where, lengths, strict=True):
        quarter = int(token) * 4 // count
        first, end = -(-quarter * count // 4), -(-(quarter + 1) * count // 4)
        last = first + int(share * (end - first))
        length = 3 if p > rm_threshold else 2 if p > 2 * rm_threshold - 1 else 1
        chosen.update(range(max(first, last - length + 1), last + 1))
    return ordinary[sorted(chosen)]


def copy_numbers(copies: np.ndarray) -> np.ndarray:
    """Of each entry of `spread_copies` its number, from 0, among those of its row, so that each has its own mask."""
    return np.arange(len(copies)) - np.searchsorted(copies, copies, side="left")
