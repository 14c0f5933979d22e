"""Encoders whose layers train and predict by a written-out step each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

from attentune.models.attention import LONG, PLAIN
from attentune.nn.cpu.attention import added_mask
from attentune.nn.cpu.fused_layer import (
    BFloat16Weights,
    ContextTransform,
    LayerSettings,
    LayerWeights,
    fused_layer,
    fused_prediction,
)
from attentune.nn.cpu.kernels import VECTOR
from attentune.nn.cpu.native import unavailable_reason

# The families whose layer is BERT's own, in all parts.
_LAYERS = ("BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer")

# Where those hooks come from that transformers leaves on every attention once hidden states were asked for. They do
# nothing until attention's probabilities are.
_CAPTURING_MODULE = "transformers.utils.output_capturing"


class _FusedLayerMixin:
    """Goes before a layer's own class. What it cannot do, and all in float32, is left to the layer's own program."""

    _half: BFloat16Weights | None = None
    _are_weights_frozen = False

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *others: Any, **named: Any
    ) -> Tensor:
        layer: Any = self
        is_plain = _is_plain(layer, attention_mask) and not named.get("output_attentions")
        program = _program(layer, hidden_states) if is_plain else None
        if program is None:
            own: Tensor = super().forward(hidden_states, attention_mask, *others, **named)  # type: ignore[misc]
            return own
        weights, half = _weights(layer), self._half
        is_fresh = half is not None and self._are_weights_frozen
        if half is None:
            half = BFloat16Weights(weights)
        if program is fused_prediction and not is_fresh:
            half.copy_from(weights)
        self._half = half  # only now: another thread may be predicting
        if torch.is_autocast_enabled("cpu"):
            hidden_states = hidden_states.float()  # ELECTRA's first come out of a product
        mask = None if attention_mask is None else added_mask(attention_mask, torch.float32)
        return program(hidden_states, mask, weights, half, _settings(layer), _context_transform(layer))

    def freeze_weights(self) -> None:
        """Say that the weights stay until `release`."""
        self._half, self._are_weights_frozen = None, True

    def release(self) -> None:
        """Say that they may change again."""
        self._half, self._are_weights_frozen = None, False

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which compute by themselves."""
        return {**self.__dict__, "_half": None, "_are_weights_frozen": False}


@contextlib.contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """While the block runs the model's weights do not change, so that they are halved once and not in each batch."""
    layers = [module for module in model.modules() if isinstance(module, _FusedLayerMixin)]
    for layer in layers:
        layer.freeze_weights()
    try:
        yield
    finally:
        for layer in layers:
            layer.release()


def use_fused_layers(model: Any) -> int:
    """Let the layers of a model on the CPU compute by `nn.fused_layer` where they can; how many can.

    A layer can if it is BERT's, with GELU, and its sizes fit the vectors of `nn.kernels`; and if this machine can have
    these (`nn.native`). It does so in bf16, to train and to predict, while nothing has to see its insides: no hook on a
    part of it, no adapter in it, and attention by our own programs. A hook before attention's output projection is
    obeyed, though: there a blur of what attention found takes freeze_weights. Else it computes as ever. Weights, names and saved
    files stay as they are.

    Args:
        model: an `AttentuneForSequenceClassification` on a CPU; changed in place.
    """
    layers = [module for module in model.modules() if type(module).__name__ in _LAYERS and _fits(module)]
    if not layers or unavailable_reason() is not None:
        return 0
    for layer in layers:
        own = type(layer)
        if isinstance(layer, _FusedLayerMixin):
            continue
        layer.__class__ = type(own.__name__, (_FusedLayerMixin, own), {"__module__": own.__module__})
    return len(layers)


def fused_layers(model: Any) -> int:
    """How many layers `use_fused_layers` has changed."""
    return sum(isinstance(module, _FusedLayerMixin) for module in model.modules())


def _fits(layer: Any) -> bool:
    """Whether the layer is one that `fused_layer` computes."""
    attention, inner = layer.attention.self, layer.intermediate
    return (
        not (layer.is_decoder or layer.add_cross_attention)
        and isinstance(inner.intermediate_act_fn, (nn.GELU, GELUActivation))
        and getattr(inner.intermediate_act_fn, "approximate", "none") == "none"
        and getattr(inner.intermediate_act_fn, "act", nn.functional.gelu) is nn.functional.gelu
        and attention.attention_head_size % VECTOR == 0
        and attention.all_head_size == layer.output.dense.out_features
        and inner.dense.out_features % VECTOR == 0
        and layer.attention.output.LayerNorm.eps == layer.output.LayerNorm.eps
        and layer.chunk_size_feed_forward == 0
    )


def _program(layer: Any, hidden_states: Tensor) -> Callable[..., Tensor] | None:
    """What computes the layer here; None for its own program."""
    if hidden_states.device.type != "cpu":
        return None
    half, own = torch.bfloat16, layer.output.dense.weight.dtype
    is_autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == half and own == torch.float32
    if layer.training:
        return fused_layer if is_autocast and torch.is_grad_enabled() else None
    is_half = hidden_states.dtype == own == half
    return fused_prediction if (is_autocast or is_half) and not torch.is_grad_enabled() else None


def _is_plain(layer: Any, mask: Tensor | None) -> bool:
    """Whether nothing has to see the layer's insides."""
    if layer.attention.self.config._attn_implementation not in (PLAIN, LONG):
        return False
    if mask is not None and (mask.ndim != 4 or mask.shape[1] != 1 or mask.stride(3) != 1):
        return False
    attention_output = layer.attention.output.dense
    for module in layer.modules():
        hooks = (*module._forward_hooks.values(), *module._backward_hooks.values())
        if module is not attention_output or module._forward_pre_hooks_with_kwargs:
            hooks = (*hooks, *module._forward_pre_hooks.values())
        if module is not layer and any(getattr(hook, "__module__", "") != _CAPTURING_MODULE for hook in hooks):
            return False
    return all(type(one) is nn.Linear and one.bias is not None for one in _products(layer))


def _context_transform(layer: Any) -> ContextTransform | None:
    """What hooks do to that which attention found, before it is projected; None where there are none."""
    attention_output = layer.attention.output.dense
    if not attention_output._forward_pre_hooks:
        return None

    def changed(found_BTD: Tensor) -> Tensor:
        for hook in attention_output._forward_pre_hooks.values():
            given = hook(attention_output, (found_BTD,))
            if given is not None:
                found_BTD = given[0] if isinstance(given, tuple) else given
        return found_BTD

    return changed


def _products(layer: Any) -> tuple[Any, ...]:
    own = layer.attention.self
    return (own.query, own.key, own.value, layer.attention.output.dense, layer.intermediate.dense, layer.output.dense)


def _weights(layer: Any) -> LayerWeights:
    query, key, value, attention_output, up, down = _products(layer)
    norm_1, norm_2 = layer.attention.output.LayerNorm, layer.output.LayerNorm
    parts = (query, key, value, attention_output, norm_1, up, down, norm_2)
    return LayerWeights(*(tensor for part in parts for tensor in (part.weight, part.bias)))


def _settings(layer: Any) -> LayerSettings:
    own = layer.attention.self
    dropout, hidden = own.dropout.p, layer.output.dropout.p
    return LayerSettings(own.num_attention_heads, dropout, hidden, layer.output.LayerNorm.eps)
