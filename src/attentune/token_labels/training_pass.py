"""Reuses the predictions of training's forward passes to decide which rows the model predicts correctly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from attentune.config import LabelsConfig
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelGenerator, LabelSource

# Of the rows whose prediction is reused, this share is predicted to tell how many are wrong, and at most so many.
_CHECKED_SHARE, _CHECKED_ROWS = 0.1, 64


class TrainingPredictions:
    """Counts how often training has predicted each row, and how often correctly.

    Every process counts its share; results and checkpoints hold the sum over all.
    """

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.reset()

    def reset(self) -> None:
        """Reset all counts."""
        self._seen_N, self._correct_N = np.zeros((2, len(self._source.features)), dtype=np.int32)

    def update(self, rows: np.ndarray, logits_BC: Tensor) -> None:
        """Count the predictions of a batch."""
        logits = logits_BC.detach().float().cpu().numpy()
        # A batch may contain a row more than once.
        np.add.at(self._seen_N, rows, 1)
        np.add.at(self._correct_N, rows, self._source.comparator.correct(logits, self._source.gold[rows]))

    def summed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how often each row was predicted, and how often correctly, (N,) each, over all processes."""
        scorer = self._source.scorer
        return scorer.summed(self._seen_N), scorer.summed(self._correct_N)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the state to save in a checkpoint."""
        return dict(zip(("pass_seen", "pass_correct"), self.summed(), strict=True))

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Restore the state that `tensors` returned."""
        self.reset()
        if (
            self._source.scorer.part.start == 0
        ):  # only the first process restores the counts, so that their sum is unchanged
            self._seen_N, self._correct_N = tensors["pass_seen"].copy(), tensors["pass_correct"].copy()


class ReusesTrainingPredictions(LabelGenerator):
    """A generator that can reuse training-time predictions as the correctness check (`labels.reuse_predictions`).

    These were made with dropout and with weights up to an epoch old, so they are not always those of the present model;
    see each generator for the consequences.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        # In regression two correct predictions may differ, so the unmasked prediction is needed.
        trusts = settings.reuse_predictions and source.comparator.correct_implies_same
        self._pass = TrainingPredictions(source) if trusts else None

    def assumed_correct(self) -> np.ndarray:
        """Return the rows assumed to be correct, (N,) bool: those that were correct at every prediction in training."""
        if self._pass is None:
            return np.zeros(len(self.source.features), dtype=bool)
        seen_N, correct_N = self._pass.summed()
        return (seen_N > 0) & (correct_N == seen_N)

    def check_reused(self, rows: np.ndarray, epoch: int) -> dict[str, Any]:
        """Predict a sample of the rows that are taken as correct because training predicted them correctly."""
        if self._pass is None or not len(rows):
            return {}
        source, count = self.source, min(_CHECKED_ROWS, math.ceil(_CHECKED_SHARE * len(rows)))
        sample = np.sort(numpy_generator("reused predictions", source.seed, epoch).permutation(rows)[:count])
        is_wrong = ~source.comparator.correct(source.scorer.logits(sample), source.gold[sample])
        return {"reused": len(rows), "reused_checked": count, "reused_wrong_share": round(float(is_wrong.mean()), 4)}

    def reset_predictions(self) -> None:
        """Reset the counts after planning an epoch."""
        if self._pass is not None:
            self._pass.reset()

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        if self._pass is not None:
            self._pass.update(rows, logits_BC)

    def tensors(self) -> dict[str, np.ndarray]:
        return {} if self._pass is None else self._pass.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        if self._pass is not None:
            self._pass.restore(tensors)
