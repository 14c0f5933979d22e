"""Folds for cross-validation that keep rows with nearly equal texts together and spread the labels evenly."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_matrix

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import row_groups
from attentune.errors import DataError
from attentune.seeding import numpy_generator

_BINS = 10


def make_folds(rows: TextRows, label_space: LabelSpace, *, folds: int, seed: int) -> np.ndarray:
    """Assign each row to a fold.

    The rows of a group (`data.splits.row_groups`) share a fold. Groups are assigned one by one, large ones and rare
    labels first, each to the fold that has the smallest share of its labels so far: of its classes, of its tenth of the
    scores, or in multi-label tasks of each of its labels. If all groups are single rows, the counts of a class (or
    tenth) in two folds differ by at most one. A class with fewer rows than folds is missing from some folds.

    Args:
        rows: the rows, at least two.
        label_space: the labels.
        folds: the number of folds, at least two.
        seed: shuffles the groups.

    Returns:
        (N,) int64, from 0. There are fewer folds if there are fewer groups.

    Raises:
        DataError: fewer than two rows or folds.

    Source:
        Greedy assignment as in scikit-learn's `StratifiedGroupKFold`, which takes neither scores nor several labels
        per row; for those Sechidis et al., "On the stratification of multi-label data", ECML PKDD 2011.
    """
    if len(rows) < 2 or folds < 2:
        raise DataError(
            f"cross-validation: got {len(rows)} rows and {folds} folds, expected at least 2 of each. Add labelled rows,"
            " or ask for more folds.",
            path=rows.source,
        )
    group_N = row_groups(rows)
    groups = int(group_N.max()) + 1
    folds = min(folds, groups)
    strata_NK = _strata(rows.labels, label_space)
    counts = coo_matrix((np.ones(len(rows)), (group_N, np.arange(len(rows)))), shape=(groups, len(rows)))
    counts_GK = counts @ strata_NK
    sizes_G = np.bincount(group_N)
    totals_K = np.maximum(strata_NK.sum(axis=0), 1.0)
    rarest_G = np.where(counts_GK > 0, totals_K, np.inf).min(axis=1)
    shuffled = numpy_generator("auto folds", seed).permutation(groups)
    order = shuffled[np.lexsort((rarest_G[shuffled], -sizes_G[shuffled]))]
    filled_FK, rows_F, fold_G = np.zeros((folds, len(totals_K))), np.zeros(folds), np.zeros(groups, dtype=np.int64)
    for place, group in enumerate(order.tolist()):
        there = np.flatnonzero(counts_GK[group])
        added = counts_GK[group, there]
        # The increase of the sum of squared shares.
        cost_F = ((2 * filled_FK[:, there] + added) * added / totals_K[there] ** 2).sum(axis=1)
        remaining = groups - place
        if (rows_F == 0).sum() >= remaining:  # every fold gets a group
            cost_F = np.where(rows_F == 0, cost_F, np.inf)
        fold = int(np.lexsort((rows_F, np.round(cost_F, 12)))[0])
        fold_G[group] = fold
        filled_FK[fold, there] += added
        rows_F[fold] += sizes_G[group]
    return fold_G[group_N]


def _strata(labels: np.ndarray | None, label_space: LabelSpace) -> np.ndarray:
    """Return (N, K) float64, 1 where a row is in a stratum: class, tenth of the scores, label or lack of labels."""
    if labels is None:
        raise DataError("cross-validation: got rows without labels, expected labels in every row.")
    if label_space.is_multilabel:
        return np.column_stack([labels, ~labels.any(axis=1)]).astype(np.float64)
    if label_space.task_type == "regression":
        edges = np.unique(np.quantile(labels, np.linspace(0, 1, _BINS + 1)[1:-1]))
        labels = np.searchsorted(edges, labels, side="left")
    classes, class_N = np.unique(labels, return_inverse=True)
    return np.eye(len(classes))[class_N]
