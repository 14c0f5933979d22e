"""Fit a softmax temperature and decision thresholds on held-out rows, and measure the effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import probabilities_of
from attentune.stats.calibration import best_threshold, calibration_error, fit_temperature


@dataclass(frozen=True)
class Calibration:
    """The fitted values."""

    rows: int  # the number of rows it was fitted on
    temperature: float = 1.0  # the softmax temperature; 1 if none was fitted
    thresholds: tuple[float, ...] | None = None  # the decision threshold of each label, or of the second of two classes
    # By split, the expected calibration error before and after.
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def space(self, label_space: LabelSpace) -> LabelSpace:
        """Return the label space with the thresholds."""
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
        """Summarise the calibration in one sentence."""
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


def error_of(logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace) -> float:
    """Compute the expected calibration error: of the most likely class, or over all labels of all rows."""
    shares_NC = probabilities_of(logits_NC, label_space)
    if label_space.is_multilabel:
        return calibration_error(shares_NC.reshape(-1), labels.reshape(-1))
    likeliest_N = shares_NC.argmax(axis=1)
    return calibration_error(shares_NC.max(axis=1), likeliest_N == labels)
