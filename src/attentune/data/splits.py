"""Seeded, stratified samples, splits and folds, and the groups of rows that none of them may separate."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

import numpy as np

from attentune.data.checks.near_duplicates import near_groups
from attentune.data.dataset import TextRows
from attentune.seeding import numpy_generator

_NUM_BINS = 10


def stratified_sample(labels: np.ndarray | None, size: int, *key: int | str, num_rows: int | None = None) -> np.ndarray:
    """Draw a sample with the same share of each class (or of each tenth of the scores).

    Args:
        labels: class ids (integers) or scores (floats), one per row, or (N, C) ones and zeros; None for an
            unstratified sample.
        size: the number of rows, at most all. Every class gets at least one row if `size` allows it.
        key: the random key, such as (seed, "train").
        num_rows: the number of rows, if there are no labels.

    Returns:
        The indices of the sample, ascending.
    """
    strata = _strata(labels, num_rows)
    counts = np.bincount(strata)
    return _draw(strata, _allocate(counts, counts, min(size, len(strata))), key)


def stratified_split(labels: np.ndarray, share: float, *key: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Split rows in two, both with the same balance of labels.

    A class with one row goes to the first split; a larger class has at least one row in both, if the share allows it.

    Args:
        labels: class ids (integers) or scores (floats), one per row, or (N, C) ones and zeros; at least two.
        share: the share of the second split, between 0 and 1.
        key: the random key.

    Returns:
        The indices of the first and of the second split, each ascending.
    """
    strata = _strata(labels, None)
    counts = np.bincount(strata)
    size = min(max(1, round(len(strata) * share)), len(strata) - 1)
    quotas = _allocate(counts, np.maximum(counts - 1, 0), size)
    if quotas.sum() == 0:
        # Every class has a single row, but the second split needs one.
        quotas[np.argmax(counts)] = 1
    second = _draw(strata, quotas, key)
    return np.setdiff1d(np.arange(len(strata)), second), second


def stratified_folds(labels: np.ndarray, count: int, *key: int | str) -> list[np.ndarray]:
    """Split rows evenly into folds with the same balance of labels.

    The sizes of the folds differ by at most one row, and so do the counts of each class (or tenth of the scores).

    Args:
        labels: class ids (integers) or scores (floats), one per row, or (N, C) ones and zeros; at least `count`.
        count: the number of folds.
        key: the random key.

    Returns:
        The indices of each fold, ascending.
    """
    strata = _strata(labels, None)
    # The rows, ordered by stratum and shuffled within each, are dealt to the folds in turn.
    order = np.concatenate(
        [
            numpy_generator("parts", *key, stratum).permutation(np.flatnonzero(strata == stratum))
            for stratum in range(int(strata.max()) + 1)
        ]
    )
    return [np.sort(order[fold::count]) for fold in range(count)]


def row_groups(rows: TextRows) -> np.ndarray:
    """Number the groups of rows that must not be separated: (N,) int64, from 0.

    Single texts: rows with nearly equal texts, such as retweets and filled templates. Pairs: rows with nearly equal
    first texts (premises), or nearly the same words in both texts together, and what these links connect.

    If a group has more than half of all rows, one fold would hold most of the data. Then only equal texts are linked,
    without regard to case and white space; then pairs only by both texts; and if that is not enough, each row is a
    group.
    """
    first = [_normalised(text) for text in rows.texts]
    # Scores may be about the numbers in a text.
    near = partial(near_groups, numbers=rows.labels is not None and np.issubdtype(rows.labels.dtype, np.floating))
    links: list[list[Sequence[Hashable]]]
    if rows.pairs is None:
        links = [[near(rows.texts)], [first], []]
    else:
        second = [_normalised(text) for text in rows.pairs]
        both = [frozenset(pair) for pair in zip(first, second, strict=True)]
        joined = [" ".join(pair) for pair in zip(rows.texts, rows.pairs, strict=True)]
        links = [[near(rows.texts), near(joined)], [first, both], [both], []]
    for keys in links:
        group_N = _connected(keys, len(rows))
        if len(rows) == 0 or np.bincount(group_N).max() <= max(1, len(rows) / 2):
            break
    return group_N


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


def _connected(columns: Iterable[Sequence[Hashable]], count: int) -> np.ndarray:
    """Return the connected components of rows that have equal keys in a column."""
    parents = list(range(count))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    for keys in columns:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            one, other = root(first.setdefault(key, row)), root(row)
            parents[max(one, other)] = min(one, other)
    return np.unique([root(row) for row in range(count)], return_inverse=True)[1].astype(np.int64)


def _strata(labels: np.ndarray | None, num_rows: int | None) -> np.ndarray:
    """The stratum of each row: its class, its decile of the scores, or its rarest label."""
    if labels is None:
        return np.zeros(num_rows or 0, dtype=np.int64)
    if np.issubdtype(labels.dtype, np.floating):
        edges = np.quantile(labels, np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
        labels = np.searchsorted(np.unique(edges), labels, side="left")
    if labels.ndim == 2:
        labels = _rarest(labels)
    return np.unique(labels, return_inverse=True)[1]


def _rarest(labels_NC: np.ndarray) -> np.ndarray:
    """(N,) the rarest label of each row; C for rows without a label."""
    counts_NC = np.where(labels_NC > 0, labels_NC.sum(axis=0), len(labels_NC) + 1)
    return np.where(labels_NC.any(axis=1), counts_NC.argmin(axis=1), labels_NC.shape[1])


def _allocate(counts: np.ndarray, limits: np.ndarray, size: int) -> np.ndarray:
    """The number of rows per stratum: proportional, within the limits, and at least one if possible."""
    size = min(size, int(limits.sum()))
    if size == 0:
        return np.zeros_like(counts)
    exact = counts * size / counts.sum()
    least = (limits > 0).astype(np.int64) if size >= np.count_nonzero(limits) else np.zeros_like(counts)
    quotas = np.clip(np.floor(exact).astype(np.int64), least, limits)
    while quotas.sum() != size:
        step = 1 if quotas.sum() < size else -1
        free = quotas < limits if step > 0 else quotas > least
        lack = np.where(free, (exact - quotas) * step, -np.inf)
        quotas[np.argmax(lack)] += step
    return quotas


def _draw(strata: np.ndarray, quotas: np.ndarray, key: tuple[int | str, ...]) -> np.ndarray:
    chosen = [
        numpy_generator("stratified", *key, stratum).permutation(np.flatnonzero(strata == stratum))[:quota]
        for stratum, quota in enumerate(int(quota) for quota in quotas)
        if quota
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)
