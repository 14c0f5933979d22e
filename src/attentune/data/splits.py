"""Seeded parts of a data set that keep its balance of labels."""

from __future__ import annotations

import numpy as np

from attentune.seeding import numpy_generator

_NUM_BINS = 10


def stratified_sample(labels: np.ndarray | None, size: int, *key: int | str, num_rows: int | None = None) -> np.ndarray:
    """Choose rows so that each class (or each tenth of the scores) has its share.

    Args:
        labels: class ids (whole numbers) or scores (floats), one a row, or (N, C) ones and zeros; None draws from all
            rows alike.
        size: how many rows; where there are fewer, all are taken. Every class gets a row as long as `size` allows.
        key: what the choice depends on, such as (seed, "train").
        num_rows: the number of rows, where there are no labels.

    Returns:
        Places of the chosen rows, ascending (the file's order).
    """
    strata = _strata(labels, num_rows)
    counts = np.bincount(strata)
    return _draw(strata, _allocate(counts, counts, min(size, len(strata))), key)


def stratified_split(labels: np.ndarray, share: float, *key: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Cut rows in two, each part with the whole's balance of labels.

    A class with one row stays in the first part; a larger class has a row or more in each, where the share allows.

    Args:
        labels: class ids (whole numbers) or scores (floats), one a row, or (N, C) ones and zeros; at least two.
        share: of the rows in the second part, above 0 and below 1.
        key: what the choice depends on.

    Returns:
        Places of the first and of the second part, each ascending.
    """
    strata = _strata(labels, None)
    counts = np.bincount(strata)
    size = min(max(1, round(len(strata) * share)), len(strata) - 1)
    quotas = _allocate(counts, np.maximum(counts - 1, 0), size)
    if quotas.sum() == 0:
        # Every class has a single row: one row has to go over, whichever.
        quotas[np.argmax(counts)] = 1
    second = _draw(strata, quotas, key)
    return np.setdiff1d(np.arange(len(strata)), second), second


def stratified_folds(labels: np.ndarray, count: int, *key: int | str) -> list[np.ndarray]:
    """Cut rows evenly in so many parts, each with the whole's balance of labels.

    Sizes differ by one row at most, and so does each class (or tenth of the scores) between parts.

    Args:
        labels: class ids (whole numbers) or scores (floats), one a row, or (N, C) ones and zeros; at least `count`.
        count: of parts.
        key: what the cut depends on.

    Returns:
        Places of each part's rows, ascending.
    """
    strata = _strata(labels, None)
    # All rows in the order of their strata, each stratum shuffled, are dealt out like cards.
    order = np.concatenate(
        [
            numpy_generator("parts", *key, stratum).permutation(np.flatnonzero(strata == stratum))
            for stratum in range(int(strata.max()) + 1)
        ]
    )
    return [np.sort(order[part::count]) for part in range(count)]


def _strata(labels: np.ndarray | None, num_rows: int | None) -> np.ndarray:
    """The stratum of each row: its class, its tenth of the scores (equal scores together), or its rarest label."""
    if labels is None:
        return np.zeros(num_rows or 0, dtype=np.int64)
    if np.issubdtype(labels.dtype, np.floating):
        edges = np.quantile(labels, np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
        labels = np.searchsorted(np.unique(edges), labels, side="left")
    if labels.ndim == 2:
        labels = _rarest(labels)
    return np.unique(labels, return_inverse=True)[1]


def _rarest(labels_NC: np.ndarray) -> np.ndarray:
    """(N,) the label of each row that the fewest rows have; C where a row has none."""
    counts_NC = np.where(labels_NC > 0, labels_NC.sum(axis=0), len(labels_NC) + 1)
    return np.where(labels_NC.any(axis=1), counts_NC.argmin(axis=1), labels_NC.shape[1])


def _allocate(counts: np.ndarray, limits: np.ndarray, size: int) -> np.ndarray:
    """How many rows of each stratum: in proportion, none above its limit, one each if possible."""
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
