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
    Scale and offset of the saved model's outputs are folded into the classifier if the new model has none.

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
    outputs = saved.outputs
    if isinstance(outputs, ScaledOutput) and model.outputs is None and "classifier.bias" in copied:
        theirs["classifier.weight"] = theirs["classifier.weight"] * outputs.scale
        theirs["classifier.bias"] = theirs["classifier.bias"] * outputs.scale + outputs.offset
    model.load_state_dict({name: theirs[name] for name in copied}, strict=False)
    return copied
