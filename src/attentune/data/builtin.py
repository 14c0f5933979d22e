"""Loading the known tasks from their published files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.ids import IDS, row_ids
from attentune.data.labels import LabelReader, check_fits, decide_task_type, map_to, parse_number
from attentune.data.readers.csv import Dialect
from attentune.data.readers.read import read_delimited
from attentune.data.readers.table import Table
from attentune.data.specs import TaskSpec, load_spec
from attentune.errors import ConfigError, DataError

DATA_VARIABLE = "ATTENTUNE_DATA"
DEFAULT_METRICS = {
    "classification": ("accuracy", "f1_macro"),
    "ordinal": ("accuracy", "quadratic_weighted_kappa"),
    "regression": ("pearson", "spearmanr"),
    "multi_label": ("f1_micro", "f1_macro", "subset_accuracy"),
}


def load_known(config: DataConfig, splits: Sequence[str] | None, label_space: LabelSpace | None) -> TaskData:
    """A known task's splits, from `config.data_dir` or the folder that ATTENTUNE_DATA names.

    Args:
        config: the settings; `task` is given.
        splits: the splits to load ("validation" means each of MNLI's two); None loads all that are there, and train and
            validation must be.
        label_space: a trained model's labels, to map the task's labels to by name; None keeps the task's own.

    Raises:
        ConfigError: for an unknown task, or settings that a known task does not take.
        DataError: for missing or broken files.
        LabelError: for labels that the task or the given label space does not have.
    """
    spec = load_spec(config.task or "")
    task_type, note = decide_task_type(config, spec.task_type)
    space = _spec_space(spec, task_type)
    root = _root(config, spec)
    if label_space is not None:
        check_fits(space, label_space, str(root))
    paths = _find_files(spec, root, _wanted(spec, splits))
    same_kind = (task_type == "regression") == (spec.task_type == "regression")
    # Where classes are asked for as scores, the numbers in the file are the scores.
    reader = LabelReader(space, spec.label_values if same_kind else {}, spec.score_range, spec.missing_labels)
    rows: dict[str, TextRows] = {}
    notes = [note]
    for name, path in paths.items():
        read, more = _read_split(spec, name, path, reader)
        rows[name] = read if label_space is None else map_to(read, space, label_space)
        notes += more
    metrics = spec.metrics if same_kind else DEFAULT_METRICS[task_type]
    return TaskData(spec.name, label_space or space, metrics, rows, tuple(notes))


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
        raise ConfigError(
            f"data.data_dir: where are the files of {spec.name}? Give their folder with --data_dir, or set"
            f" {DATA_VARIABLE} to a folder that holds {_layout(spec)}. To get them: {spec.source}."
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


def find_known_file(task: str, split: str, data_dir: str | None) -> Path:
    """The file of one split of a known task, in `data_dir` or the folder that ATTENTUNE_DATA names.

    Raises:
        ConfigError: no folder is named.
        DataError: the folder or the file is not there.
    """
    spec = load_spec(task)
    return _find_files(spec, _root(DataConfig(task=task, data_dir=data_dir), spec), {split: True})[split]


def _layout(spec: TaskSpec) -> str:
    files = [split.files[0] for split in spec.splits.values()]
    return f"{spec.folders[0]}/ ({', '.join(files)})"


def _wanted(spec: TaskSpec, splits: Sequence[str] | None) -> dict[str, bool]:
    """The splits to load, and whether each must be there."""
    if splits is None:
        return {name: not split.optional for name, split in spec.splits.items()}
    wanted = [name for name in spec.splits for split in splits if name == split or name.startswith(f"{split}_")]
    for split in splits:
        if not any(name == split or name.startswith(f"{split}_") for name in spec.splits):
            raise ConfigError(f"{spec.name} has no split {split!r}. Its splits: {', '.join(spec.splits)}.")
    return dict.fromkeys(wanted, True)


def _find_files(spec: TaskSpec, root: Path, wanted: dict[str, bool]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name in wanted:
        tried = [root / folder / file for folder in spec.folders for file in spec.splits[name].files]
        path = next((path for path in tried if path.is_file()), None)
        if path is not None:
            found[name] = path
    missing = [name for name, must in wanted.items() if name not in found and (must or not found)]
    if missing:
        files = ", ".join(" or ".join(spec.splits[name].files) for name in missing)
        folders = "".join(f"\n  {root / folder}" for folder in spec.folders)
        raise DataError(
            f"no {', '.join(missing)} files of {spec.name} ({files}) found. Looked in:{folders}\n"
            f"To get them: {spec.source}.",
            path=root,
        )
    return found


def _read_split(spec: TaskSpec, name: str, path: Path, reader: LabelReader) -> tuple[TextRows, list[str]]:
    split = spec.splits[name]
    is_test = name.startswith("test")
    keep = {column for column in (split.text, split.pair, split.label, split.id, *IDS) if column is not None}
    dialect = Dialect("\t", spec.quoting, split.header, spec.drop_broken)
    table = read_delimited(path, dialect, keep=keep)
    for column in (split.text, split.pair, split.id):
        if column is not None:
            require_column(table, column, spec)
    notes = [_dropped_note(table.source, table.dropped, "missing or extra fields")] if table.dropped else []
    ids, note = row_ids(table, split.id, strict=False)
    notes += [note] if note else []
    if is_test and split.label not in table.columns:
        labels = None
    else:
        require_column(table, split.label, spec)
        if spec.drop_unlabelled and not is_test:
            missing = reader.missing_rows(table, split.label)
            # A file without any label is not the task's: the reader says so.
            if 0 < len(missing) < len(table):
                notes.append(_dropped_note(table.source, _lines(table, missing), "no label"))
                kept = sorted(set(range(len(table))) - set(missing))
                table, ids = table.take(kept), tuple(ids[row] for row in kept)
        labels = reader.read(table, split.label, is_test=is_test)
    pairs = None if split.pair is None else table.texts(split.pair)
    return TextRows(ids, table.texts(split.text), pairs, labels, table.source, table.lines), notes


def require_column(table: Table, column: str, spec: TaskSpec) -> None:
    """Check that a known task's file has this column.

    Raises:
        DataError: if not, with those that it has.
    """
    if column not in table.names:
        raise DataError(
            f"there is no column {column!r}, expected the file of {spec.title}. Columns here:"
            f" {', '.join(map(repr, table.names))}. To get the file: {spec.source}.",
            path=table.source,
        )


def _lines(table: Table, rows: Sequence[int]) -> tuple[int, ...]:
    return () if table.lines is None else tuple(table.lines[row] for row in rows)


def _dropped_note(path: str, lines: Sequence[int], why: str) -> str:
    shown = ", ".join(map(str, lines[:5])) + (", ..." if len(lines) > 5 else "")
    rows = "1 row was" if len(lines) == 1 else f"{len(lines)} rows were"
    return f"{path}: {rows} left out for {why} (line {shown}), as the task's published loaders do."
