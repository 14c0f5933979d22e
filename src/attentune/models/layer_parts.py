"""Where the encoder layers of each family keep the parts that BERT's layer has.

BERT's layer exists under several names: DistilBERT, ALBERT and MPNet compute it with other class and attribute names.
`find_parts` returns the parts of a layer of any of them. A new family that computes this layer is one entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation


@dataclass(frozen=True)
class LayerPaths:
    """Paths of a layer's parts, from the layer."""

    # Query, key, value, attention's output projection, and the two linears of the feed-forward network.
    linears: tuple[str, str, str, str, str, str]
    norms: tuple[str, str]  # the two layer normalisations
    activation: str  # the activation of the feed-forward network
    dropouts: tuple[str, str | None, str | None]  # dropout of attention weights
    heads: str  # the number of attention heads
    attention_config: str | None  # the configuration whose attention implementation the layer uses
    is_disentangled: bool = False  # whether attention is disentangled, with vectors of relative positions


_BERT = LayerPaths(
    (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    "intermediate.intermediate_act_fn",
    ("attention.self.dropout", "attention.output.dropout", "output.dropout"),
    "attention.self.num_attention_heads",
    "attention.self.config",
)
_DISTILBERT = LayerPaths(
    ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2"),
    ("sa_layer_norm", "output_layer_norm"),
    "ffn.activation",
    ("attention.dropout", None, "ffn.dropout"),
    "attention.n_heads",
    "attention.config",
)
_ALBERT = LayerPaths(
    ("attention.query", "attention.key", "attention.value", "attention.dense", "ffn", "ffn_output"),
    ("attention.LayerNorm", "full_layer_layer_norm"),
    "activation",
    ("attention.attention_dropout", "attention.output_dropout", None),  # its `dropout` is not used
    "attention.num_attention_heads",
    "attention.config",
)
_MPNET = LayerPaths(
    (
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
        "attention.attn.o",
        "intermediate.dense",
        "output.dense",
    ),
    ("attention.LayerNorm", "output.LayerNorm"),
    "intermediate.intermediate_act_fn",
    ("attention.attn.dropout", "attention.dropout", "output.dropout"),
    "attention.attn.num_attention_heads",
    None,
)
_DEBERTA = LayerPaths(
    (
        "attention.self.query_proj",
        "attention.self.key_proj",
        "attention.self.value_proj",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ),
    _BERT.norms,
    _BERT.activation,
    _BERT.dropouts,
    _BERT.heads,
    None,
    is_disentangled=True,
)
LAYERS = {
    "BertLayer": _BERT,
    "RobertaLayer": _BERT,
    "XLMRobertaLayer": _BERT,
    "ElectraLayer": _BERT,
    "TransformerBlock": _DISTILBERT,
    "AlbertLayer": _ALBERT,
    "MPNetLayer": _MPNET,  # its attention has a position bias too
    "DebertaV2Layer": _DEBERTA,
}


class LayerParts(NamedTuple):
    """A layer's parts; see `LayerPaths`."""

    # query, key, value, attention_output, up, down: the linears.
    query: Any
    key: Any
    value: Any
    attention_output: Any
    up: Any
    down: Any
    norms: tuple[Any, Any]  # the two layer normalisations
    activation: Any  # the activation of the feed-forward network
    dropouts: tuple[float, float, float]  # their probabilities, 0 where the layer has none
    heads: int  # the number of attention heads
    attention: str | None  # the name of the attention implementation; None if the layer has one only
    is_disentangled: bool  # whether attention is disentangled

    @property
    def linears(self) -> tuple[Any, ...]:
        """The six linears, in the order of `LayerPaths`."""
        return self[:6]


def find_parts(layer: nn.Module) -> LayerParts | None:
    """Return the parts of a layer that computes what BERT's does; None if its class is not known to."""
    paths = LAYERS.get(type(layer).__name__)
    try:
        return None if paths is None else _parts(layer, paths)
    except AttributeError:  # another class of this name
        return None


def _parts(layer: nn.Module, paths: LayerPaths) -> LayerParts:
    first, second, third = (0.0 if path is None else attrgetter(path)(layer).p for path in paths.dropouts)
    config = None if paths.attention_config is None else attrgetter(paths.attention_config)(layer)
    query, key, value, attention_output, up, down = attrgetter(*paths.linears)(layer)
    return LayerParts(
        query=query,
        key=key,
        value=value,
        attention_output=attention_output,
        up=up,
        down=down,
        norms=attrgetter(*paths.norms)(layer),
        activation=attrgetter(paths.activation)(layer),
        dropouts=(first, second, third),
        heads=attrgetter(paths.heads)(layer),
        attention=None if config is None else config._attn_implementation,
        is_disentangled=paths.is_disentangled,
    )


def pre_norm_linears(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Return the linears of a ModernBERT layer, which is not BERT's, in the order of `PreNormWeights`."""
    return layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi, layer.mlp.Wo


def gelu_form(activation: Any) -> str | None:
    """Return "none" for the exact GELU, "tanh" for its approximation (as `nn.GELU` names them), None for others."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    if isinstance(activation, NewGELUActivation):
        return "tanh"
    function = getattr(activation, "act", None)
    if isinstance(activation, GELUActivation) and function is nn.functional.gelu:
        return "none"
    if isinstance(activation, GELUTanh) and isinstance(function, partial):
        return "tanh"
    return None
