"""The model class: an encoder with blur, then layer mix, head, token gate and classifier."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import ModelOutput

from attentune.models.configuration import AttentuneConfig
from attentune.models.layouts import TwoTexts, Windows, find_texts, find_windows, to_rows
from attentune.models.pipeline import AttentunePipeline
from attentune.models.slots import (
    blur_slot,
    classifier_slot,
    head_slot,
    inject_adapters,
    layer_mix_slot,
    token_gate_slot,
)
from attentune.nn.blur import GaussianBlur
from attentune.nn.classifiers import ScaledOutput, ScaledSimilarity, build_outputs
from attentune.nn.heads import PositionLinear, UniformInitLinear
from attentune.nn.layer_mix import ExcitationLinear, NeutralLinear
from attentune.nn.losses import resolve_loss, row_losses, with_token_loss

# What PyTorch aligns fresh memory to on a CPU; safetensors maps weights anywhere. On AMD processors MKL multiplies an
# unaligned matrix with a single row along another path, so that logits would differ in the last bit once loaded.
_ALIGNMENT_BYTES = 64


@dataclass
class AttentuneOutput(ModelOutput):
    """Output of the model."""

    loss: Tensor | None = None  # the mean loss, a scalar; None without labels
    logits: Tensor | None = None  # (B, C) float32;
    token_scores: Tensor | None = None  # (B, T) importance of each token from 0 to 1, 0 at padding
    token_logits: Tensor | None = None  # (B, T, 2) logits of the token head, for its loss; None without a token gate
    layer_weights: Tensor | None = None  # (B, L) excitation of each layer, for a bi-encoder the mean of both texts
    hidden_states: tuple[Tensor, ...] | None = None  # output of the embeddings and of each layer
    attentions: tuple[Tensor, ...] | None = None  # attention probabilities of each layer, with `output_attentions`


class AttentuneForSequenceClassification(PreTrainedModel):
    """An encoder with four slots - blur, layer mix, token gate, head - and a linear classifier.

    Save and load it with `save_pretrained` and `from_pretrained`; build a new one with `models.build.build_model`.
    """

    config_class = AttentuneConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # Tells transformers' Trainer that losses are means, to be averaged over the batches of a step.
    accepts_loss_kwargs = False
    # Weight of the token loss in `loss` if `token_targets` are given; `SSACallback` sets it.
    token_loss_share = 0.3

    def __init__(self, config: AttentuneConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config)
        self.encoder: Any = encoder if encoder is not None else AutoModel.from_config(config.encoder)
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # pooling is done by the head
        if config.lora is not None:
            inject_adapters(self.encoder, config.lora)
        self.blur, self.blur_hooks = blur_slot(config, self.encoder)
        self.layer_mix = layer_mix_slot(config)
        self.head = head_slot(config)
        self.token_gate = token_gate_slot(config)
        self.dropout = nn.Dropout(config.head["dropout"])
        self.classifier = classifier_slot(config)
        self.outputs = build_outputs(config.loss)
        self.encoder_is_frozen = False
        self.special_ids: Tensor
        self.register_buffer("special_ids", torch.tensor(config.special_token_ids, dtype=torch.long), persistent=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise weights as BERT does; also refill the buffer, which `from_pretrained` leaves uninitialised."""
        # transformers skips modules without parameters of their own; these are all that have some.
        own = (ExcitationLinear, GaussianBlur, NeutralLinear, ScaledOutput, ScaledSimilarity, UniformInitLinear)
        if isinstance(module, own):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, PositionLinear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif module is self:
            self.special_ids.copy_(torch.tensor(self.config.special_token_ids, dtype=torch.long))

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model as transformers does, its weights into aligned memory; see `align_weights`."""
        loaded = super().from_pretrained(*args, **kwargs)
        align_weights(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def freeze_encoder(self) -> None:
        """Freeze the encoder: no gradients for its parameters and no dropout in it, from now on."""
        self.encoder_is_frozen = True
        self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> AttentuneForSequenceClassification:
        """Set the mode as `nn.Module.train` does, but keep a frozen encoder in evaluation mode."""
        super().train(mode)
        if self.encoder_is_frozen:
            self.encoder.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        encoded_BTD: Tensor | None = None,
        second_start: Tensor | None = None,
        token_targets: Tensor | None = None,
        **kwargs: Any,
    ) -> AttentuneOutput:
        """Score a batch of texts.

        Args:
            input_ids: (B, T) token ids.
            attention_mask: (B, T), 1 at real tokens and 0 at padding; all real if not given.
            token_type_ids: (B, T), for encoders that have segment embeddings.
            labels: (B,) class ids, or scores for regression, or (B, C) for multi-label tasks; adds the mean loss to the
                output.
            output_hidden_states: return every layer's output.
            output_attentions: return the attention probabilities (needs eager attention).
            return_dict: ignored; kept for transformers' interface. The output is always an `AttentuneOutput`.
            encoded_BTD: a precomputed `encode(...).last_hidden_state` of this batch; the encoder is then not called.
            second_start: (B,) the position at which the second text begins in its row, with its special tokens; for a
                bi-encoder only.
            token_targets: (B, T) token labels from 0 to 1, negative where there is none; adds the token loss to `loss`.
            **kwargs: ignored.

        Raises:
            ValueError: `second_start` is missing for a bi-encoder or given for another model, or `encoded_BTD` is given
                but the layer mix needs more than the last layer.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        texts = self._texts_of(attention_mask.bool(), second_start)
        # What is read: the rows, or of rows that hold two texts, these.
        read_ids = input_ids if texts is None else texts.texts(input_ids)
        read_mask = attention_mask.bool() if texts is None else texts.mask_NU
        if encoded_BTD is not None and self.layer_mix is not None:
            raise ValueError(
                "encoded_BTD: got the last layer's output, but this model's layer mix needs all layers; leave it out."
            )
        if encoded_BTD is None:
            wants_layers = bool(self.layer_mix is not None or output_hidden_states)
            extra = {"output_attentions": True} if output_attentions else {}
            encoded = self._encode(
                input_ids, attention_mask, token_type_ids, texts, output_hidden_states=wants_layers, **extra
            )
        else:
            encoded = BaseModelOutput(encoded_BTD if texts is None else texts.texts(encoded_BTD))
        hidden, layer_weights = encoded.last_hidden_state, None
        if self.layer_mix is not None:
            hidden, layer_weights = self.layer_mix((*encoded.hidden_states[1:-1], hidden), read_mask)
        if texts is not None and layer_weights is not None:  # of first and second texts: (2 B, L)
            layer_weights = layer_weights.unflatten(0, (2, -1)).mean(dim=0)
        logits_BC, token_logits, importance = self.classify(hidden, read_ids, read_mask)
        return AttentuneOutput(
            loss=None if labels is None else self._mean_loss(logits_BC, labels, token_logits, token_targets),
            logits=logits_BC,
            token_scores=to_rows(importance, texts),
            token_logits=to_rows(token_logits, texts),
            layer_weights=layer_weights,
            hidden_states=encoded.hidden_states if output_hidden_states else None,
            attentions=encoded.attentions if output_attentions else None,
        )

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        second_start: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Run the encoder, with its blur, and return its output with `last_hidden_state` (B, T, D) in row layout.

        See `forward` for the arguments; a bi-encoder returns no other hidden states.
        """
        texts = self._texts_of(attention_mask.bool(), second_start)
        encoded = self._encode(input_ids, attention_mask, token_type_ids, texts, output_hidden_states)
        return encoded if texts is None else BaseModelOutput(texts.rows(encoded.last_hidden_state))

    def _texts_of(self, mask_BT: Tensor, second_start: Tensor | None) -> TwoTexts | None:
        """Locate the two texts of each row for a bi-encoder; None for other models."""
        if (second_start is not None) != self.config.is_bi_encoder:
            got, kind = ("no", "a bi-encoder") if second_start is None else ("a", "not a bi-encoder")
            raise ValueError(
                f"got {got} second_start, but this model is {kind}. Encode texts with attentune.predict(run, texts,"
                " pairs), with transformers' pipeline, or with encode_rows(..., bi_encoder=...) and pad_batch."
            )
        return None if second_start is None else find_texts(mask_BT, second_start)

    def _encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None,
        texts: TwoTexts | None,
        output_hidden_states: bool = False,
        **options: bool,
    ) -> Any:
        """Run the encoder on the rows, on a bi-encoder's texts, or on overlapping windows, whose outputs are merged."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        layout: TwoTexts | Windows | None = texts
        if texts is None:
            layout = find_windows(attention_mask.bool(), self.config.window, self.config.window_stride)
        if layout is not None:
            # Embeddings are looked up in row layout, where hooks on them (gradients, for example) expect them.
            embedded_BTE = self.get_input_embeddings()(input_ids)
            inputs = {"inputs_embeds": layout.texts(embedded_BTE), "attention_mask": layout.mask_NU.to(torch.long)}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids if layout is None else layout.texts(token_type_ids)
        with self._blurred(inputs["attention_mask"].bool()):
            encoded = self.encoder(**inputs, output_hidden_states=output_hidden_states, **options)
        return layout.merged(encoded) if isinstance(layout, Windows) else encoded

    def _blurred(self, mask_BT: Tensor) -> contextlib.AbstractContextManager[None]:
        """Prepare the blur, if there is one, for a batch with these real tokens while the block runs."""
        if self.blur is None or self.blur_hooks is None:
            return contextlib.nullcontext()
        return self.blur_hooks.prepared(self.blur.matrices(mask_BT))

    def classify(
        self, hidden_BTD: Tensor, input_ids: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply head, token gate, dropout and classifier to the mixed token vectors.

        For a bi-encoder the B texts are all first texts, then all second texts, and there are half as many logits.

        Args:
            hidden_BTD: the output of the layer mix.
            input_ids: (B, T), to find special tokens.
            mask_BT: True at real tokens.

        Returns:
            The logits (B, C), the token logits (B, T, 2) and the tokens' importance (B, T); the latter two are None
            without a token gate.
        """
        # A comparison with each of the few ids, since `torch.isin` cannot be exported to ONNX.
        ordinary_BT = mask_BT & ~(input_ids.unsqueeze(-1) == self.special_ids).any(dim=-1)
        sentence_BD = self.head(hidden_BTD, mask_BT, ordinary_BT)
        token_logits_BT2 = importance_BT = None
        if self.token_gate is not None:
            sentence_BD, token_logits_BT2, importance_BT = self.token_gate(
                hidden_BTD, mask_BT, ordinary_BT, sentence_BD
            )
        with _without_autocast(sentence_BD.device.type):
            dtype = next(self.classifier.parameters()).dtype
            logits_BC = self.classifier(self.dropout(sentence_BD).to(dtype)).float()
        if self.outputs is not None:
            logits_BC = self.outputs(logits_BC)
        if self.config.calibration_temperature != 1.0:
            logits_BC = logits_BC / self.config.calibration_temperature
        return self._as_scores(logits_BC), token_logits_BT2, importance_BT

    def _as_scores(self, logits_BC: Tensor) -> Tensor:
        """Bring outputs from the standardised to the label's scale, in float64: years have 11 bits before the point."""
        mean, std = self.config.score_mean, self.config.score_std
        if (mean, std) == (0.0, 1.0):
            return logits_BC
        wide_BC = logits_BC if logits_BC.device.type == "mps" else logits_BC.double()  # MPS has no float64
        return wide_BC * std + mean

    def _mean_loss(
        self, logits_BC: Tensor, labels_B: Tensor, token_logits: Tensor | None, token_targets: Tensor | None
    ) -> Tensor:
        kind = resolve_loss(self.config.loss, self.config.task_type)
        if self.config.task_type == "regression":
            mean, std = self.config.score_mean, self.config.score_std
            logits_BC, labels_B = (logits_BC - mean) / std, (labels_B.to(logits_BC.dtype) - mean) / std
        loss = row_losses(kind, logits_BC, labels_B, focal_gamma=self.config.focal_gamma).mean()
        if token_logits is None or token_targets is None:
            return loss
        return with_token_loss(loss, token_logits, token_targets, share=self.token_loss_share)


def _without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """Compute in the inputs' precision: bf16 has three digits, too few to rank the scores of similar texts."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def align_weights(model: nn.Module) -> None:
    """Copy each weight that does not start at a multiple of 64 bytes into memory that does, as fresh weights do."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % _ALIGNMENT_BYTES:
            tensor.data = tensor.data.clone()


AutoModelForSequenceClassification.register(AttentuneConfig, AttentuneForSequenceClassification, exist_ok=True)
PIPELINE_REGISTRY.supported_tasks["text-classification"]["impl"] = AttentunePipeline
