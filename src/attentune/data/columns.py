"""From the columns of a table to the rows of a split.

`choose_columns` finds the columns of texts, labels and ids by their names and by what they hold; `header_note` reports
a first row that is no header; `row_ids` checks the ids; `read_rows` makes the rows.
All data takes this way: built-in tasks, custom files, extra training rows and rows to predict.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.dataset import TextRows
from attentune.data.labels import NO_LABEL, LabelReader, ReadLabels, parse_number
from attentune.data.tables import (
    CONVENTIONAL,
    IDS,
    LABELS,
    TEXT_PAIRS,
    TEXTS,
    Table,
    columns_of,
    columns_setting,
    find_columns,
    listed,
    no_content,
    quote,
)
from attentune.data.text_files import separator_hint
from attentune.data.text_formats import named_columns
from attentune.errors import ConfigError, DataError


@dataclass(frozen=True)
class Columns:
    """The columns to read: `pair` None for single texts, `label` None without labels, `id` None for the default.

    Several columns of a text or of labels are one JSON list in `text` or `label`.
    """

    text: str
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    extra: tuple[str, ...] = ()  # the columns beside the text, with their kinds: "price:number"

    @property
    def labels(self) -> tuple[str, ...]:
        return () if self.label is None else columns_of(self.label)

    @property
    def texts(self) -> tuple[str, ...]:
        return (*columns_of(self.text), *(() if self.pair is None else (self.pair,)))

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The columns beside the text, without their kinds."""
        return tuple(extra_kind(setting)[0] for setting in self.extra)

    @property
    def names(self) -> tuple[str, ...]:
        ids = () if self.id is None else (self.id,)
        return tuple(dict.fromkeys((*self.texts, *ids, *self.labels, *self.extra_names)))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the columns that are read, except ids, as in `TaskData.columns`."""
        read: dict[str, Any] = {"text_column": self.text, "text_pair_column": self.pair, "label_column": self.label}
        read["extra_columns"] = self.extra or None
        return {name: column for name, column in read.items() if column is not None}


# The columns of sources without names of their own: lines of a text file, and folders of texts by class.
_OWN_NAMES = (("text",), ("file", "text", "label"))


def with_own_names(names: Sequence[str], config: DataConfig) -> DataConfig:
    """Return the settings for a source without names of its own, in which those of other files are not expected."""
    if tuple(names) not in _OWN_NAMES or config.text_column in (None, *names):
        return config
    label = config.label_column if config.label_column in names else None
    return replace(config, text_column="text", label_column=label)


def with_columns(config: DataConfig, columns: Mapping[str, Any]) -> DataConfig:
    """Return the settings with these columns, in the form of `TaskData.columns`, where none or no kinds are given."""
    given = {name for name in columns if name != "extra_columns" and getattr(config, name) is not None}
    return replace(config, **{name: column for name, column in columns.items() if name not in given})


def columns_notes(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence on the columns that are read, in the form of `TaskData.columns`; none on `text` and `label`."""
    what = {"text_column": "text", "text_pair_column": "second text", "label_column": "label"}
    columns = {name: column for name, column in columns.items() if name in what}
    if set(columns.values()) <= {"text", "label", "sentence", "sentence1", "sentence2"}:
        return ()
    shown = {name: ", ".join(map(repr, columns_of(column))) for name, column in columns.items()}
    return (f"Columns read: {', '.join(f'{what[name]} {column}' for name, column in shown.items())}.",)


def require(names: Sequence[str], column: str, source: str, setting: str) -> str:
    """Return the column if it exists; of texts or labels several, as `columns_of` reads them, as a JSON list."""
    found = find_columns(column, names) if setting in ("--text_column", "--label_column") else None
    if found is not None or column in names:
        return column if found is None else columns_setting(found)
    wanted, others = {"--label_column": (LABELS, TEXTS), "--text_column": (TEXTS, LABELS)}.get(setting, ((), ()))
    lacking = lacking_columns(column, names) if wanted else [column]
    near = next(filter(None, (did_you_mean(part, [n for n in names if n not in others]) for part in lacking)), "")
    if not near and (usual := _first(wanted, names)) is not None:
        near = f" Did you mean {usual!r}?"
    raise DataError(
        f"there {'is no column' if len(lacking) == 1 else 'are no columns'} {listed(map(repr, lacking), 30)}.{near}"
        f" Columns here: {listed(map(repr, names), 30)}. Name the right one with {setting}.{separator_hint(names)}",
        path=source,
    )


def lacking_columns(setting: str, names: Sequence[str]) -> list[str]:
    """Return the columns that a setting names and a file lacks; the setting itself if it lacks none."""
    parts: Sequence[str] = columns_of(setting)
    if len(parts) == 1:
        parts = [part.strip() for part in setting.split(",")]
    return [part for part in parts if part not in names] or [setting]


def choose_columns(table: Table, config: DataConfig, *, want_label: bool = True) -> tuple[Columns, tuple[str, ...]]:
    """Choose the columns given in the settings, otherwise by conventional names, otherwise by what they hold."""
    names, source, config = table.names, table.source, with_own_names(table.names, config)
    note = header_note(table, config)
    by_name, by_content = list[str](), list[str]()
    texts = () if config.text_column is None else find_columns(config.text_column, names) or (config.text_column,)
    extra = tuple(extra_kind(setting)[0] for setting in config.extra_columns or ())
    given = (config.label_column, *texts, config.text_pair_column, config.id_column, *extra)
    if len(texts) > 1 and config.text_pair_column is not None:
        raise ConfigError(
            f"data.text_column: got {' and '.join(map(repr, texts))} and the second text"
            f" {config.text_pair_column!r}, expected one column for each text of a pair. Join the columns in the file,"
            " or leave out --text_pair_column."
        )

    def guess(what: str, taken: Collection[str | None]) -> str:
        try:
            column = _by_content(what, taken, table, note)
        except DataError as error:
            if (own := _first(LABELS if what == "label" else TEXTS, extra)) is None:
                raise
            raise DataError(
                f"the column {own!r} of --extra_columns is the {what} by its name, expected columns beside it. Leave it"
                f" out there, or name the {what} with --{what}_column.",
                path=source,
            ) from error
        by_content.append(f"{what} {column!r}")
        return column

    for column, setting in ((config.id_column, "--id_column"), (config.text_pair_column, "--text_pair_column")):
        if column is not None:
            require(names, column, source, setting)
    label = config.label_column
    if label is not None:
        if want_label or find_columns(label, names) is not None:
            label = require(names, label, source, "--label_column")
        else:
            label = None
    else:
        label = _first(LABELS, [name for name in names if name not in (*texts, config.text_pair_column, *extra)])
        if label is None and want_label:
            label = guess("label", given)
        elif label is not None:
            by_name.append("label")
    parts = Columns("", label=label).labels
    same = next((part for part in parts if part in (*texts, config.text_pair_column)), None)
    if same is not None and want_label:
        raise DataError(
            f"column {same!r} is given as the text and as the label, so that the label would predict itself. Name"
            " another with --text_column or --label_column.",
            path=source,
        )
    pair = config.text_pair_column
    if config.text_column is not None:
        text = require(names, config.text_column, source, "--text_column")
    else:
        taken = (*parts, pair, config.id_column, *extra)
        named, pair = _named_texts([name for name in names if name not in taken], pair)
        text = guess("text", (*given, *parts)) if named is None else named
        by_name += [] if named is None else ["text"]
    columns = Columns(text, pair, label, config.id_column, config.extra_columns or ())
    check_columns(columns, names, source)
    cure = "If that is wrong, give --text_column or --label_column."
    held = f"Columns chosen by what they hold: {', '.join(by_content)}. {cure}" if by_content else None
    # Without labels a trained run reads the rows; `columns_notes` names its columns.
    named = _names_note(columns, by_name, names, config) if want_label else None
    notes = (named, held, note)
    return columns, tuple(one for one in notes if one is not None)


def _named_texts(rest: Sequence[str], pair: str | None) -> tuple[str | None, str | None]:
    if pair is None:
        for first, second in TEXT_PAIRS:
            chosen = _first((first,), rest), _first((second,), rest)
            if None not in chosen:
                return chosen
    text = _first([first for first, second in TEXT_PAIRS if pair is not None and second == pair.lower()], rest)
    text = text or _first(TEXTS, rest)
    unnamed = [name for name in rest if name.lower() not in IDS]
    if text is None and len(unnamed) == 1 and no_content(unnamed[0]) not in ("an id", "a date"):
        text = unnamed[0]
    return text, pair


def _names_note(columns: Columns, by_name: Sequence[str], names: Sequence[str], config: DataConfig) -> str | None:
    taken = (*columns.texts, columns.id, *columns.labels)
    others = [name for name in names if name not in taken]
    chosen, is_doubtful = [], False
    for what, column, usual in (("text", columns.text, TEXTS), ("label", columns.label, LABELS)):
        if what in by_name:
            has_pair = what == "text" and columns.pair is not None
            instead = [name for name in others if name.lower() in usual and not has_pair]
            is_doubtful |= bool(instead)
            chosen.append(f"{what} {column!r}" + (f" (not {', '.join(map(repr, instead))})" if instead else ""))
        if what == "text" and columns.pair is not None and config.text_pair_column is None:
            chosen.append(f"second text {columns.pair!r}")
    doubt = " If that is wrong, give --text_column or --label_column." if is_doubtful else ""
    return f"Columns chosen by their names: {', '.join(chosen)}.{doubt}" if chosen else None


def _by_content(what: str, taken: Collection[str | None], table: Table, note: str | None) -> str:
    """Return the only column that could be the label or the text by what it holds; an error names what it found."""
    found, refused = candidates(table, taken, what)
    if len(found) == 1:
        return found[0]
    if note is not None and not found:
        raise header_error(table)
    why, several = "", ""
    if found:
        why = f", and {len(found)} could be it by what they hold: {', '.join(map(repr, found))}"
        bits = [name for name in found if {"0", "1"} == set(table.columns[name])] if what == "label" else []
        if len(bits) > 1:
            several = f" If each is a label of its own, name all: --label_column {','.join(bits)} (multi_label)."
    elif refused:
        why = f" or by what it holds ({'; '.join(f'{name!r} {reason}' for name, reason in refused.items())})"
    raise DataError(
        f"no column looks like the {what} by its name{why}. Columns here: {listed(map(repr, table.names), 30)}. Name it"
        f" with --{what}_column.{several}{separator_hint(table.names)}",
        path=table.source,
    )


def _first(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first wanted name that exists, ignoring case."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def row_ids(table: Table, column: str | None, *, strict: bool = True) -> tuple[tuple[str, ...], str | None]:
    """Read the id of each row: the first column of ids, or the given one, that names each row once."""
    names = [column] if column is not None else [name for name in table.columns if name.lower() in IDS]
    for name in names:
        try:
            return _unique_ids(table, name), None
        except DataError:
            if strict and column is not None:
                raise
    if not names:
        return row_numbers(table), None
    shown = " and ".join(map(repr, names))
    return row_numbers(table), f"{table.source}: rows are numbered from 0, since {shown} does not name each row once."


def row_numbers(table: Table) -> tuple[str, ...]:
    return tuple(str(number) for number in range(table.first_row, table.first_row + len(table)))


def _unique_ids(table: Table, column: str) -> tuple[str, ...]:
    rows = dict[str, int]()
    for row, value in enumerate(table.values(column)):
        if not value:
            raise table.error(row, f"column {column!r} has no id here. Give each row one, or leave --id_column out.")
        if (first := rows.setdefault(value, row)) != row:
            raise table.error(
                row,
                f"id {value!r} in column {column!r} was used before ({table.place(first)}), expected each once. Correct"
                " it, or leave --id_column out to number the rows.",
            )
    return tuple(rows)


def read_rows(
    table: Table,
    columns: Columns,
    reader: LabelReader,
    *,
    is_test: bool = False,
    ids: tuple[str, ...] | None = None,
    strict_ids: bool = True,
) -> tuple[TextRows, list[str]]:
    """Read and check the texts, labels and ids of a table."""
    left_out = {} if columns.label is None else reader.rows_left_out(table, columns.label)
    used, notes = table, list[str]()
    if 0 < len(left_out) < len(table):
        kept = [row for row in range(len(table)) if row not in left_out]
        used = table.take(kept)
        counts = Counter(left_out.values())
        shown = ", ".join(f"{quote(label)} ({count:,})" for label, count in counts.most_common(5))
        cure = "" if reader.values else " (--ignore_labels; --label_names keeps such a label as a class.)"
        notes.append(
            f"{table.source}: {len(left_out):,} row{'s are' if len(left_out) > 1 else ' is'} left out, as the label"
            f" means that there is none: {shown}, first {table.place(min(left_out))}.{cure}"
        )
    labels, targets, spelled = ReadLabels(None)
    if columns.label is not None:
        labels, targets, spelled = reader.read(used, columns.label, is_test=is_test)
    notes[:0] = [] if spelled is None else [spelled]
    if targets is not None:
        ties = np.flatnonzero((targets >= targets.max(axis=1, keepdims=True) - 1e-9).sum(axis=1) > 1)
        if ties.size:
            first = used.place(int(ties[0]))
            notes.append(
                f"{used.source}: in {len(ties):,} of {len(used):,} rows classes tie for the most frequent one, first"
                f" {first}; the label of such a row is the first of them in the order of the classes."
            )
    if ids is None:
        ids, note = row_ids(table, columns.id, strict=strict_ids)
        notes += [note] if note else []
    if used is not table:
        ids = tuple(ids[row] for row in kept)
    pairs = None if columns.pair is None else used.texts(columns.pair)
    texts, (extra, told) = used.texts(columns.text), read_extra_columns(used, columns.extra)
    rows = TextRows(ids, texts, pairs, labels, used.source, used.lines, targets=targets, extra=extra)
    return rows, [*notes, *told.values()]


# A column in which at least this share of the cells that are not missing are numbers holds numbers.
_NUMBERS = 0.95
_LARGEST = 1e100  # beyond it squares overflow


def extra_kind(setting: str) -> tuple[str, str | None]:
    """Divide "price:number" into the name and kind of a column beside the text; the kind is None if it is not said."""
    name, _, kind = setting.rpartition(":")
    return (name, kind) if name and kind in ("number", "category") else (setting, None)


def check_columns(columns: Columns, names: Sequence[str], source: str) -> None:
    """Check that a source has these columns, and those beside the text for nothing else."""
    flags = {"text": "--text_column", "pair": "--text_pair_column", "id": "--id_column", "label": "--label_column"}
    for part, flag in flags.items():
        if (column := getattr(columns, part)) is not None:
            require(names, column, source, flag)
    for name in columns.extra_names:
        if name in (columns.text, columns.pair, columns.id, *columns.labels) or columns.extra_names.count(name) > 1:
            raise DataError(
                f"the column {name!r} of --extra_columns is also that of the text, the label or the id, or is named"
                " twice. Name others there.",
                path=source,
            )
        if name not in names:
            near = did_you_mean(name, names)
            raise DataError(
                f"there is no column {name!r}, which is read beside the text (--extra_columns).{near} Columns here:"
                f" {listed(map(repr, names), 30)}. Rename one to {name!r}, or add it; its cells may be empty.",
                path=source,
            )


def with_extra_kinds(columns: Columns, table: Table) -> tuple[Columns, list[str]]:
    """Decide the kinds of the columns beside the text that are not given, and return a note on all of them."""
    extra, shown = list[str](), list[str]()
    for name, given in map(extra_kind, columns.extra):
        cells = [cell for cell in _plain_cells(table, name) if cell.lower() not in NO_LABEL]
        numbers = sum(parse_number(cell) is not None for cell in cells)
        kind = given or ("number" if cells and numbers >= _NUMBERS * len(cells) else "category")
        extra.append(f"{name}:{kind}")
        values = len(set(cells))
        doubt = ", hardly any of which repeats" if kind == "category" and values > max(1, len(cells) / 2) else ""
        count = "" if kind == "number" else f" with {values:,} value{'' if values == 1 else 's'}{doubt}"
        shown.append(f"{name}: {kind}{count}")
    return replace(columns, extra=tuple(extra)), [f"Beside the text: {', '.join(shown)}."] if shown else []


def read_extra_columns(table: Table, extra: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the columns beside the text as in `TextRows.extra`; return notes on words by the columns of numbers."""
    columns, notes = dict[str, Any](), dict[str, str]()
    for name, kind in map(extra_kind, extra):
        cells = _plain_cells(table, name)
        if kind == "category":
            columns[name] = cells
            continue
        numbers = [parse_number(cell) for cell in cells]
        columns[name] = np.array([np.nan if one is None else one for one in numbers]).clip(-_LARGEST, _LARGEST)
        words = [
            row
            for row, (cell, number) in enumerate(zip(cells, numbers, strict=True))
            if number is None and cell.lower() not in NO_LABEL
        ]
        if words:
            notes[name] = (
                f"{table.source}: {len(words):,} of {len(cells):,} cells of the column {name!r} are no numbers and"
                f" count as missing, first {quote(cells[words[0]])} ({table.place(words[0])})."
            )
    return columns, notes


def _plain_cells(table: Table, name: str) -> tuple[str, ...]:
    """Return the cells of a column as texts; whole numbers and booleans are written alike in all formats."""

    def plain(cell: str) -> str:
        if parse_number(cell) is not None:
            return cell.removesuffix(".0")
        return cell.lower() if cell.lower() in ("true", "false") else cell  # pandas writes True, spreadsheets TRUE

    return tuple(plain(cell.strip()) for cell in (cell or "" for cell in table.values(name)))


def _is_date(text: str) -> bool:
    """Whether a cell is a date; a year alone may be any number."""
    return len(text) > len("2021.0") and _DATE.fullmatch(text.strip()) is not None


# Rows that are looked at; with fewer than the second number nothing is guessed.
_ROWS, _FEWEST_ROWS = 10_000, 10
# Texts: nearly all differ, and have some words (or, in writing without spaces, characters).
_DISTINCT_TEXTS, _TEXT_WORDS, _TEXT_CHARACTERS = 0.9, 3, 15
# Classes: few and short, each of some rows.
_MOST_CLASSES, _ROWS_PER_CLASS, _CLASS_CHARACTERS = 20, 5, 40
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?|(19|20)\d\d(\.0)?")


def candidates(table: Table, taken: Collection[str | None], what: str) -> tuple[list[str], dict[str, str]]:
    """Return the columns that could be the label or the text by what they hold, and why others were refused."""
    found, refused = [], dict[str, str]()
    for name in (name for name in table.names if name not in taken):
        cells = table.columns.get(name, ())[:_ROWS]
        could_be = _could_be_label if what == "label" else _could_be_text
        reason = None if name.lower() in LABELS else _no_content(name, cells)
        if cells and not any(cells):
            refused[name] = "is empty"
        elif name.lower() not in IDS and could_be(cells) and reason is None:
            found.append(name)
        elif name.lower() not in IDS and could_be(cells) and reason is not None:
            refused[name] = reason
    return found, refused


def _no_content(name: str, cells: Sequence[object]) -> str | None:
    """Return why a column is neither a text nor a label."""
    values = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
    are_numbers = all(map(_NUMBER.fullmatch, values))
    by_name = no_content(name)
    if by_name == "an id" or (name.lower().endswith("id") and are_numbers and not set(values) <= {"0", "1"}):
        return "is named like an id"
    if by_name == "a date" or all(map(_DATE.fullmatch, values)):
        return "holds dates"
    if are_numbers and by_name == "a count":
        return "is named like a count"
    numbers = [float(value.replace(",", ".")) for value in values] if are_numbers else []
    if len(set(numbers)) > 2 and numbers == sorted(numbers):
        return "counts up"
    return None


def _could_be_text(cells: Sequence[object]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
    if len(cells) < _FEWEST_ROWS or len(texts) < _DISTINCT_TEXTS * len(cells):
        return False
    words = sum(len(text.split()) for text in texts) / len(texts)
    # ASCII has spaces between words, so that long words of it are codes and addresses.
    characters = sum(len(text) for text in texts if not text.isascii()) / len(texts)
    return len(set(texts)) >= _DISTINCT_TEXTS * len(texts) and (words >= _TEXT_WORDS or characters >= _TEXT_CHARACTERS)


def _could_be_label(cells: Sequence[object]) -> bool:
    values = [cell for cell in cells if isinstance(cell, str) and cell]
    if len(cells) < _FEWEST_ROWS or len(values) < len(cells):
        return False
    classes = set(values)
    return (
        2 <= len(classes) <= min(_MOST_CLASSES, len(values) // _ROWS_PER_CLASS)
        and max(map(len, classes)) <= _CLASS_CHARACTERS
    )


# Rows that are looked at. A class has few values; a name of so many words may be a text, one of more hardly a name.
_HEADER_ROWS, _HEADER_CLASSES, _FEWEST_HEADER_WORDS, _MOST_HEADER_WORDS = 1000, 20, 4, 12
_CURE = (
    "If it is a row, write names above it or give --no_header (the columns are then column_1, column_2, ...); otherwise"
    " name the columns with --text_column and --label_column."
)


def header_note(table: Table, config: DataConfig) -> str | None:
    """Return a note if the first row of a file was read as names, but may be a row; None if there is no sign of it."""
    names, given = table.names, named_columns(config)
    are_numbers = len(names) > 1 and list(names) == [str(number) for number in range(len(names))]  # of pandas
    if not table.names_from_row or are_numbers or any(n in given or n.lower() in CONVENTIONAL for n in names):
        return None
    signs = [_header_sign(name, table.columns.get(name, ())[:_HEADER_ROWS]) for name in names]
    if "class" in signs or ("name" not in signs and signs.count("value") >= (1 if given else 2)):
        raise header_error(table)
    if "name" in signs or not {"value", "short text"} & set(signs):
        return None
    return (
        f"{table.source}: the first line is read as the names of columns, but may be a row:"
        f" {listed(map(quote, table.names))}. If it is one, give --no_header."
    )


def _header_sign(name: str, cells: Sequence[Any]) -> str:
    """Compare a name with the cells below.

    "class": it is one of few; "value": a number, date or text like them; "short text": a text, but shorter; "name":
    they are of another kind, so that it cannot be one.
    """
    texts = [str(cell) for cell in cells if cell not in (None, "")]
    values = set(texts)
    are_classes = len(values) <= _HEADER_CLASSES and len(texts) >= 2 * len(values) > 0
    if name in values and are_classes:
        return "class"
    for is_one in (lambda text: parse_number(text) is not None, _is_date):
        if all(map(is_one, texts)):
            return "value" if is_one(name) else "name" if texts and name.lower() not in NO_LABEL else ""
    words = len(name.split())
    if words < _FEWEST_HEADER_WORDS or name.rstrip().endswith(("?", ":")):
        return ""
    if are_classes:
        return "name" if words > max(len(value.split()) for value in values) else ""
    is_short = words <= _MOST_HEADER_WORDS and words < median(len(text.split()) for text in texts)
    return "short text" if is_short else "value"


def header_error(table: Table) -> DataError:
    return DataError(
        f"the first line is read as the names of columns, but reads like a row: {listed(map(quote, table.names))}."
        f" {_CURE}",
        path=table.source,
        line=None if table.lines is None else max(1, table.lines[0] - 1),
    )
