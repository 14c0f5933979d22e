"""The one model: an encoder whose output goes through layer mix, token gate and head to a linear classifier."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from attentune.models.configuration import AttentuneConfig
from attentune.models.lora import inject_adapters
from attentune.models.slots import (
    blur_slot,
    classifier_slot,
    drop_pooler,
    head_slot,
    layer_mix_slot,
    token_gate_slot,
)
from attentune.models.text_pairs import TwoTexts, find_texts, in_rows, mean_of_both, split_pair_rows
from attentune.models.windows import Windows, find_windows
from attentune.nn.attention_block import UniformInitLinear
from attentune.nn.blur import GaussianBlur
from attentune.nn.classifiers import ScaledOutput, build_outputs
from attentune.nn.layer_mix import ExcitationLinear
from attentune.nn.losses import resolve_loss, row_losses, with_token_loss
from attentune.nn.token_gate import PositionLinear


@dataclass
class AttentuneOutput(ModelOutput):
    """What the model returns.

    Attributes:
        loss: the mean loss, a scalar, where labels were given.
        logits: (B, C) scores before the softmax; (B, 1) for regression.
        token_scores: (B, T) importance of each token from 0 to 1, where the token gate gives one; 0 at padding.
        layer_weights: (B, L) the excitation of each layer, where the layer mix has squeeze-and-excitation; of two texts
            that are read apart the mean.
        token_logits: (B, T, 2) the token head's scores before the softmax, for its loss.
        hidden_states: the embeddings' and each layer's output, where asked for; of texts that are read apart
            (2 B, U, D), first all first ones, then the second ones.
        attentions: each layer's attention probabilities, where asked for; of texts that are read apart likewise.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_scores: Tensor | None = None
    token_logits: Tensor | None = None
    layer_weights: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class AttentuneForSequenceClassification(PreTrainedModel):
    """An encoder with four slots - blur, layer mix, token gate, head - and a linear classifier.

    Save and load with `save_pretrained` and `from_pretrained`; build a new one with `models.build.build_model`.
    """

    config_class = AttentuneConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # To transformers' Trainer: its losses are means, to be averaged over the batches of a step.
    accepts_loss_kwargs = False
    # The token head's part of `loss`, where `token_targets` are given; `SSACallback` sets it.
    token_loss_share = 0.3

    def __init__(self, config: AttentuneConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config)
        self.encoder: Any = encoder if encoder is not None else AutoModel.from_config(config.encoder)
        drop_pooler(self.encoder)
        if config.lora is not None:
            inject_adapters(self.encoder, config.lora)
        self.blur, self.blur_taps = blur_slot(config, self.encoder)
        self.layer_mix = layer_mix_slot(config)
        self.head = head_slot(config)
        self.token_gate = token_gate_slot(config)
        self.dropout = nn.Dropout(config.head["dropout"])
        self.classifier = classifier_slot(config)
        self.outputs = build_outputs(config.loss)
        self._encoder_is_frozen = False
        self.special_ids: Tensor
        self.register_buffer("special_ids", torch.tensor(config.special_token_ids, dtype=torch.long), persistent=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Fresh weights as BERT draws them; also refills the buffer, which `from_pretrained` leaves empty."""
        # transformers passes over modules without weights of their own, so these are all that have some.
        if isinstance(module, (ExcitationLinear, GaussianBlur, UniformInitLinear, ScaledOutput)):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, PositionLinear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif module is self:
            self.special_ids.copy_(torch.tensor(self.config.special_token_ids, dtype=torch.long))

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def freeze_encoder(self) -> None:
        """Keep the encoder as it is, from now on: no gradients to its parameters, and no dropout in it."""
        self._encoder_is_frozen = True
        self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> AttentuneForSequenceClassification:
        """As in every module, but a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self._encoder_is_frozen:
            self.encoder.eval()
        return self

    def share_encoder_of(self, other: AttentuneForSequenceClassification) -> None:
        """Take another model's encoder, with its blur, in the place of the own one; both then train it."""
        if self.blur_taps is not None:
            self.blur_taps.remove()
        self.encoder, self.blur, self.blur_taps = other.encoder, other.blur, other.blur_taps
        # Saved with this model, too: what the encoder is.
        self.config.encoder = other.config.encoder

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
            token_type_ids: (B, T), for encoders that know them.
            labels: (B,) class ids, or scores for regression; then the output holds the mean loss.
            output_hidden_states: keep every layer's output.
            output_attentions: keep the attention probabilities (needs eager attention).
            encoded_BTD: the encoder's last output for this batch, as `encode` gives it, if it is known; the encoder is
                then not called.
            second_start: (B,), where in its row the second text begins, special tokens and all; for a model that reads
                the texts of a pair apart, and for no other. Without it, rows in which the tokenizer has joined two
                texts are parted first; what is told of tokens is then told of the parted rows.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if second_start is None and encoded_BTD is None and self.config.reads_apart:
            input_ids, attention_mask, token_type_ids, second_start = self._parted(
                input_ids, attention_mask, token_type_ids
            )
        texts = self._texts_of(attention_mask.bool(), second_start)
        # What is read: the rows, or of rows that hold two texts, these.
        read_ids = input_ids if texts is None else texts.texts(input_ids)
        read_mask = attention_mask.bool() if texts is None else texts.mask_NU
        if encoded_BTD is not None and self.layer_mix is not None:
            raise ValueError("encoded_BTD is the last layer alone, but this model mixes several")
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
        logits_BC, token_logits, importance = self.classify(hidden, read_ids, read_mask)
        return AttentuneOutput(
            loss=None if labels is None else self._mean_loss(logits_BC, labels, token_logits, token_targets),
            logits=logits_BC,
            token_scores=in_rows(importance, texts),
            token_logits=in_rows(token_logits, texts),
            layer_weights=layer_weights if texts is None or layer_weights is None else mean_of_both(layer_weights),
            hidden_states=encoded.hidden_states if output_hidden_states else None,
            attentions=encoded.attentions if output_attentions else None,
        )

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        second_start: Tensor | None = None,
    ) -> Any:
        """The encoder's `last_hidden_state` for a batch, (B, T, D) at the tokens' places in the rows, blurred if it
        blurs; see `forward` for the arguments.
        """
        texts = self._texts_of(attention_mask.bool(), second_start)
        encoded = self._encode(input_ids, attention_mask, token_type_ids, texts)
        return encoded if texts is None else BaseModelOutput(texts.rows(encoded.last_hidden_state))

    def _parted(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Joined rows as rows of texts apart, and where the second ones begin; as they came where they cannot be."""
        form = {"separators": self.config.pair_separators, "max_length": self.config.max_seq_length}
        rows = split_pair_rows(input_ids, attention_mask.bool(), special_ids=self.special_ids, **form)
        if rows is None:
            return input_ids, attention_mask, token_type_ids, None
        # Each text is a first one to itself.
        types = None if token_type_ids is None else torch.zeros_like(rows.ids_BT)
        return rows.ids_BT, rows.mask_BT.to(attention_mask), types, rows.second_start_B

    def _texts_of(self, mask_BT: Tensor, second_start: Tensor | None) -> TwoTexts | None:
        """Where the texts of these rows stand, for a model that reads them apart."""
        if (second_start is not None) != self.config.reads_apart:
            got, reads = ("no", "apart") if second_start is None else ("a", "in one row")
            raise ValueError(
                f"got {got} second_start, but this model reads the texts of a pair {reads}. Encode them as it does:"
                " attentune.predict(run, texts, pairs), or encode_rows(..., bi_encoder=...) and pad_batch. (Of rows"
                " from its tokenizer, such as pairs in a pipeline, the second text is found by itself, if it holds"
                " two texts.)"
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
        """All that the encoder gives for what is read; of rows in windows what they give together."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        parts: TwoTexts | Windows | None = texts
        if texts is None:
            parts = find_windows(attention_mask.bool(), self.config.window, self.config.window_stride)
        if parts is not None:
            # Tokens are looked up at their places in the rows: who listens at the embeddings finds them there.
            embedded_BTE = self.get_input_embeddings()(input_ids)
            inputs = {"inputs_embeds": parts.texts(embedded_BTE), "attention_mask": parts.mask_NU.to(torch.long)}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids if parts is None else parts.texts(token_type_ids)
        with self._blurred(inputs["attention_mask"].bool()):
            encoded = self.encoder(**inputs, output_hidden_states=output_hidden_states, **options)
        return parts.merged(encoded) if isinstance(parts, Windows) else encoded

    def _blurred(self, mask_BT: Tensor) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the encoder blurs a batch with these real tokens, if it blurs at all."""
        if self.blur is None or self.blur_taps is None:
            return contextlib.nullcontext()
        return self.blur_taps.prepared(self.blur.matrices(mask_BT))

    def classify(
        self, hidden_BTD: Tensor, input_ids: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """From mixed token vectors through head, token gate, dropout and linear, or what combines two texts.

        For texts that are read apart, B are all first ones, then the second ones; there are half as many logits.

        Returns:
            The logits (B, C); and the token gate's scores (B, T, 2) and importance (B, T), None without a gate.
        """
        # Compared one by one: there are few of them, and `torch.isin` has no counterpart in ONNX.
        ordinary_BT = mask_BT & ~(input_ids.unsqueeze(-1) == self.special_ids).any(dim=-1)
        sentence_BD = self.head(hidden_BTD, mask_BT, ordinary_BT)
        token_logits_BT2 = importance_BT = None
        if self.token_gate is not None:
            sentence_BD, token_logits_BT2, importance_BT = self.token_gate(
                hidden_BTD, mask_BT, ordinary_BT, sentence_BD
            )
        dtype = next(self.classifier.parameters()).dtype
        logits_BC = self.classifier(self.dropout(sentence_BD).to(dtype)).float()
        if self.outputs is not None:
            logits_BC = self.outputs(logits_BC)
        if self.config.calibration_temperature != 1.0:
            logits_BC = logits_BC / self.config.calibration_temperature
        return logits_BC, token_logits_BT2, importance_BT

    def _mean_loss(
        self, logits_BC: Tensor, labels_B: Tensor, token_logits: Tensor | None, token_targets: Tensor | None
    ) -> Tensor:
        kind = resolve_loss(self.config.loss, self.config.task_type)
        loss = row_losses(kind, logits_BC, labels_B, focal_gamma=self.config.focal_gamma).mean()
        if token_logits is None or token_targets is None:
            return loss
        return with_token_loss(loss, token_logits, token_targets, share=self.token_loss_share)


AutoModelForSequenceClassification.register(AttentuneConfig, AttentuneForSequenceClassification, exist_ok=True)
