"""Built-in tasks: their specifications (`builtin_tasks/*.yaml`), and loading them from their published files."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.columns import Columns, read_rows
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.files import read_delimited
from attentune.data.labels import LabelReader, check_same_labels, left_out_labels, parse_number
from attentune.data.tables import IDS, Table, listed
from attentune.data.text_files import Dialect
from attentune.errors import ConfigError, DataError

Part = TypeVar("Part")


@dataclass(frozen=True)
class SplitSpec:
    files: tuple[str, ...]  # possible names of the file; the first that exists is read
    # text, pair, label, id: column names; `pair` and `id` may be None.
    text: str
    label: str
    pair: str | None = None
    id: str | None = None
    header: tuple[str, ...] | None = None  # the column names, if the file has no header line
    optional: bool = False  # whether the task can be used without this split


@dataclass(frozen=True)
class TaskSpec:
    name: str  # the name in settings and results
    title: str  # the full name
    suite: str  # the collection it is published in: "glue", "cs224n", "sick" or "hans"
    aliases: tuple[str, ...]  # other accepted names; see `load_spec`
    description: str  # one line on the task
    source: str  # where to get the files
    task_type: str  # "classification", "regression" or "ordinal"
    label_names: tuple[str, ...]  # the classes in the order of their ids (as in GLUE); empty for regression
    label_values: Mapping[str, str]  # maps values in the files to class names; names map to themselves
    metrics: tuple[str, ...]  # the metrics; the first selects the best model
    folders: tuple[str, ...]  # possible folders of the files, relative to the data folder
    quoting: str  # "none" or "csv" (see `Dialect`); fields are separated by tabs
    splits: Mapping[str, SplitSpec]  # in the order train, validation, test
    score_range: tuple[float, float] | None = None  # predicted scores of a submission are clipped to it
    drop_unlabelled: bool = False  # leave rows without a label out of train and validation, with a note
    drop_broken: bool = False  # leave rows with missing or extra fields out, with a note


def spec_names() -> tuple[str, ...]:
    return tuple(sorted(_all_specs()))


def load_spec(name: str) -> TaskSpec:
    """Load a task by its name or an alias, ignoring case, spaces and punctuation (`STS-B`, `sts_b`, `stsb`)."""
    wanted = _plain(name)
    for spec in _all_specs().values():
        if wanted in map(_plain, (spec.name, *spec.aliases)):
            return spec
    near, known = did_you_mean(name, spec_names()), ", ".join(spec_names())
    raise ConfigError(f"data.task: there is no task {name!r}.{near} Known tasks: {known}.")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@lru_cache(maxsize=1)
def _all_specs() -> dict[str, TaskSpec]:
    folder = resources.files("attentune.data") / "builtin_tasks"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    specs = [_parse(yaml.safe_load(entry.read_text(encoding="utf-8"))) for entry in files]
    return {spec.name: spec for spec in specs}


def _parse(raw: dict[str, Any]) -> TaskSpec:
    values = dict(raw)
    columns = values.pop("columns")
    splits = {name: _parse_split(facts, columns) for name, facts in values.pop("splits").items()}
    names = tuple(values.pop("label_names", ()))
    label_values = {name: name for name in names} | values.pop("label_values", {})
    for key in ("aliases", "metrics", "folders", "score_range"):
        if key in values:
            values[key] = tuple(values[key])
    return TaskSpec(**values, label_names=names, label_values=label_values, splits=splits)


def _parse_split(facts: dict[str, Any], columns: dict[str, str]) -> SplitSpec:
    values = {**facts, **columns, **facts.get("columns", {})}
    values.pop("columns", None)
    header = values.pop("header", None)
    return SplitSpec(**values | {"files": tuple(facts["files"]), "header": tuple(header) if header else None})


DATA_VARIABLE = "ATTENTUNE_DATA"
DEFAULT_METRICS = {
    "classification": ("accuracy", "f1_macro"),
    "ordinal": ("accuracy", "quadratic_weighted_kappa"),
    "regression": ("pearson", "spearmanr", "mean_absolute_error"),
    "multi_label": ("f1_micro", "f1_macro", "subset_accuracy"),
}


def load_builtin(config: DataConfig, splits: Sequence[str] | None, label_space: LabelSpace | None) -> TaskData:
    """Read the splits of a built-in task from `config.data_dir` or the folder named by ATTENTUNE_DATA."""
    spec = load_spec(config.task or "")
    task_type = config.task_type or spec.task_type
    why = "the task's own" if config.task_type is None else "as set by task_type"
    own_space = _spec_space(spec, task_type)
    space = label_space or own_space
    root = _root(config, spec)
    check_same_labels(own_space, space, str(root))
    paths = _find_files(spec, root, splits)
    reader = label_reader(spec, space)
    rows: dict[str, TextRows] = {}
    notes = [f"Task type: {task_type}, {why}."]
    for name, path in paths.items():
        rows[name], split_notes = _read_split(spec, name, path, reader)
        notes += split_notes
    keeps_type = (task_type == "regression") == (spec.task_type == "regression")
    metrics = spec.metrics if keeps_type else DEFAULT_METRICS[task_type]
    return TaskData(spec.name, space, metrics, rows, tuple(notes))


def label_reader(
    spec: TaskSpec | None, space: LabelSpace, separator: str | None = None, left_out: tuple[str, ...] = ()
) -> LabelReader:
    # Of a classification task that is read as regression the numbers in its files are the scores.
    keeps_type = spec is not None and (space.task_type == "regression") == (spec.task_type == "regression")
    return LabelReader(space, spec.label_values if spec is not None and keeps_type else {}, separator, left_out)


def _read_split(spec: TaskSpec, name: str, path: Path, reader: LabelReader) -> tuple[TextRows, list[str]]:
    split = spec.splits[name]
    is_test = name.startswith("test")
    keep = {column for column in (split.text, split.pair, split.label, split.id, *IDS) if column is not None}
    dialect = Dialect("\t", spec.quoting, split.header, skip_broken=spec.drop_broken)
    table = read_delimited(path, dialect, keep=keep)
    label = None if is_test and split.label not in table.columns else split.label
    for column in (split.text, split.pair, split.id, label):
        if column is not None:
            require_column(table, column, spec)
    notes = []
    if table.left_out:
        lines = listed(line for line, _, _ in table.left_out)
        notes.append(f"{table.source}: left out for missing or extra fields: line {lines}.")
    if spec.drop_unlabelled and not is_test:
        reader = replace(reader, left_out=("", *left_out_labels(spec.label_names, ())))
    columns = Columns(split.text, split.pair, label, split.id)
    read, more = read_rows(table, columns, reader, is_test=is_test, strict_ids=False)
    return read, [*notes, *more]


def _spec_space(spec: TaskSpec, task_type: str) -> LabelSpace:
    if task_type == "multi_label":
        raise ConfigError(
            f"data.task_type: the rows of {spec.name} have one label each, so it cannot be multi_label. Leave it out."
        )
    if task_type == "regression":
        raw = [value for value in spec.label_values if value not in spec.label_names]
        if spec.task_type != "regression" and not (raw and all(parse_number(value) is not None for value in raw)):
            raise ConfigError(f"data.task_type: the labels of {spec.name} are no numbers, so they cannot be scores.")
        return LabelSpace("regression")
    if not spec.label_names:
        raise ConfigError(f"data.task_type: the labels of {spec.name} are scores, so it can only be a regression.")
    return LabelSpace(task_type, spec.label_names)


def _root(config: DataConfig, spec: TaskSpec) -> Path:
    given = config.data_dir or os.environ.get(DATA_VARIABLE)
    if not given:
        files = ", ".join(split.files[0] for split in spec.splits.values())
        raise ConfigError(
            f"data.data_dir: where are the files of {spec.name}? Give their folder with --data_dir, or set"
            f" {DATA_VARIABLE} to a folder that holds {spec.folders[0]}/ ({files}). To get them: {spec.source}."
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        got = "is a file" if root.exists() else "does not exist"
        name = "data_dir" if config.data_dir else DATA_VARIABLE
        raise DataError(
            f"this folder ({name}) {got}, expected the folder of {spec.name}'s files. To get them: {spec.source}.",
            path=root,
        )
    return root


def find_builtin_file(task: str, split: str, data_dir: str | None) -> Path:
    """Find the file of one split of a built-in task, in `data_dir` or the folder named by ATTENTUNE_DATA."""
    spec = load_spec(task)
    return _find_files(spec, _root(DataConfig(task=task, data_dir=data_dir), spec), (split,))[split]


def of_splits(parts: Mapping[str, Part], splits: Sequence[str] | None, owner: str) -> dict[str, Part]:
    """Return the parts of some splits, which must exist; "validation" has "validation_matched" and the like."""
    for split in splits or ():
        if not any(split in (name, name.split("_")[0]) for name in parts):
            raise ConfigError(f"{owner} has no split {split!r}. Its splits: {', '.join(parts)}.")
    return {name: part for name, part in parts.items() if splits is None or {name, name.split("_")[0]} & set(splits)}


def _find_files(spec: TaskSpec, root: Path, splits: Sequence[str] | None) -> dict[str, Path]:
    """Return the files of some splits, which must exist, or of those that exist of all."""
    paths: dict[str, Path] = {}
    wanted = of_splits(spec.splits, splits, spec.name)
    for name, split in wanted.items():
        tried = [root / folder / file for folder in spec.folders for file in split.files]
        if (path := next((path for path in tried if path.is_file()), None)) is not None:
            paths[name] = path
    required = [name for name, split in wanted.items() if splits is not None or not split.optional]
    missing = [name for name in (required if paths else wanted) if name not in paths]
    if missing:
        files = ", ".join(" or ".join(spec.splits[name].files) for name in missing)
        folders = "".join(f"\n  {root / folder}" for folder in spec.folders)
        raise DataError(
            f"no {', '.join(missing)} files of {spec.name} ({files}) found. Looked in:{folders}\n"
            f"To get them: {spec.source}.",
            path=root,
        )
    return paths


def require_column(table: Table, column: str, spec: TaskSpec) -> None:
    """Check that the file of a built-in task has a column."""
    if column not in table.names:
        raise DataError(
            f"there is no column {column!r}, expected the file of {spec.title}. Columns here:"
            f" {', '.join(map(repr, table.names))}. To get the file: {spec.source}.",
            path=table.source,
        )
