"""Folds for cross-validation that keep rows with nearly equal texts together and spread the labels evenly."""

from __future__ import annotations

import numpy as np

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import deal_groups, row_groups
from attentune.errors import DataError

_BINS = 10


def make_folds(rows: TextRows, label_space: LabelSpace, *, folds: int, seed: int) -> np.ndarray:
    """Assign each row to a fold, with the same balance of labels: of classes, tenths of the scores, or each label.

    The rows of a group (see `data.splits.row_groups`) share a fold. A class with fewer rows than folds is missing from
    some folds.
    """
    if len(rows) < 2 or folds < 2:
        raise DataError(
            f"cross-validation: got {len(rows)} rows and {folds} folds, expected at least 2 of each. Add labelled rows,"
            " or ask for more folds.",
            path=rows.source,
        )
    group_N = row_groups(rows)
    strata_NK = _strata(rows.labels, label_space)
    return deal_groups(strata_NK, group_N, min(folds, int(group_N.max()) + 1), "auto folds", seed)


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
