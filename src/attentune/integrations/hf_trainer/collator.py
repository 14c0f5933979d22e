"""Batches with the token labels in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithPadding

from attentune.integrations.hf_trainer.rows import Key, key_of
from attentune.models.hub import Tokenizer
from attentune.nn.losses import NO_LABEL


class SSACollator:
    """Pads rows, and while the model trains adds `token_targets` (B, T): from 0 to 1, negative where there is none.

    Args:
        model: trains, or is in evaluation mode.
        tokenizer: pads.
        targets: by row, the labels of its tokens; a row that is not there has none. May be filled later.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, targets: Mapping[Key, np.ndarray]) -> None:
        self._model, self._pad, self._targets = model, DataCollatorWithPadding(tokenizer), targets

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        batch = self._pad([dict(row) for row in rows])
        if self._model.training:
            # At every step, with labels or without: several processes need the token head in the graph.
            targets_BT = torch.full(batch["input_ids"].shape, NO_LABEL)
            for number, row in enumerate(rows):
                own = self._targets.get(key_of(row))
                if own is not None:
                    targets_BT[number, batch["attention_mask"][number].bool()] = torch.from_numpy(own)
            batch["token_targets"] = targets_BT
        return batch
