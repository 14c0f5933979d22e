"""The hidden states of a frozen encoder: computed once and cached for all epochs and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from attentune.data.batching import budget_order, pad_batch
from attentune.data.tokenization import Features
from attentune.inference.scoring import default_batch_tokens
from attentune.models.build import count_parameters
from attentune.models.cpu_layers import frozen_weights
from attentune.training.prepare import RunInputs

# Larger hidden states are not cached; the encoder then runs in each step.
LIMIT_BYTES = 2 << 30
# An upper bound, as the precision is not known yet; bf16 takes half.
_BYTES_A_NUMBER = 4


class FrozenStates:
    """The last hidden states of all training rows, concatenated, in the run's precision.

    They are computed at the first `batch`, in evaluation mode, and stay in main memory. With several processes each
    computes all of them.
    """

    def __init__(self, *, model: Any, features: Features, pad_token_id: int, accelerator: Accelerator) -> None:
        self._model, self._features = model, features
        self._pad_token_id, self._accelerator = pad_token_id, accelerator
        self.hidden_SD: Tensor | None = None

    def batch(self, rows: np.ndarray, length: int) -> Tensor:
        """Return the (B, T, D) hidden states of these rows on the accelerator's device, 0 at padding."""
        if self.hidden_SD is None:
            self.hidden_SD = self._compute()
        hidden_BTD = self.hidden_SD.new_zeros(len(rows), length, self.hidden_SD.shape[1])
        for number, row in enumerate(rows):
            row_TD = self.hidden_SD[self._features.row(int(row))]
            hidden_BTD[number, : len(row_TD)] = row_TD
        return hidden_BTD.to(self._accelerator.device, non_blocking=True)

    @torch.no_grad()  # not inference_mode, whose tensors no backward pass may use
    def _compute(self) -> Tensor:
        features, hidden_SD = self._features, None
        with frozen_weights(self._model), self._accelerator.autocast():
            for rows in budget_order(features.padded_lengths, default_batch_tokens(self._accelerator.device)):
                batch = pad_batch(features, rows, pad_token_id=self._pad_token_id)
                inputs = {name: tensor.to(self._accelerator.device) for name, tensor in batch.inputs.items()}
                hidden_BTD = self._model.encode(**inputs).last_hidden_state.cpu()
                if hidden_SD is None:
                    hidden_SD = hidden_BTD.new_empty(len(features.ids), hidden_BTD.shape[-1])
                for number, row in enumerate(rows):
                    span = features.row(int(row))
                    hidden_SD[span] = hidden_BTD[number, : span.stop - span.start]
        assert hidden_SD is not None  # there are rows to train on
        return hidden_SD


def not_cached_reason(model: Any, features: Features, generator: str) -> str | None:
    """Return why the hidden states of a frozen encoder cannot be cached; None if they can."""
    if generator != "none":
        return f"labels.generator {generator} asks the model for masked rows or trains on them"
    reason = _not_constant_reason(model)
    if reason is not None:
        return reason
    size_bytes = states_bytes(model, features)
    if size_bytes > LIMIT_BYTES:
        return f"they would take {size_bytes / (1 << 30):.1f} GiB, and at most {LIMIT_BYTES / (1 << 30):.0f} are kept"
    return None


def _not_constant_reason(model: Any) -> str | None:
    """Return why the last hidden states of a frozen encoder are not all that is needed of it; None if they are."""
    if model.blur is not None and any(True for _ in model.blur.parameters()):
        return "the blur inside the encoder is learnt (model.blur.learnable)"
    if model.layer_mix is not None:
        return "the layer mix needs all layers (model.layer_mix)"
    return None


def evaluation_caches(
    model: Any, features: Mapping[str, Features], splits: Sequence[str], *, frozen: FrozenStates | None
) -> dict[str, dict[int, Tensor]]:
    """Return an empty cache of hidden states for each split to evaluate, for `ModelEvaluator`."""
    if not model.encoder_is_frozen or _not_constant_reason(model) is not None:
        return {}
    free_bytes = LIMIT_BYTES - (0 if frozen is None else states_bytes(model, features["train"]))
    caches: dict[str, dict[int, Tensor]] = {}
    for split in splits:
        size_bytes = states_bytes(model, features[split])
        if size_bytes <= free_bytes:
            caches[split] = {}
            free_bytes -= size_bytes
    return caches


def states_bytes(model: Any, features: Features) -> int:
    """Return an upper bound of the bytes that the hidden states of these rows take."""
    return len(features.ids) * int(model.config.encoder_config.hidden_size) * _BYTES_A_NUMBER


def freeze(model: Any, features: Features, generator: str, **options: Any) -> tuple[FrozenStates | None, str]:
    """Freeze the encoder, and cache its hidden states if possible."""
    model.freeze_encoder()
    reason = not_cached_reason(model, features, generator)
    if reason is not None:
        return None, f"frozen encoder: it runs in each step, since {reason}"
    size_mib = states_bytes(model, features) / (1 << 20)
    note = f"the hidden states of {len(features):,} rows are computed once (at most {size_mib:,.1f} MiB)"
    return FrozenStates(model=model, features=features, **options), f"frozen encoder: {note}"


def freeze_encoder(inputs: RunInputs, model: Any) -> tuple[FrozenStates | None, str | None]:
    """Freeze the encoder if the settings say so; return its cached hidden states, if any, and a note for the user."""
    training = inputs.config.training
    if training.lora_rank is not None:
        counts = count_parameters(model)
        share = f"{counts.total.trainable:,} of {counts.total.parameters:,} parameters train"
        return None, f"adapters in the encoder: {share} (slots and classifier included)"
    if not training.freeze_encoder:
        return None, None
    return freeze(
        model,
        inputs.features["train"],
        inputs.config.labels.generator,
        pad_token_id=inputs.tokenizer.pad_token_id,
        accelerator=inputs.accelerator,
    )
