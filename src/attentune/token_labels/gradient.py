"""Token labels from the gradients of the training step, without any further forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from attentune.attribution.gradient import mask_embedding, rise_if_masked
from attentune.attribution.hooks import EmbeddingGradientHook
from attentune.config import LabelsConfig
from attentune.nn.losses import NO_LABEL
from attentune.token_labels.base import LabelSource, RowLabelGenerator
from attentune.token_labels.plan import labels_from_scores
from attentune.token_labels.training_pass import TrainingPredictions


class Gradient(RowLabelGenerator):
    """Labels by (E[mask] - E[t_i]) . dL/dE[t_i], the first-order estimate of how far masking token i raises the loss.

    L is the training loss, which includes the token loss from the second epoch on. Only rows that the training pass
    predicts correctly are labelled. The estimates of one epoch are the labels of the next.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        self._hook = EmbeddingGradientHook(source.scorer.model)
        self._pass = TrainingPredictions(source)
        self._scores = np.zeros(len(source.features.ids), dtype=np.float32)

    @contextlib.contextmanager
    def on_train(self) -> Iterator[None]:
        with self._hook:
            yield

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        embedded_BTE, gradient_BTE = self._hook.take()
        mask_E = mask_embedding(self.source.scorer.model, self.source.mask_token_id)
        rise_BT = rise_if_masked(embedded_BTE, gradient_BTE, mask_E)
        # fp16 gradients may have overflowed (the loss scaler then skips the step).
        scores_BT = rise_BT.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).cpu().numpy()
        features = self.source.features
        for number, row in enumerate(rows):
            place = features.row(int(row))
            self._scores[place] = scores_BT[number, : place.stop - place.start]
        self._pass.update(rows, logits_BC)

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        scores = self.source.scorer.summed(self._scores)
        self._scores = np.zeros_like(self._scores)
        seen_N, correct_N = self._pass.summed()
        self._pass.reset()
        features = self.source.features
        values = np.full(len(scores), NO_LABEL, dtype=np.float32)
        for row in np.flatnonzero(correct_N):
            place = features.row(int(row))
            values[place] = labels_from_scores(
                scores[place],
                features.non_special_positions(int(row)),
                targets=self.settings.targets,
                top_share=self.settings.top_share,
            )
        return values, {"probed": int(seen_N.sum()), "correct": int(correct_N.sum())}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"gradient_scores": self.source.scorer.summed(self._scores)} | self._pass.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        self._pass.restore(tensors)
        self._scores = np.zeros_like(self._scores)
        if (
            self.source.scorer.part.start == 0
        ):  # only the first process restores the scores, so that their sum is unchanged
            self._scores = tensors["gradient_scores"].copy()
