"""Word embeddings that train only the rows which the training texts can touch.

A fine-tuning set uses a few thousand of the tens of thousands of rows. The others never get a gradient, so all that
AdamW does to them is weight decay: a known factor. While training, only the used rows are a parameter; gradient,
clipping and optimiser pass over them alone, and the whole table is put together when it is needed. The result is
AdamW's on the whole table, up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentune.errors import CheckpointError


class _UsedRows(nn.Module):
    """Looks token ids up among the used rows. Its `weight` (K, D) takes the place of the whole table's."""

    def __init__(self, table: nn.Embedding, used_ids_K: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(table.weight.detach()[used_ids_K].clone(), table.weight.requires_grad)
        places_V = torch.full((table.num_embeddings,), -1, dtype=torch.long, device=used_ids_K.device)
        places_V[used_ids_K] = torch.arange(len(used_ids_K), device=used_ids_K.device)
        self.register_buffer("places", places_V, persistent=False)
        place = -1 if table.padding_idx is None else int(places_V[table.padding_idx])
        self.padding_place = None if place < 0 else place  # a negative number would count from the end

    def forward(self, input_ids: Tensor) -> Tensor:
        places_BT = self.places[input_ids]  # type: ignore[index]
        return F.embedding(places_BT, self.weight, padding_idx=self.padding_place)


class VocabularySubset:
    """Puts the used rows in the place of an encoder's word embeddings, and the whole table back.

    Args:
        encoder: a model with `get_input_embeddings` and `set_input_embeddings`; changed at once.
        used_ids: every token id that training can feed, padding and mask token included.
    """

    def __init__(self, encoder: Any, used_ids: np.ndarray) -> None:
        table = encoder.get_input_embeddings()
        self._encoder, self._table = encoder, table
        self._initial_VD = table.weight.detach().clone()
        self._used_K = torch.as_tensor(np.unique(used_ids), dtype=torch.long, device=table.weight.device)
        self._rows = _UsedRows(table, self._used_K)
        encoder.set_input_embeddings(self._rows)

    @contextlib.contextmanager
    def whole(self, decay: float) -> Iterator[None]:
        """The whole table stands in the encoder while the block runs, to score or to save.

        Args:
            decay: what weight decay has made of an untouched row, as a factor.
        """
        self.expand(decay)
        try:
            yield
        finally:
            self._encoder.set_input_embeddings(self._rows)

    def expand(self, decay: float) -> None:
        """Put the whole table into the encoder for good."""
        with torch.no_grad():
            torch.mul(self._initial_VD, decay, out=self._table.weight.data)
            self._table.weight.data[self._used_K] = self._rows.weight.data
        self._encoder.set_input_embeddings(self._table)

    @contextlib.contextmanager
    def loading(self, decay: float) -> Iterator[None]:
        """The whole table stands in the encoder for a checkpoint to be loaded into; the used rows are read back after.

        Raises:
            CheckpointError: the untouched rows are not those of the encoder that this run began with.
        """
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
                " cannot be resumed. Put the encoder back, or train anew with --overwrite_output_dir."
            )
