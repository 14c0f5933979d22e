"""Resolves the settings of a head for given rows and a given encoder."""

from typing import Any

from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.nn.classifiers import SIMILARITIES
from attentune.nn.heads import needs_pairs
from attentune.plugins import is_plugin

# The poster's numbers of blocks on SST-5, Quora and STS, and the width of the projection on STS in encoder widths.
_SELF_LAYERS, _CROSS_BLOCKS, _CROSS_BLOCKS_OF_SCORES = 2, 1, 3
_PROJECTION_OF_SCORES = 4


def settle_head(
    settings: ModelConfig, label_space: LabelSpace, encoder_config: Any, *, is_pair: bool, has_pooler: bool
) -> dict[str, object]:
    """Resolve the head's settings to the values that a saved model's configuration holds, without defaults."""
    head, is_bi = settings.head, is_bi_encoder(settings, is_pair=is_pair)
    kind = check_head(settings, label_space, is_pair=is_pair)
    is_score = label_space.task_type == "regression"
    # SESAME's programs have a pooler whatever the checkpoint: a new one where it has none.
    with_pooler = has_pooler or settings.layer_mix.squeeze or settings.blur.where != "none"
    projection = head.projection
    if projection is None and is_score and is_dot_product(settings, is_pair=is_pair):
        projection = _PROJECTION_OF_SCORES * encoder_config.hidden_size
    return {
        "kind": kind,
        "beta": head.beta,
        "with_pooler": kind == "cls" and (head.pooler == "fresh" or (head.pooler == "auto" and with_pooler)),
        "dropout": head.dropout,
        "layers": _layers(kind, head.layers, bare=head.bare, is_score=is_score),
        "bare": head.bare and kind == "cross-attention",
        "init": head.init,
        "attention_heads": _attention_heads(kind, head.attention_heads, encoder_config),
        "combine": head.combine if is_bi else None,
        "projection": projection,
    }


def check_head(settings: ModelConfig, label_space: LabelSpace, *, is_pair: bool) -> str:
    """Check that the head fits the rows and the labels, without loading an encoder; return its kind."""
    head, is_bi = settings.head, is_bi_encoder(settings, is_pair=is_pair)
    kind = head.kind
    if kind == "task-attention":
        kind = "cross-attention" if is_pair else "self-attention"
    if needs_pairs(kind) and not is_pair:
        raise ConfigError(
            f"model.head.kind: {kind} needs pairs of texts, but these rows are single texts. Use self-attention, or"
            " task-attention, which chooses by the rows."
        )
    if needs_pairs(kind) and not is_bi:
        name = kind if head.kind == kind else f"{head.kind} on pairs, which is {kind},"
        raise ConfigError(
            f"model.head.kind: {name} needs a bi-encoder, but model.pair_encoding is cross-encoder; set --pair_encoding"
            " bi-encoder, or use self-attention."
        )
    if is_bi and head.combine in SIMILARITIES and (label_space.num_labels > 2 or label_space.is_multilabel):
        at_once = " at once" if label_space.is_multilabel else ""
        raise ConfigError(
            f"model.head.combine: got {head.combine}, which gives one number, for a score or two classes, but this task"
            f" has {label_space.num_labels} ({', '.join(label_space.names)}){at_once}. Set it to concat."
        )
    return kind


def is_bi_encoder(settings: ModelConfig, *, is_pair: bool) -> bool:
    """Whether the texts of these rows are encoded separately."""
    return is_pair and settings.pair_encoding == "bi-encoder"


def is_dot_product(settings: ModelConfig, *, is_pair: bool) -> bool:
    """Whether the score of these rows is a dot product of the two texts' vectors."""
    return is_bi_encoder(settings, is_pair=is_pair) and settings.head.combine in ("scaled-dot", "dot")


def _layers(kind: str, layers: int | None, *, bare: bool, is_score: bool) -> int:
    if kind == "self-attention":
        count, needed = _SELF_LAYERS if layers is None else layers, 1
    elif kind == "cross-attention":
        blocks = _CROSS_BLOCKS_OF_SCORES if is_score else _CROSS_BLOCKS
        count, needed = blocks - bare if layers is None else layers, 0 if bare else 1
    else:
        return (1 if layers is None else layers) if is_plugin(kind) else 0
    if count < needed:
        also = "" if kind == "self-attention" else ", or model.head.bare true"
        raise ConfigError(f"model.head.layers: got {count}, but {kind} needs a block; expected at least 1{also}.")
    return count


def _attention_heads(kind: str, heads: int | None, encoder_config: Any) -> int | None:
    """Return the number of attention heads of the blocks; None for heads without blocks."""
    if kind not in ("self-attention", "cross-attention") and not is_plugin(kind):
        return None
    size, default = encoder_config.hidden_size, encoder_config.num_attention_heads
    count = default if heads is None else heads
    if size % count:
        raise ConfigError(
            f"model.head.attention_heads: got {count}, expected a divisor of {size}, the encoder's width, such as its"
            f" own {default}."
        )
    return count
