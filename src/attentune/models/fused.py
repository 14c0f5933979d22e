"""Replaces an encoder's layers by the fused CPU layers, in place.

`layer_parts` says where the families keep the parts of BERT's layer; the mixins here serve what differs from it in
other ways: what a layer is given besides, and what it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attentune.models.attention import LONG, PLAIN
from attentune.models.layer_parts import LayerParts, find_parts, gelu_form, pre_norm_linears
from attentune.nn.compiled.attention import added_mask
from attentune.nn.compiled.checks import is_fast, unavailable_reason
from attentune.nn.compiled.fused_layer import (
    BFloat16Weights,
    ContextTransform,
    LayerSettings,
    LayerWeights,
    fused_layer,
    fused_prediction,
)
from attentune.nn.compiled.fused_pre_norm import (
    PreNormSettings,
    PreNormWeights,
    fused_pre_norm_layer,
    fused_pre_norm_prediction,
)
from attentune.nn.compiled.kernels import VECTOR

# transformers leaves hooks of this module on every attention once hidden states were requested; they do nothing unless
# attention probabilities are requested.
_CAPTURING_MODULE = "transformers.utils.output_capturing"


class _FusedLayerMixin:
    """Mixin placed before a layer's class; falls back to that class for what it does not support, and for float32."""

    _half: BFloat16Weights | None = None
    # What the copies in `_half` were made of; None after training, which overwrites them.
    _copied: tuple[tuple[int, int], ...] | None = None
    _are_weights_frozen = False
    # Whether the layer only predicts, so that copies stay between blocks of `frozen_weights`.
    _keeps_copies = False

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        out = None if kwargs.get("output_attentions") else self._fused(hidden_states, attention_mask)
        if out is None:
            out = super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[misc]
        return out

    def _fused(
        self, hidden_states: Tensor, mask: Tensor | None, positions: Callable[[], Tensor] | None = None
    ) -> Tensor | None:
        """Compute the layer's output by the fused layer; None if it must not be used here.

        `positions` returns what the attention scores have by relative position (see `fused_layer`).
        """
        layer: Any = self
        parts = find_parts(layer)
        if parts is None or not _is_plain(layer, parts, mask):
            return None
        program = _fused_function(layer, parts.down, hidden_states, fused_layer, fused_prediction)
        if program is None:
            return None
        weights = _weights(parts)
        half = self._bf16_weights(weights, refresh=program is fused_prediction)
        transform, by_position = _context_transform(parts.attention_output), None if positions is None else positions()
        hidden_states, mask = _inputs(hidden_states, mask)
        return program(hidden_states, mask, weights, half, _settings(parts), transform, by_position)

    def _bf16_weights(self, weights: LayerWeights | PreNormWeights, *, refresh: bool) -> BFloat16Weights:
        """Return the bf16 copies of the weights; with `refresh` they are up to date."""
        half, state = self._half, _state(weights)
        is_fresh = (self._are_weights_frozen or self._keeps_copies) and self._copied == state
        if half is None:
            half, is_fresh = BFloat16Weights(weights), False
        if refresh and not is_fresh:
            half.copy_from(weights)
        # Assigned last, since another thread may be predicting.
        self._half, self._copied = half, state if refresh else None
        return half

    def freeze_weights(self) -> None:
        """Declare that the weights do not change until `unfreeze_weights`, so that bf16 copies can be reused."""
        self._are_weights_frozen = True
        self._drop_copies()

    def unfreeze_weights(self) -> None:
        """Declare that the weights may change again."""
        self._are_weights_frozen = False
        self._drop_copies()

    def keep_copies(self) -> None:
        """Keep bf16 copies from now on; they are made again when a weight was changed in place or replaced."""
        self._keeps_copies = True

    def _drop_copies(self) -> None:
        if not self._keeps_copies:
            self._half = self._copied = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the buffers from copies, which need their own."""
        return {**self.__dict__, "_half": None, "_copied": None, "_are_weights_frozen": False, "_keeps_copies": False}


class _FusedMPNetLayerMixin(_FusedLayerMixin):
    """MPNet's layer gets a position bias from its encoder and returns a tuple."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        if not output_attentions:
            positions = None if position_bias is None else (lambda: position_bias)
            out = self._fused(hidden_states, attention_mask, positions)
            if out is not None:
                return (out,)
        bias_BHTT = None if position_bias is None else _by_query(position_bias)
        plain: tuple[Tensor, ...] = super(_FusedLayerMixin, self).forward(  # type: ignore[misc]
            hidden_states, attention_mask, bias_BHTT, output_attentions, **kwargs
        )
        return plain


class _MPNetEncoderMixin:
    """Mixin placed before `MPNetEncoder` whose layers are fused: its position bias is a number for each distance."""

    def compute_position_bias(self, x: Tensor, position_ids: None = None, num_buckets: int = 32) -> Tensor:
        """Return the bias by the key's position minus the query's, (heads, 2 length - 1)."""
        encoder: Any = self
        distances = torch.arange(1 - x.shape[1], x.shape[1], device=x.device)
        buckets = encoder.relative_position_bucket(distances, num_buckets=num_buckets)
        bias_HR: Tensor = encoder.relative_attention_bias(buckets).t().contiguous()
        return bias_HR


class _FusedDebertaLayerMixin(_FusedLayerMixin):
    """DeBERTa's layer gets the vectors of relative positions from its encoder and returns a pair."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        out, others = None, (query_states, relative_pos, rel_embeddings, output_attentions)
        if query_states is None and relative_pos is not None and rel_embeddings is not None and not output_attentions:
            mask = _key_mask(attention_mask)
            attention = self.attention.self  # type: ignore[attr-defined]
            if mask is not None:
                out = self._fused(
                    hidden_states, mask, lambda: _position_vectors(attention, relative_pos, rel_embeddings)
                )
        if out is not None:
            return out, None
        plain: tuple[Tensor, Tensor | None] = super(_FusedLayerMixin, self).forward(  # type: ignore[misc]
            hidden_states, attention_mask, *others
        )
        return plain


def _key_mask(mask_B1TT: Tensor) -> Tensor | None:
    """Reduce DeBERTa's mask, which excludes padding as queries too, to keys, (B, 1, 1, T); None for another mask."""
    keys_B1T = mask_B1TT.diagonal(dim1=2, dim2=3).bool()
    is_product = torch.equal(mask_B1TT.bool(), keys_B1T[:, :, :, None] & keys_B1T[:, :, None, :])
    return keys_B1T[:, :, None].contiguous() if is_product else None


def _position_vectors(attention: Any, relative_1TT: Tensor, embeddings_PD: Tensor) -> Tensor:
    """Return packed position keys and queries of the positions that occur, key minus query from 1 - T on."""
    span = attention.pos_ebd_size
    distances_R = torch.cat([relative_1TT[0, -1], relative_1TT[0, 0, 1:]])  # of query minus key, from T - 1 on
    places_R = (distances_R + span).clamp(0, 2 * span - 1)
    first = int(places_R.min())
    used_UD = attention.pos_dropout(embeddings_PD[first : int(places_R.max()) + 1])
    if attention.share_att_key:
        keys_UD, queries_UD = attention.key_proj(used_UD), attention.query_proj(used_UD)
    else:
        keys_UD, queries_UD = attention.pos_key_proj(used_UD), attention.pos_query_proj(used_UD)
    return torch.cat([keys_UD, queries_UD], dim=-1).index_select(0, places_R - first)


class _FusedModernBertLayerMixin(_FusedLayerMixin):
    """ModernBERT's layer normalises before each block and has no biases; its attention rotates queries and keys."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        out = None
        if position_embeddings is not None and not kwargs.get("output_attentions"):
            out = self._fused_pre_norm(hidden_states, attention_mask, position_embeddings)
        if out is None:
            out = super(_FusedLayerMixin, self).forward(  # type: ignore[misc]
                hidden_states, attention_mask, position_embeddings, **kwargs
            )
        return out

    def _fused_pre_norm(
        self, hidden_states: Tensor, mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> Tensor | None:
        layer: Any = self
        attention, linears = layer.attn, pre_norm_linears(layer)
        implementation = layer.config._attn_implementation
        if len(angles[0]) != 1 or not _is_untouched(layer, mask, implementation, linears[1], linears):
            return None
        dropouts = (attention.attention_dropout, getattr(attention.out_drop, "p", 0.0), layer.mlp.drop.p)
        if layer.training and any(dropouts):
            return None
        programs = fused_pre_norm_layer, fused_pre_norm_prediction
        program = _fused_function(layer, layer.mlp.Wo, hidden_states, *programs)
        if program is None:
            return None
        norm_1 = getattr(layer.attn_norm, "weight", None)  # the first layer has none
        projections, attention_output, up, down = (linear.weight for linear in linears)
        weights = PreNormWeights(projections, attention_output, up, down, norm_1, layer.mlp_norm.weight)
        half = self._bf16_weights(weights, refresh=program is fused_pre_norm_prediction)
        settings = PreNormSettings(
            layer.config.num_attention_heads, layer.mlp_norm.eps, gelu_form(layer.mlp.act) == "tanh"
        )
        hidden_states, mask = _inputs(hidden_states, mask)
        cosine_TE, sine_TE = (angle[0].float().contiguous() for angle in angles)
        transform = _context_transform(attention.Wo)
        return program(hidden_states, mask, (cosine_TE, sine_TE), weights, half, settings, transform)


def _inputs(hidden_states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return hidden states and mask as the fused layers take them."""
    if torch.is_autocast_enabled("cpu"):
        hidden_states = hidden_states.float()  # bf16 if the embeddings end with a projection, as ELECTRA's do
    return hidden_states, None if mask is None else added_mask(mask, torch.float32)


def _by_query(bias_HR: Tensor) -> Tensor:
    """Return a position bias for each query and key, (1, heads, length, length)."""
    length = (bias_HR.shape[1] + 1) // 2
    places = torch.arange(length, device=bias_HR.device)
    return bias_HR[:, places - places[:, None] + length - 1].unsqueeze(0)


# The mixins of layers that get and return something else than BERT's.
_MIXINS: dict[str, type[_FusedLayerMixin]] = {
    "MPNetLayer": _FusedMPNetLayerMixin,
    "DebertaV2Layer": _FusedDebertaLayerMixin,
    "ModernBertEncoderLayer": _FusedModernBertLayerMixin,
}


@contextlib.contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """Declare that the model's weights do not change while the block runs: they are converted to bf16 only once."""
    layers = [module for module in model.modules() if isinstance(module, _FusedLayerMixin)]
    for layer in layers:
        layer.freeze_weights()
    try:
        yield
    finally:
        for layer in layers:
            layer.unfreeze_weights()


def keep_bf16_weights(model: nn.Module) -> None:
    """Keep the bf16 copies of a model that only predicts: predictions of few rows take longer to copy than to compute.

    A weight that is changed in place or replaced is seen, but not one that is changed through its `data`.
    """
    for module in model.modules():
        if isinstance(module, _FusedLayerMixin):
            module.keep_copies()


def _state(weights: LayerWeights | PreNormWeights) -> tuple[tuple[int, int], ...]:
    """Return the places in memory of the weight matrices, and how often each was changed in place."""
    return tuple((matrix.data_ptr(), matrix._version) for matrix in weights.matrices)


def use_fused_layers(model: Any) -> int:
    """Replace a model's layers on the CPU by those of `nn.compiled.fused_layer` and `fused_pre_norm`, where supported.

    A layer is supported if it computes what BERT's does (perhaps with a bias or vectors of relative positions) or
    ModernBERT's, with GELU and sizes that are multiples of the vector size, if the C code is available on this machine
    (`nn.compiled.native`) and if it is right and not slower (`nn.compiled.checks`). The fused layers are used in bf16,
    for training and prediction, as long as nothing needs the layer's internals: no hooks on its submodules, no
    adapters, and our own attention. Pre-hooks on attention's output projection are applied, since the context blur is
    one. Otherwise the layer's own code runs. Weights, names and saved files do not change.
    """
    layers = [module for module in model.modules() if _fits(module)]
    if not layers or unavailable_reason() is not None or not _is_fast(layers[0]):
        return 0
    for layer in layers:
        if not isinstance(layer, _FusedLayerMixin):
            _put_before(_MIXINS.get(type(layer).__name__, _FusedLayerMixin), layer)
    for module in model.modules():
        if type(module).__name__ == "MPNetEncoder" and not isinstance(module, _MPNetEncoderMixin):
            _put_before(_MPNetEncoderMixin, module)
    return len(layers)


def _is_fast(layer: Any) -> bool:
    """Whether a compiled BERT layer of this layer's size is fast; it stands for the layers of all families."""
    parts = find_parts(layer)
    if parts is None:  # ModernBERT's
        down, heads = layer.mlp.Wo, layer.config.num_attention_heads
    else:
        down, heads = parts.down, parts.heads
    return is_fast(down.out_features, down.in_features, heads)


def use_bf16_gradients(model: Any) -> None:
    """Keep the gradients of the fused layers' weight matrices in bf16, in which the fused layer computes them.

    Not where a layer is used several times in a pass, as ALBERT's is: the sum of its gradients would be rounded. Nor in
    versions of PyTorch whose tensors have no `grad_dtype`.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, _FusedLayerMixin)]
    if len(layers) < model.encoder.config.num_hidden_layers or not hasattr(Tensor, "grad_dtype"):
        return
    for layer in layers:
        parts = find_parts(layer)
        for linear in pre_norm_linears(layer) if parts is None else parts.linears:
            if linear.weight.requires_grad:
                linear.weight.grad_dtype = torch.bfloat16


def _put_before(mixin: type, module: Any) -> None:
    """Replace a module's class by one of the same name that has the mixin before it."""
    own = type(module)
    module.__class__ = type(own.__name__, (mixin, own), {"__module__": own.__module__})


def fused_layers(model: Any) -> int:
    """Count the layers that `use_fused_layers` has replaced."""
    return sum(isinstance(module, _FusedLayerMixin) for module in model.modules())


def _fits(layer: Any) -> bool:
    """Whether `fused_layer` computes what this layer does."""
    parts = find_parts(layer)
    if parts is None:
        return type(layer).__name__ == "ModernBertEncoderLayer" and _fits_pre_norm(layer)
    hidden, first, second = parts.down.out_features, *parts.norms
    return (
        not (getattr(layer, "is_decoder", False) or getattr(layer, "add_cross_attention", False))
        and gelu_form(parts.activation) is not None
        and hidden % (parts.heads * VECTOR) == 0
        and parts.query.out_features == hidden
        and parts.up.out_features % VECTOR == 0
        and first.eps == second.eps
        and (not parts.is_disentangled or _has_both_position_terms(layer.attention.self))
        and not any(getattr(module, "chunk_size_feed_forward", 0) for module in layer.modules())
    )


def _fits_pre_norm(layer: Any) -> bool:
    """Whether `fused_pre_norm_layer` computes what this ModernBERT layer does."""
    linears, norms = pre_norm_linears(layer), [layer.mlp_norm]
    norms += [layer.attn_norm] if isinstance(layer.attn_norm, nn.LayerNorm) else []
    return (
        all(module.bias is None for module in (*linears, *norms))
        and gelu_form(layer.mlp.act) is not None
        and layer.attn.head_dim % (2 * VECTOR) == 0
        and layer.mlp.Wo.in_features % VECTOR == 0
    )


def _has_both_position_terms(attention: Any) -> bool:
    return bool(attention.relative_attention) and sorted(attention.pos_att_type) == ["c2p", "p2c"]


def _fused_function(
    layer: Any, linear: Any, hidden_states: Tensor, training: Callable[..., Tensor], prediction: Callable[..., Tensor]
) -> Callable[..., Tensor] | None:
    """Return the fused function for this mode and the linear's dtype; None for the layer's own code."""
    if hidden_states.device.type != "cpu":
        return None
    half, dtype = torch.bfloat16, linear.weight.dtype
    is_autocast = (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == half and dtype == torch.float32
    )
    if layer.training:
        return training if is_autocast and torch.is_grad_enabled() else None
    is_half = hidden_states.dtype == dtype == half
    return prediction if (is_autocast or is_half) and not torch.is_grad_enabled() else None


def _is_plain(layer: Any, parts: LayerParts, mask: Tensor | None) -> bool:
    """Whether nothing needs the layer's internals: no hooks, no adapters, our own attention."""
    has_biases = all(linear.bias is not None for linear in parts.linears)
    return has_biases and _is_untouched(layer, mask, parts.attention, parts.attention_output, parts.linears)


def _is_untouched(
    layer: Any, mask: Tensor | None, implementation: str | None, attention_output: Any, linears: tuple[Any, ...]
) -> bool:
    if implementation not in (None, PLAIN, LONG):
        return False
    if mask is not None and (mask.ndim != 4 or mask.shape[1] != 1 or mask.stride(3) != 1):
        return False
    for module in layer.modules():
        hooks = (*module._forward_hooks.values(), *module._backward_hooks.values())
        if module is not attention_output or module._forward_pre_hooks_with_kwargs:
            hooks = (*hooks, *module._forward_pre_hooks.values())
        if module is not layer and any(getattr(hook, "__module__", "") != _CAPTURING_MODULE for hook in hooks):
            return False
    return all(type(linear) is nn.Linear for linear in linears)


def _context_transform(attention_output: Any) -> ContextTransform | None:
    """Apply the output projection's pre-hooks to the context; None if there are none."""
    if not attention_output._forward_pre_hooks:
        return None

    def transform(context_BTD: Tensor) -> Tensor:
        for hook in attention_output._forward_pre_hooks.values():
            result = hook(attention_output, (context_BTD,))
            if result is not None:
                context_BTD = result[0] if isinstance(result, tuple) else result
        return context_BTD

    return transform


def _weights(parts: LayerParts) -> LayerWeights:
    query, key, value, attention_output, up, down = parts.linears
    norm_1, norm_2 = parts.norms
    ordered = (query, key, value, attention_output, norm_1, up, down, norm_2)
    return LayerWeights(*(tensor for part in ordered for tensor in (part.weight, part.bias)))


def _settings(parts: LayerParts) -> LayerSettings:
    attention_dropout, *hidden = parts.dropouts
    return LayerSettings(
        parts.heads,
        attention_dropout,
        (hidden[0], hidden[1]),
        parts.norms[1].eps,
        is_gelu_tanh=gelu_form(parts.activation) == "tanh",
        is_disentangled=parts.is_disentangled,
    )
