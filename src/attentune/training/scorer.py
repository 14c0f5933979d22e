"""How label generators ask the model that is being trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from accelerate import Accelerator
from torch import Tensor

from attentune.data.batching import pad_batch
from attentune.data.tokenization import Features
from attentune.inference.scoring import score_rows, summed_over_processes
from attentune.models.precision import BFloat16Copy


class TrainingScorer:
    """The model as it stands, in evaluation mode. Every process must call it alike; the work is shared.

    Args:
        model: the model itself, outside of what Accelerate wraps around it for several processes.
        bf16_copy: asked in the model's place for logits.
    """

    def __init__(
        self,
        *,
        model: Any,
        bf16_copy: BFloat16Copy | None,
        accelerator: Accelerator,
        features: Features,
        pad_token_id: int,
        mask_token_id: int,
    ) -> None:
        self.model = model
        self._half_copy, self._accelerator, self._features = bf16_copy, accelerator, features
        self._pad_token_id, self._mask_token_id = pad_token_id, mask_token_id
        self._on_rows: Callable[[int], None] | None = None

    @property
    def part(self) -> slice:
        """Which of a list of rows is this process's share."""
        return slice(self._accelerator.process_index, None, self._accelerator.num_processes)

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """(N, C) logits of training rows, with the tokens at the given places masked."""
        with self._asked() as model:
            return score_rows(
                model,
                self._features,
                pad_token_id=self._pad_token_id,
                accelerator=self._accelerator,
                rows=rows,
                masked=masked,
                mask_token_id=self._mask_token_id,
                progress=self.tick,
            ).logits_NC

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Any]:
        """The model to ask; while watched the half copy is kept, as the weights stay."""
        try:
            yield self.model if self._half_copy is None else self._half_copy.fresh()
        finally:
            if self._half_copy is not None and self._on_rows is None:
                self._half_copy.release()

    def inputs(self, row: int) -> dict[str, Tensor]:
        """A training row as a batch of one, on the model's device."""
        batch = pad_batch(self._features, [row], pad_token_id=self._pad_token_id)
        return {name: tensor.to(self._accelerator.device) for name, tensor in batch.inputs.items()}

    def summed(self, values: np.ndarray) -> np.ndarray:
        """The sum over all processes."""
        return summed_over_processes(values, self._accelerator)

    @contextlib.contextmanager
    def watched(self, on_rows: Callable[[int], None]) -> Iterator[None]:
        """While the block runs, in which the weights stay, `on_rows` is told how many rows have been asked.

        What it raises ends the asking.
        """
        self._on_rows = on_rows
        try:
            yield
        finally:
            self._on_rows = None
            if self._half_copy is not None:
                self._half_copy.release()

    def tick(self, rows: int) -> None:
        """Say that this many rows have been asked."""
        if self._on_rows is not None:
            self._on_rows(rows)
