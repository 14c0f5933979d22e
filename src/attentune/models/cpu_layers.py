"""Replaces an encoder's attention and its layers by our own for the CPU, in place; weights and files do not change.

PyTorch's fused attention has no dropout on a CPU and falls back to a slow implementation in training; ours, registered
with transformers, takes its place (`use_own_attention`). Layers like BERT's or ModernBERT's are computed by C code in
bf16 (`use_fused_layers`). BERT's layer exists under several names: `_PATHS` says where each family keeps its parts, so
a new family with this layer is one entry; the mixins serve what differs in other ways, a layer's arguments and results.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from attentune.nn.compiled.attention import added_mask, long_attention, plain_attention
from attentune.nn.compiled.checks import is_fast, unavailable_reason
from attentune.nn.compiled.kernels import VECTOR, Copies
from attentune.nn.compiled.layers import (
    BFloat16Weights,
    ContextTransform,
    LayerSettings,
    LayerWeights,
    PreNormWeights,
    State,
    Weights,
    fused_layer,
    fused_prediction,
    state_of,
)

# Names under which our implementations of attention are registered with transformers.
PLAIN = "attentune_plain"
LONG = "attentune_long"

# Models with a longer maximum length predict with PyTorch's fused attention.
_LONGEST_PLAIN = 256
# In batches of longer texts the T x T matrices of probabilities do not fit into the caches.
_SHORT = 96


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    fused: bool,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with transformers' signature; `fused` selects PyTorch's wherever there is no dropout."""
    if fused and not (module.training and dropout):
        given = {"scaling": scaling, "dropout": 0.0, **others}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not module.training:
        return plain_attention(query, key, value, attention_mask, scaling=factor, dropout=0.0)
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    if max(query.shape[2], key.shape[2]) > _SHORT:
        return long_attention(query, key, value, attention_mask, scaling=factor, dropout=dropout), None
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = added_mask(attention_mask, torch.float32)
    return plain_attention(query, key, value, attention_mask, scaling=factor, dropout=dropout)


def _mask(*args: Any, made_by: Callable[..., Tensor | None], **kwargs: Any) -> Tensor | None:
    """Make transformers' mask, (B, 1, T, S), reduced to (B, 1, 1, S) if it is the same for all queries."""
    mask_B1TS = made_by(*args, **kwargs)
    if mask_B1TS is None:
        return None
    first_B11S = mask_B1TS[:, :, :1]
    return first_B11S if torch.equal(mask_B1TS, first_B11S.expand_as(mask_B1TS)) else mask_B1TS


AttentionInterface.register(PLAIN, partial(_attention, fused=False))
AttentionInterface.register(LONG, partial(_attention, fused=True))
# Without a registered mask function transformers would pass no mask, and padding would be attended to.
AttentionMaskInterface.register(PLAIN, partial(_mask, made_by=eager_mask))
AttentionMaskInterface.register(LONG, partial(_mask, made_by=sdpa_mask))


def use_own_attention(model: Any) -> str | None:
    """Replace PyTorch's fused attention by our own on a CPU; return its name, None if another one is in use.

    Models for short texts use plain matrix products, which are faster in prediction too; those for long texts train
    block by block and predict with PyTorch's. All agree up to rounding; training, evaluation and prediction of one
    model use the same.
    """
    encoder = model.encoder
    if encoder.config._attn_implementation != "sdpa":
        return None
    chosen = LONG if (model.config.window or model.config.max_seq_length) > _LONGEST_PLAIN else PLAIN
    encoder.set_attn_implementation(chosen)
    return chosen


@contextlib.contextmanager
def attention_by(model: Any, program: str | None = None) -> Iterator[None]:
    """Use another attention implementation while the block runs."""
    encoder = model.encoder
    before = encoder.config._attn_implementation
    try:
        if program not in (None, before):
            encoder.set_attn_implementation(program)
        yield
    finally:
        if encoder.config._attn_implementation != before:
            encoder.set_attn_implementation(before)


# The parts of a layer.


class _Paths(NamedTuple):
    """Paths of a layer's parts, from the layer; names are separated by spaces."""

    linears: str  # query, key, value (or all in one), attention's output projection, feed-forward up and down
    norms: str  # the two layer normalisations
    activation: str  # the activation of the feed-forward network
    dropouts: tuple[str | None, str | None, str | None]  # of attention weights, and before the two sums
    heads: str  # the number of attention heads
    config: str | None  # the configuration that names the attention implementation; None if the layer has one only
    form: str = "bert"  # or "disentangled" (vectors of relative positions), or "pre-norm" (ModernBERT's)


_BERT = _Paths(
    "attention.self.query attention.self.key attention.self.value attention.output.dense intermediate.dense"
    " output.dense",
    "attention.output.LayerNorm output.LayerNorm",
    "intermediate.intermediate_act_fn",
    ("attention.self.dropout", "attention.output.dropout", "output.dropout"),
    "attention.self.num_attention_heads",
    "attention.self.config",
)
_PATHS = {
    **dict.fromkeys(("BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer"), _BERT),
    "TransformerBlock": _Paths(  # DistilBERT's
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin ffn.lin1 ffn.lin2",
        "sa_layer_norm output_layer_norm",
        "ffn.activation",
        ("attention.dropout", None, "ffn.dropout"),
        "attention.n_heads",
        "attention.config",
    ),
    "AlbertLayer": _Paths(
        "attention.query attention.key attention.value attention.dense ffn ffn_output",
        "attention.LayerNorm full_layer_layer_norm",
        "activation",
        ("attention.attention_dropout", "attention.output_dropout", None),  # its `dropout` is not used
        "attention.num_attention_heads",
        "attention.config",
    ),
    "MPNetLayer": _Paths(  # its attention has a position bias too
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o intermediate.dense output.dense",
        "attention.LayerNorm output.LayerNorm",
        _BERT.activation,
        ("attention.attn.dropout", "attention.dropout", "output.dropout"),
        "attention.attn.num_attention_heads",
        None,
    ),
    "DebertaV2Layer": _BERT._replace(
        linears=_BERT.linears.replace("query", "query_proj").replace("key", "key_proj").replace("value", "value_proj"),
        config=None,
        form="disentangled",
    ),
    "ModernBertEncoderLayer": _Paths(
        "attn.Wqkv attn.Wo mlp.Wi mlp.Wo",
        "attn_norm mlp_norm",
        "mlp.act",
        ("attn.attention_dropout", "attn.out_drop", "mlp.drop"),
        "config.num_attention_heads",
        "config",
        form="pre-norm",
    ),
}


class LayerParts(NamedTuple):
    linears: tuple[Any, ...]  # the last three are attention's output projection, up and down
    norms: tuple[Any, Any]
    activation: Any
    dropouts: tuple[float, ...]  # their probabilities, 0 where the layer has none
    heads: int
    attention: str | None  # the name of the attention implementation
    form: str


def find_parts(layer: nn.Module) -> LayerParts | None:
    """Return the parts of a layer that computes what BERT's or ModernBERT's does; None if it is not known to."""
    paths = _PATHS.get(type(layer).__name__)
    if paths is None:
        return None
    try:
        dropouts = [0.0 if path is None else attrgetter(path)(layer) for path in paths.dropouts]
        return LayerParts(
            linears=attrgetter(*paths.linears.split())(layer),
            norms=attrgetter(*paths.norms.split())(layer),
            activation=attrgetter(paths.activation)(layer),
            dropouts=tuple(one if isinstance(one, float) else getattr(one, "p", 0.0) for one in dropouts),
            heads=attrgetter(paths.heads)(layer),
            attention=None if paths.config is None else attrgetter(paths.config)(layer)._attn_implementation,
            form=paths.form,
        )
    except AttributeError:  # another class of this name
        return None


def gelu_form(activation: Any) -> str | None:
    """Return "none" for the exact GELU, "tanh" for its approximation (as `nn.GELU` names them), None for others."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    if isinstance(activation, NewGELUActivation):
        return "tanh"
    function = getattr(activation, "act", None)
    if isinstance(activation, GELUActivation) and function is nn.functional.gelu:
        return "none"
    return "tanh" if isinstance(activation, GELUTanh) and isinstance(function, partial) else None


# Fused layers.

# transformers leaves hooks of this module on every attention once hidden states were requested; they do nothing unless
# attention probabilities are requested.
_CAPTURING_MODULE = "transformers.utils.output_capturing"


def use_fused_layers(model: Any) -> int:
    """Replace a model's layers on the CPU by those of `nn.compiled.layers`, where supported; return how many.

    A layer is supported if it computes what BERT's does (perhaps with a bias or vectors of relative positions) or
    ModernBERT's, with GELU and sizes that are multiples of the vector size, if the C code is available on this machine
    (`nn.compiled.native`) and if it is right and not slower (`nn.compiled.checks`; the measurement of a BERT layer of
    this size stands for all families). The fused layers are used in bf16, for training and prediction, as long as
    nothing needs the layer's internals: no hooks on its submodules, no adapters, and our own attention. Pre-hooks on
    attention's output projection are applied, since the context blur is one. Otherwise the layer's own code runs.
    """
    layers = [module for module in model.modules() if _fits(module)]
    parts = find_parts(layers[0]) if layers else None
    if parts is None or unavailable_reason() is not None:
        return 0
    down = parts.linears[-1]
    if not is_fast(down.out_features, down.in_features, parts.heads):
        return 0
    for layer in layers:
        if not isinstance(layer, _FusedLayerMixin):
            _put_before(_MIXINS.get(type(layer).__name__, _FusedLayerMixin), layer)
    for module in model.modules():
        if type(module).__name__ == "MPNetEncoder" and not isinstance(module, _MPNetEncoderMixin):
            _put_before(_MPNetEncoderMixin, module)
    return len(layers)


def fused_layers(model: Any) -> int:
    return len(_fused_modules(model))


def use_bf16_gradients(model: Any) -> None:
    """Keep the gradients of the fused layers' weight matrices in bf16, in which the fused layer computes them.

    Not where a layer is used several times in a pass, as ALBERT's is: the sum of its gradients would be rounded. Nor in
    versions of PyTorch whose tensors have no `grad_dtype`.
    """
    layers = _fused_modules(model)
    if not layers or len(layers) < model.encoder.config.num_hidden_layers or not hasattr(Tensor, "grad_dtype"):
        return
    for parts in filter(None, map(find_parts, layers)):
        for linear in parts.linears:
            if linear.weight.requires_grad:
                linear.weight.grad_dtype = torch.bfloat16


def bf16_copies(model: Any) -> list[Copies]:
    copies: list[Copies] = []
    for layer in _fused_modules(model):
        half, parts = layer._half, find_parts(layer)
        if half is not None and parts is not None:
            weights = _weights(parts)
            pairs = zip(weights.matrices, half.buffers, strict=True)
            copies.append((dict(pairs), partial(half.note_written, weights)))
    return copies


@contextlib.contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """Declare that the model's weights do not change while the block runs: they are converted to bf16 only once."""
    layers = _fused_modules(model)
    for layer in layers:
        layer.freeze_weights(True)
    try:
        yield
    finally:
        for layer in layers:
            layer.freeze_weights(False)


def keep_bf16_weights(model: nn.Module) -> None:
    """Keep the bf16 copies of a model that only predicts: predictions of few rows take longer to copy than to compute.

    A weight that is changed in place or replaced is seen, but not one that is changed through its `data`.
    """
    for layer in _fused_modules(model):
        layer.keeps_copies = True


def _fused_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, _FusedLayerMixin)]


def _put_before(mixin: type, module: Any) -> None:
    """Replace a module's class by one of the same name that has the mixin before it."""
    own = type(module)
    module.__class__ = type(own.__name__, (mixin, own), {"__module__": own.__module__})


def _fits(layer: Any) -> bool:
    """Whether `fused_layer` computes what this layer does."""
    parts = find_parts(layer)
    if parts is None:
        return False
    is_pre_norm, down = parts.form == "pre-norm", parts.linears[-1]
    hidden, inner = down.out_features, down.in_features
    if gelu_form(parts.activation) is None or inner % VECTOR or hidden % (parts.heads * VECTOR * (1 + is_pre_norm)):
        return False
    if is_pre_norm:
        return all(getattr(part, "bias", None) is None for part in (*parts.linears, *parts.norms))
    attention = layer.attention.self if parts.form == "disentangled" else None
    return (
        not (getattr(layer, "is_decoder", False) or getattr(layer, "add_cross_attention", False))
        and parts.linears[0].out_features == hidden
        and parts.norms[0].eps == parts.norms[1].eps
        and (attention is None or (attention.relative_attention and sorted(attention.pos_att_type) == ["c2p", "p2c"]))
        and not any(getattr(module, "chunk_size_feed_forward", 0) for module in layer.modules())
    )


class _FusedLayerMixin:
    """Mixin placed before a layer's class; falls back to that class for what it does not support, and for float32."""

    # Whether the layer only predicts, so that copies stay between blocks of `frozen_weights`.
    keeps_copies = False
    _half: BFloat16Weights | None = None
    # The sources of the copies in `_half`; None after training, which overwrites them.
    _copied: State | None = None
    _are_weights_frozen = False

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        out = None if kwargs.get("output_attentions") else self._fused(hidden_states, attention_mask)
        if out is None:
            out = super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[misc]
        return out

    def _fused(
        self, hidden_states: Tensor, mask: Tensor | None, positions: Callable[[], Any] | None = None
    ) -> Tensor | None:
        """Compute the fused layer's output, with what `positions` returns; None if it must not be used here."""
        layer: Any = self
        parts = find_parts(layer)
        if parts is None or not _is_plain(layer, parts, mask):
            return None
        program = _fused_function(layer, parts.linears[-1], hidden_states)
        if program is None:
            return None
        weights = _weights(parts)
        half = self._bf16_weights(weights, refresh=program is fused_prediction)
        transform, by_position = _context_transform(parts.linears[-3]), None if positions is None else positions()
        hidden_states = hidden_states.float()  # bf16 if the embeddings end with a projection, as ELECTRA's do
        mask = None if mask is None else added_mask(mask, torch.float32)
        return program(hidden_states, mask, weights, half, _settings(parts), transform, by_position)

    def _bf16_weights(self, weights: Weights, *, refresh: bool) -> BFloat16Weights:
        """Return the bf16 copies of the weights; with `refresh` they are up to date."""
        half, state = self._half, state_of(weights)
        is_fresh = (self._are_weights_frozen or self.keeps_copies) and self._copied == state
        if half is None:
            half, is_fresh = BFloat16Weights(weights), False
        if refresh and not is_fresh:
            half.refresh(weights)
        # Assigned last, since another thread may be predicting.
        self._half, self._copied = half, state if refresh else None
        return half

    def freeze_weights(self, frozen: bool) -> None:
        """Declare that the weights do not change from now on, so that bf16 copies can be reused, or that they may."""
        self._are_weights_frozen = frozen
        if not self.keeps_copies:
            self._half = self._copied = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the buffers from copies, which need their own."""
        return {**self.__dict__, "_half": None, "_copied": None, "_are_weights_frozen": False, "keeps_copies": False}


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
        positions = None if position_bias is None else (lambda: position_bias)
        out = None if output_attentions else self._fused(hidden_states, attention_mask, positions)
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


def _by_query(bias_HR: Tensor) -> Tensor:
    """Return a position bias for each query and key, (1, heads, length, length)."""
    length = (bias_HR.shape[1] + 1) // 2
    places = torch.arange(length, device=bias_HR.device)
    return bias_HR[:, places - places[:, None] + length - 1].unsqueeze(0)


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
        out = None
        if query_states is None and relative_pos is not None and rel_embeddings is not None and not output_attentions:
            mask, attention = _key_mask(attention_mask), self.attention.self  # type: ignore[attr-defined]
            if mask is not None:
                vectors = partial(_position_vectors, attention, relative_pos, rel_embeddings)
                out = self._fused(hidden_states, mask, vectors)
        if out is not None:
            return out, None
        plain: tuple[Tensor, Tensor | None] = super(_FusedLayerMixin, self).forward(  # type: ignore[misc]
            hidden_states, attention_mask, query_states, relative_pos, rel_embeddings, output_attentions
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
    """ModernBERT's layer gets the angles of its rotary positions."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        out, angles = None, position_embeddings
        if angles is not None and len(angles[0]) == 1 and not kwargs.get("output_attentions"):
            out = self._fused(
                hidden_states, attention_mask, lambda: tuple(angle[0].float().contiguous() for angle in angles)
            )
        if out is None:
            out = super(_FusedLayerMixin, self).forward(  # type: ignore[misc]
                hidden_states, attention_mask, position_embeddings, **kwargs
            )
        return out


# The mixins of layers that get or return something else than BERT's.
_MIXINS: dict[str, type[_FusedLayerMixin]] = {
    "MPNetLayer": _FusedMPNetLayerMixin,
    "DebertaV2Layer": _FusedDebertaLayerMixin,
    "ModernBertEncoderLayer": _FusedModernBertLayerMixin,
}


def _fused_function(layer: Any, linear: Any, hidden_states: Tensor) -> Callable[..., Tensor] | None:
    """Return the fused function for this mode; None for the layer's own code."""
    if hidden_states.device.type != "cpu":
        return None
    is_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    if not is_bf16 or linear.weight.dtype != torch.float32:
        return None
    if layer.training:
        return fused_layer if torch.is_grad_enabled() else None
    return None if torch.is_grad_enabled() else fused_prediction


def _is_plain(layer: Any, parts: LayerParts, mask: Tensor | None) -> bool:
    """Whether nothing needs the layer's internals: no hooks, no adapters, our own attention."""
    is_pre_norm, attention_output = parts.form == "pre-norm", parts.linears[-3]
    if parts.attention not in (None, PLAIN, LONG) or (is_pre_norm and layer.training and any(parts.dropouts)):
        return False
    if mask is not None and (mask.ndim != 4 or mask.shape[1] != 1 or mask.stride(3) != 1):
        return False
    for module in layer.modules():
        hooks = (*module._forward_hooks.values(), *module._backward_hooks.values())
        if module is not attention_output or module._forward_pre_hooks_with_kwargs:
            hooks = (*hooks, *module._forward_pre_hooks.values())
        if module is not layer and any(getattr(hook, "__module__", "") != _CAPTURING_MODULE for hook in hooks):
            return False
    return all(type(linear) is nn.Linear and (linear.bias is None) == is_pre_norm for linear in parts.linears)


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


def _weights(parts: LayerParts) -> Weights:
    *projections, attention_output, up, down = parts.linears
    norm_1, norm_2 = parts.norms
    if parts.form == "pre-norm":
        (packed,), scale_1 = projections, getattr(norm_1, "weight", None)  # the first layer has no normalisation
        return PreNormWeights(scale_1, packed.weight, attention_output.weight, norm_2.weight, up.weight, down.weight)
    ordered = (*projections, attention_output, norm_1, up, down, norm_2)
    return LayerWeights(*(tensor for part in ordered for tensor in (part.weight, part.bias)))


def _settings(parts: LayerParts) -> LayerSettings:
    attention_dropout, first, second = parts.dropouts
    return LayerSettings(
        parts.heads,
        parts.norms[1].eps,
        attention_dropout,
        (first, second),
        is_gelu_tanh=gelu_form(parts.activation) == "tanh",
        is_disentangled=parts.form == "disentangled",
    )
