"""Scorer by which label generators get predictions of a model in the Trainer of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.data.batching import budget_order, pad_batch
from attentune.data.tokenization import Features
from attentune.inference.scoring import BATCH_TOKENS


class TrainerScorer:
    """Predict training rows with the current weights, in evaluation mode.

    Every process predicts all rows, so that no process waits for another.

    Args:
        model: the model that the Trainer trains.
        features: the tokens of the training rows.
        pad_token_id: the id of the padding token.
        mask_token_id: the id of the mask token.
    """

    def __init__(self, model: Any, features: Features, *, pad_token_id: int, mask_token_id: int) -> None:
        self.model = model
        self._features, self._pad_token_id, self._mask_token_id = features, pad_token_id, mask_token_id

    part = slice(0, None, 1)

    @torch.no_grad()
    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """Predict training rows.

        Args:
            rows: (N,) the indices of the rows.
            masked: for each row the positions of the tokens to mask, or None.

        Returns:
            The (N, C) logits.
        """
        logits_NC = np.zeros((len(rows), self.model.config.num_labels), dtype=np.float32)
        was_training = self.model.training
        self.model.eval()
        try:
            for places in budget_order(self._features.padded_lengths[rows], BATCH_TOKENS):
                batch = pad_batch(
                    self._features,
                    rows[places],
                    pad_token_id=self._pad_token_id,
                    mask_token_id=self._mask_token_id,
                    masked=None if masked is None else [masked[place] for place in places],
                )
                logits_NC[places] = self.model(**self._on_device(batch.inputs)).logits.float().cpu().numpy()
        finally:
            self.model.train(was_training)
        return logits_NC

    def inputs(self, row: int) -> dict[str, Tensor]:
        """Return a training row as a batch of one, on the device of the model."""
        return self._on_device(pad_batch(self._features, [row], pad_token_id=self._pad_token_id).inputs)

    def _on_device(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Return the values unchanged, since every process has all rows."""
        return values

    @contextlib.contextmanager
    def watched(self, on_rows: Callable[[int], None]) -> Iterator[None]:
        """Do nothing: no progress is reported in the Trainer."""
        yield

    def tick(self, rows: int) -> None:
        """Do nothing: no progress is reported in the Trainer."""
