"""The runs of a comparison: every combination of task, method, training size and seed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, flatten, load_config, load_preset, preset_names, to_flat
from attentune.config.parse import did_you_mean, mapping_from
from attentune.config.yaml_files import read_yaml
from attentune.data.builtin import load_spec
from attentune.data.dataset import data_name
from attentune.errors import ConfigError
from attentune.runs.records import CUSTOM_TASK, Run
from attentune.training.prepare import ending_with_last_weights

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


def methods_named(names: Sequence[str], settings: Mapping[str, Any] | str | Path | None) -> list[Method]:
    """Return the methods of these names, from presets and from the settings of methods, a mapping or a YAML file."""
    if isinstance(settings, (str, Path)):
        return select_methods(names, read_methods(settings))
    return select_methods(names, methods_from(settings or {}, "settings"))


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


# Overrides that turn a multi-task configuration into one for a single task.
_ONE_TASK = {"data.tasks": None, "data.task_settings": None, "training.multi_task": False}


@dataclass(frozen=True)
class RunGrid:
    """The runs of a comparison and their settings."""

    runs: tuple[Run, ...]  # in the order of execution: all methods of a seed before the next seed
    configs: dict[str, dict[str, dict[str, Any]]]  # by method and task, all settings by dotted name, from `to_flat`
    own: dict[str, tuple[str, ...]]  # by method, the settings in which it may differ from the others
    of_tasks: tuple[str, ...] = ()  # the settings in which tasks may differ from each other

    def task_name(self, task: str) -> str:
        """Return the name of a task for people: for custom data, that of the file or data set."""
        settings = next(by_task[task] for by_task in self.configs.values() if task in by_task)
        data = {name.removeprefix("data."): value for name, value in settings.items() if name.startswith("data.")}
        return task if task != CUSTOM_TASK else data_name(data)

    def config(self, run: Run, folder: Path, *, resume: bool = False) -> Config:
        """Return the configuration of a run that is trained in `folder`."""
        folds = self.configs[run.method][run.task].get("data.folds")
        changes: dict[str, Any] = {} if folds is None else fold_settings(run.seed, int(folds))
        changes |= {"training.output_dir": str(folder), "training.seed": run.seed, "training.resume": resume}
        return load_config(
            overrides={
                **self.configs[run.method][run.task],
                "data.max_train_samples": run.train_size,
                "training.overwrite_output_dir": False,
                **changes,
            }
        )


def plan_grid(
    *,
    tasks: Sequence[str] | None,
    methods: Sequence[Method],
    seeds: Sequence[int],
    train_sizes: Sequence[int | None] | None = None,
    file: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunGrid:
    """Plan all runs, and validate each method's settings on each task."""
    common = dict(overrides or {})
    problems = [f"{name}: {why}." for name, why in PER_RUN.items() if common.get(name) not in (None, False)]
    task_settings = _names(_taken("data.tasks", file, common))
    one = _taken("data.task", file, common)
    by_task = settings_by_task(_taken("data.task_settings", file, common), "data.task_settings", problems)
    names = _task_names(tasks or task_settings or ([] if one is None else [str(one)]), problems)
    problems += _repeated("method", [method.name for method in methods]) + _repeated("seed", list(seeds))
    problems += _repeated("train size", ["all" if size is None else size for size in train_sizes or ()])
    if not methods:
        problems.append("compare: got no method, expected --presets NAME,NAME,... or --settings FILE.")
    if problems:
        raise ConfigError(problems)
    configs = _resolved(methods, names or [CUSTOM_TASK], file, common, by_task)
    first = next(iter(configs.values()))
    sizes = [next(iter(first.values()))["data.max_train_samples"]] if train_sizes is None else train_sizes
    runs = (
        Run(task, size, method.name, seed) for seed in seeds for size in sizes for task in first for method in methods
    )
    return RunGrid(
        tuple(runs),
        configs,
        {method.name: tuple(sorted(_own_names(method, common))) for method in methods},
        tuple(sorted({name for part in by_task.values() for name in part})),
    )


def fold_settings(seed: int, folds: int) -> dict[str, int]:
    """Return the fold settings of a cross-validated run; seeds 1 to K are the K folds of the first partition."""
    return {"data.fold": (seed - 1) % folds + 1, "data.fold_seed": (seed - 1) // folds + 1}


def _taken(name: str, file: str | Path | None, common: dict[str, Any]) -> Any:
    """Remove a setting of section `data` from `common` and return its value; by default, return the file's value."""
    section = {} if file is None else read_yaml(file).get("data")
    in_file = section.get(name.split(".")[1]) if isinstance(section, Mapping) else None
    value = common.pop(name, None)
    return in_file if value is None else value


def _names(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else (value or [])
    return [str(part).strip() for part in parts if str(part).strip()]


def _task_names(given: Iterable[str], problems: list[str]) -> list[str]:
    """Return the tasks' canonical names."""
    task_names = []
    for task in given:
        try:
            task_names.append(load_spec(task).name)
        except ConfigError as error:
            problems += error.problems
    problems += _repeated("task", task_names)
    return task_names


def _resolved(
    methods: Sequence[Method],
    tasks: Sequence[str],
    file: str | Path | None,
    common: Mapping[str, Any],
    by_task: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return all settings by method, task and name."""
    configs: dict[str, dict[str, dict[str, Any]]] = {method.name: {} for method in methods}
    problems: dict[str, list[str]] = {}
    for method in methods:
        for task in tasks:
            given = {**common, **by_task.get(task, {}), **method.settings, **method.by_task.get(task, {})}
            given |= _ONE_TASK | {"data.task": None if task == CUSTOM_TASK else task}
            try:
                config = load_config(file, given, preset=method.preset)
                config = replace(config, training=ending_with_last_weights(config.training))
                configs[method.name][task] = to_flat(config)
            except ConfigError as error:
                place = method.name if task == CUSTOM_TASK else f"{method.name} on {task}"
                for problem in error.problems:
                    problems.setdefault(problem, []).append(place)
    if problems:
        total = len(methods) * len(tasks)
        raise ConfigError([_with_places(problem, places, total) for problem, places in problems.items()])
    return configs


def _with_places(problem: str, places: list[str], total: int) -> str:
    if len(places) == total:
        return problem
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return f"{places[0]}{more}: {problem}"


def _own_names(method: Method, common: Mapping[str, Any]) -> set[str]:
    """Return the settings in which a method may differ: its preset's, unless set for all, and its own."""
    content = {} if method.preset is None else load_preset(method.preset)
    sections = {key: value for key, value in content.items() if key not in ("description", "source")}
    names = {"preset", *flatten(sections)} - set(common)
    return names.union(method.settings, *method.by_task.values())


def _repeated(what: str, given: Sequence[Any]) -> list[str]:
    repeated = [str(value) for value in dict.fromkeys(given) if list(given).count(value) > 1]
    return [f"{what} {', '.join(repeated)}: is named more than once; name each once."] if repeated else []
