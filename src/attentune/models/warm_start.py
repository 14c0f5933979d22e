"""Starts training from the model of an earlier run instead of a pre-trained encoder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig

from attentune.models.compatibility import PreTrainedConfig
from attentune.models.configuration import AttentuneConfig, check_values
from attentune.models.inspection import check_size, problem_in, problem_in_settings
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import check_undamaged, model_type
from attentune.nn.classifiers import ScaledOutput

# Weight and bias of what computes the scores.
_LAST_LAYERS = [
    ("classifier.weight", "classifier.bias"),
    ("classifier.linear.weight", "classifier.linear.bias"),
    ("classifier.scale", "classifier.offset"),
]


def encoder_config_of(source: str, **options: object) -> PreTrainedConfig:
    """Load an encoder's configuration, also from the folder of a run."""
    if is_saved_run(source):
        return AttentuneConfig.from_pretrained(source).encoder_config
    return AutoConfig.from_pretrained(source, **options)


def inspect_encoder(source: str, revision: str | None = None, *, trust_remote_code: bool = False) -> None:
    """Check an encoder before it is loaded: a folder completely, a name on the hub by its settings.

    Raises:
        ValueError: it must not be loaded; says why, with a remedy.
        OSError: it cannot be found.
    """
    folder = Path(source)
    if folder.is_dir():
        problem = problem_in(folder, trust_remote_code=trust_remote_code)
    else:
        settings, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
        problem = problem_in_settings(settings, trust_remote_code=trust_remote_code)
    if problem is not None:
        raise ValueError(problem)


def is_saved_run(source: str) -> bool:
    """Whether this is the folder of an Attentune run, not of a plain encoder."""
    return Path(source).is_dir() and model_type(Path(source)) == AttentuneConfig.model_type


def load_saved(source: str, encoder_config: PreTrainedConfig) -> AttentuneForSequenceClassification:
    """Load the model of a run, with these settings of its encoder (of dropout, for example)."""
    check_undamaged(Path(source))
    config = AttentuneConfig.from_pretrained(source)
    check_values(config)
    config.encoder = encoder_config
    with torch.device("meta"):
        check_size(AttentuneForSequenceClassification(config), Path(source))
    return AttentuneForSequenceClassification.from_pretrained(
        source, config=config, use_safetensors=True, local_files_only=True, dtype=torch.float32
    )


def copy_slots(saved: AttentuneForSequenceClassification, model: AttentuneForSequenceClassification) -> list[str]:
    """Copy the slots' weights of a saved model to a new one where they fit.

    The classifier is copied if both predict the same labels in the same order, the head if both have the same kind.
    Scale and offset of the saved model's outputs are folded into the classifier if the new model has none, as is the
    difference between the scales of their scores.

    Returns:
        The names of the copied weights.
    """
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
