"""What scikit-learn users give as X, y and sample_weight, as texts, labels and weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import column_or_1d

from attentune.data.dataset import check_each, checked_texts, is_missing
from attentune.data.labels import label_key
from attentune.errors import InputError


def labels_of(y: Any) -> np.ndarray:
    """Return the (N,) class labels, of any sortable type."""
    check_one_column(y)
    _check_labels(y)
    labels_N = column_or_1d(np.asarray(y), warn=True)
    if labels_N.dtype.kind == "f":
        expected = "a class (unknown label type: continuous numbers; AttentuneRegressor takes them)"
        check_each(labels_N.tolist(), "y", lambda label: label == np.floor(label), expected)
    _warn_of_twins(labels_N)
    return labels_N


def check_one_column(y: Any) -> None:
    """Refuse several labels a row where NumPy would make one object of them; equal lists are left to scikit-learn."""
    if y is None or issparse(y):
        got = "None" if y is None else f"a sparse matrix of shape {y.shape}"
        raise ValueError(f"y should be a 1d array, got {got} instead.")
    if not hasattr(y, "__iter__") or (hasattr(y, "ndim") and y.ndim != 1):
        return
    for place, value in enumerate(y):
        if isinstance(value, (set, frozenset, dict)) or (
            isinstance(value, (list, tuple, np.ndarray)) and (hasattr(y, "ndim") or len(value) != len(y[0]))
        ):
            raise ValueError(
                f"y should be a 1d array, got {str(value)[:60]} in row {place} instead. Several labels a row are"
                " trained from a file: attentune train --task_type multi_label."
            )


def _check_labels(y: Any) -> None:
    """Check the labels as they are given, since NumPy makes texts of gaps and numbers beside texts."""
    if isinstance(y, np.ndarray) and y.dtype.kind in "iubU":
        return
    values = y.tolist() if hasattr(y, "tolist") else y.to_list() if hasattr(y, "to_list") else y
    if not isinstance(values, (list, tuple)) or any(isinstance(value, (list, tuple, np.ndarray)) for value in values):
        return  # not one column, which scikit-learn names
    check_each(values, "y", lambda label: not is_missing(label), "a label in each row; NaN and None are none")
    check_each(
        values,
        "y",
        lambda label: not isinstance(label, bytes) and label not in (float("inf"), float("-inf")),
        "a text or a number; infinity and bytes are no classes",
    )
    first = next(iter(values), "")
    kind = "text" if isinstance(first, str) else "number"
    check_each(
        values,
        "y",
        lambda label: isinstance(label, str) == isinstance(first, str),
        f"a {kind} as in row 0 ({first!r}): labels of one type",
    )


def _warn_of_twins(labels_N: np.ndarray) -> None:
    """Warn of texts that a file would hold for one class, such as 1 and 1.0; scikit-learn keeps them apart."""
    if labels_N.dtype.kind not in "OU":
        return
    names = sorted({label for label in labels_N.tolist() if isinstance(label, str)})
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(label_key(name), name)
        if other != name:
            warnings.warn(
                f"y: the classes {other!a} and {name!a} are equal but for invisible characters or zeros; they are two"
                " classes here. Write one of them in all rows if they are one.",
                UserWarning,
                stacklevel=4,
            )


def scores_of(y: Any) -> np.ndarray:
    """Return the (N,) scores."""
    check_one_column(y)
    values_N = column_or_1d(np.asarray(y), warn=True)
    if values_N.dtype.kind not in "iuf":
        check_each(values_N.tolist(), "y", _is_number, "a number in each row; NaN and None are none")
    scores_N = np.asarray(values_N, dtype=np.float64)
    check_each(scores_N.tolist(), "y", np.isfinite, "a finite number in each row; NaN and infinity are none")
    return scores_N


def _is_number(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


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
    """Read the texts of X."""
    if isinstance(X, str):
        raise ValueError("X: got one text, expected a list of texts: put it in [brackets].")
    if issparse(X):
        raise TypeError("X: got a sparse matrix, expected texts or pairs of texts, without a vectorizer before.")
    rows = np.asarray(X).tolist() if hasattr(X, "__array__") else list(X)
    if not rows:
        raise ValueError("X: got no rows (0 sample(s)), expected at least 1.")
    columns = [_row(row, place) for place, row in enumerate(rows)]
    width = max(map(len, columns))
    for part in range(width):
        values = [row[part] if part < len(row) else "" for row in columns]
        checked_texts(values, "X" if width == 1 else f"X, text {part + 1}")
    lengths = {len(row) for row in columns}
    if not lengths <= {1} and not lengths <= {2}:
        raise ValueError(f"X: got rows of {', '.join(map(str, sorted(lengths)))} texts, expected 1 or 2 in each.")
    firsts = tuple(row[0] for row in columns)
    return firsts, tuple(row[1] for row in columns) if lengths == {2} else None


def _row(row: Any, place: int) -> Sequence[Any]:
    texts = list(row) if isinstance(row, (list, tuple, np.ndarray)) else [row]
    if not texts:
        raise InputError(f"X: row {place} is empty, expected a text or two.")
    return texts
