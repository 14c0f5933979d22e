"""Calibration of probabilities: expected calibration error, temperature scaling and decision thresholds."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special

_LOWEST, _HIGHEST = 0.05, 20.0


def calibration_error(probabilities_N: np.ndarray, correct_N: np.ndarray, *, bins: int = 15) -> float:
    """Compute the expected calibration error, from 0 to 1.

    Source: Guo et al., 2017, section 2, after Naeini et al., 2015.
    """
    if len(probabilities_N) == 0:
        return float("nan")
    bin_N = np.clip(np.ceil(probabilities_N * bins).astype(np.int64) - 1, 0, bins - 1)
    predicted_K = np.bincount(bin_N, weights=probabilities_N, minlength=bins)
    observed_K = np.bincount(bin_N, weights=np.asarray(correct_N, dtype=np.float64), minlength=bins)
    return float(np.abs(predicted_K - observed_K).sum() / len(probabilities_N))


def negative_log_likelihood(logits_NC: np.ndarray, labels: np.ndarray, temperature: float = 1.0) -> float:
    """Compute the mean negative log-likelihood of the labels, with all logits divided by the temperature."""
    scaled_NC = logits_NC.astype(np.float64) / temperature
    if labels.ndim == 2:
        return float(-special.log_expit(np.where(labels == 1, scaled_NC, -scaled_NC)).mean())
    return float(-special.log_softmax(scaled_NC, axis=1)[np.arange(len(labels)), labels].mean())


def fit_temperature(logits_NC: np.ndarray, labels: np.ndarray) -> float:
    """Fit the temperature, from 0.05 to 20, that minimises the negative log-likelihood; 1 if no other is better.

    The temperature does not change the order of the classes.

    Source: Temperature scaling: Guo et al., 2017, section 4.2.
    """
    # The loss is convex in 1 / T, so it has one minimum in log T too.
    result = optimize.minimize_scalar(
        lambda log_t: negative_log_likelihood(logits_NC, labels, float(np.exp(log_t))),
        bounds=(np.log(_LOWEST), np.log(_HIGHEST)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    temperature = float(np.exp(result.x))
    return temperature if result.fun < negative_log_likelihood(logits_NC, labels) else 1.0


def best_threshold(probabilities_N: np.ndarray, positive_N: np.ndarray) -> float:
    """Find the decision threshold that maximises F1 on these rows; 0.5 if no row is positive.

    Candidates are midpoints between neighbouring probabilities; of equally good ones the nearest to 0.5 is returned.
    """
    positive_N = np.asarray(positive_N, dtype=bool)
    if not positive_N.any():
        return 0.5
    values = np.unique(probabilities_N)
    # candidates[k] is midway between values[k] and the value below it, or half of the lowest value.
    candidates = np.concatenate([[values[0] / 2], (values[1:] + values[:-1]) / 2])
    if 0.5 not in candidates:
        candidates = np.append(candidates, 0.5)
    order = np.argsort(probabilities_N, kind="stable")
    sorted_N, positive_sorted_N = probabilities_N[order], positive_N[order]
    below_K = np.searchsorted(sorted_N, candidates, side="left")
    hits_below = np.concatenate([[0], np.cumsum(positive_sorted_N)])
    hits_K = positive_N.sum() - hits_below[below_K]
    f1_K = 2 * hits_K / (positive_N.sum() + len(positive_N) - below_K)
    best = np.flatnonzero(np.isclose(f1_K, f1_K.max(), rtol=0, atol=1e-12))
    return float(candidates[best[np.argmin(np.abs(candidates[best] - 0.5))]])
