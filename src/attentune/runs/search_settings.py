"""The settings of a search's trials, and the validation of its space."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, ModelConfig, load_config, to_flat
from attentune.data.builtin import load_spec
from attentune.errors import AttentuneError, ConfigError
from attentune.runs.grid import Run, RunGrid
from attentune.runs.grid import CUSTOM_TASK
from attentune.runs.space import Dimension, Space, named_space
from attentune.training.defaults import ending_with_last_weights
from attentune.training.run_folder import check_feasible

# Settings that the search sets itself, or that would make trials incomparable, with the reason.
_REFUSED = {
    "training.output_dir": "each run has its own folder",
    "training.resume": "a search always goes on where it was",
    "training.overwrite_output_dir": "a search always resumes; to start again, name another folder",
    "training.multi_task": "a search is on one task",
    "data.tasks": "a search is on one task; name it with --task",
    "data.task_settings": "a search is on one task; give its settings directly",
}
_NOT_VARIED = ("training.seed", "training.metric_for_best_model", "training.eval_strategy", "training.eval_steps")
_VARIED_DATA = ("data.max_length",)


@dataclass(frozen=True)
class TrialSettings:
    """The settings of all trials."""

    file: str | Path | None = None  # a YAML file of settings
    preset: str | None = None  # the preset; overrides the file
    common: Mapping[str, Any] = field(default_factory=dict)  # settings by dotted name; override both

    def config(self, changes: Mapping[str, Any]) -> Config:
        """Return the configuration with these settings added, which override all others."""
        changes = dict(changes)
        preset = changes.pop("preset", self.preset)
        config = load_config(self.file, {**self.common, **changes}, preset=preset)
        training = ending_with_last_weights(config.training)
        # Trials are scored after the same epochs, so that the pruner can compare them.
        return replace(config, training=replace(training, eval_strategy=training.eval_strategy or "epoch"))

    def task(self) -> str:
        """Return the task's name; `CUSTOM_TASK` for custom data."""
        task = self.config({}).data.task
        return CUSTOM_TASK if task is None else load_spec(task).name

    def grid(self, name: str, settings: Mapping[str, Any], seeds: Sequence[int]) -> RunGrid:
        """Return the runs of one trial."""
        config, task = self.config(settings), self.task()
        runs = tuple(Run(task, config.data.max_train_samples, name, seed) for seed in seeds)
        return RunGrid(runs, {name: {task: to_flat(config)}}, {})


@dataclass(frozen=True)
class CheckedSettings:
    """A space, and what it is searched with."""

    space: Space  # the space, with each value converted to its setting's type
    trials: TrialSettings  # the settings of all trials
    seed: int  # their seed, which determines rows and samples
    notes: tuple[str, ...]  # on dimensions of a named space that are not varied


def checked_settings(
    space: str | Path | Mapping[str, Any] | None,
    vary: Sequence[Dimension],
    *,
    preset: str | None,
    file: str | Path | None,
    overrides: Mapping[str, Any],
) -> CheckedSettings:
    """Check a search's space and settings, without reading data and without PyTorch; arguments as for `search`."""
    given = named_space(space)
    left_out: list[str] = []
    if given is not None:
        model = common_settings(overrides, given, file, preset)[0].config({}).model
        given, left_out = without_idle_dimensions(given, model)
    whole, notes = whole_space(given, vary, overrides)
    trials, seed = common_settings(overrides, whole, file, preset)
    return CheckedSettings(check_space(whole, trials), trials, seed, (*left_out, *notes))


def without_idle_dimensions(space: Space, model: ModelConfig) -> tuple[Space, list[str]]:
    """Return a named space without the dimensions that this model does not use, and notes on them.

    BERT-m has gamma but no token head, and co-training has no beta.
    """
    names = {name for dimension in space.dimensions for name in dimension.setting_names}
    if {"preset", "model.token_gate.kind"} & names:
        return space, []
    if model.token_gate.kind == "none":
        idle, why = (
            {"objective.alpha", *(n for n in names if n.startswith("model.token_gate."))},
            "there is no token gate",
        )
    elif model.token_gate.beta == 1.0:
        idle, why = {"model.token_gate.beta"}, "it is 1, as in co-training"
    else:
        return space, []
    kept = tuple(dimension for dimension in space.dimensions if not idle.issuperset(dimension.setting_names))
    left_out = [dimension.name for dimension in space.dimensions if dimension not in kept]
    return dataclasses.replace(space, dimensions=kept), [f"{name}: is not varied, as {why}." for name in left_out]


def common_settings(
    overrides: Mapping[str, Any], space: Space, file: str | Path | None, preset: str | None
) -> tuple[TrialSettings, int]:
    """Return the settings of all trials, and their seed, which determines rows and samples."""
    given = dict(overrides)
    problems = [f"{name}: {why}." for name, why in _REFUSED.items() if given.get(name) not in (None, False)]
    if problems:
        raise ConfigError(problems)
    seed = given.pop("training.seed", None)
    preset_name = given.pop("preset", None) if preset is None else preset
    if preset_name is None and (file is None or load_config(file).preset is None):
        preset_name = space.preset
    settings = TrialSettings(file, preset_name, {**space.settings, **given})
    whole = settings.config({} if seed is None else {"training.seed": seed})
    return settings, whole.training.seed


def whole_space(
    given_space: Space | None, searched: Sequence[Dimension], fixed: Mapping[str, Any]
) -> tuple[Space, list[str]]:
    """Return a named space with more dimensions, and notes on the dimensions that were omitted."""
    searched_names = {name for dimension in searched for name in dimension.setting_names}
    names = [name for dimension in searched for name in dimension.setting_names]
    problems = [f"--search {name}: is given more than once." for name in searched_names if names.count(name) > 1]
    problems += [
        f"--search {name}: has a value of its own too; give one of both." for name in searched_names if name in fixed
    ]
    space, notes = given_space or Space(), []
    remaining = []
    for dimension in space.dimensions:
        taken = [name for name in dimension.setting_names if name in fixed]
        if taken:
            notes.append(f"{dimension.name}: is not varied, as {taken[0]} is set to {fixed[taken[0]]}.")
        elif not searched_names.intersection(dimension.setting_names):
            remaining.append(dimension)
    dimensions = (*remaining, *searched)
    if not dimensions and not problems:
        problems.append("search: got nothing to vary, expected --space NAME or --search NAME=VALUES.")
    if problems:
        raise ConfigError(sorted(problems))
    varied = {name for dimension in dimensions for name in dimension.setting_names}
    settings = {name: value for name, value in space.settings.items() if name not in varied}
    return dataclasses.replace(space, dimensions=dimensions, settings=settings), notes


def check_space(space: Space, settings: TrialSettings) -> Space:
    """Validate a space; return it with each value converted to its setting's type.

    Each value is validated together with the first values of the other dimensions.
    """
    first = {dimension.name: _some_values(dimension)[0] for dimension in space.dimensions}
    problems: dict[str, None] = {}
    dimensions = []
    for dimension in space.dimensions:
        refused = [name for name in dimension.setting_names if _is_refused(name)]
        problems |= {
            f"{name}: cannot be varied: trials must be of the same rows and the same score.": None for name in refused
        }
        values = []
        for value in _some_values(dimension):
            try:
                config = settings.config(space.settings_of({**first, dimension.name: value}))
                check_feasible(config)
                values.append(value if dimension.alternatives else _single(config, dimension.name))
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
            except AttentuneError as error:
                problems[str(error)] = None
        if not problems:
            dimensions.append(_as_checked(dimension, values, problems))
    if problems:
        raise ConfigError(list(problems))
    return dataclasses.replace(space, dimensions=tuple(dimensions))


def _some_values(dimension: Dimension) -> tuple[Any, ...]:
    return dimension.choices or (dimension.low, dimension.high)


def _is_refused(name: str) -> bool:
    if name == "model.trust_remote_code":  # no file may set it
        return True
    if name in _VARIED_DATA:
        return False
    return name in _REFUSED or name in _NOT_VARIED or name.startswith("data.")


def _single(config: Config, name: str) -> Any:
    return config.preset if name == "preset" else to_flat(config)[name]


def _as_checked(dimension: Dimension, values: Sequence[Any], problems: dict[str, None]) -> Dimension:
    if dimension.choices:
        if len(set(map(repr, values))) < len(values):
            problems[f"{dimension.name}: got {', '.join(map(str, values))}: a value is named more than once."] = None
        return dataclasses.replace(dimension, choices=tuple(values))
    low, high = values
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        problems[f"{dimension.name}: has no range, expected its values."] = None
    elif isinstance(low, int) and dimension.step is not None and dimension.step != int(dimension.step):
        problems[f"{dimension.name}: takes whole numbers, but the step is {dimension.step}."] = None
    step = dimension.step
    if isinstance(low, int) and not dimension.log:
        step = int(step or 1)
    return dataclasses.replace(dimension, low=low, high=high, step=step)
