"""Trains only the word embeddings of tokens that occur in the training texts.

A fine-tuning set uses a few thousand of the tens of thousands of embeddings. The others never get a gradient, so AdamW
only applies weight decay to them, a known factor. During training only the used embeddings are a parameter, which saves
time in gradients, clipping and optimiser; the full table is assembled when it is needed. The result equals AdamW on the
full table up to rounding.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentune.errors import CheckpointError


class _UsedRows(nn.Module):
    """Embedding of the used token ids only; its `weight` is (K, D) instead of (V, D)."""

    def __init__(self, table: nn.Embedding, used_ids_K: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(table.weight.detach()[used_ids_K].clone(), table.weight.requires_grad)
        places_V = torch.full((table.num_embeddings,), -1, dtype=torch.long, device=used_ids_K.device)
        places_V[used_ids_K] = torch.arange(len(used_ids_K), device=used_ids_K.device)
        self.register_buffer("places", places_V, persistent=False)
        place = -1 if table.padding_idx is None else int(places_V[table.padding_idx])
        self.padding_place = None if place < 0 else place  # a negative index would count from the end

    def forward(self, input_ids: Tensor) -> Tensor:
        places_BT = self.places[input_ids]  # type: ignore[index]
        return F.embedding(places_BT, self.weight, padding_idx=self.padding_place)


class VocabularySubset:
    """Replaces an encoder's word embeddings by those of the used tokens, and restores the full table."""

    def __init__(self, encoder: Any, used_ids: np.ndarray) -> None:
        table = encoder.get_input_embeddings()
        self._encoder, self._table = encoder, table
        self._initial_VD = table.weight.detach()
        self._used_K = torch.as_tensor(np.unique(used_ids), dtype=torch.long, device=table.weight.device)
        self._rows = _UsedRows(table, self._used_K)
        encoder.set_input_embeddings(self._rows)

    @contextlib.contextmanager
    def whole(self, decay: float) -> Iterator[None]:
        """Put the full table into the encoder while the block runs, for scoring or saving."""
        self.expand(decay)
        try:
            yield
        finally:
            self._encoder.set_input_embeddings(self._rows)
            self._table.weight.data = self._initial_VD  # no second table while training

    def expand(self, decay: float) -> None:
        weight_VD = self._initial_VD * decay
        weight_VD[self._used_K] = self._rows.weight.detach()
        self._table.weight.data = weight_VD
        self._encoder.set_input_embeddings(self._table)

    @contextlib.contextmanager
    def loading(self, decay: float) -> Iterator[None]:
        """Put the full table into the encoder to load a checkpoint into, then read the used embeddings back."""
        with self.whole(decay):
            expected_VD = self._table.weight.detach().clone()
            yield
            loaded_VD = self._table.weight.detach()
            with torch.no_grad():
                self._rows.weight.copy_(loaded_VD[self._used_K])
            expected_VD[self._used_K] = loaded_VD[self._used_K]
        if not torch.equal(expected_VD, loaded_VD):
            raise CheckpointError(
                "the encoder is not the one that this run was begun with (its word embeddings differ), so the run"
                " cannot be resumed. Put the encoder back, or train again with --overwrite_output_dir."
            )
