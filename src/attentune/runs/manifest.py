"""The manifest of a comparison's folder (`compare.json`): methods, settings and fingerprints that must not change."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config import Config, to_flat
from attentune.data.dataset import TaskData
from attentune.errors import CheckpointError
from attentune.io.files import check_links, read_json, storage_errors, write_text
from attentune.results import ORIGINAL_TRAIN
from attentune.runs.grid import PER_RUN, WHICH_RUNS, RunGrid
from attentune.runs.records import CUSTOM_TASK, LOCKS, MANIFEST_FILE, is_packed
from attentune.training.run_folder import RULED

# Maps a name, such as "train rows of cola" or "encoder embedded", to the first digits of a SHA-256.
DataFingerprints = dict[str, str]
# Digits of a hash: enough to distinguish contents, and short enough for a message.
_DIGITS = 16


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
    """Return the fingerprints of a task's rows, by split."""
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


def methods_of(grid: RunGrid) -> Methods:
    """Return each method's settings by task, and those in which methods and tasks may differ."""
    return {
        name: {"own": list(grid.own[name]), "of_tasks": list(grid.of_tasks), "tasks": tasks}
        for name, tasks in grid.configs.items()
    }


def make_comparison_folder(folder: Path) -> None:
    """Create the folder of a comparison, unless it exists."""
    if is_packed(folder):
        raise CheckpointError(f"{folder}: holds a packed comparison, which is read only. Name another --output_dir.")
    make_folder(folder, MANIFEST_FILE, "comparison")


def open_comparison(folder: Path, grid: RunGrid, data_fingerprints: Mapping[str, str] | None = None) -> None:
    """Create a comparison in this folder, or continue the one that is there."""
    make_comparison_folder(folder)
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
