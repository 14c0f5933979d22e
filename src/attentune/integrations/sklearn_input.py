"""What scikit-learn users give as X, y and sample_weight, as texts, labels and weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import column_or_1d


def labels_of(y: Any) -> np.ndarray:
    """Return the (N,) class labels, of any sortable type.

    Raises:
        ValueError: y is not one column, or holds fractions, NaN or infinity.
    """
    labels_N = column_or_1d(np.asarray(y), warn=True)
    if labels_N.dtype.kind == "f" and not np.all(np.isfinite(labels_N) & (labels_N == np.floor(labels_N))):
        raise ValueError("y: got an unknown label type: continuous numbers or NaN; AttentuneRegressor takes numbers.")
    return labels_N


def scores_of(y: Any) -> np.ndarray:
    """Return the (N,) scores.

    Raises:
        ValueError: y is not one column of numbers, or holds NaN or infinity.
    """
    scores_N = np.asarray(column_or_1d(np.asarray(y), warn=True), dtype=np.float64)
    if not np.isfinite(scores_N).all():
        raise ValueError("y: got NaN or infinity, expected numbers.")
    return scores_N


def weights_of(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Return the (N,) weights scaled to a mean of 1, so that only their ratios matter; None if all are equal."""
    if sample_weight is None:
        return None
    weights_N = np.asarray(column_or_1d(np.asarray(sample_weight)), dtype=np.float64)
    if len(weights_N) != rows or not (np.isfinite(weights_N).all() and (weights_N >= 0).all() and weights_N.any()):
        raise ValueError(
            f"sample_weight: got {len(weights_N)} values from {weights_N.min(initial=np.inf):g} to"
            f" {weights_N.max(initial=-np.inf):g}, expected a number of at least 0 for each of {rows}"
            " rows, not all zero."
        )
    return None if np.ptp(weights_N) == 0 else weights_N / weights_N.mean()


def texts_of(X: Any) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Read the texts of X.

    Returns:
        The first texts, and the second texts of pairs or None.

    Raises:
        ValueError: X is empty, or its rows are not all one text or all two texts.
        TypeError: X is a sparse matrix.
    """
    if isinstance(X, str):
        raise ValueError("X: got one text, expected a list of texts: put it in [brackets].")
    if issparse(X):
        raise TypeError("X: got a sparse matrix, expected texts or pairs of texts, without a vectorizer before.")
    rows = np.asarray(X).tolist() if hasattr(X, "__array__") else list(X)
    if not rows:
        raise ValueError("X: got no rows (0 sample(s)), expected at least 1.")
    columns = [_row(row, place) for place, row in enumerate(rows)]
    lengths = {len(row) for row in columns}
    if not lengths <= {1} and not lengths <= {2}:
        raise ValueError(f"X: got rows of {', '.join(map(str, sorted(lengths)))} texts, expected 1 or 2 in each.")
    firsts = tuple(row[0] for row in columns)
    return firsts, tuple(row[1] for row in columns) if lengths == {2} else None


def _row(row: Any, place: int) -> Sequence[str]:
    parts: Iterable[Any] = [row] if isinstance(row, str) or not isinstance(row, (list, tuple, np.ndarray)) else row
    texts = list(parts)
    wrong = [part for part in texts if not isinstance(part, str)]
    if wrong or not texts:
        raise ValueError(
            f"X: row {place} holds {wrong[0]!r} ({type(wrong[0]).__name__}), expected a text; fill gaps with ''."
            if wrong
            else f"X: row {place} is empty, expected a text or two."
        )
    return texts
