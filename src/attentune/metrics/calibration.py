"""Fitting a temperature and thresholds to rows that were kept out of training, and saying what that changed."""

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
    """What was fitted.

    Attributes:
        rows: how many rows it was fitted on.
        temperature: what logits are divided by; 1 where none was asked for or needed.
        thresholds: of each label, or of the second of two classes; None where none were asked for.
        errors: by split the expected calibration error before and after.
    """

    rows: int
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def space(self, label_space: LabelSpace) -> LabelSpace:
        """The label space whose predictions obey the thresholds."""
        return replace(label_space, thresholds=self.thresholds)

    def settings(self) -> dict[str, Any]:
        """What a model's configuration holds of it, by the names there."""
        thresholds = None if self.thresholds is None else list(self.thresholds)
        return {"calibration_temperature": self.temperature, "thresholds": thresholds}

    def facts(self, label_space: LabelSpace) -> dict[str, Any]:
        """For a run's record."""
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
        """One for the user."""
        said = [f"Calibrated on {self.rows} rows: logits are divided by {self.temperature:.4g}"]
        if self.thresholds is not None:
            said.append(f"thresholds {', '.join(f'{value:.3f}' for value in self.thresholds)}")
        said += [
            f"expected calibration error on {split} {before:.4f} before, {after:.4f} after"
            for split, (before, after) in self.errors.items()
        ]
        return "; ".join(said) + "."


def fit(
    logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace, *, temperature: bool, thresholds: bool
) -> Calibration:
    """Fit what is asked for; thresholds to the probabilities that the temperature leaves.

    Args:
        logits_NC: of the rows that were kept out.
        labels: (N,) class ids, or (N, C) ones and zeros.
        label_space: classes, or labels of which any number may be there; with thresholds two classes or labels.
        temperature, thresholds: what to fit.
    """
    found = fit_temperature(logits_NC, labels) if temperature else 1.0
    chosen: tuple[float, ...] | None = None
    if thresholds:
        shares_NC = probabilities_of(logits_NC / found, label_space)
        there_NC = labels if label_space.is_multilabel else np.eye(2, dtype=np.int64)[labels]
        first = 0 if label_space.is_multilabel else 1
        chosen = tuple(best_threshold(shares_NC[:, c], there_NC[:, c]) for c in range(first, shares_NC.shape[1]))
    return Calibration(len(labels), found, chosen)


def error_of(logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace) -> float:
    """The expected calibration error: of the likeliest class, or of every label of every row."""
    shares_NC = probabilities_of(logits_NC, label_space)
    if label_space.is_multilabel:
        return calibration_error(shares_NC.reshape(-1), labels.reshape(-1))
    likeliest_N = shares_NC.argmax(axis=1)
    return calibration_error(shares_NC.max(axis=1), likeliest_N == labels)
