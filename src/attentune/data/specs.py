"""The known tasks: what their files are called and hold. One YAML file each, in `tasks/`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from attentune.data.dataset import TASK_TYPES
from attentune.errors import ConfigError


@dataclass(frozen=True)
class SplitSpec:
    """The file of one split.

    Attributes:
        files: names that the file may have, the first found is taken.
        text, pair, label, id: its columns; `pair` and `id` may be None.
        header: the columns' names where the file has no header line.
        optional: whether the task can be used without it.
    """

    files: tuple[str, ...]
    text: str
    label: str
    pair: str | None = None
    id: str | None = None
    header: tuple[str, ...] | None = None
    optional: bool = False


@dataclass(frozen=True)
class TaskSpec:
    """A known task.

    Attributes:
        name: how it is named in settings and results.
        title: its full name.
        suite: what it is published in: "glue", "cs224n", "sick" or "hans".
        aliases: other names that users type; see `load_spec`.
        description: one line on what is asked.
        source: where a user gets the files.
        task_type: "classification", "regression" or "ordinal".
        label_names: the classes in the order of their ids (GLUE's own order); empty for regression.
        label_values: from what the files hold to the classes' names; a name always stands for itself.
        metrics: the one to choose by first.
        folders: where the files may lie, under the data folder.
        quoting: "none" or "csv" (see `delimited.Dialect`); fields are separated by tabs.
        splits: in the order train, validation, test.
        score_range: the lowest and highest score of a regression, ends included.
        missing_labels: what stands for no label, besides an empty field.
        drop_unlabelled: leave rows without a label out of train and validation, and say so.
        drop_broken: leave rows with missing or extra fields out, and say so.
    """

    name: str
    title: str
    suite: str
    aliases: tuple[str, ...]
    description: str
    source: str
    task_type: str
    label_names: tuple[str, ...]
    label_values: Mapping[str, str]
    metrics: tuple[str, ...]
    folders: tuple[str, ...]
    quoting: str
    splits: Mapping[str, SplitSpec]
    score_range: tuple[float, float] | None = None
    missing_labels: tuple[str, ...] = field(default=())
    drop_unlabelled: bool = False
    drop_broken: bool = False


def spec_names() -> tuple[str, ...]:
    """The names of all known tasks, sorted."""
    return tuple(sorted(_all_specs()))


def load_spec(name: str) -> TaskSpec:
    """A known task by its name or an alias; case, spaces and punctuation do not matter (`STS-B`, `sts_b`, `stsb`).

    Raises:
        ConfigError: if there is no such task, with the nearest names.
    """
    known = _spellings()
    if _plain(name) in known:
        return _all_specs()[known[_plain(name)]]
    near = dict.fromkeys(known[word] for word in difflib.get_close_matches(_plain(name), known, n=3, cutoff=0.6))
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ConfigError(f"data.task: there is no task {name!r}.{hint} Known tasks: {', '.join(spec_names())}.")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@lru_cache(maxsize=1)
def _all_specs() -> dict[str, TaskSpec]:
    folder = resources.files("attentune.data") / "builtin_tasks"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    specs = [_parse(yaml.safe_load(entry.read_text(encoding="utf-8"))) for entry in files]
    return {spec.name: spec for spec in specs}


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    """From every spelling without case and punctuation to the task's name."""
    spellings: dict[str, str] = {}
    for spec in _all_specs().values():
        for alias in (spec.name, *spec.aliases):
            if spellings.setdefault(_plain(alias), spec.name) != spec.name:
                raise ValueError(f"tasks {spellings[_plain(alias)]} and {spec.name} are both called {alias!r}")
    return spellings


def _parse(raw: dict[str, Any]) -> TaskSpec:
    """A task from its YAML file. These files are the project's own: a mistake in one is a bug, not a user's error."""
    values = dict(raw)
    columns = values.pop("columns")
    if values["task_type"] not in TASK_TYPES:
        raise ValueError(f"task {values['name']}: unknown task type {values['task_type']!r}")
    splits = {name: _parse_split(facts, columns) for name, facts in values.pop("splits").items()}
    names = tuple(values.pop("label_names", ()))
    label_values = {name: name for name in names} | values.pop("label_values", {})
    if not all(isinstance(key, str) for key in label_values) or not set(label_values.values()) <= set(names):
        raise ValueError(f"task {values['name']}: label_values must map texts (quote numbers) to label_names")
    for key in ("aliases", "metrics", "folders", "missing_labels", "score_range"):
        if key in values:
            values[key] = tuple(values[key])
    return TaskSpec(**values, label_names=names, label_values=label_values, splits=splits)


def _parse_split(facts: dict[str, Any], columns: dict[str, str]) -> SplitSpec:
    values = {**facts, **columns, **facts.get("columns", {})}
    values.pop("columns", None)
    header = values.pop("header", None)
    return SplitSpec(**values | {"files": tuple(facts["files"]), "header": tuple(header) if header else None})
