"""Starting from the model of an earlier run instead of a plain encoder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig

from attentune.models.configuration import AttentuneConfig, check_values
from attentune.models.inspection import check_size, problem_in, problem_in_settings
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import check_undamaged, model_type
from attentune.nn.classifiers import ScaledOutput


def encoder_config_of(source: str, **options: object) -> PreTrainedConfig:
    """The configuration of an encoder: a plain one, or the one inside a run of ours."""
    if is_saved_run(source):
        return AttentuneConfig.from_pretrained(source).encoder_config
    return AutoConfig.from_pretrained(source, **options)


def inspect_encoder(source: str, revision: str | None = None, *, trust_remote_code: bool = False) -> None:
    """Look an encoder over before it is loaded: the whole of a folder, the settings of a name on the hub.

    Raises:
        ValueError: with what speaks against it, and the cure.
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
    """Whether this is the folder of a run of ours, not of a plain encoder."""
    return Path(source).is_dir() and model_type(Path(source)) == AttentuneConfig.model_type


def load_saved(source: str, encoder_config: PreTrainedConfig) -> AttentuneForSequenceClassification:
    """The model of a run, its encoder with these settings (of dropout, say)."""
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
    """Give a fresh model the slots' weights of a saved one where they fit; the names of those copied are returned.

    The classifier's fit where both predict the same labels in the same order, the head's where both have the same kind.
    Scale and offset of the saved one's outputs go into the classifier where the fresh model has none.
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
