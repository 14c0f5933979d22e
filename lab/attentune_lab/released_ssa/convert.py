"""Convert a checkpoint of the released program to a run folder."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_yaml
from attentune.data.builtin import load_spec
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import check_new_folder, new_folder, write_text
from attentune.models.saving import save_model
from attentune_lab.released_ssa.checkpoint import ReleasedCheckpoint, build_released, load_released_tokenizer
from attentune_lab.released_ssa.flags import FLAGS, known_task, recorded_flags

Say = Callable[[str], None]
# The released program's order of classes, where it differs from Attentune's.
_CLASS_ORDER = {"mnli": ("contradiction", "entailment", "neutral")}
_ENCODERS = {
    ("bert", 768): "bert-base-uncased",
    ("bert", 1024): "bert-large-uncased",
    ("roberta", 768): "roberta-base",
    ("roberta", 1024): "roberta-large",
}
# The flags whose values the weights do not determine.
REPORTED_FLAGS = (
    "task_name",
    "cls_weight",
    "attention_threshold",
    "max_seq_length",
    "bert_model",
    "aug_loss_weight",
    "seed",
)


@dataclass(frozen=True)
class Imported:
    folder: Path  # the run folder
    preset: str  # the preset for the architecture of the checkpoint
    task: str  # the task that the checkpoint was trained on


def import_ssa(
    checkpoint: str | Path,
    output_dir: str | Path,
    *,
    flags: Mapping[str, Any] | None = None,
    data_dir: str | None = None,
    tokenizer: str | None = None,
    lower_case: bool = True,
    replace: bool = False,
    say: Say | None = None,
) -> Imported:
    """Convert a checkpoint of the released program to a run folder, which all commands of Attentune accept."""
    target = Path(output_dir)
    if not (replace and (target / "config.yaml").is_file()):
        check_new_folder(target)
    released = ReleasedCheckpoint.read(checkpoint)
    facts = _facts(released, flags or {})
    task = known_task(str(facts["task_name"][0]))
    for name, (value, where) in facts.items():
        (say or (lambda text: None))(f"{name} {value}: {where}")
    config = _config(released, facts, task, data_dir)
    spec = load_spec(task)
    space = LabelSpace(spec.task_type, spec.label_names)
    if released.outputs != space.num_labels:
        raise CheckpointError(
            f"{released.folder}: has {released.outputs} classes, but {spec.name} has {space.num_labels}; name the"
            " task that it was trained on with --task_name."
        )
    source = tokenizer or (str(released.folder) if released.has_tokenizer else config.model.name_or_path)
    words = load_released_tokenizer(source, released.encoder, lower_case=lower_case)
    order = _CLASS_ORDER.get(task, spec.label_names)
    model = build_released(
        released,
        config.model,
        space,
        words,
        classes=[order.index(name) for name in spec.label_names] if spec.label_names else [0],
        max_length=config.data.max_length,
        is_pair=next(iter(spec.splits.values())).pair is not None,
    )
    with new_folder(target) as folder:
        save_model(model, words, folder)
        write_text(folder / "config.yaml", to_yaml(config))
        shutil.rmtree(target, ignore_errors=True)
    return Imported(target, released.form.preset, task)


def _facts(released: ReleasedCheckpoint, given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return the settings that the weights do not determine, by flag, each with a description of its source."""
    recorded, defaults = recorded_flags(released.folder), {flag.name: flag.default for flag in FLAGS}
    if "model_name_or_path" in recorded:
        recorded["bert_model"] = recorded["model_name_or_path"]
    guess = _ENCODERS.get((released.form.family, released.encoder.hidden_size), released.folder.name)
    facts: dict[str, tuple[Any, str]] = {}
    for name in REPORTED_FLAGS:
        if given.get(name) is not None:
            facts[name] = (given[name], "as given")
        elif name == "max_seq_length" and released.form.positions is not None:
            facts[name] = (released.form.positions, "as many positions as the token head has")
        elif name in recorded:
            facts[name] = (recorded[name], "from dev_results_*.txt")
        elif name == "bert_model":
            facts[name] = (guess, "guessed from the encoder's size")
        elif name == "task_name":
            raise ConfigError(
                "--task_name: is missing, and no dev_results_*.txt next to the checkpoint names it; give the task that"
                " it was trained on: --task_name RTE"
            )
        else:
            facts[name] = (defaults[name], "the program's default, because it is recorded nowhere")
    if released.form.kind != "hybrid":
        facts = {name: fact for name, fact in facts.items() if name not in ("cls_weight", "attention_threshold")}
    if released.form.kind == "plain":
        facts.pop("aug_loss_weight")
    return facts


def _config(
    released: ReleasedCheckpoint, facts: Mapping[str, tuple[Any, str]], task: str, data_dir: str | None
) -> Config:
    overrides: dict[str, Any] = {
        "model.name_or_path": str(facts["bert_model"][0]),
        "data.task": task,
        "data.data_dir": data_dir,
        "data.max_length": facts["max_seq_length"][0],
        "training.seed": facts["seed"][0],
    }
    if released.form.kind == "hybrid":
        overrides["model.token_gate.beta"] = facts["cls_weight"][0]
        overrides["model.token_gate.attention_threshold"] = facts["attention_threshold"][0]
    if released.form.kind != "plain":
        overrides["objective.alpha"] = round(1.0 - float(facts["aug_loss_weight"][0]), 10)
        overrides["model.token_gate.share_weights"] = released.form.positions is None
    if released.form.family == "roberta" and released.form.kind == "co":
        overrides["model.head.dropout"] = 0.0
    return load_config(overrides=overrides, preset=released.form.preset)
