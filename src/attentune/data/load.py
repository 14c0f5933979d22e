"""The loader: from settings to the checked rows of all splits.

`load_data` is the entry for any data and tells the story of one load:

    files or data set -> tables        (`files`, and here for data sets)
    table -> columns                   (`columns`)
    labels -> label space, label ids   (`labels`)
    columns + labels -> TextRows       (`columns.read_rows`)
    rows -> splits                     (this module: validation split, fold, calibration split, sample, extra rows)
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.builtin import DEFAULT_METRICS, label_reader, load_builtin, load_spec, of_splits
from attentune.data.columns import (
    Columns,
    candidates,
    check_columns,
    choose_columns,
    header_note,
    read_rows,
    with_columns,
    with_extra_kinds,
)
from attentune.data.dataset import CALIBRATION, LabelSpace, TaskData, TextRows, data_name, is_missing, some_names
from attentune.data.files import read_table
from attentune.data.labels import decide_task_type, find_space, label_reading, left_out_labels, task_type_doubt
from attentune.data.splits import fold_rows, split_rows, stratified_sample
from attentune.data.tables import Table, as_cell, check_names, listed
from attentune.data.text_formats import holds_sheets
from attentune.data.unlabelled import known_columns
from attentune.errors import ConfigError, DataError, LabelError, StorageError
from attentune.io.files import write_text
from attentune.plugins import require_extra

# The name of a data frame in messages.
FRAME = "data frame"
# Larger files are not read again to show texts of their rows.
MOST_SHOWN_BYTES = 200_000_000
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}


def read_dataset(config: DataConfig) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Read the train, validation and test splits of a dataset, in that order."""
    name = config.dataset_name or ""
    splits = _load(name, config.dataset_config_name)
    used = {ours: key for key in splits if (ours := _our_name(key)) is not None}
    if not used:
        raise DataError(
            f"its splits are {', '.join(splits)}, expected train, validation or test. Rename them, or save files"
            " and use --train_file.",
            path=name,
        )
    order = sorted(used, key=lambda ours: ("train", "validation", "test").index(ours.split("_")[0]))
    tables = {ours: _table(splits[used[ours]], f"{name}, split {used[ours]}") for ours in order}
    rest = [key for key in splits if _our_name(key) is None]
    return tables, (f"Splits of {name} that are not used: {', '.join(rest)}.",) if rest else ()


def read_split(name: str, config_name: str | None, split: str) -> Table | None:
    """Read one split of a dataset as a whole; None if it has no such split."""
    splits = _load(name, config_name)
    key = split if split in splits else next((key for key in splits if _our_name(key) == split), None)
    return None if key is None else _table(splits[key], f"{name}, split {key}")


def _our_name(key: str) -> str | None:
    """Map the name of a split to ours, or None if it is not used; "validation_matched" and the like are kept."""
    head, _, tail = key.partition("_")
    ours = _SPLITS.get(head.lower())
    return ours if ours is None or not tail else f"{ours}_{tail}"


def _load(name: str, config_name: str | None) -> Mapping[str, Any]:
    require_extra("hub", "datasets", what="data.dataset_name")
    import datasets

    folder = Path(name).expanduser()
    try:
        # A folder from save_to_disk has one of these files; other folders are loaded by load_dataset.
        if any((folder / file).is_file() for file in ("dataset_dict.json", "dataset_info.json", "state.json")):
            if config_name is not None:
                raise ConfigError("data.dataset_config_name: a data set from a folder has none. Leave it out.")
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(str(folder) if folder.is_dir() else name, config_name)
    except ConfigError:
        raise
    except Exception as error:
        # `datasets` raises many types of errors, also of its dependencies.
        reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        raise DataError(
            f"this data set cannot be loaded: {reason}. Check the name, the configuration (--dataset_config_name)"
            " and the connection; a folder has to hold the files of save_to_disk, or .csv, .jsonl or .parquet files.",
            path=name,
        ) from error
    splits = {"train": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    files = sorted(folder.glob("**/*.csv")) if folder.is_dir() else []
    joined = [column for split in splits.values() for column in split.column_names if set(column) & set(";\t|")]
    if files and joined:  # datasets would split texts at their commas
        raise DataError(
            f"its .csv files are not separated by commas, which datasets expects: the first column is {joined[0]!r}."
            f" Give the files themselves, whose separators are found: --train_file {files[0]}",
            path=name,
        )
    return splits


def _table(split: Any, source: str) -> Table:
    import datasets
    import pyarrow as pa

    if len(split) == 0:
        raise DataError("holds no rows.", path=source)
    try:
        split.data.validate(full=True)  # wrong offsets in a file that is mapped to memory would end the process
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"a file is damaged ({str(error)[:200]}). Save or load the data set again.", path=source
        ) from error
    columns: dict[str, list[Any]] = {}
    class_names: dict[str, tuple[str, ...]] = {}
    for name, feature in split.features.items():
        inner = getattr(feature, "feature", feature)  # of a list
        if isinstance(inner, datasets.ClassLabel):
            class_names[name] = tuple(inner.names)
            names: dict[Any, Any] = {**dict(enumerate(inner.names)), -1: None, None: None}
            is_one = inner is feature
            columns[name] = [names[cell] if is_one else [*map(names.get, cell or ())] for cell in split[name]]
        elif isinstance(inner, datasets.Value):
            columns[name] = [as_cell(cell) if inner is feature else cell and list(cell) for cell in split[name]]
        else:
            # Nested lists, images and the like are not decoded; they are an error only if a setting names them.
            columns[name] = [feature] * len(split)
    return Table(source, tuple(columns), columns, len(split), class_names=class_names)


_SOURCES = (
    "Data comes from one of three sources: a built-in task (--task NAME --data_dir FOLDER; `attentune list tasks` lists"
    " them), your own files (--train_file FILE, --validation_file, --test_file), or a Hugging Face data set"
    " (--dataset_name NAME)."
)
_COLUMN_SETTINGS = (
    "text_column",
    "text_pair_column",
    "label_column",
    "id_column",
    "extra_columns",
    "label_names",
    "label_separator",
    "ignore_labels",
)


def load_data(
    config: DataConfig,
    *,
    seed: int,
    splits: Sequence[str] | None = None,
    label_space: LabelSpace | None = None,
    allow_doubt: bool = False,
    frame: Any = None,
) -> TaskData:
    """Read and check the rows of a task.

    Args:
        config: where the data is and how to read it. `max_train_samples` and `max_eval_samples` limit train and the
            validation splits to a stratified sample; the rows of `extra_train_files` are added to train.
        seed: seeds splits and the sample of train; the sample of a given validation split is the same for every seed.
        splits: the splits to load ("validation" includes "validation_matched" and the like, "calibration" exists if
            `config` asks for it); None loads all.
        label_space: the labels of a trained model, to which labels are mapped by name; None takes them from the task
            or the training rows.
        allow_doubt: whether numbers that may be scores are read as classes, with `TaskData.doubt`, instead of refused.
        frame: a data frame (pandas, Polars) of training rows, read in place of the files that `config` names.

    Returns:
        The rows of each split, and notes on what was decided automatically.

    Raises:
        ConfigError: for settings that do not go together.
        DataError: for missing or broken files, with path and line.
        LabelError: for missing or unknown labels.
    """
    _check_source(config, frame)
    needed = _splits_to_read(splits, config)
    if config.task is not None:
        data = load_builtin(config, needed, label_space)
    else:
        in_memory = {} if frame is None else {"train": frame_table(frame)}
        tables, notes = (in_memory, ()) if in_memory else _read_tables(config, needed, label_space)
        data = _load_custom(tables, config, seed=seed, splits=needed, label_space=label_space)
        if data.doubt is not None and not allow_doubt:
            raise LabelError(" ".join(data.doubt), path=next(iter(tables.values())).source)
        data = replace(data, notes=notes + data.notes)
    data = _with_fold(data, config)
    data = with_calibration(data, config, seed)
    if splits is not None:
        # Drop the splits that were only read to make the others.
        wanted = {name: rows for name, rows in data.splits.items() if {name, name.split("_")[0]} & set(splits)}
        data = replace(data, splits=wanted)
    return with_extra(_sampled(data, config, seed), config)


def check_shown(config: DataConfig, reader: str) -> None:
    """Refuse to read rows again, to show their texts, from the Hugging Face hub or a large file."""
    if config.dataset_name is not None:
        raise DataError(f"{reader} does not load the data set {config.dataset_name}.")
    files = [Path(name) for name in (config.train_file, config.validation_file, config.test_file) if name is not None]
    if large := [file.name for file in files if file.is_file() and file.stat().st_size > MOST_SHOWN_BYTES]:
        raise DataError(f"{reader} does not read {large[0]}: it is larger than {MOST_SHOWN_BYTES / 1e6:.0f} MB.")


def frame_table(frame: Any) -> Table:
    """Return the table of a data frame, with missing values as null."""
    names = tuple(map(str, frame.columns))
    check_names(names, FRAME)
    if not len(frame):
        raise DataError("has no rows. Add rows.", path=FRAME)
    columns = {
        name: tuple(
            None if is_missing(value) else as_cell(value.item() if isinstance(value, np.generic) else value)
            for value in frame[column]
        )
        for name, column in zip(names, frame.columns, strict=True)
    }
    return Table(FRAME, names, columns, len(frame))


def _check_source(config: DataConfig, frame: Any) -> None:
    files = [name for name in ("train_file", "validation_file", "test_file") if getattr(config, name) is not None]
    sources = [name for name in ("task", "dataset_name") if getattr(config, name) is not None] + files[:1]
    sources += [] if frame is None else [FRAME]
    problems = []
    if len(sources) != 1:
        got = f"got {' and '.join(sources)} together" if sources else "got none"
        problems.append(f"data: {got}, expected one source. {_SOURCES}")
    for name, needed in (("data_dir", "task"), ("dataset_config_name", "dataset_name")):
        if getattr(config, name) is not None and getattr(config, needed) is None:
            problems.append(f"data.{name}: goes with --{needed}.")
    if sources == ["task"]:
        problems += [
            f"data.{name}: is for custom data; the task {config.task} defines it. Leave it out."
            for name in _COLUMN_SETTINGS
            if getattr(config, name) is not None
        ]
    if problems:
        raise ConfigError(problems)


def _splits_to_read(splits: Sequence[str] | None, config: DataConfig) -> tuple[str, ...] | None:
    """The splits to read from the source; folds and the calibration split are made of train."""
    if splits is None:
        return None
    needed = tuple(split for split in splits if split != CALIBRATION)
    if config.folds is None:
        return needed
    others = tuple(split for split in needed if split.split("_")[0] not in ("train", "validation"))
    return needed if others == needed else ("train", *others)


def _read_tables(
    config: DataConfig, splits: Sequence[str] | None, label_space: LabelSpace | None
) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Read the tables of custom data by split; train also for the classes, and to cut validation rows."""
    if config.dataset_name is not None:
        return read_dataset(config)
    files = {"train": config.train_file, "validation": config.validation_file, "test": config.test_file}
    needed = set(files if splits is None else splits)
    if label_space is None or ("validation" in needed and config.validation_file is None):
        needed.add("train")
    paths = {split: path for split, path in files.items() if path is not None and split in needed}
    if not paths:
        settings = " or ".join(f"--{split}_file" for split in splits or ())
        raise ConfigError(f"data: no file is given for {', '.join(splits or ())}. Give it with {settings}.")
    if config.sheet is not None and not any(holds_sheets(path) for path in paths.values()):
        named = ", ".join(sorted(set(paths.values())))
        raise ConfigError(f"--sheet: got {config.sheet!r}, but {named} has no sheets; leave it out.")
    tables = {split: read_table(path, config=config) for split, path in paths.items()}
    return tables, tuple(note for table in tables.values() for note in table.notes)


def _load_custom(
    tables: Mapping[str, Table],
    config: DataConfig,
    *,
    seed: int,
    splits: Sequence[str] | None,
    label_space: LabelSpace | None,
) -> TaskData:
    first = next(iter(tables))
    want_label = not first.startswith("test")
    try:
        columns, named = choose_columns(tables[first], config, want_label=want_label)
    except DataError as error:
        if holds_sheets(tables[first].source):
            error.args = (" ".join((str(error), *tables[first].notes)),)
        raise
    cleaned = {}
    for split, table in tables.items():
        labels = () if split.startswith("test") else columns.labels
        cleaned[split], told = without_broken_rows(table, labels, is_skipped=config.skip_broken_rows)
        named = (*named, *told)
    tables = cleaned
    columns, kinds = with_extra_kinds(columns, tables[first])
    named = (*named, *kinds)
    space, notes, doubt = _label_space(tables, columns, config, label_space)
    left_out = left_out_labels(space.names, config.ignore_labels)
    reader = label_reader(None, space, config.label_separator, left_out)
    if label_space is None and len(columns.labels) > 1 and space.task_type in ("classification", "ordinal"):
        # Votes or probabilities, for all splits: cells of 0 and 1 alone may be either.
        known = config.label_names or ()
        reader = replace(reader, reading=label_reading(tables[first], columns.labels, space.task_type, known))
    rows: dict[str, TextRows] = {}
    notes = [*named, *notes]
    for split, table in tables.items():
        is_test = split.startswith("test")
        if split != first and (note := header_note(table, with_columns(config, columns.settings()))) is not None:
            notes.append(note)
        has_labels = not is_test or set(columns.labels) <= set(table.names)
        own = columns if has_labels else replace(columns, label=None)
        check_columns(own, table.names, table.source)
        rows[split], split_notes = read_rows(table, own, reader, is_test=is_test)
        notes += split_notes
    has_validation = config.validation_file is not None or any(split.startswith("validation") for split in rows)
    cuts = config.validation_share > 0 and config.folds is None
    if cuts and "train" in rows and not has_validation:
        train, cut, note = _cut(rows.pop("train"), config.validation_share, seed, "validation", "for it")
        rows = {"train": train, "validation": cut, **rows}
        notes.append(f"There is no validation file: {note}")
    metrics = DEFAULT_METRICS[space.task_type]
    read = columns.settings()
    name = data_name(
        {"dataset_name": config.dataset_name, "train_file": getattr(config, f"{first}_file", tables[first].source)}
    )
    return TaskData(name, space, metrics, of_splits(rows, splits, "this data"), tuple(notes), doubt, read)


def _label_space(
    tables: Mapping[str, Table], columns: Columns, config: DataConfig, label_space: LabelSpace | None
) -> tuple[LabelSpace, list[str], tuple[str, str] | None]:
    """Return the labels, notes on them, and why they may be scores instead (`task_type_doubt`)."""
    if label_space is not None:
        if config.task_type not in (None, label_space.task_type):
            raise ConfigError(
                f"data.task_type: got {config.task_type}, but the model was trained for {label_space.task_type}."
            )
        return label_space, [], None
    several = len(columns.labels) > 1 and config.task_type != "regression"
    reading = label_reading(next(iter(tables.values())), columns.labels, config.task_type) if several else None
    task_type, note = decide_task_type(config, columns=len(columns.labels), reading=reading)
    if columns.label is None:
        if task_type != "regression" and not config.label_names:
            raise LabelError("there are no labels to find the classes in. Give a train_file, or label_names.")
        return LabelSpace(task_type, config.label_names or ()), [note], None
    split = next(iter(tables))
    table = tables[split]
    space, notes = find_space(task_type, config, table, columns.label)
    if space.names:
        where = "" if split == "train" else f" (found in {split}, as there is no train)"
        what = "labels" if space.is_multilabel else "classes"
        notes = (f"{len(space.names)} {what} in the order of their ids: {some_names(space.names)}{where}.", *notes)
    is_settled = config.task_type or config.label_names or reading or columns.label in table.class_names
    doubt = None if is_settled or task_type != "classification" else task_type_doubt(space.names, columns.label)
    if doubt is not None and config.label_column is None:
        others = candidates(table, (*columns.labels, *columns.texts, columns.id), "label")[0]
        named = f" Or name another column: {', '.join(f'--label_column {name}' for name in others)}." if others else ""
        doubt = doubt[0], f"{doubt[1]}{named}"
    return space, [note, *notes], doubt


def _cut(train: TextRows, share: float, seed: int, split: str, what: str) -> tuple[TextRows, TextRows, str]:
    """Cut a stratified part of train for another split, not from extra rows; return the rest, the part and a note."""
    original = train.original_rows
    if len(original) < 2 or train.labels is None:
        raise DataError(
            f"holds fewer than two labelled rows, so no {split} part can be cut. Give a {split}_file.",
            path=train.source,
        )
    _, places, kept = split_rows(train.take(original), share, seed, split)
    remaining = np.setdiff1d(np.arange(len(train)), original[places])
    note = (
        f"{len(places)} of the {len(train)} training rows were cut {what} ({split}_share {share:g}, stratified, seed"
        f" {seed}), {len(remaining)} are left to train on.{kept}"
    )
    return train.take(remaining), train.take(original[places]), note


def _with_fold(data: TaskData, config: DataConfig) -> TaskData:
    """Make fold `config.fold` the validation split, and the others train; they depend on rows and `fold_seed` only."""
    train = data.splits.get("train")
    if config.folds is None or train is None:
        return data
    if config.fold is None:
        raise ConfigError(
            "data.folds: needs the number of the fold to score on: --fold 1, and so on; attentune compare --folds runs"
            " all of them."
        )
    if train.labels is None or len(train) < config.folds:
        raise DataError(
            f"has {len(train)} labelled rows, fewer than the {config.folds} parts to cut them in. Take fewer --folds.",
            path=train.source,
        )
    folds, kept = fold_rows(train, config.folds, "folds", config.fold_seed)
    scored = folds[config.fold - 1]
    trained = np.setdiff1d(np.arange(len(train)), scored)
    dropped = [split for split in data.splits if split.startswith("validation")]
    others = {split: rows for split, rows in data.splits.items() if split != "train" and split not in dropped}
    note = (
        f"Fold {config.fold} of {config.folds}: {len(scored)} of the {len(train)} training rows are scored on, the"
        f" other {len(trained)} trained on (stratified, fold_seed {config.fold_seed}).{kept}"
    )
    if dropped:
        note += f" The rows of {' and '.join(dropped)} are not used."
    splits = {"train": train.take(trained), "validation": train.take(scored), **others}
    return replace(data, splits=splits, notes=(*data.notes, note))


def with_calibration(data: TaskData, config: DataConfig, seed: int) -> TaskData:
    """Add a split "calibration" after train, if the settings ask for one and train exists."""
    train = data.splits.get("train")
    is_wanted = config.calibration_share is not None or config.calibration_file is not None
    if train is None or CALIBRATION in data.splits or not is_wanted:
        return data
    if config.calibration_file is not None:
        calibration, _ = read_extra(config.calibration_file, config, data)
        note = f"{len(calibration)} rows to calibrate on come from {config.calibration_file}."
    else:
        share = config.calibration_share or 0.0
        train, calibration, note = _cut(train, share, seed, CALIBRATION, "to calibrate on")
    others = {split: rows for split, rows in data.splits.items() if split != "train"}
    return replace(data, splits={"train": train, CALIBRATION: calibration, **others}, notes=(*data.notes, note))


def _sampled(data: TaskData, config: DataConfig, seed: int) -> TaskData:
    limits = {"train": config.max_train_samples, "validation": config.max_eval_samples}
    splits, notes = dict(data.splits), list(data.notes)
    for split, rows in data.splits.items():
        size = limits.get(split.split("_")[0])
        if size is None or size >= len(rows):
            continue
        # All seeds are scored on the same rows, so that the tests of a comparison can pair them.
        key, drawn = (seed, f", seed {seed}") if split == "train" else (0, "")
        places = stratified_sample(rows.labels, size, key, "part", split, num_rows=len(rows))
        splits[split] = rows.take(places)
        notes.append(f"Only {size} of the {len(rows)} rows of {split} are used (stratified{drawn}).")
    return replace(data, splits=splits, notes=tuple(notes))


def without_broken_rows(table: Table, labels: Sequence[str], *, is_skipped: bool) -> tuple[Table, tuple[str, ...]]:
    """Find rows that repeat the names of the columns and, where rows are skipped, those without a label."""
    what = "row" if table.lines is None else "line"
    places: Sequence[int] = table.lines or range(table.first_row, table.first_row + len(table))
    reasons = dict.fromkeys(_repeated(table), "repeats the names of the columns")
    if not is_skipped:
        if not reasons:
            return table, ()
        shown, several = listed(places[row] for row in reasons), len(reasons) > 1
        return table, (
            f"{table.source}: the names of the columns are repeated in {what}{'s' * several} {shown}, read as"
            f" {'rows' if several else 'a row'}. If files were put together, --skip_broken_rows leaves such rows out.",
        )
    given = [table.columns[name] for name in labels if name in table.columns]
    for row, cells in enumerate(zip(*given, strict=True)):
        if all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells):
            reasons.setdefault(row, "no label")
    rows = [(places[row], reasons[row], [cells[row] for cells in table.columns.values()]) for row in reasons]
    left_out = sorted((*table.left_out, *rows), key=lambda entry: entry[0])
    if not left_out or len(reasons) == len(table):
        # Rows none of which has a label stay, so that they are refused.
        return table, ()
    kept = table.take([row for row in range(len(table)) if row not in reasons])
    few = listed(f"{line} ({reason})" for line, reason, _ in left_out)
    count_text = "1 row is" if len(left_out) == 1 else f"{len(left_out):,} rows are"
    where = f"; written to {_written(table, what, left_out)}" if Path(table.source).is_file() else ""
    return replace(kept, left_out=()), (f"{table.source}: {count_text} left out, {what} {few}{where}.",)


def _repeated(table: Table) -> list[int]:
    """Return the rows that repeat the column names, ignoring case, spaces and a byte-order mark."""
    if len(table.names) < 2 or len(table.columns) < len(table.names):
        return []

    def plain(cell: Any) -> str | None:
        return cell.removeprefix("\ufeff").strip().lower() if isinstance(cell, str) else None

    names, cells = [*map(plain, table.names)], [table.columns[name] for name in table.names]
    first = [row for row, cell in enumerate(cells[0]) if plain(cell) == names[0]]
    return [row for row in first if [plain(column[row]) for column in cells] == names]


def _written(table: Table, what: str, left_out: Sequence[tuple[int, str, Any]]) -> Path:
    """Write rows beside their file, or to the folder of temporary files where that cannot be written to."""
    lines = [json.dumps({what: line, "reason": why, "cells": cells}, default=str) for line, why, cells in left_out]
    path = Path(table.source)
    file, content = path.with_name(f"{path.name}.left_out.jsonl"), "".join(f"{line}\n" for line in lines)
    try:
        write_text(file, content)
    except (StorageError, OSError):
        file = Path(tempfile.gettempdir()) / file.name
        write_text(file, content)
    return file


def with_extra(data: TaskData, config: DataConfig) -> TaskData:
    """Add the rows of `config.extra_train_files` after those of train, once all splits have been made."""
    train = data.splits.get("train")
    if train is None or train.labels is None or train.sources is not None or not config.extra_train:
        return data
    if train.targets is not None or train.extra:
        what, files = "columns" if train.extra else "soft labels", ", ".join(file for file, _ in config.extra_train)
        raise DataError(
            f"got {what} and data.extra_train_files, whose rows have texts and labels only; expected one of them. Leave"
            f" out {files}.",
            path=train.source,
        )
    extra, told, mixed = list[TextRows](), list[str](), list[str]()
    for file, weight in config.extra_train:
        rows, notes = read_extra(file, config, data)
        extra.append(rows if weight == 1 else replace(rows, weights=np.full(len(rows), weight)))
        told += notes
        mixed.append(
            f"Mixed into the {len(train)} rows of train: {len(rows)} of {rows.source}, each with weight {weight:g}."
        )
    splits = {**data.splits, "train": train.joined(*extra)}
    return replace(data, splits=splits, notes=(*data.notes, *told, *mixed))


def read_extra(path: str, config: DataConfig, data: TaskData) -> tuple[TextRows, tuple[str, ...]]:
    """Read the labelled rows of one extra file for a task."""
    space = data.label_space
    spec = load_spec(config.task) if config.task is not None else None
    table = read_table(path, config=config)
    columns, _ = known_columns(table, config, is_pair=data.is_pair, spec=spec, want_label=True)
    table, notes = without_broken_rows(table, columns.labels, is_skipped=config.skip_broken_rows)
    left_out = left_out_labels(space.names, config.ignore_labels)
    rows, _ = read_rows(table, columns, label_reader(spec, space, config.label_separator, left_out))
    return rows, notes
