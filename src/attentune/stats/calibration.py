"""How far probabilities can be assumed_correct, and two ways to mend them: a temperature and thresholds."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special

_LOWEST, _HIGHEST = 0.05, 20.0


def calibration_error(probabilities_N: np.ndarray, happened_N: np.ndarray, *, bins: int = 15) -> float:
    """The expected calibration error: how far shares of what happened are from their probabilities, 0 to 1.

    Args:
        probabilities_N: what was said, from 0 to 1; of a class the probability of the predicted one.
        happened_N: whether it was so.
        bins: of equal width, (low, high] each.

    Source: Guo et al. 2017, section 2, after Naeini et al. 2015.
    """
    if len(probabilities_N) == 0:
        return float("nan")
    bin_N = np.clip(np.ceil(probabilities_N * bins).astype(np.int64) - 1, 0, bins - 1)
    said_K = np.bincount(bin_N, weights=probabilities_N, minlength=bins)
    was_K = np.bincount(bin_N, weights=np.asarray(happened_N, dtype=np.float64), minlength=bins)
    return float(np.abs(said_K - was_K).sum() / len(probabilities_N))


def negative_log_likelihood(logits_NC: np.ndarray, labels: np.ndarray, temperature: float = 1.0) -> float:
    """The mean of minus the log-probability of what is true, with all logits divided by the temperature.

    Args:
        logits_NC: of classes, or of labels of which any number may be there.
        labels: (N,) class ids, or (N, C) ones and zeros; then the mean is over labels too.
        temperature: above 0.
    """
    scaled_NC = logits_NC.astype(np.float64) / temperature
    if labels.ndim == 2:
        return float(-special.log_expit(np.where(labels == 1, scaled_NC, -scaled_NC)).mean())
    return float(-special.log_softmax(scaled_NC, axis=1)[np.arange(len(labels)), labels].mean())


def fit_temperature(logits_NC: np.ndarray, labels: np.ndarray) -> float:
    """The temperature from 0.05 to 20 that makes these labels likeliest; 1 where none does so better than 1.

    It changes no order: the likeliest class stays the likeliest.

    Args:
        logits_NC: of rows that the model was not trained on.
        labels: as in `negative_log_likelihood`.

    Source: temperature scaling (Guo et al. 2017, section 4.2).
    """
    # The loss is convex in 1 / T, so it has one lowest point in log T too.
    found = optimize.minimize_scalar(
        lambda log_t: negative_log_likelihood(logits_NC, labels, float(np.exp(log_t))),
        bounds=(np.log(_LOWEST), np.log(_HIGHEST)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    temperature = float(np.exp(found.x))
    return temperature if found.fun < negative_log_likelihood(logits_NC, labels) else 1.0


def best_threshold(probabilities_N: np.ndarray, there_N: np.ndarray) -> float:
    """The threshold at or above which to say yes, for the highest F1 on these rows; 0.5 where nothing is there.

    Between two probabilities it lies in their middle; of equally good ones it is the nearest to 0.5.

    Args:
        probabilities_N: of yes.
        there_N: whether it is so.
    """
    there_N = np.asarray(there_N, dtype=bool)
    if not there_N.any():
        return 0.5
    values = np.unique(probabilities_N)
    # Where yes begins at values[k]: in the middle between it and the one below.
    candidates = np.concatenate([[values[0] / 2], (values[1:] + values[:-1]) / 2])
    if 0.5 not in candidates:
        candidates = np.append(candidates, 0.5)
    order = np.argsort(probabilities_N, kind="stable")
    sorted_N, there_sorted_N = probabilities_N[order], there_N[order]
    below_K = np.searchsorted(sorted_N, candidates, side="left")
    hits_below = np.concatenate([[0], np.cumsum(there_sorted_N)])
    hits_K = there_N.sum() - hits_below[below_K]
    f1_K = 2 * hits_K / (there_N.sum() + len(there_N) - below_K)
    best = np.flatnonzero(np.isclose(f1_K, f1_K.max(), rtol=0, atol=1e-12))
    return float(candidates[best[np.argmin(np.abs(candidates[best] - 0.5))]])
