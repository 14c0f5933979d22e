"""Random masks over non-special tokens, each a function of its key."""

from __future__ import annotations

import numpy as np

from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator


def random_mask(features: Features, row: int, share: float, *key: int | str) -> np.ndarray:
    """Draw the positions of a row to mask: a random share of its non-special tokens, at least one if there is any.

    Source: SSA (Kou et al. 2020, section 3.1), which masks 30 %.

    Args:
        features: the split's tokens.
        row: the row's number.
        share: from 0 to 1; rounded to whole tokens.
        key: seeds the draw, such as (seed, epoch, row, copy).

    Returns:
        Positions within the row, ascending, int64; empty if the share is 0 or all tokens are special.
    """
    ordinary = features.non_special_positions(row)
    if share <= 0 or len(ordinary) == 0:
        return np.zeros(0, dtype=np.int64)
    count = min(max(1, round(share * len(ordinary))), len(ordinary))
    return np.sort(numpy_generator("mask", *key).choice(ordinary, size=count, replace=False))


def spread_copies(rows: int, ratio: float, *key: int | str) -> np.ndarray:
    """Choose which rows to copy, and how often, for `ratio` x `rows` copies.

    Each row is copied floor(ratio) times and a random subset once more.

    Returns:
        (round(ratio * rows),) row numbers, ascending.
    """
    whole, rest = divmod(round(ratio * rows), rows) if rows else (0, 0)
    extra = numpy_generator("copies", *key).choice(rows, size=rest, replace=False) if rest else np.zeros(0, np.int64)
    return np.sort(np.concatenate([np.repeat(np.arange(rows), whole), extra])).astype(np.int64)


def random_spans(
    features: Features, row: int, *, chance: float, rm_threshold: float, key: tuple[int, ...]
) -> np.ndarray:
    """Draw the positions of a row that random spans mask, as SSA's released program does; often none in short texts.

    Each non-special token starts a span with the given probability. The span ends at a random position in the token's
    quarter of the text and extends 3, 2 or 1 tokens to the left, within the quarter.

    Args:
        features: the split's tokens.
        row: the row's number.
        chance: probability of a span; the released `aug_threshold`.
        rm_threshold: for p uniform in [0, 1) a span has 3 tokens if p > rm_threshold, else 2 if
            p > 2 rm_threshold - 1, else 1.
        key: seeds the draw.

    Returns:
        Positions within the row, ascending, int64.
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
    """Number the copies of each row from 0, given `spread_copies`, so that each gets a different mask."""
    return np.arange(len(copies)) - np.searchsorted(copies, copies, side="left")
