"""Random masks over non-special tokens, each a function of its key."""

from __future__ import annotations

import itertools

import numpy as np

from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator


def random_mask(features: Features, row: int, share: float, *key: int | str) -> np.ndarray:
    """Draw the positions of a row to mask: a random share of its non-special tokens, at least one if there is any.

    Source: SSA (Kou et al. 2020, section 3.1), which masks 30 %.
    """
    ordinary = features.non_special_positions(row)
    if share <= 0 or len(ordinary) == 0:
        return np.zeros(0, dtype=np.int64)
    count = min(max(1, round(share * len(ordinary))), len(ordinary))
    return np.sort(numpy_generator("mask", *key).choice(ordinary, size=count, replace=False))


def spread_copies(rows: int, ratio: float, *key: int | str) -> np.ndarray:
    """Choose which rows to copy, and how often, for `ratio` x `rows` copies.

    Each row is copied floor(ratio) times and a random subset once more.
    """
    whole, rest = divmod(round(ratio * rows), rows) if rows else (0, 0)
    extra = numpy_generator("copies", *key).choice(rows, size=rest, replace=False) if rest else np.zeros(0, np.int64)
    return np.sort(np.concatenate([np.repeat(np.arange(rows), whole), extra])).astype(np.int64)


def random_spans(
    features: Features, row: int, *, chance: float, rm_threshold: float, key: tuple[int, ...]
) -> np.ndarray:
    """Draw the positions of a row that random spans mask, as SSA's released program does; often none in short texts.

    The spans of each text of a pair are drawn by themselves, over its tokens without special ones. Each token starts a
    span with the given probability. The span ends at a random position in the token's quarter of the text and extends
    3, 2 or 1 tokens to the left. The quarters of T tokens are cut at the 25th, 50th and 75th percentile of 0 .. T - 1,
    so they need not have whole numbers; positions are drawn between the whole parts of a quarter's ends. A span that
    would begin before its quarter has one token, and a quarter of at most one token has no span.

    Source: the released program of Kou et al. 2020 (aug_threshold, rm_threshold).
    """
    ordinary = features.non_special_positions(row)
    generator = numpy_generator("spans", *key)
    starting = np.flatnonzero(generator.random(len(ordinary)) < chance)
    shares, lengths = generator.random(len(starting)), generator.random(len(starting))
    # Special tokens stand between the texts.
    edges = [0, *(np.flatnonzero(np.diff(ordinary) > 1) + 1).tolist(), len(ordinary)]
    chosen: set[int] = set()
    for token, share, p in zip(starting.tolist(), shares, lengths, strict=True):
        begin, after = next(pair for pair in itertools.pairwise(edges) if pair[0] <= token < pair[1])
        text = after - begin
        bounds = [0.0, 0.25 * (text - 1), 0.5 * (text - 1), 0.75 * (text - 1), float(text)]
        quarter = sum(token - begin >= bound for bound in bounds[1:4])
        start, end = bounds[quarter], bounds[quarter + 1]
        if end - start <= 1:
            continue
        last = int(start) + int(share * (int(end) - int(start)))
        length = 1
        if p > rm_threshold and last >= start + 2:
            length = 3
        elif 2 * rm_threshold - 1 < p < rm_threshold and last >= start + 1:
            length = 2
        chosen.update(range(begin + last - length + 1, begin + last + 1))
    return ordinary[sorted(chosen)]


def copy_numbers(copies: np.ndarray) -> np.ndarray:
    """Number the copies of each row from 0, given `spread_copies`, so that each gets a different mask."""
    return np.arange(len(copies)) - np.searchsorted(copies, copies, side="left")
