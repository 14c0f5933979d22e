"""The methods of a comparison: presets, and presets with further settings from a YAML file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import flatten, preset_names
from attentune.config.parse import did_you_mean, mapping_from
from attentune.config.yaml_files import read_yaml
from attentune.data.builtin import load_spec
from attentune.errors import ConfigError
from attentune.experiments.comparison.records import CUSTOM_TASK

# Settings that the comparison sets for each run, with the reason for refusing them.
PER_RUN = {
    "training.output_dir": "each run has its own folder under the comparison's",
    "training.resume": "a comparison always goes on where it was",
    "training.overwrite_output_dir": "a comparison always resumes; to start again, name another folder",
    "training.seed": "give --seeds, a number of seeds or a list such as 3,7,11",
    "data.fold": "a comparison runs all folds",
    "data.fold_seed": "with --folds, --seeds is the number of repetitions with new folds",
    "training.multi_task": "a comparison trains on each task by itself",
}
# Settings that determine the grid; no method may have its own.
WHICH_RUNS = ("preset", "data.folds", "data.task", "data.tasks", "data.task_settings", "data.max_train_samples")
_NAME = re.compile(r"\w[\w.+ -]{0,79}")
_KEYS = ("preset", "set", "tasks")


@dataclass(frozen=True)
class Method:
    """A preset with settings that override the common ones."""

    name: str  # the method's name
    preset: str | None = None  # the name of its preset, or None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings by dotted name
    by_task: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # settings for individual tasks


def read_methods(file: str | Path) -> dict[str, Method]:
    """Read methods from a YAML file that maps names to `preset`, `set` and `tasks`."""
    return methods_from(read_yaml(file), str(file))


def methods_from(content: Mapping[str, Any], source: str) -> dict[str, Method]:
    """Build methods from {name: {preset, set, tasks}}."""
    problems: list[str] = []
    methods = {str(name): _method(str(name), value, f"{source}: {name}", problems) for name, value in content.items()}
    if problems:
        raise ConfigError(problems)
    return methods


def _method(name: str, value: Any, where: str, problems: list[str]) -> Method:
    if not _NAME.fullmatch(name):
        problems.append(f"{where}: a method's name has letters, digits, spaces and . _ + - and up to 80 of them.")
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        problems.append(f"{where}: got {value!r}, expected preset:, set: and tasks:.")
        return Method(name)
    problems += [
        f"{where}.{key}: there is no such key.{did_you_mean(str(key), _KEYS)} Known here: preset, set, tasks."
        for key in value
        if key not in _KEYS
    ]
    by_task = settings_by_task(value.get("tasks"), f"{where}.tasks", problems)
    settings = flatten(_mapping(value.get("set"), f"{where}.set", problems))
    _refuse_common(settings, f"{where}.set", problems)
    preset = value.get("preset")
    return Method(name, None if preset is None else str(preset), settings, by_task)


def settings_by_task(value: Any, where: str, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Return settings by canonical task name and dotted name, from {task: settings}; append to `problems`."""
    by_task: dict[str, dict[str, Any]] = {}
    for task, part in _mapping(value, where, problems).items():
        try:
            known = CUSTOM_TASK if task == CUSTOM_TASK else load_spec(str(task)).name
            by_task[known] = flatten(_mapping(part, f"{where}.{task}", problems))
            _refuse_common(by_task[known], f"{where}.{task}", problems)
        except ConfigError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]
    return by_task


def _refuse_common(settings: Mapping[str, Any], where: str, problems: list[str]) -> None:
    if settings.get("model.trust_remote_code"):
        problems.append(
            f"{where}: model.trust_remote_code runs the code that comes with a model, so a file cannot ask for it; add"
            " --trust_remote_code if you trust the model, else leave it out here."
        )
    problems += [
        f"{where}: {name} is the same for all methods and tasks of a comparison; leave it out here."
        for name in settings
        if name in PER_RUN or name in WHICH_RUNS
    ]


def _mapping(value: Any, where: str, problems: list[str]) -> Mapping[str, Any]:
    value = mapping_from(value)
    if value is None or isinstance(value, Mapping):
        return value or {}
    problems.append(f"{where}: got {value!r}, expected settings and their values.")
    return {}


def select_methods(names: Sequence[str], defined: Mapping[str, Method]) -> list[Method]:
    """Return the methods of these names, from `named` or the presets; all of `named` if there are no names."""
    known = (*defined, *preset_names())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            [
                f"--presets: got {name!r}, expected a preset or a method of --settings: {', '.join(known)}."
                f"{did_you_mean(name, known)}"
                for name in unknown
            ]
        )
    return [defined.get(name) or Method(name, preset=name) for name in names] or list(defined.values())
