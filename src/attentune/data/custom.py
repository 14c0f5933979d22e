"""From the tables of a user's own data to checked rows: columns, ids, labels, and a validation part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attentune.config.schema import DataConfig
from attentune.data.builtin import DEFAULT_METRICS
from attentune.data.columns import Columns, choose_columns, require, row_ids
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.labels import LabelReader, decide_task_type, find_space
from attentune.data.readers.read import read_table
from attentune.data.readers.table import Table
from attentune.data.splits import stratified_split
from attentune.errors import ConfigError, DataError, LabelError

CUSTOM_NAME = "own"


def read_custom_files(
    config: DataConfig, splits: Sequence[str] | None, label_space: LabelSpace | None = None
) -> dict[str, Table]:
    """The tables of `train_file`, `validation_file` and `test_file`, as far as they are given and needed.

    Whatever splits are asked for, the training rows are needed where the classes are not known yet, or where the
    validation part is cut from them.

    Raises:
        ConfigError: if none of the files has rows of the splits asked for.
        DataError: for a file that cannot be read.
    """
    files = {"train": config.train_file, "validation": config.validation_file, "test": config.test_file}
    needed = set(files if splits is None else splits)
    if label_space is None or ("validation" in needed and config.validation_file is None):
        needed.add("train")
    chosen = {split: path for split, path in files.items() if path is not None and split in needed}
    if not chosen:
        settings = " or ".join(f"--{split}_file" for split in splits or ())
        raise ConfigError(f"data: no file is given for {', '.join(splits or ())}. Give it with {settings}.")
    return {split: read_table(path) for split, path in chosen.items()}


def load_custom(
    tables: Mapping[str, Table],
    config: DataConfig,
    *,
    seed: int,
    splits: Sequence[str] | None,
    label_space: LabelSpace | None,
) -> TaskData:
    """Checked rows from tables of a user's own data.

    Args:
        tables: a table a split, in the order train, validation, test.
        config: the settings.
        seed: decides which rows of train become the validation part, where there is none.
        splits: the splits to return; None returns all.
        label_space: a trained model's labels, to read the labels as; None finds them in train.

    Raises:
        ConfigError: for settings that do not fit the data, or a split that there is not.
        DataError: for columns that are missing and rows that are broken.
        LabelError: for labels that are missing or unknown.
    """
    first = next(iter(tables))
    columns, guessed = choose_columns(
        tables[first].names, config, tables[first].source, want_label=not first.startswith("test")
    )
    space, notes = _label_space(tables, columns, config, label_space)
    reader = LabelReader(space, separator=config.label_separator)
    rows: dict[str, TextRows] = {}
    notes = [*guessed, *notes]
    for split, table in tables.items():
        rows[split], note = _rows(table, columns, reader, is_test=split.startswith("test"))
        notes += [note] if note else []
    has_validation = config.validation_file is not None or any(split.startswith("validation") for split in rows)
    if "train" in rows and not has_validation and config.folds is None:
        rows, note = _cut(rows, config, seed)
        notes.append(note)
    return TaskData(CUSTOM_NAME, space, DEFAULT_METRICS[space.task_type], _chosen(rows, splits), tuple(notes))


def _label_space(
    tables: Mapping[str, Table], columns: Columns, config: DataConfig, label_space: LabelSpace | None
) -> tuple[LabelSpace, list[str]]:
    if label_space is not None:
        if config.task_type not in (None, label_space.task_type):
            raise ConfigError(
                f"data.task_type: got {config.task_type}, but the model was trained for {label_space.task_type}."
            )
        return label_space, []
    task_type, note = decide_task_type(config, None)
    if columns.label is None:
        if task_type != "regression" and not config.label_names:
            raise LabelError("there are no labels to find the classes in. Give a train_file, or label_names.")
        return LabelSpace(task_type, config.label_names or ()), [note]
    split = next(iter(tables))
    space, notes = find_space(task_type, config, tables[split], columns.label)
    if space.names:
        where = "" if split == "train" else f" (found in {split}, as there is no train)"
        notes = (f"Classes in the order of their ids: {_shown(space.names)}{where}.", *notes)
    return space, [note, *notes]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f", and {len(names) - 20} more" if len(names) > 20 else "")


def _rows(table: Table, columns: Columns, reader: LabelReader, *, is_test: bool) -> tuple[TextRows, str | None]:
    require(table.names, columns.text, table.source, "--text_column")
    if columns.pair is not None:
        require(table.names, columns.pair, table.source, "--text_pair_column")
    if columns.id is not None:
        require(table.names, columns.id, table.source, "--id_column")
    labels = None
    if columns.label is not None and (columns.label in table.names or not is_test):
        require(table.names, columns.label, table.source, "--label_column")
        labels = reader.read(table, columns.label, is_test=is_test)
    ids, note = row_ids(table, columns.id)
    pairs = None if columns.pair is None else table.texts(columns.pair)
    return TextRows(ids, table.texts(columns.text), pairs, labels, table.source, table.lines), note


def _cut(rows: Mapping[str, TextRows], config: DataConfig, seed: int) -> tuple[dict[str, TextRows], str]:
    train = rows["train"]
    if len(train) < 2 or train.labels is None:
        raise DataError("holds one row, so no validation part can be cut. Give a validation_file.", path=train.source)
    kept, cut = stratified_split(train.labels, config.validation_share, seed, "validation")
    rest = {split: part for split, part in rows.items() if split != "train"}
    note = (
        f"There is no validation file: {len(cut)} of the {len(train)} training rows were cut for it (validation_share"
        f" {config.validation_share:g}, stratified, seed {seed}), {len(kept)} are left to train on."
    )
    return {"train": train.take(kept), "validation": train.take(cut), **rest}, note


def _chosen(rows: Mapping[str, TextRows], splits: Sequence[str] | None) -> dict[str, TextRows]:
    if splits is None:
        return dict(rows)
    for split in splits:
        if not any(name == split or name.startswith(f"{split}_") for name in rows):
            raise ConfigError(f"there is no split {split!r} in this data. Its splits: {', '.join(rows)}.")
    return {name: part for name, part in rows.items() if any(name == s or name.startswith(f"{s}_") for s in splits)}
