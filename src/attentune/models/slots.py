"""Builds what fills the model's slots from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN

from attentune.models.configuration import AttentuneConfig
from attentune.models.hooks import BlurHooks
from attentune.nn.attention_block import BlockShape
from attentune.nn.blur import BLUR_PLACES, GaussianBlur
from attentune.nn.classifiers import build_classifier, raw_outputs
from attentune.nn.heads import build_head
from attentune.nn.layer_mix import LAYER_MIXES, LayerMix
from attentune.nn.token_gate import TOKEN_GATES, ImportanceGate, TokenHead
from attentune.plugins import is_plugin, load_plugin, part_of


def drop_pooler(encoder: Any) -> None:
    """Remove the encoder's pooler, if any: pooling is done by the head."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None


def blur_slot(config: AttentuneConfig, encoder: Any) -> tuple[GaussianBlur | None, BlurHooks | None]:
    """Build the blur and the hooks that apply it; (None, None) without blur."""
    blur = config.blur
    if blur["where"] not in BLUR_PLACES:
        raise ValueError(f"blur.where: got {blur['where']!r}, expected one of {', '.join(BLUR_PLACES)}")
    if blur["where"] == "none":
        return None, None
    numbers = None if blur["layers"] == "all" else tuple(int(number) for number in str(blur["layers"]).split(","))
    hooks = BlurHooks(encoder, where=blur["where"], layers=numbers)
    kernel = part_of({"gaussian": GaussianBlur}, "attentune.blurs", blur.get("kind", "gaussian"))
    gaussian = kernel(
        size=blur["size"],
        sigma=blur["sigma"],
        layers=hooks.layers,
        heads=config.encoder_config.num_attention_heads,
        learnable=blur["learnable"],
    )
    return gaussian, hooks


def layer_mix_slot(config: AttentuneConfig) -> LayerMix | None:
    """Build the layer mix; None if the output is that of the last layer."""
    mix = config.layer_mix
    if mix["kind"] not in LAYER_MIXES and not is_plugin(mix["kind"]):
        raise ValueError(f"layer_mix.kind: got {mix['kind']!r}, expected one of {', '.join(LAYER_MIXES)}")
    if mix["kind"] == "last" and not mix["squeeze"]:
        return None
    encoder = config.encoder_config
    return LayerMix(
        kind=mix["kind"],
        num_layers=encoder.num_hidden_layers,
        hidden_size=encoder.hidden_size,
        squeeze=mix["squeeze"],
        ratio=mix["ratio"],
        neutral=mix["init"] == "neutral",
    )


def token_gate_slot(config: AttentuneConfig) -> ImportanceGate | None:
    """Build the token gate; None without one."""
    gate = config.token_gate
    if gate["kind"] not in TOKEN_GATES and not is_plugin(gate["kind"]):
        raise ValueError(f"token_gate.kind: got {gate['kind']!r}, expected one of {', '.join(TOKEN_GATES)}")
    if gate["kind"] == "none":
        return None
    encoder = config.encoder_config
    positions = None if gate["share_weights"] else config.max_seq_length
    if is_plugin(gate["kind"]):
        return load_plugin("attentune.token_gates", gate["kind"])(
            hidden_size=encoder.hidden_size,
            activation=_activation(encoder),
            positions=positions,
            share_of_head=gate["beta"],
            threshold=gate["attention_threshold"],
        )
    head = TokenHead(hidden_size=encoder.hidden_size, activation=_activation(encoder), positions=positions)
    return ImportanceGate(token_head=head, share_of_head=gate["beta"], threshold=gate["attention_threshold"])


def head_slot(config: AttentuneConfig) -> nn.Module:
    """Build the head; attention blocks take the encoder's sizes."""
    head, encoder = config.head, config.encoder_config
    shape = None
    if head["attention_heads"] is not None:
        shape = BlockShape(
            hidden_size=encoder.hidden_size,
            attention_heads=head["attention_heads"],
            inner_size=_inner_size(encoder),
            activation=_activation(encoder),
            dropout=_dropout(encoder),
            near_one=head["init"] == "uniform",
        )
    return build_head(
        head["kind"],
        hidden_size=encoder.hidden_size,
        share_of_cls=head["beta"],
        with_pooler=head["with_pooler"],
        layers=head["layers"],
        bare=head["bare"],
        shape=shape,
    )


def classifier_slot(config: AttentuneConfig) -> nn.Module:
    """Build the classifier: a linear layer, or for a bi-encoder what combines the two texts."""
    return build_classifier(
        hidden_size=config.encoder_config.hidden_size,
        outputs=raw_outputs(config.loss, config.num_labels),
        combine=config.head["combine"],
        projection=config.head["projection"],
    )


def _activation(encoder: Any) -> Callable[[Tensor], Tensor]:
    """Return the encoder's activation function."""
    names = ("hidden_act", "hidden_activation", "activation")  # differs between families
    activation = next((getattr(encoder, name) for name in names if getattr(encoder, name, None)), "gelu")
    return ACT2FN[activation] if isinstance(activation, str) else activation


def _dropout(encoder: Any) -> float:
    """Return the dropout of the encoder's layers."""
    names = ("hidden_dropout_prob", "dropout", "mlp_dropout")
    values = (getattr(encoder, name, None) for name in names)
    return next((float(value) for value in values if isinstance(value, int | float)), 0.0)


def _inner_size(encoder: Any) -> int:
    """Return the width of the encoder's feed-forward network."""
    names = ("intermediate_size", "hidden_dim")
    sizes = (getattr(encoder, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int)), 4 * encoder.hidden_size)
