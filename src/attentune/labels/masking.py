"""Random masks over ordinary tokens, functions of a key alone."""

from __future__ import annotations

import numpy as np

from attentune.data.features import Features
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
    ordinary = features.ordinary_positions(row)
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
