"""From logits to probabilities, and to predictions: the likeliest class, thresholds, or the mean of ordered classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shares_of(logits_NC: np.ndarray, *, several: bool) -> np.ndarray:
    """(N, C) float64 softmax of the logits; with several labels a row each one's sigmoid."""
    logits_NC = logits_NC.astype(np.float64)
    if several:
        exponents = np.exp(-np.abs(logits_NC))
        return np.where(logits_NC < 0, exponents, 1.0) / (1.0 + exponents)
    exponents = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def chosen(
    shares_NC: np.ndarray,
    *,
    task_type: str,
    ordinal_prediction: str = "argmax",
    thresholds: Sequence[float] | None = None,
) -> np.ndarray:
    """(N,) class ids; with several labels a row (N, C) int64, 1 where one is predicted.

    A class is the likeliest one, unless expected values are wanted: then the one whose number is nearest to the mean of
    class numbers (halves go up). Of several labels each is predicted whose probability is at least a half, or its own
    threshold; of two classes with a threshold the second one likewise.

    Args:
        shares_NC: the probability of each class, or of each label by itself.
        task_type: "classification", "ordinal" or "multi_label".
        ordinal_prediction: "argmax" or "expected-value".
        thresholds: one a label, or one for the second of two classes.
    """
    if task_type == "multi_label":
        return (shares_NC >= np.array(thresholds or 0.5)).astype(np.int64)
    if thresholds is not None:
        return (shares_NC[:, 1] >= thresholds[0]).astype(np.int64)
    if ordinal_prediction == "expected-value":
        means_N = shares_NC @ np.arange(shares_NC.shape[1], dtype=np.float64)
        return np.floor(means_N + 0.5).astype(np.int64)
    return shares_NC.argmax(axis=1)
