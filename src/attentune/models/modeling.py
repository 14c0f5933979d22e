"""The one model: an encoder whose output goes through layer mix, token gate and head to a linear classifier."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput

from attentune.models.blur_taps import BlurTaps
from attentune.models.configuration import AttentuneConfig
from attentune.nn.blur import BLUR_PLACES, GaussianBlur
from attentune.nn.heads import build_head
from attentune.nn.layer_mix import LAYER_MIXES, ExcitationLinear, LayerMix
from attentune.nn.losses import resolve_loss, row_losses
from attentune.nn.token_gate import TOKEN_GATES, ImportanceGate, PositionLinear, TokenHead


@dataclass
class AttentuneOutput(ModelOutput):
    """What the model returns.

    Attributes:
        loss: the mean loss, a scalar, where labels were given.
        logits: (B, C) scores before the softmax; (B, 1) for regression.
        token_scores: (B, T) importance of each token from 0 to 1, where the token gate gives one; 0 at padding.
        layer_weights: (B, L) the excitation of each layer, where the layer mix has squeeze-and-excitation.
        token_logits: (B, T, 2) the token head's scores before the softmax, for its loss.
        hidden_states: the embeddings' and each layer's output, where asked for.
        attentions: each layer's attention probabilities, where asked for.
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

    def __init__(self, config: AttentuneConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config)
        self.encoder: Any = encoder if encoder is not None else AutoModel.from_config(config.encoder)
        drop_pooler(self.encoder)
        hidden_size = config.encoder_config.hidden_size
        self.blur, self.blur_taps = _blur(config, self.encoder)
        self.layer_mix = _layer_mix(config)
        self.head = build_head(
            config.head["kind"],
            hidden_size=hidden_size,
            share_of_cls=config.head["beta"],
            with_pooler=config.head["with_pooler"],
        )
        self.token_gate = _token_gate(config)
        self.dropout = nn.Dropout(config.head["dropout"])
        self.classifier = nn.Linear(hidden_size, config.num_labels)
        self.special_ids: Tensor
        self.register_buffer("special_ids", torch.tensor(config.special_token_ids, dtype=torch.long), persistent=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Fresh weights as BERT draws them; also refills the buffer, which `from_pretrained` leaves empty."""
        # transformers passes over modules without weights of their own, so these are all that have some.
        if isinstance(module, (ExcitationLinear, GaussianBlur)):
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

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
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
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        mask_BT = attention_mask.bool()
        extra: dict[str, Any] = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if output_attentions:
            extra["output_attentions"] = True
        with self._blurred(mask_BT):
            encoded = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                output_hidden_states=bool(self.layer_mix is not None or output_hidden_states),
                **extra,
            )
        hidden_BTD, layer_weights_BL = encoded.last_hidden_state, None
        if self.layer_mix is not None:
            layers = (*encoded.hidden_states[1:-1], hidden_BTD)
            hidden_BTD, layer_weights_BL = self.layer_mix(layers, mask_BT)
        logits_BC, token_logits_BT2, importance_BT = self.classify(hidden_BTD, input_ids, mask_BT)
        return AttentuneOutput(
            loss=None if labels is None else self._mean_loss(logits_BC, labels),
            logits=logits_BC,
            token_scores=importance_BT,
            token_logits=token_logits_BT2,
            layer_weights=layer_weights_BL,
            hidden_states=encoded.hidden_states if output_hidden_states else None,
            attentions=encoded.attentions if output_attentions else None,
        )

    def _blurred(self, mask_BT: Tensor) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the encoder blurs a batch with these real tokens, if it blurs at all."""
        if self.blur is None or self.blur_taps is None:
            return contextlib.nullcontext()
        return self.blur_taps.prepared(self.blur.matrices(mask_BT))

    def classify(
        self, hidden_BTD: Tensor, input_ids: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """From mixed token vectors through head, token gate, dropout and linear.

        Returns:
            The logits (B, C); and the token gate's scores (B, T, 2) and importance (B, T), None without a gate.
        """
        ordinary_BT = mask_BT & ~torch.isin(input_ids, self.special_ids)
        sentence_BD = self.head(hidden_BTD, mask_BT, ordinary_BT)
        token_logits_BT2 = importance_BT = None
        if self.token_gate is not None:
            sentence_BD, token_logits_BT2, importance_BT = self.token_gate(
                hidden_BTD, mask_BT, ordinary_BT, sentence_BD
            )
        logits_BC = self.classifier(self.dropout(sentence_BD).to(self.classifier.weight.dtype)).float()
        return logits_BC, token_logits_BT2, importance_BT

    def _mean_loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return row_losses(resolve_loss("auto", self.config.task_type), logits_BC, labels_B).mean()


def _blur(config: AttentuneConfig, encoder: Any) -> tuple[GaussianBlur | None, BlurTaps | None]:
    blur = config.blur
    if blur["where"] not in BLUR_PLACES:
        raise ValueError(f"blur {blur['where']!r} is none of {', '.join(BLUR_PLACES)}")
    if blur["where"] == "none":
        return None, None
    numbers = None if blur["layers"] == "all" else tuple(int(number) for number in str(blur["layers"]).split(","))
    taps = BlurTaps(encoder, where=blur["where"], layers=numbers)
    made = GaussianBlur(
        size=blur["size"],
        sigma=blur["sigma"],
        layers=taps.layers,
        heads=config.encoder_config.num_attention_heads,
        learnable=blur["learnable"],
    )
    return made, taps


def _layer_mix(config: AttentuneConfig) -> LayerMix | None:
    """None where it is the last layer as it is."""
    mix = config.layer_mix
    if mix["kind"] not in LAYER_MIXES:
        raise ValueError(f"layer mix {mix['kind']!r} is none of {', '.join(LAYER_MIXES)}")
    if mix["kind"] == "last" and not mix["squeeze"]:
        return None
    encoder = config.encoder_config
    return LayerMix(
        kind=mix["kind"],
        num_layers=encoder.num_hidden_layers,
        hidden_size=encoder.hidden_size,
        squeeze=mix["squeeze"],
        ratio=mix["ratio"],
    )


def _token_gate(config: AttentuneConfig) -> ImportanceGate | None:
    gate = config.token_gate
    if gate["kind"] not in TOKEN_GATES:
        raise ValueError(f"token gate {gate['kind']!r} is none of {', '.join(TOKEN_GATES)}")
    if gate["kind"] == "none":
        return None
    encoder = config.encoder_config
    names = ("hidden_act", "hidden_activation", "activation")  # the families' names of one thing
    activation = next((getattr(encoder, name) for name in names if getattr(encoder, name, None)), "gelu")
    head = TokenHead(
        hidden_size=encoder.hidden_size,
        activation=ACT2FN[activation] if isinstance(activation, str) else activation,
        positions=None if gate["share_weights"] else config.max_seq_length,
    )
    return ImportanceGate(token_head=head, share_of_head=gate["beta"], threshold=gate["attention_threshold"])


def drop_pooler(encoder: Any) -> None:
    """Take the pooler out of an encoder that has one: pooling is the head's work."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
