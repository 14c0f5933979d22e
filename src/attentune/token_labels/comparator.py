"""What it means that a prediction is right, that it changed, and how far it fell; for classes, for sets of labels and
for scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import predictions_of, probabilities_of


@dataclass(frozen=True)
class PredictionComparator:
    """Compares predictions.

    With several labels a row a prediction is the whole set of them: it is right if it is the gold set, and changed if
    any label comes or goes.

    Attributes:
        label_space: what is predicted.
        tolerance: regression: a difference of at most this is none, on the task's own scale.
        score_range: regression: the highest training score minus the lowest, which a drop is a share of.

    Source: SSA (Kou et al. 2020, section 3.2); the tolerance is its 0.3 for STS-B.
    """

    label_space: LabelSpace
    tolerance: float = 0.3
    score_range: float = 1.0

    @property
    def correct_implies_same(self) -> bool:
        """Whether a right prediction can only be one, as with classes, so that two right ones are the same."""
        return self.label_space.task_type != "regression"

    def correct(self, logits_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """(N,) bool: which predictions are right."""
        return self._agree(predictions_of(logits_NC, self.label_space), gold_N)

    def same(self, logits_NC: np.ndarray, others_NC: np.ndarray) -> np.ndarray:
        """(N,) bool: which predictions are the same."""
        return self._agree(predictions_of(logits_NC, self.label_space), predictions_of(others_NC, self.label_space))

    def drop(self, logits_NC: np.ndarray, masked_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """(N,) from 0 to 1: how far masking lowered the gold class's probability, clipped at 0.

        For sets of labels: the mean over the labels of how far it lowered the probability of what is true of each.
        For scores: how far it raised the absolute error, as a share of the range of the training scores.
        """
        if self.label_space.task_type == "regression":
            rise_N = np.abs(masked_NC[:, 0] - gold_N) - np.abs(logits_NC[:, 0] - gold_N)
            return np.clip(rise_N / max(self.score_range, 1e-12), 0.0, 1.0)
        before_NC, after_NC = (probabilities_of(own_NC, self.label_space) for own_NC in (logits_NC, masked_NC))
        if self.label_space.is_multilabel:
            fall_NC = np.where(gold_N == 1, before_NC - after_NC, after_NC - before_NC)
            return np.clip(fall_NC.mean(axis=1), 0.0, 1.0)
        places = np.arange(len(gold_N))
        return np.clip(before_NC[places, gold_N] - after_NC[places, gold_N], 0.0, 1.0)

    def _agree(self, first_N: np.ndarray, second_N: np.ndarray) -> np.ndarray:
        if self.label_space.task_type == "regression":
            return np.abs(first_N - second_N) <= self.tolerance
        alike = first_N == second_N
        return alike.all(axis=1) if self.label_space.is_multilabel else alike
