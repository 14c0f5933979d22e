"""Builds a model from settings: a pre-trained encoder with newly initialised slots."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig
from transformers.utils import cached_file

from attentune.config import ModelConfig, to_dict
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, UnsupportedEncoderError
from attentune.io.files import read_json, sha256_of
from attentune.models.configuration import AttentuneConfig
from attentune.models.encoder_list import (
    EMBEDDED,
    EMBEDDED_HUB_NAME,
    check_at_hand,
    embedded_folder,
    similar_encoder,
    too_long,
)
from attentune.models.head_settings import is_bi_encoder, settle_head
from attentune.models.layouts import SPECIAL
from attentune.models.modeling import AttentuneForSequenceClassification, align_weights
from attentune.models.saving import (
    CONVERT,
    Tokenizer,
    check_is_encoder,
    check_size,
    check_undamaged,
    is_pooler_weight,
    load_weights,
    loading,
    model_type,
    pooler_dense,
    prepare_tokenizer,
    problem_in,
    problem_in_settings,
    readable_positions,
    special_token_ids,
)
from attentune.models.slots import merge_adapters
from attentune.nn.classifiers import ScaledOutput
from attentune.nn.layer_mix import minimum_layers
from attentune.seeding import seed_global

PARTS = ("encoder", "blur", "layer_mix", "token_gate", "head", "classifier")


@dataclass(frozen=True)
class Count:
    parameters: int  # all of them; shared ones count once
    trainable: int  # those with gradients


@dataclass(frozen=True)
class ParameterCounts:
    parts: dict[str, Count]  # by encoder and slot
    total: Count  # of the whole model


def count_parameters(model: AttentuneForSequenceClassification) -> ParameterCounts:
    sizes = [(name.split(".")[0], one.numel(), one.requires_grad) for name, one in model.named_parameters()]

    def count(*parts: str) -> Count:
        own = [(size, is_trained) for part, size, is_trained in sizes if part in parts]
        return Count(sum(size for size, _ in own), sum(size for size, is_trained in own if is_trained))

    return ParameterCounts(parts={part: count(part) for part in PARTS}, total=count(*PARTS))


# Weight and bias of what computes the scores.
_LAST_LAYERS = [
    ("classifier.weight", "classifier.bias"),
    ("classifier.linear.weight", "classifier.linear.bias"),
    ("classifier.scale", "classifier.offset"),
]


def is_saved_run(source: str) -> bool:
    """Whether this is the folder of an Attentune run, not of a plain encoder."""
    return Path(source).is_dir() and model_type(Path(source)) == AttentuneConfig.model_type


@contextlib.contextmanager
def _opened(settings: ModelConfig) -> Iterator[tuple[str, dict[str, Any], PreTrainedConfig]]:
    """Check an encoder before it is loaded; yield source, loading options, configuration. Errors name the encoder."""
    name, source = settings.name_or_path, resolve_encoder(settings.name_or_path)
    check_at_hand(name)
    with loading(lambda reason: _not_loaded(name, reason)):
        trusted, revision = settings.trust_remote_code, settings.revision
        options = {"revision": revision, "trust_remote_code": trusted}
        if Path(source).is_dir():
            problem = problem_in(Path(source), trust_remote_code=trusted)
        else:
            values, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
            problem = problem_in_settings(values, trust_remote_code=trusted)
        if problem is not None:
            raise ValueError(problem)
        is_run = is_saved_run(source)
        config: Any = (AttentuneConfig if is_run else AutoConfig).from_pretrained(source, **({} if is_run else options))
        yield source, options, config.encoder_config if is_run else config


def _not_loaded(name: str, reason: str) -> UnsupportedEncoderError:
    hint = "" if "model.safetensors" not in reason or Path(name).is_dir() else f" {CONVERT}"
    return UnsupportedEncoderError(
        f"{name}: no encoder could be loaded: {reason}{hint}{similar_encoder(name)} Expected embedded, a folder"
        " with config.json, model.safetensors and a tokenizer, or a name on the Hugging Face hub (which needs a"
        " network)."
    )


def copy_slots(saved: AttentuneForSequenceClassification, model: AttentuneForSequenceClassification) -> list[str]:
    """Copy a saved model's slots to a new one where they fit; return the names of the copied weights."""
    same_labels = saved.config.task_type == model.config.task_type and saved.config.id2label == model.config.id2label
    same_head = saved.config.head["kind"] == model.config.head["kind"]
    theirs, mine = saved.state_dict(), model.state_dict()
    copied = [
        name
        for name, weight in theirs.items()
        if not name.startswith("encoder.")
        and (same_labels or not name.startswith("classifier."))
        and (same_head or not name.startswith("head."))
        and name in mine
        and mine[name].shape == weight.shape
    ]
    # Folded into the classifier: scale and offset of the saved outputs, and the difference between the scores' scales.
    scale, offset = torch.ones(1), torch.zeros(1)
    if isinstance(saved.outputs, ScaledOutput) and model.outputs is None:
        scale, offset = saved.outputs.scale, saved.outputs.offset
    factor = saved.config.score_std / model.config.score_std
    scale = scale * factor
    offset = offset * factor + (saved.config.score_mean - model.config.score_mean) / model.config.score_std
    for weight, bias in _LAST_LAYERS:
        if saved.config.task_type == "regression" and weight in copied and bias in copied:
            theirs[weight], theirs[bias] = theirs[weight] * scale, theirs[bias] * scale + offset
    model.load_state_dict({name: theirs[name] for name in copied}, strict=False)
    return copied


_DROPOUT_SETTINGS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)

_ENCODER_FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model", "model*.safetensors"),
)


def resolve_encoder(name_or_path: str) -> str:
    """Return the folder or hub name that a user's name refers to; "embedded" is in a package, else on the hub."""
    if name_or_path != EMBEDDED:
        return name_or_path
    folder = embedded_folder()
    return EMBEDDED_HUB_NAME if folder is None else str(folder)


def hub_name(name_or_path: str) -> str | None:
    """Return the encoder's name on the Hugging Face hub; None for a folder or an invalid name."""
    if name_or_path == EMBEDDED:
        return EMBEDDED_HUB_NAME
    is_name = _HUB_NAME.fullmatch(name_or_path) is not None
    return name_or_path if is_name and not Path(name_or_path).exists() else None


def encoder_fingerprint(settings: ModelConfig) -> str:
    """Identify an encoder by its content, so that a changed folder is not taken for the old one."""
    folder = Path(resolve_encoder(settings.name_or_path))
    if not folder.is_dir():
        with _opened(settings) as (_, _, config):
            return str(getattr(config, "_commit_hash", None) or "")
    files = {path for pattern in _ENCODER_FILES for path in folder.glob(pattern) if path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def is_english_only(settings: ModelConfig) -> bool:
    """Return whether the encoder is known to be made for English texts."""
    return settings.name_or_path == EMBEDDED


def encoder_size(settings: ModelConfig) -> tuple[int, int]:
    with _opened(settings) as (_, _, config):
        return int(config.num_hidden_layers), int(config.hidden_size)


def load_tokenizer(settings: ModelConfig) -> Tokenizer:
    with _opened(settings) as (source, options, config):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    check_is_encoder(settings.name_or_path, config, tokenizer)
    return prepare_tokenizer(tokenizer, config)


def build_model(
    settings: ModelConfig,
    label_space: LabelSpace,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    is_pair: bool,
    seed: int,
    **more: Any,
) -> AttentuneForSequenceClassification:
    """Build a model from a pre-trained encoder, or a run, whose slots are reused where they fit; the rest is new.

    `more` are fields of the model's configuration: loss, focal_gamma, window, window_stride, lora, score_mean,
    score_std.
    """
    encoder, has_pooler, saved = _load_encoder(settings)
    _check_fit(settings, encoder, tokenizer, more.get("window") or max_length)
    _check_takes_embeddings(settings, encoder, tokenizer, is_pair=is_pair, in_windows=more.get("window") is not None)
    config = AttentuneConfig(
        encoder=encoder.config,
        blur=to_dict(settings.blur),
        layer_mix=to_dict(settings.layer_mix),
        token_gate=to_dict(settings.token_gate),
        head=settle_head(settings, label_space, encoder.config, is_pair=is_pair, has_pooler=has_pooler),
        pair_encoding=settings.pair_encoding if is_pair else "cross-encoder",
        ordinal_prediction=label_space.ordinal_prediction,
        **more,
        **row_options(label_space, tokenizer, max_length=max_length, is_pair=is_pair),
    )
    seed_global(seed, "fresh weights")
    dense, commit = pooler_dense(encoder), getattr(encoder.config, "_commit_hash", None)
    model = AttentuneForSequenceClassification(config, encoder)
    head: Any = model.head
    # post_init has initialised the new weights and left the loaded ones unchanged.
    if (
        config.head["with_pooler"]
        and settings.head.pooler == "auto"
        and dense is not None
        and pooler_is_trained(settings, commit)
    ):
        head.pooler.dense.load_state_dict(dense.state_dict())
    if saved is not None:
        copy_slots(saved, model)
    return model


def _load_encoder(settings: ModelConfig) -> tuple[nn.Module, bool, AttentuneForSequenceClassification | None]:
    """Load the encoder; also return whether its checkpoint has a pooler, and the run's model if it is a run folder."""
    with _opened(settings) as (source, options, config):
        for name in _DROPOUT_SETTINGS if settings.dropout is not None else ():
            if hasattr(config, name):
                setattr(config, name, settings.dropout)
        if is_saved_run(source):
            check_undamaged(Path(source))
            settings_of_run = AttentuneConfig.from_pretrained(source)
            settings_of_run.encoder = config  # whose dropout may be another
            saved, _ = load_weights(Path(source), settings_of_run)
            merge_adapters(saved)
            return saved.encoder, bool(saved.config.head["with_pooler"]), saved
        if Path(source).is_dir() and not settings.trust_remote_code:
            with torch.device("meta"):
                check_size(AutoModel.from_config(config), Path(source))
        encoder, info = AutoModel.from_pretrained(
            source,
            config=config,
            output_loading_info=True,
            use_safetensors=True,
            dtype=torch.float32,
            **options,
        )
        align_weights(encoder)
    # Saved configurations must not contain absolute paths.
    encoder.config.name_or_path = (
        Path(settings.name_or_path).name if Path(settings.name_or_path).exists() else settings.name_or_path
    )
    missing = sorted(info["missing_keys"])
    lost = [name for name in missing if not is_pooler_weight(name)]
    if lost:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: its checkpoint lacks {len(lost)} of the encoder's weights"
            f" ({', '.join(lost[:3])}), expected all. The file is damaged or does not"
            " match config.json; use another copy."
        )
    has_pooler = pooler_dense(encoder) is not None and not any(is_pooler_weight(name) for name in missing)
    return encoder, has_pooler, None


def pooler_is_trained(settings: ModelConfig, commit: str | None = None) -> bool:
    """Return whether the last training of the encoder's checkpoint used its pooler, if it has one."""
    file = cached_file(
        resolve_encoder(settings.name_or_path),
        "1_Pooling/config.json",
        revision=settings.revision,
        _commit_hash=commit,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if file is None:
        return True
    try:
        pooling = read_json(file)
    except (OSError, ValueError):
        return True
    # Without pooling by [CLS], the pooler is left over from an earlier training and does not fit the encoder.
    return not isinstance(pooling, dict) or pooling.get("pooling_mode_cls_token") is not False


def row_options(label_space: LabelSpace, tokenizer: Tokenizer, *, max_length: int, is_pair: bool) -> dict[str, Any]:
    """Return the fields of a saved model's configuration that describe its rows and labels."""
    options: dict[str, Any] = {
        "task_type": label_space.task_type,
        "special_token_ids": special_token_ids(tokenizer),
        "max_seq_length": max_length,
        "is_pair": is_pair,
    }
    if label_space.task_type == "regression":
        return options | {"num_labels": 1, "problem_type": "regression"}
    problem = "single_label_classification" if label_space.num_labels > 1 else None
    return options | {
        "id2label": label_space.id2label,
        "label2id": label_space.label2id,
        "problem_type": "multi_label_classification" if label_space.is_multilabel else problem,
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
            f"{settings.name_or_path}: its tokenizer has {len(tokenizer)} tokens, but the encoder has embeddings for"
            f" {words.num_embeddings}, expected at least as many. Use the tokenizer that the encoder was trained with."
        )
    kind, layers = settings.layer_mix.kind, encoder.config.num_hidden_layers
    needed = minimum_layers(kind)
    if layers < needed:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: has {layers} layer(s), but model.layer_mix.kind {kind} needs {needed}."
            " Choose last, or a deeper encoder."
        )
    positions = readable_positions(encoder)
    if positions is not None and max_length > positions:
        raise too_long(settings.name_or_path, positions, max_length)


def _check_takes_embeddings(
    settings: ModelConfig, encoder: Any, tokenizer: Tokenizer, *, is_pair: bool, in_windows: bool
) -> None:
    """Check that the encoder can read windows of a row, or the texts of a pair, by their embeddings."""
    takes = "inputs_embeds" in signature(encoder.forward).parameters
    if in_windows and is_pair:
        raise ConfigError("data.long_texts: got windows for pairs of texts, expected single texts. Set it to cut.")
    if in_windows and (tokenizer.num_special_tokens_to_add(pair=False) != SPECIAL or not takes):
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: does not support windows, which need [CLS] before a text, [SEP] after it and an"
            " encoder that accepts inputs_embeds. Set --long_texts cut, or use another encoder."
        )
    if is_bi_encoder(settings, is_pair=is_pair) and not takes:
        raise UnsupportedEncoderError(
            f"{settings.name_or_path}: is a {encoder.config.model_type} model that does not accept inputs_embeds, which"
            " a bi-encoder needs. Set --pair_encoding cross-encoder, or use another encoder."
        )
