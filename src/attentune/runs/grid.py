"""The runs of a comparison: every combination of task, method, training size and seed.

The manifest in the comparison's folder (`compare.json`) keeps methods, settings and fingerprints that must not change.
"""

import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, flatten, load_config, preset_names, to_flat
from attentune.config.load import read_yaml
from attentune.config.parse import did_you_mean
from attentune.data.builtin import load_spec
from attentune.data.dataset import TaskData, data_name
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import check_links, read_json, storage_errors, write_text
from attentune.results import ORIGINAL_TRAIN
from attentune.runs.records import CUSTOM_TASK, LOCKS, MANIFEST_FILE, Run
from attentune.training.prepare import ending_with_last_weights

# Settings that the comparison sets for each run, with the reason for refusing them.
PER_RUN = {
    "training.output_dir": "each run has its own folder under the comparison's",
    "training.resume": "a comparison always goes on where it was",
    "training.overwrite_output_dir": "a comparison always resumes; to start again, name another folder",
    "training.seed": "give --seeds, a number of seeds or a list such as 3,7,11",
    "data.fold": "a comparison runs all folds",
    "data.fold_seed": "with --folds, --seeds is the number of repetitions with new folds",
}
# Settings that determine the grid; no method may have its own.
WHICH_RUNS = ("preset", "data.folds", "data.task", "data.max_train_samples")
_NAME = re.compile(r"\w[\w.+ -]{0,79}")
_KEYS = ("preset", "set", "tasks")


@dataclass(frozen=True)
class Method:
    """A preset with settings that override the common ones."""

    name: str  # the method's name
    preset: str | None = None  # the name of its preset, or None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings by dotted name
    by_task: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # settings for individual tasks


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
    by_task = _settings_by_task(value.get("tasks"), f"{where}.tasks", problems)
    settings = flatten(_mapping(value.get("set"), f"{where}.set", problems))
    _refuse_common(settings, f"{where}.set", problems)
    preset = value.get("preset")
    return Method(name, None if preset is None else str(preset), settings, by_task)


def _settings_by_task(value: Any, where: str, problems: list[str]) -> dict[str, dict[str, Any]]:
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
    if value is None or isinstance(value, Mapping):
        return value or {}
    problems.append(f"{where}: got {value!r}, expected settings and their values.")
    return {}


def methods_named(names: Sequence[str], settings: Mapping[str, Any] | str | Path | None) -> list[Method]:
    """Return the methods of these names, of `settings` (a mapping, or a YAML file) or the presets; all of `settings` if
    there are no names."""
    if isinstance(settings, (str, Path)):
        defined = methods_from(read_yaml(settings), str(settings))
    else:
        defined = methods_from(settings or {}, "settings")
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


@dataclass(frozen=True)
class RunGrid:
    runs: tuple[Run, ...]  # in the order of execution: all methods of a seed before the next seed
    configs: dict[str, dict[str, dict[str, Any]]]  # by method and task, all settings by dotted name, from `to_flat`
    # What was given for all methods and tasks, by dotted name: methods and tasks that are added must have the same.
    common: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def task_name(self, task: str) -> str:
        """Return the name of a task for people: for custom data, that of the file or data set."""
        settings = next(by_task[task] for by_task in self.configs.values() if task in by_task)
        data = {name.removeprefix("data."): value for name, value in settings.items() if name.startswith("data.")}
        return task if task != CUSTOM_TASK else data_name(data)

    def config(self, run: Run, folder: Path) -> Config:
        return run_config(run, self.configs[run.method][run.task], folder)


def run_config(run: Run, settings: Mapping[str, Any], folder: Path, *, resume: bool = False) -> Config:
    """Return the configuration of a run of these settings that is trained in `folder`."""
    changes = {
        "data.max_train_samples": run.train_size,
        "training.output_dir": str(folder),
        "training.overwrite_output_dir": False,
        "training.resume": resume,
        "training.seed": run.seed,
    }
    if settings.get("data.folds") is not None:
        # Seeds 1 to K are the K folds of the first partition.
        partition, fold = divmod(run.seed - 1, int(settings["data.folds"]))
        changes |= {"data.fold": fold + 1, "data.fold_seed": partition + 1}
    return load_config(overrides={**settings, **changes})


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
    # Not `in (None, False)`: a seed of 0 is a value too, and equal to False.
    given_per_run = [name for name in PER_RUN if common.get(name) is not None and common[name] is not False]
    problems = [f"{name}: {PER_RUN[name]}." for name in given_per_run]
    one = _task_taken(file, common)
    names = _task_names(tasks or ([] if one is None else [str(one)]), problems)
    problems += _repeated("method", [method.name for method in methods]) + _repeated("seed", list(seeds))
    problems += _repeated("train size", ["all" if size is None else size for size in train_sizes or ()])
    if not methods:
        problems.append("compare: got no method, expected --presets NAME,NAME,... or --settings FILE.")
    if problems:
        raise ConfigError(problems)
    configs = _resolved(methods, names or [CUSTOM_TASK], file, common)
    first = next(iter(configs.values()))
    sizes = [next(iter(first.values()))["data.max_train_samples"]] if train_sizes is None else train_sizes
    runs = (
        Run(task, size, method.name, seed) for seed in seeds for size in sizes for task in first for method in methods
    )

    def typed(name: str) -> Any:
        """Return the value of a setting for all, converted to its type."""
        free = (
            configs[method.name][task].get(name, common[name])
            for method in methods
            for task in first
            if name not in {*method.settings, *method.by_task.get(task, {})}
        )
        return next(free, common[name])

    given = (
        {} if file is None else {name: value for name, value in flatten(read_yaml(file)).items() if name != "preset"}
    )
    return RunGrid(tuple(runs), configs, given | {name: typed(name) for name in common})


def _task_taken(file: str | Path | None, common: dict[str, Any]) -> Any:
    """Remove `data.task` from `common` and return its value; by default, return the file's value."""
    section = {} if file is None else read_yaml(file).get("data")
    in_file = section.get("task") if isinstance(section, Mapping) else None
    value = common.pop("data.task", None)
    return in_file if value is None else value


def _task_names(given: Iterable[str], problems: list[str]) -> list[str]:
    task_names = []
    for task in given:
        try:
            task_names.append(load_spec(task).name)
        except ConfigError as error:
            problems += error.problems
    problems += _repeated("task", task_names)
    return task_names


def _resolved(
    methods: Sequence[Method], tasks: Sequence[str], file: str | Path | None, common: Mapping[str, Any]
) -> dict[str, dict[str, dict[str, Any]]]:
    configs: dict[str, dict[str, dict[str, Any]]] = {method.name: {} for method in methods}
    problems: dict[str, list[str]] = {}
    for method in methods:
        for task in tasks:
            given = {**common, **method.settings, **method.by_task.get(task, {})}
            given["data.task"] = None if task == CUSTOM_TASK else task
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


def _repeated(what: str, given: Sequence[Any]) -> list[str]:
    repeated = [str(value) for value in dict.fromkeys(given) if list(given).count(value) > 1]
    return [f"{what} {', '.join(repeated)}: is named more than once; name each once."] if repeated else []


# The manifest.

# Maps a name, such as "train rows of cola" or "encoder embedded", to the first digits of a SHA-256.
DataFingerprints = dict[str, str]
# Digits of a hash: enough to distinguish contents, and short enough for a message.
_DIGITS = 16
_FORMAT = 2
# Settings that may differ between two commands on one folder: they do not change what is computed.
MAY_DIFFER = {
    *PER_RUN,
    *(name for name in WHICH_RUNS if name != "preset"),
    "training.save_total_limit",
    "training.logging_steps",
    "training.report_to",
    "training.per_device_eval_batch_size",  # changes scores by rounding only
}
_SHOWN = 8


def rows_of_task(config: Config) -> TaskData:
    """Load all rows of a task; runs of every training size and seed use subsets of them."""
    from attentune.data.load import load_data

    wanted = ("train", "validation") if config.data.task is not None else None
    # The same seed for all runs: without a validation file, the held-out rows depend on it.
    every = replace(config.data, max_train_samples=None, max_eval_samples=None, extra_train_files=None)
    if every.folds is not None:
        # The first fold of the first partition for all runs, so that a resumed or extended comparison agrees.
        every = replace(every, fold=1, fold_seed=1)
    return load_data(replace(every, extra_train_weights=None), seed=0, splits=wanted)


def fingerprint_extra_rows(task: str, data: TaskData, configs: Iterable[Config]) -> DataFingerprints:
    from attentune.data.load import read_extra

    files = {file: config.data for config in configs for file, _ in config.data.extra_train}
    return {
        f"rows of {file} for {task}": read_extra(file, config, data)[0].fingerprint()[:_DIGITS]
        for file, config in files.items()
    }


def fingerprint_rows(task: str, data: TaskData) -> DataFingerprints:
    prints = data.fingerprint()
    return {f"{split} rows of {task}": text[:_DIGITS] for split, text in prints.items() if split != ORIGINAL_TRAIN}


def fingerprint_encoders(configs: Iterable[Config]) -> DataFingerprints:
    from attentune.models.build import encoder_fingerprint

    settings = {(config.model.name_or_path, config.model.revision): config.model for config in configs}
    return {
        f"encoder {name}": encoder_fingerprint(model_settings)[:_DIGITS]
        for (name, _), model_settings in settings.items()
    }


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    changed = [name for name, content in now.items() if before.get(name, content) != content]
    changed = [name.removesuffix(f" of {CUSTOM_TASK}").removesuffix(f" for {CUSTOM_TASK}") for name in changed]
    if changed:
        raise CheckpointError(
            f"{where}: the {' and the '.join(changed)} changed since it was begun, so new runs could not be compared"
            " with those it has. Put back what was there, or name another --output_dir."
        )


def open_comparison(folder: Path, grid: RunGrid, data_fingerprints: Mapping[str, str] | None = None) -> None:
    """Create a comparison in this folder, or continue the existing one."""
    make_folder(folder, MANIFEST_FILE, "comparison")
    before = read_manifest(folder)
    check_same(before, grid, str(folder))
    known = before["data_fingerprints"]
    check_unchanged(known, data_fingerprints or {}, str(folder))
    methods = {
        name: {"tasks": {**tasks, **before["methods"].get(name, {"tasks": {}})["tasks"]}}
        for name, tasks in grid.configs.items()
    }
    content = {
        "format": _FORMAT,
        "id": before["id"],
        "data_fingerprints": {**(data_fingerprints or {}), **known},
        "common": before["common"] if before["methods"] else dict(grid.common),
        "methods": {**before["methods"], **methods},
    }
    if content != before:
        write_text(folder / MANIFEST_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def make_folder(folder: Path, file: str, what: str) -> None:
    """Create the folder of a comparison or search, unless it exists."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, folder / LOCKS):
            if place.is_dir():
                check_links(place)
    check_content(folder, file, what)


def check_content(folder: Path, file: str, what: str) -> None:
    """Check that a folder is missing, empty, or that of a comparison or search."""
    with storage_errors(folder):
        found = folder.iterdir() if folder.is_dir() else ()
        entries = sorted(entry.name for entry in found if not entry.name.startswith("."))
    if entries and file not in entries:
        raise CheckpointError(
            f"{folder}: holds {entries[0]} and no {file}, so it is no {what}'s folder. Name another with --output_dir."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `compare.json`; return the content of a new comparison if there is none."""
    file = folder / MANIFEST_FILE
    if not file.exists():
        return {"format": _FORMAT, "id": uuid.uuid4().hex, "data_fingerprints": {}, "common": {}, "methods": {}}
    return read_manifest_file(file, _FORMAT, _is_valid)


def read_manifest_file(file: Path, version: int, is_valid: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    try:
        content = read_json(file)
        if content["format"] == version and is_valid(content) and isinstance(content["id"], str) and content["id"]:
            return content
        problem = f"is of format {repr(content['format'])[:40]} or holds other things, expected {version}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({error})"
    raise CheckpointError(f"{file}: {problem}. Name another --output_dir, or delete this file if you know why.")


def _is_valid(content: dict[str, Any]) -> bool:
    return all(isinstance(content[name], dict) for name in ("data_fingerprints", "common", "methods")) and all(
        part["tasks"] and all(isinstance(flat, dict) for flat in part["tasks"].values())
        for part in content["methods"].values()
    )


def check_same(before: Mapping[str, Any], now: RunGrid, where: str) -> None:
    """Check that methods and tasks have the same settings as before, and new ones the same common settings."""
    changes: list[str] = []
    for method, tasks in now.configs.items():
        for task, flat in tasks.items():
            label = f"{method}: " if task == CUSTOM_TASK else f"{method} on {task}: "
            if (old := before["methods"].get(method, {"tasks": {}})["tasks"].get(task)) is not None:
                changes += [f"{label}{line}" for line in _differences(old, flat)]
            elif before["methods"]:
                changes += _differences(before["common"], now.common)
    if changes:
        raise CheckpointError(
            f"{where}: was begun with other settings, so its runs could not be compared:"
            f" {first_of(list(dict.fromkeys(changes)))}. Go on with the settings it has, or name another --output_dir."
            " More presets, tasks, sizes and seeds may be added."
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    # A setting that was not given, or did not exist yet when the comparison was created, had its default.
    defaults = to_flat(Config())
    pairs = {name: [part.get(name, defaults.get(name)) for part in (before, now)] for name in {**before, **now}}
    return [
        f"{name}: was {old!r}, now {new!r}"
        for name, (old, new) in pairs.items()
        if old != new and name not in MAY_DIFFER
    ]


def first_of(changes: Sequence[str]) -> str:
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return "; ".join([*changes[:_SHOWN], *more])
