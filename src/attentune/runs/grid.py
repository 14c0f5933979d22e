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

from attentune.config import Config, flatten, load_config, load_preset, preset_names, to_flat
from attentune.config.load import read_yaml
from attentune.config.parse import did_you_mean, mapping_from
from attentune.data.builtin import load_spec
from attentune.data.dataset import TaskData, data_name
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import check_links, read_json, storage_errors, write_text
from attentune.results import ORIGINAL_TRAIN
from attentune.runs.records import CUSTOM_TASK, LOCKS, MANIFEST_FILE, Run
from attentune.training.prepare import ending_with_last_weights
from attentune.training.run_folder import RULED

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


# The manifest.

# Maps a name, such as "train rows of cola" or "encoder embedded", to the first digits of a SHA-256.
DataFingerprints = dict[str, str]
# Digits of a hash: enough to distinguish contents, and short enough for a message.
_DIGITS = 16
_FORMAT = 1
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

Methods = dict[str, dict[str, Any]]


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
    """Return the fingerprints of the extra training files of these configurations, one per file."""
    from attentune.data.load import read_extra

    files = {file: config.data for config in configs for file, _ in config.data.extra_train}
    return {
        f"rows of {file} for {task}": read_extra(file, config, data.label_space, is_pair=data.is_pair)[0].fingerprint()[
            :_DIGITS
        ]
        for file, config in files.items()
    }


def fingerprint_rows(task: str, data: TaskData) -> DataFingerprints:
    prints = data.fingerprint()
    return {f"{split} rows of {task}": text[:_DIGITS] for split, text in prints.items() if split != ORIGINAL_TRAIN}


def fingerprint_encoders(configs: Iterable[Config]) -> DataFingerprints:
    """Return the fingerprints of the encoders of these configurations, one per encoder."""
    from attentune.models.build import encoder_fingerprint

    settings = {(config.model.name_or_path, config.model.revision): config.model for config in configs}
    return {
        f"encoder {name}": encoder_fingerprint(model_settings)[:_DIGITS]
        for (name, _), model_settings in settings.items()
    }


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Check that no fingerprint has changed."""
    changed = [name for name, content in now.items() if before.get(name, content) != content]
    changed = [name.removesuffix(f" of {CUSTOM_TASK}").removesuffix(f" for {CUSTOM_TASK}") for name in changed]
    if changed:
        raise CheckpointError(
            f"{where}: the {' and the '.join(changed)} changed since it was begun, so new runs could not be compared"
            " with those it has. Put back what was there, or name another --output_dir."
        )


def methods_of(grid: RunGrid) -> Methods:
    """Return each method's settings by task, and those in which methods and tasks may differ."""
    return {
        name: {"own": list(grid.own[name]), "of_tasks": list(grid.of_tasks), "tasks": tasks}
        for name, tasks in grid.configs.items()
    }


def open_comparison(folder: Path, grid: RunGrid, data_fingerprints: Mapping[str, str] | None = None) -> None:
    """Create a comparison in this folder, or continue the existing one."""
    make_folder(folder, MANIFEST_FILE, "comparison")
    before = read_manifest(folder)
    methods = methods_of(grid)
    check_same(before["methods"], methods, str(folder))
    known = before.get("data_fingerprints", {})
    check_unchanged(known, data_fingerprints or {}, str(folder))
    content = {
        "format": _FORMAT,
        "id": before["id"],
        "data_fingerprints": {**(data_fingerprints or {}), **known},
        "methods": merge(before["methods"], methods),
    }
    if content != before:
        write_text(folder / MANIFEST_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def with_saved_choices(folder: Path, grid: RunGrid) -> RunGrid:
    """Return the grid with training settings that are left open as the folder's comparison has them."""
    before, now = read_manifest(folder)["methods"], methods_of(grid)
    configs: dict[str, dict[str, dict[str, Any]]] = {}
    for name, tasks in grid.configs.items():
        configs[name] = {}
        for task, flat in tasks.items():
            old, _, ignored = _counterpart(before, now, name, task)
            open_ones = [f"training.{setting}" for setting in RULED if flat[f"training.{setting}"] is None]
            saved = {setting: (old or {}).get(setting) for setting in open_ones if setting not in ignored}
            configs[name][task] = flat | saved
    return dataclasses.replace(grid, configs=configs)


def make_folder(folder: Path, file: str, what: str) -> None:
    """Create the folder of a comparison or search, unless it exists."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, folder / LOCKS):
            if place.is_dir():
                check_links(place)
        check_content(folder, file, what)


def check_content(folder: Path, file: str, what: str) -> None:
    """Check that a folder is empty, or that of a comparison or search; arguments and errors as for `make_folder`."""
    entries = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if entries and file not in entries:
        raise CheckpointError(
            f"{folder}: holds {entries[0]} and no {file}, so it is no {what}'s folder. Name another with --output_dir."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `compare.json`; return the content of a new comparison if there is none."""
    file = folder / MANIFEST_FILE
    if not file.exists():
        return {"format": _FORMAT, "id": uuid.uuid4().hex, "data_fingerprints": {}, "methods": {}}
    return read_manifest_file(file, _FORMAT, lambda content: _are_methods(content["methods"]))


def read_manifest_file(file: Path, version: int, is_valid: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read the manifest of a comparison or search."""
    try:
        content = read_json(file)
        if content["format"] == version and is_valid(content) and isinstance(content["id"], str) and content["id"]:
            return content
        problem = f"is of format {repr(content['format'])[:40]} or holds other things, expected {version}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({error})"
    raise CheckpointError(f"{file}: {problem}. Name another --output_dir, or delete this file if you know why.")


def _are_methods(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(part, dict)
        and all(isinstance(name, str) for key in ("own", "of_tasks") for name in part[key])
        and part["tasks"]
        and all(isinstance(flat, dict) for flat in part["tasks"].values())
        for part in value.values()
    )


def merge(before: Methods, now: Methods) -> Methods:
    """Return the stored methods with the new ones added."""
    merged = dict(before)
    for name, part in now.items():
        old = before.get(name, {"own": [], "of_tasks": [], "tasks": {}})
        merged[name] = {key: sorted({*old[key], *part[key]}) for key in ("own", "of_tasks")}
        merged[name]["tasks"] = {**part["tasks"], **old["tasks"]}
    return merged


def check_same(before: Methods, now: Methods, where: str) -> None:
    """Check that methods and tasks have the same settings as before, and new ones the same common settings."""
    changes: dict[str, None] = {}
    for name, part in now.items():
        for task, flat in part["tasks"].items():
            old, label, ignored = _counterpart(before, now, name, task)
            compared = [] if old is None else [setting for setting in flat if setting not in MAY_DIFFER | ignored]
            changes |= dict.fromkeys(f"{label}{line}" for line in _differences(old or {}, flat, compared))
    if changes:
        raise CheckpointError(
            f"{where}: was begun with other settings, so its runs could not be compared: {first_of(list(changes))}. Go"
            " on with the settings it has, or name another --output_dir. More presets, tasks, sizes and seeds may be"
            " added."
        )


def first_of(changes: Sequence[str]) -> str:
    """Return the first few of these changes, and how many more there are."""
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return "; ".join([*changes[:_SHOWN], *more])


def _counterpart(before: Methods, now: Methods, name: str, task: str) -> tuple[Mapping[str, Any] | None, str, set[str]]:
    """Return the settings to compare with, the message's prefix, and the settings that may differ.

    The same method on the same task must be equal; a new one must have the same common settings.
    """
    if task in before.get(name, {"tasks": {}})["tasks"]:
        prefix = f"{name}: " if task == CUSTOM_TASK else f"{name} on {task}: "
        return before[name]["tasks"][task], prefix, set()
    for other in sorted(before, key=lambda known: known != name):
        tasks = before[other]["tasks"]
        nearest = min(tasks, key=lambda known: known != task)
        method_settings = {*before[other]["own"], *now[name]["own"]}
        of_tasks = {*before[other]["of_tasks"], *now[name]["of_tasks"]}
        return tasks[nearest], "", method_settings if nearest == task else method_settings | of_tasks
    return None, "", set()


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    # A setting that did not exist yet when the comparison was created had its default.
    defaults = to_flat(Config())
    return [
        f"{name}: was {before.get(name, defaults.get(name))!r}, now {now[name]!r}"
        for name in names
        if before.get(name, defaults.get(name)) != now[name]
    ]
