"""From presets, YAML files and flags to one `Config`, and back to YAML."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from attentune.config.parsing import did_you_mean, parse_section
from attentune.config.schema import Config
from attentune.errors import ConfigError

_MAX_YAML_BYTES = 1 << 20


def preset_names() -> tuple[str, ...]:
    """The names of the presets that come with Attentune, sorted."""
    folder = resources.files("attentune") / "presets"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_preset(name: str) -> dict[str, Any]:
    """The settings of a preset: a mapping with `description`, `source` and the sections it fills.

    Raises:
        ConfigError: there is no preset of this name.
    """
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise ConfigError(f"preset: got {name!r}, expected one of {known}.{did_you_mean(name, preset_names())}")
    text = (resources.files("attentune") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def load_config(
    file: str | Path | None = None, overrides: Mapping[str, Any] | None = None, *, preset: str | None = None
) -> Config:
    """One checked configuration.

    What is said later goes before what is said earlier: defaults, the file's preset, the file, `preset`, `overrides`.
    `preset` first takes back what the file has from its own preset.

    Args:
        file: a YAML file of the shape of a run's `config.yaml`.
        overrides: dotted names and values, such as {"training.learning_rate": 2e-5}; texts are read as what the
            setting is.
        preset: the name of a preset.

    Raises:
        ConfigError: with every problem found, each with the nearest known name.
    """
    problems: list[str] = []
    merged: dict[str, Any] = {}
    if file is not None:
        content = read_yaml(file)
        _merge(merged, _preset_sections(content.get("preset"), problems))
        _merge(merged, content)
    overrides = dict(overrides or {})
    preset = overrides.pop("preset", None) if preset is None else preset
    if preset is not None:
        # What the file has from its own preset goes with that preset; what was set beside it stays.
        _remove_equal(merged, _preset_sections(merged.get("preset"), []))
        merged["preset"] = preset
        _merge(merged, _preset_sections(preset, problems))
    for name, value in overrides.items():
        _set(merged, name, value, problems)
    config = parse_section(Config, merged, "", problems)
    problems += _contradictions(config)
    if problems:
        raise ConfigError(problems)
    return config


def read_yaml(file: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, read with the safe loader.

    Raises:
        ConfigError: the file is missing, too large, not YAML, or not a mapping.
    """
    path = Path(file)
    try:
        if path.stat().st_size > _MAX_YAML_BYTES:
            raise ConfigError(f"{path}: larger than 1 MiB: this is not a configuration file.")
        text = path.read_text(encoding="utf-8")
        if "&" in text and any(isinstance(token, yaml.AnchorToken) for token in yaml.scan(text)):
            raise ConfigError(f"{path}: YAML anchors are not read (they can blow up); write the values out.")
        content = yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Expected a YAML file such as a run's config.yaml.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a YAML file: {error}.") from None
    except ConfigError:
        raise
    except Exception as error:  # for odd values such as 2001-99-99 the safe loader raises whatever int() and others do
        raise ConfigError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}, expected sections such as model: and training:.")
    return content


def to_dict(config: Any) -> dict[str, Any]:
    """A section, or the whole configuration, as nested mappings of plain values."""
    return {
        field.name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for field in dataclasses.fields(config)
        for value in (getattr(config, field.name),)
    }


def to_flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting by its dotted name, as `load_config` takes overrides; one that is a mapping stays whole."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_section = dataclasses.is_dataclass(value)
        flat |= to_flat(value, f"{prefix}{field.name}.") if is_section else {prefix + field.name: value}
    return flat


def to_yaml(config: Config) -> str:
    """The whole configuration, defaults included, as YAML that `load_config` reads back to the same."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def _preset_sections(name: Any, problems: list[str]) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        content = load_preset(str(name))
    except ConfigError as error:
        problems += error.problems
        return {}
    return {key: value for key, value in content.items() if key not in ("description", "source")}


def _remove_equal(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _remove_equal(target[key], value)
        elif key in target and target[key] == value:
            del target[key]


def _merge(target: dict[str, Any], extra: Mapping[str, Any], cls: Any = Config) -> None:
    """Put `extra` on top: section by section, each single setting whole. An empty section says nothing."""
    hints = typing.get_type_hints(cls)
    for key, value in extra.items():
        section = hints.get(key)
        if not dataclasses.is_dataclass(section) or not isinstance(target.get(key), dict):
            target[key] = _copied(value)
        elif isinstance(value, Mapping):
            _merge(target[key], value, section)
        elif value is not None:
            target[key] = value


def _copied(value: Any) -> Any:
    return {key: _copied(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _set(target: dict[str, Any], name: str, value: Any, problems: list[str]) -> None:
    *sections, last = name.split(".")
    place: Any = target
    for section in sections:
        place = {} if place.get(section) is None else place[section]
        if not isinstance(place, dict):
            problems.append(f"{name}: {section!r} is a single setting, not a section.")
            return
    nested: dict[str, Any] = {last: value}
    for section in reversed(sections):
        nested = {section: nested}
    _merge(target, nested)


def _contradictions(config: Config) -> list[str]:
    """Settings that are right one by one and wrong together."""
    training, problems = config.training, []
    if training.eval_strategy == "steps" and training.eval_steps is None:
        problems.append("training.eval_steps: eval_strategy 'steps' needs a number of steps.")
    needs_scores = [
        name
        for name, asked in (
            ("load_best_model_at_end", training.load_best_model_at_end),
            ("early_stopping_patience", training.early_stopping_patience is not None),
        )
        if asked
    ]
    if training.eval_strategy == "no" and needs_scores:
        problems.append(f"training.{needs_scores[0]}: needs scores; set training.eval_strategy to epoch or steps.")
    if training.resume and training.overwrite_output_dir:
        problems.append(
            "training.resume and training.overwrite_output_dir: choose one; the second deletes what the first needs."
        )
    if config.model.blur.size % 2 == 0:
        problems.append(f"model.blur.size: got {config.model.blur.size}, expected an odd number.")
    if config.model.blur.layers != "all" and not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", config.model.blur.layers):
        problems.append(f"model.blur.layers: got {config.model.blur.layers!r}, expected all, or numbers such as 1,2,3.")
    makes_token_labels = config.labels.generator not in ("none", "masked-rows")
    if makes_token_labels and config.model.token_gate.kind == "none":
        problems.append(
            f"labels.generator: {config.labels.generator} makes labels for single tokens, which need a token head; set"
            " model.token_gate.kind ssa, or take a preset such as ssa-co."
        )
    if config.model.head.kind == "cross-attention" and config.model.pair_encoding == "cross-encoder":
        problems.append(
            "model.head.kind: cross-attention needs texts that are read apart, but model.pair_encoding is"
            " cross-encoder; set --pair_encoding bi-encoder, or take self-attention."
        )
    return problems + _tasks_contradictions(config) + _loss_contradictions(config) + _frozen_contradictions(config)


def _tasks_contradictions(config: Config) -> list[str]:
    training, problems = config.training, []
    if config.data.tasks is not None and config.data.task is not None:
        problems.append("data.task and data.tasks: choose one; tasks names several, one works too.")
    if training.multi_task and config.data.tasks is None:
        problems.append("training.multi_task: needs data.tasks, as in --tasks sst5,quora,sts.")
    if training.multi_task and training.report_to != "none":
        problems.append(
            "training.report_to: a tracker works with the run of one model, but training.multi_task has several; set it"
            " to none and look at each task's log.jsonl."
        )
    if config.data.task_settings is not None and config.data.tasks is None:
        problems.append("data.task_settings: goes with data.tasks; set a single task's settings directly.")
    return problems


def _loss_contradictions(config: Config) -> list[str]:
    objective, training, problems = config.objective, config.training, []
    if objective.loss in ("mse", "pearson", "corn"):
        only = "class labels only" if objective.loss != "corn" else "cross-entropy and binary-cross-entropy only"
        if objective.label_smoothing > 0:
            problems.append(f"objective.label_smoothing: works with {only}; set it to 0 with loss {objective.loss}.")
        if objective.class_weights is not None:
            problems.append(f"objective.class_weights: works with {only}; leave it out with loss {objective.loss}.")
    if objective.loss != "pearson":
        return problems
    if training.per_device_train_batch_size < 2:
        problems.append(
            "training.per_device_train_batch_size: got 1, but a correlation needs at least 2 rows in a batch (32 or"
            " more are better) with objective.loss pearson."
        )
    if config.labels.generator not in ("none", "masked-rows"):
        problems.append(
            f"labels.generator: {config.labels.generator} compares predictions on the task's own scale, so it needs a"
            " loss that keeps to it; with objective.loss pearson set labels.generator none, or take loss mse."
        )
    return problems


def _frozen_contradictions(config: Config) -> list[str]:
    training, problems = config.training, _lora_contradictions(config)
    if not training.freeze_encoder:
        return problems
    if training.encoder_learning_rate is not None:
        problems.append(
            "training.encoder_learning_rate and training.freeze_encoder: choose one; a frozen encoder does not learn."
        )
    if config.labels.generator == "gradient":
        problems.append(
            "labels.generator: gradient needs the backward pass through the encoder, which training.freeze_encoder"
            " leaves out; take another generator, or do not freeze."
        )
    return problems


def _lora_contradictions(config: Config) -> list[str]:
    training, problems = config.training, []
    if training.lora_rank is None:
        if training.lora_alpha is not None or training.lora_dropout > 0:
            problems.append("training.lora_rank: training.lora_alpha and training.lora_dropout need it; give one too.")
        return problems
    if training.freeze_encoder:
        problems.append("training.lora_rank and training.freeze_encoder: choose one; adapters train in the encoder.")
    if training.multi_task:
        problems.append("training.lora_rank: works with one model; leave it out with training.multi_task.")
    if config.labels.generator == "gradient":
        problems.append(
            "labels.generator: gradient needs the gradients of the word embeddings, which stay as they are with"
            " training.lora_rank; take another generator, or leave the adapters out."
        )
    return problems
