"""The loader: from settings to the checked rows of all splits.

`load_data` is the entry for any data and tells the story of one load:

    files or data set -> tables        (`readers`)
    table -> columns                   (`columns`)
    labels -> label space, label ids   (`labels`)
    columns + labels -> TextRows       (`columns.read_rows`)
    rows -> splits                     (this module: validation split, fold, calibration split, sample, extra rows)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.builtin import DEFAULT_METRICS, label_reader, load_builtin
from attentune.data.columns import Columns, choose_columns, read_rows, require, with_own_names
from attentune.data.dataset import CALIBRATION, LabelSpace, TaskData, TextRows, data_name, some_names
from attentune.data.extra import with_extra, without_broken_rows
from attentune.data.guesses import label_candidates, with_guessed_columns
from attentune.data.headers import header_note
from attentune.data.labels import decide_task_type, find_space, left_out_labels, task_type_doubt
from attentune.data.readers.formats import FileOptions
from attentune.data.readers.hub import read_dataset
from attentune.data.readers.read import holds_tables, read_table
from attentune.data.readers.table import Table
from attentune.data.splits import fold_rows, split_rows, stratified_sample
from attentune.errors import ConfigError, DataError, LabelError

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
    cut_validation: bool = True,
    allow_doubt: bool = False,
) -> TaskData:
    """Read and check the rows of a task.

    Args:
        config: where the data is and how to read it. `max_train_samples` and `max_eval_samples` limit train and the
            validation splits to a stratified sample; the rows of `extra_train_files` are added to train.
        seed: seeds splits and samples; the same seed takes the same rows.
        splits: the splits to load ("validation" includes "validation_matched" and the like, "calibration" exists if
            `config` asks for it); None loads all.
        label_space: the labels of a trained model, to which labels are mapped by name; None takes them from the task
            or the training rows.
        cut_validation: whether validation rows are split off train if there are none.
        allow_doubt: whether numbers that may be scores are read as classes, with `TaskData.doubt`, instead of refused.

    Returns:
        The rows of each split, and notes on what was decided automatically.

    Raises:
        ConfigError: for settings that do not go together.
        DataError: for missing or broken files, with path and line.
        LabelError: for missing or unknown labels.
    """
    _check_source(config)
    needed = _splits_to_read(splits, config)
    if config.task is not None:
        data = load_builtin(config, needed, label_space)
    else:
        tables, notes = _read_tables(config, needed, label_space)
        data = _load_custom(
            tables, config, seed=seed, splits=needed, label_space=label_space, cut_validation=cut_validation
        )
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


def _check_source(config: DataConfig) -> None:
    """Check that exactly one source is given, and that the other settings go with it."""
    files = [name for name in ("train_file", "validation_file", "test_file") if getattr(config, name) is not None]
    sources = [name for name in ("task", "dataset_name") if getattr(config, name) is not None] + files[:1]
    problems = []
    if len(sources) != 1:
        got = f"got {' and '.join(sources)} together" if sources else "got none"
        problems.append(f"data: {got}, expected one source. {_SOURCES}")
    if config.data_dir is not None and config.task is None:
        problems.append("data.data_dir: is the folder of a built-in task, so it goes with --task.")
    if config.dataset_config_name is not None and config.dataset_name is None:
        problems.append("data.dataset_config_name: goes with --dataset_name.")
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
    """Read the tables of custom data, by split in the order train, validation, test, and notes on them.

    Train is also read where the classes are not known yet, or where the validation split is taken from it.
    """
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
    if config.table is not None and not any(holds_tables(path) for path in paths.values()):
        named = ", ".join(sorted(set(paths.values())))
        raise ConfigError(f"--table: got {config.table!r}, but {named} has no tables or sheets; leave it out.")
    tables = {split: read_table(path, options=FileOptions.of(config)) for split, path in paths.items()}
    return tables, tuple(note for table in tables.values() for note in table.notes)


def _load_custom(
    tables: Mapping[str, Table],
    config: DataConfig,
    *,
    seed: int,
    splits: Sequence[str] | None,
    label_space: LabelSpace | None,
    cut_validation: bool = True,
) -> TaskData:
    """Make checked rows from the tables of custom data."""
    first = next(iter(tables))
    want_label = not first.startswith("test")
    config = with_own_names(tables[first].names, config)
    try:
        config, held = with_guessed_columns(tables[first], config, want_label=want_label)
        columns, named = choose_columns(tables[first].names, config, tables[first].source, want_label=want_label)
    except DataError as error:
        if holds_tables(tables[first].source):
            error.args = (" ".join((str(error), *tables[first].notes)),)
        raise
    cleaned = {}
    for split, table in tables.items():
        labels = () if split.startswith("test") else columns.labels
        cleaned[split], told = without_broken_rows(table, labels, is_skipped=config.skip_broken_rows)
        named = (*named, *told)
    tables = cleaned
    space, notes, doubt = _label_space(tables, columns, config, label_space)
    left_out = left_out_labels(space.names, config.ignore_labels)
    reader = label_reader(None, space, config.label_separator, left_out)
    rows: dict[str, TextRows] = {}
    notes = [*named, *held, *notes]
    for split, table in tables.items():
        is_test = split.startswith("test")
        if split != first and (note := header_note(table, config)) is not None:
            notes.append(note)
        rows[split], split_notes = read_rows(table, _required(columns, table, is_test), reader, is_test=is_test)
        notes += split_notes
    has_validation = config.validation_file is not None or any(split.startswith("validation") for split in rows)
    if cut_validation and "train" in rows and not has_validation and config.folds is None:
        rows, note = _with_validation(rows, config, seed)
        notes.append(note)
    metrics = DEFAULT_METRICS[space.task_type]
    read = columns.settings()
    name = data_name(
        {"dataset_name": config.dataset_name, "train_file": getattr(config, f"{first}_file", tables[first].source)}
    )
    return TaskData(name, space, metrics, _selected(rows, splits), tuple(notes), doubt, read)


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
    task_type, note = decide_task_type(config, None, columns=len(columns.labels))
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
    is_settled = config.task_type or config.label_names or columns.label in table.class_names
    doubt = None if is_settled or task_type != "classification" else task_type_doubt(space.names, columns.label)
    if doubt is not None and config.label_column is None:
        others = label_candidates(table, config, but=(columns.label, columns.text, columns.pair))
        named = f" Or name another column: {', '.join(f'--label_column {name}' for name in others)}." if others else ""
        doubt = doubt[0], f"{doubt[1]}{named}"
    return space, [note, *notes], doubt


def _required(columns: Columns, table: Table, is_test: bool) -> Columns:
    """The columns, each of which the table has; a test table may lack the label."""
    settings = {"text": "--text_column", "pair": "--text_pair_column", "id": "--id_column", "label": "--label_column"}
    if is_test and not set(columns.labels) <= set(table.names):
        columns = replace(columns, label=None)
    for name, flag in settings.items():
        column = getattr(columns, name)
        if column is not None:
            require(table.names, column, table.source, flag)
    return columns


def _with_validation(rows: Mapping[str, TextRows], config: DataConfig, seed: int) -> tuple[dict[str, TextRows], str]:
    """Split the validation rows off train; the result has them after train, and comes with a note."""
    train = rows["train"]
    if len(train) < 2 or train.labels is None:
        raise DataError("holds one row, so no validation part can be cut. Give a validation_file.", path=train.source)
    remaining, cut, kept = split_rows(train, config.validation_share, seed, "validation")
    others = {split: part for split, part in rows.items() if split != "train"}
    note = (
        f"There is no validation file: {len(cut)} of the {len(train)} training rows were cut for it (validation_share"
        f" {config.validation_share:g}, stratified, seed {seed}), {len(remaining)} are left to train on.{kept}"
    )
    return {"train": train.take(remaining), "validation": train.take(cut), **others}, note


def _selected(rows: Mapping[str, TextRows], splits: Sequence[str] | None) -> dict[str, TextRows]:
    if splits is None:
        return dict(rows)
    for split in splits:
        if not any(name == split or name.startswith(f"{split}_") for name in rows):
            raise ConfigError(f"there is no split {split!r} in this data. Its splits: {', '.join(rows)}.")
    return {name: part for name, part in rows.items() if any(name == s or name.startswith(f"{s}_") for s in splits)}


def _with_fold(data: TaskData, config: DataConfig) -> TaskData:
    """Split train into `config.folds` stratified folds: validation is fold `config.fold`, train is the others.

    The folds depend on the rows and `config.fold_seed` only. Existing validation rows are dropped, so that they stay
    unseen.
    """
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
    if train is None or (config.calibration_share is None and config.calibration_file is None):
        return data
    if config.calibration_file is not None:
        calibration = _read_calibration(data, config, config.calibration_file, seed)
        note = f"{len(calibration)} rows to calibrate on come from {config.calibration_file}."
    else:
        original = train.original_rows
        if len(original) < 2 or train.labels is None:
            raise DataError(
                "holds fewer than two labelled rows, so none can be cut to calibrate on.", path=train.source
            )
        _, places, kept = split_rows(train.take(original), config.calibration_share or 0.0, seed, CALIBRATION)
        cut = original[places]
        remaining = np.setdiff1d(np.arange(len(train)), cut)
        note = (
            f"{len(cut)} of the {len(train)} training rows were cut to calibrate on (calibration_share"
            f" {config.calibration_share:g}, stratified, seed {seed}), {len(remaining)} are left to train on.{kept}"
        )
        train, calibration = train.take(remaining), train.take(cut)
    others = {split: rows for split, rows in data.splits.items() if split != "train"}
    return replace(data, splits={"train": train, CALIBRATION: calibration, **others}, notes=(*data.notes, note))


def _read_calibration(data: TaskData, config: DataConfig, path: str, seed: int) -> TextRows:
    custom = replace(config, task=None, task_type=None, validation_file=path)
    tables = {"validation": read_table(path, options=FileOptions.of(config))}
    read = _load_custom(tables, custom, seed=seed, splits=("validation",), label_space=data.label_space)
    rows = read.splits["validation"]
    if rows.labels is None or len(rows) == 0:
        raise DataError("has no labelled rows to calibrate on.", path=path)
    if (rows.pairs is not None) != data.is_pair:
        kinds = ("single texts", "pairs of texts")
        raise DataError(
            f"got {kinds[rows.pairs is not None]}, but the rows to train on are {kinds[data.is_pair]}. Give it rows of"
            " that kind (--text_column and --text_pair_column name the texts).",
            path=path,
        )
    return rows


def _sampled(data: TaskData, config: DataConfig, seed: int) -> TaskData:
    """Limit train and the validation splits to `max_train_samples` and `max_eval_samples` rows."""
    limits = {"train": config.max_train_samples, "validation": config.max_eval_samples}
    splits: dict[str, TextRows] = {}
    notes = list(data.notes)
    for split, rows in data.splits.items():
        size = limits.get(split.split("_")[0])
        if size is None or size >= len(rows):
            splits[split] = rows
            continue
        places = stratified_sample(rows.labels, size, seed, "part", split, num_rows=len(rows))
        splits[split] = rows.take(places)
        notes.append(f"Only {size} of the {len(rows)} rows of {split} are used (stratified, seed {seed}).")
    return replace(data, splits=splits, notes=tuple(notes))
