"""The settings of the model: the encoder, its four slots, and how pairs are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from attentune.config.fields import setting as _f


@dataclass(frozen=True)
class BlurConfig:
    where: str = _f(
        "none",
        "what a Gaussian blur along the tokens is applied to in each layer",
        choices=("none", "context", "value", "scores"),
    )
    sigma: float = _f(0.3, "standard deviation of the blur in tokens", minimum=0.001, maximum=100)
    size: int = _f(3, "window of the blur in tokens, odd", minimum=1)
    layers: str = _f("all", "which layers are blurred: all, or their numbers from 1 with commas between")
    learnable: str = _f(
        "no", "learn sigma, from the given value on: one a layer, or one a head", choices=("no", "layer", "head")
    )


@dataclass(frozen=True)
class LayerMixConfig:
    kind: str = _f(
        "last",
        "which encoder layers make the token matrix",
        choices=(
            "first",
            "second",
            "second-to-last",
            "last",
            "sum-last-4",
            "sum-all",
            "mean-all",
            "weighted",
            "concat-last-4",
        ),
    )
    squeeze: bool = _f(False, "rescale each layer by squeeze-and-excitation first")
    ratio: int = _f(3, "squeeze: the bottleneck has the number of layers, divided by this, features", minimum=1)


@dataclass(frozen=True)
class TokenGateConfig:
    kind: str = _f(
        "none",
        "how single tokens are weighted: ssa has a head that scores each token's importance",
        choices=("none", "ssa"),
    )
    beta: float = _f(
        0.5,
        "ssa: the share of the head's vector; the tokens weighted by importance have 1 - beta (1: co-training only)",
        minimum=0,
        maximum=1,
    )
    share_weights: bool = _f(True, "ssa: one last linear for all positions; false: one a position")
    attention_threshold: float = _f(
        0.0, "ssa: tokens whose importance is below it have no weight", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class HeadConfig:
    kind: str = _f(
        "cls",
        "how tokens become one vector a text; task-attention is self-attention for single texts, cross-attention for"
        " pairs",
        choices=("cls", "mean", "cls-mean", "self-attention", "cross-attention", "task-attention"),
    )
    beta: float = _f(
        0.5, "cls-mean: the share of [CLS]; the mean of the other tokens has 1 - beta", minimum=0, maximum=1
    )
    pooler: str = _f(
        "auto",
        "dense + tanh after [CLS]: auto takes the encoder's own where its checkpoint has one",
        choices=("auto", "fresh", "none"),
    )
    dropout: float = _f(
        0.1, "dropout before the linear classifier, and in the head's attention blocks", minimum=0, maximum=0.99
    )
    layers: int | None = _f(
        None,
        "full blocks of self-attention (2 if not given) or cross-attention (1; none where there is a bare one)",
        minimum=0,
    )
    bare: bool = _f(False, "cross-attention: one block of attention alone after the full ones")
    init: str = _f(
        "default",
        "attention blocks: how queries, keys and values start; uniform draws from 0.9 to 1",
        choices=("default", "uniform"),
    )
    attention_heads: int | None = _f(
        None, "attention blocks: how many attention heads (the encoder's own number if not given)", minimum=1
    )
    combine: str = _f(
        "dot",
        "bi-encoder: the dot product of both texts' vectors after one linear; or a linear on u, v, |u - v| and u * v",
        choices=("dot", "concat"),
    )
    projection: int | None = _f(
        None, "bi-encoder, dot: features of the linear (the encoder's width if not given)", minimum=1
    )


@dataclass(frozen=True)
class ModelConfig:
    name_or_path: str = _f(
        "embedded",
        "encoder: embedded, a folder (of a run too: then with its slots where they fit), or a name on the hub",
    )
    revision: str | None = _f(None, "the hub revision of the encoder")
    dropout: float | None = _f(
        None, "dropout inside the encoder (its own setting if not given)", minimum=0, maximum=0.99
    )
    trust_remote_code: bool = _f(
        False, "run code that comes with a hub model (only for models that you trust); no file can set it"
    )
    pair_encoding: str = _f(
        "cross-encoder",
        "how pairs are read: both texts in one row, or (bi-encoder) each by itself; of no account for single texts",
        choices=("cross-encoder", "bi-encoder"),
    )
    blur: BlurConfig = field(default_factory=BlurConfig)
    layer_mix: LayerMixConfig = field(default_factory=LayerMixConfig)
    token_gate: TokenGateConfig = field(default_factory=TokenGateConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
