"""Build a model and its tokenizer in one call, for training by other means than `attentune.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.models.build import build_model, load_tokenizer
from attentune.models.loading import Tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.training.defaults import default_loss


def new_model(
    encoder: str,
    labels: Sequence[str] | None,
    *,
    preset: str = "bert",
    is_pair: bool = False,
    max_length: int = 128,
    seed: int = 42,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """Build a model from a pre-trained encoder with a preset's newly initialised slots, and load its tokenizer.

    The loss is that of `attentune train`: for scores from a dot product minus Pearson's correlation, whose scale
    `ClassifierCallback` fits.

    Args:
        encoder: "embedded", a folder, or a name on the Hugging Face hub.
        labels: the classes in the order of their ids; None for regression.
        preset: the name of a method; `attentune list presets` lists them.
        is_pair: whether the rows are pairs of texts.
        max_length: the maximum number of tokens of a text or pair; the tokenizer truncates at it.
        seed: the seed for the initialisation of new weights.
        overrides: model settings by dotted name, such as {"model.token_gate.beta": 0.9}.

    Returns:
        The model and its tokenizer.

    Raises:
        ConfigError: a setting is invalid.
        UnsupportedEncoderError: the encoder cannot be loaded or does not support what the preset requires.
    """
    settings = {**(overrides or {}), "model.name_or_path": encoder, "data.max_length": max_length}
    config = load_config(overrides=settings, preset=preset)
    tokenizer = load_tokenizer(config.model)
    tokenizer.model_max_length = config.data.max_length
    space = LabelSpace("regression") if labels is None else LabelSpace("classification", tuple(labels))
    model = build_model(
        config.model,
        space,
        tokenizer,
        max_length=config.data.max_length,
        is_pair=is_pair,
        seed=seed,
        loss=default_loss(config, space.task_type, is_pair=is_pair),
    )
    return model, tokenizer
