"""The majority class (regression: the mean score), whatever the text."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from attentune.baselines.base import Baseline
from attentune.data.dataset import LabelSpace, TextRows


class Majority(Baseline):
    """Predicts the class frequencies of the training rows, smoothed so that none is 0; for scores their mean."""

    name = "majority"

    def __init__(self) -> None:
        super().__init__()
        self._logits_C = np.zeros(0)

    def _fit(self, rows: TextRows, labels: np.ndarray, label_space: LabelSpace) -> None:
        weights = np.ones(len(labels)) if rows.weights is None else rows.weights
        total = weights.sum()
        if label_space.task_type == "regression":
            self._logits_C = np.array([weights @ labels / total])
        elif label_space.is_multilabel:
            counts_C = weights @ labels
            self._logits_C = np.log((counts_C + 0.5) / (total - counts_C + 0.5))
        else:
            # Laplace's rule of succession: every class counts once more.
            counts_C = np.bincount(labels, weights, minlength=label_space.num_labels) + 1.0
            self._logits_C = np.log(counts_C / counts_C.sum())

    def _logits(self, rows: TextRows) -> np.ndarray:
        return np.tile(self._logits_C, (len(rows), 1))

    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"logits": self._logits_C}, {}

    @classmethod
    def _restore(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self:
        made = cls()
        made._logits_C = arrays["logits"]
        return made

    def _check(self) -> None:
        assert self.label_space is not None
        if self._logits_C.shape != (self.label_space.num_labels,):
            raise ValueError(f"{self._logits_C.shape} logits do not fit {self.label_space.num_labels} labels")
