"""Fit a softmax temperature and decision thresholds on held-out rows, and measure the effect."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize, special

from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import probabilities_of

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
    return nearest_best(candidates, f1_K, 0.5)


def nearest_best(candidates: np.ndarray, scores: np.ndarray | list[float], default: float) -> float:
    """Return the candidate with the best score; of equally good ones the nearest to the default."""
    best = np.flatnonzero(np.isclose(scores, np.max(scores), rtol=0, atol=1e-12))
    return float(candidates[best[np.argmin(np.abs(candidates[best] - default))]])


@dataclass(frozen=True)
class Calibration:
    """The fitted values."""

    rows: int  # the number of rows it was fitted on
    temperature: float = 1.0  # the softmax temperature; 1 if none was fitted
    thresholds: tuple[float, ...] | None = None  # the decision threshold of each label, or of the second of two classes
    # By split, the expected calibration error before and after.
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def space(self, label_space: LabelSpace) -> LabelSpace:
        return replace(label_space, thresholds=self.thresholds)

    def settings(self) -> dict[str, Any]:
        """Return the entries for the configuration of a model."""
        thresholds = None if self.thresholds is None else list(self.thresholds)
        return {"calibration_temperature": self.temperature, "thresholds": thresholds}

    def facts(self, label_space: LabelSpace) -> dict[str, Any]:
        """Return the entries for the record of a run."""
        names = label_space.names if label_space.is_multilabel else label_space.names[1:]
        return {
            "rows": self.rows,
            "temperature": self.temperature,
            "thresholds": None if self.thresholds is None else dict(zip(names, self.thresholds, strict=True)),
            "expected_calibration_error": {
                split: {"before": before, "after": after} for split, (before, after) in self.errors.items()
            },
        }

    def sentence(self) -> str:
        clauses = [f"Calibrated on {self.rows} rows: logits are divided by {self.temperature:.4g}"]
        if self.thresholds is not None:
            clauses.append(f"thresholds {', '.join(f'{value:.3f}' for value in self.thresholds)}")
        clauses += [
            f"expected calibration error on {split} {before:.4f} before, {after:.4f} after"
            for split, (before, after) in self.errors.items()
        ]
        return "; ".join(clauses) + "."


def fit(
    logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace, *, temperature: bool, thresholds: bool
) -> Calibration:
    """Fit a temperature, and then thresholds on the scaled probabilities."""
    fitted_temperature = fit_temperature(logits_NC, labels) if temperature else 1.0
    chosen: tuple[float, ...] | None = None
    if thresholds:
        shares_NC = probabilities_of(logits_NC / fitted_temperature, label_space)
        there_NC = labels if label_space.is_multilabel else np.eye(2, dtype=np.int64)[labels]
        first = 0 if label_space.is_multilabel else 1
        chosen = tuple(best_threshold(shares_NC[:, c], there_NC[:, c]) for c in range(first, shares_NC.shape[1]))
    return Calibration(len(labels), fitted_temperature, chosen)


def soft_cross_entropy(logits_NC: np.ndarray, targets_NC: np.ndarray, label_space: LabelSpace) -> np.ndarray:
    """Compute the cross-entropy (N,) of the predicted probabilities with target probabilities, in nats."""
    shares_NC = np.maximum(probabilities_of(logits_NC, label_space), np.finfo(np.float64).tiny)
    return -(targets_NC * np.log(shares_NC)).sum(axis=1)


def error_of(logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace) -> float:
    """Compute the expected calibration error: of the most likely class, or over all labels of all rows."""
    shares_NC = probabilities_of(logits_NC, label_space)
    if label_space.is_multilabel:
        return calibration_error(shares_NC.reshape(-1), labels.reshape(-1))
    likeliest_N = shares_NC.argmax(axis=1)
    return calibration_error(shares_NC.max(axis=1), likeliest_N == labels)
