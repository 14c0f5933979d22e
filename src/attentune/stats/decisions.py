"""From logits to probabilities, and on to predictions by argmax, thresholds, or the mean of ordered classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def class_probabilities(logits_NC: np.ndarray, *, is_multilabel: bool) -> np.ndarray:
    """Return the (N, C) float64 softmax of the logits, or the sigmoid in multi-label classification."""
    logits_NC = logits_NC.astype(np.float64)
    if is_multilabel:
        exponents = np.exp(-np.abs(logits_NC))
        return np.where(logits_NC < 0, exponents, 1.0) / (1.0 + exponents)
    exponents = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def predict_labels(
    probabilities_NC: np.ndarray,
    *,
    task_type: str,
    ordinal_prediction: str = "argmax",
    thresholds: Sequence[float] | None = None,
) -> np.ndarray:
    """Predict from probabilities: (N,) class ids, or (N, C) int64 ones and zeros in multi-label classification.

    The predicted class is the most probable one, or with "expected-value" the one nearest to the mean of the class
    numbers (halves round up). A label is predicted if its probability is at least 0.5 or its own threshold; with two
    classes and a threshold, the second class likewise. With thresholds, the predicted one of ordered classes is the
    number of thresholds that the mean of the class numbers reaches.
    """
    if task_type == "multi_label":
        return (probabilities_NC >= np.array(thresholds or 0.5)).astype(np.int64)
    if thresholds is not None and task_type == "ordinal":
        means_N = probabilities_NC @ np.arange(probabilities_NC.shape[1], dtype=np.float64)
        return np.searchsorted(np.array(thresholds), means_N, side="right").astype(np.int64)
    if thresholds is not None:
        return (probabilities_NC[:, 1] >= thresholds[0]).astype(np.int64)
    if ordinal_prediction == "expected-value":
        means_N = probabilities_NC @ np.arange(probabilities_NC.shape[1], dtype=np.float64)
        return np.floor(means_N + 0.5).astype(np.int64)
    return probabilities_NC.argmax(axis=1)
