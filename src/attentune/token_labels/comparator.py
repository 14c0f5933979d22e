"""Decides whether predictions are correct, have changed, or have become less likely, for every task type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import predictions_of, probabilities_of


@dataclass(frozen=True)
class PredictionComparator:
    """Compares predictions.

    In multi-label tasks a prediction is the whole set of labels.

    Source: SSA (Kou et al. 2020, section 3.1); the tolerance is its 0.3 for STS-B.
    """

    label_space: LabelSpace  # the labels or scores to predict
    tolerance: float = 0.3  # regression: predictions that differ by at most this are equal, on the task's scale
    score_range: float = 1.0  # regression: the highest minus the lowest training score, to normalise drops

    @property
    def correct_implies_same(self) -> bool:
        """Whether two correct predictions are always the same, as for classes but not for scores."""
        return self.label_space.task_type != "regression"

    def correct(self, logits_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """Return which predictions are correct, (N,) bool."""
        return self._agree(predictions_of(logits_NC, self.label_space), gold_N)

    def same(self, logits_NC: np.ndarray, others_NC: np.ndarray) -> np.ndarray:
        """Return which predictions are the same, (N,) bool."""
        return self._agree(predictions_of(logits_NC, self.label_space), predictions_of(others_NC, self.label_space))

    def drop(self, logits_NC: np.ndarray, masked_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """Compute how far masking lowered the gold class's probability.

        In multi-label tasks it is the mean over labels of the drop in probability of the gold value; in regression the
        rise of the absolute error, divided by the range of the training scores.
        """
        if self.label_space.task_type == "regression":
            rise_N = np.abs(masked_NC[:, 0] - gold_N) - np.abs(logits_NC[:, 0] - gold_N)
            return np.clip(rise_N / max(self.score_range, 1e-12), 0.0, 1.0)
        before_NC, after_NC = (probabilities_of(each_NC, self.label_space) for each_NC in (logits_NC, masked_NC))
        if self.label_space.is_multilabel:
            drop_NC = np.where(gold_N == 1, before_NC - after_NC, after_NC - before_NC)
            return np.clip(drop_NC.mean(axis=1), 0.0, 1.0)
        places = np.arange(len(gold_N))
        return np.clip(before_NC[places, gold_N] - after_NC[places, gold_N], 0.0, 1.0)

    def _agree(self, first_N: np.ndarray, second_N: np.ndarray) -> np.ndarray:
        if self.label_space.task_type == "regression":
            return np.abs(first_N - second_N) <= self.tolerance
        alike = first_N == second_N
        return alike.all(axis=1) if self.label_space.is_multilabel else alike
