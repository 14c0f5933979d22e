"""Labels: find the label space of a task, and read label columns as class ids, scores or multi-hot rows."""

import ast
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.dataset import SEPARATOR, LabelSpace, shown_label, some_names
from attentune.data.tables import Table, as_cell, columns_of, listed, quote
from attentune.errors import ConfigError, DataError, LabelError

LabelSet = tuple[str, ...]

_ONES = frozenset({"1", "1.0", "1.", "true"})
_BITS = _ONES | {"0", "0.0", "0.", "false"}
# What may stand between the labels of a cell, if no separator is given.
_SEPARATORS = (SEPARATOR, ";", ",", "\n", "/", "\t")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ARRAY = re.compile(r"\[[\s0-9.eE+-]+\]|\[(\s*(True|False))+\s*\]")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


def as_list(text: str) -> list[Any] | None:
    """Read a list, tuple, set or NumPy array as JSON, Python and NumPy print it; None if the text is none."""
    text = text.strip()
    if _BRACKETS.get(text[:1]) != text[-1:]:
        if text not in ("set()", "frozenset()"):
            return None
        return []
    if _ARRAY.fullmatch(text) and "," not in text:
        return text[1:-1].split()
    if "," not in _QUOTED.sub("", text) and len(found := _QUOTED.findall(text)) > 1:
        return [single or double for single, double in found] if text[0] == "[" and ":" not in text else None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, str):
            return [value]  # ('late') is a tuple of one name, written without its comma
        return list(value) if isinstance(value, (list, tuple, set)) else None
    return None


def found_separator(texts: Iterable[str], known: Collection[str] = ()) -> str | None:
    """Return the sign that stands between the labels of texts which are lists of labels; None if they are not."""
    distinct = {text.strip() for text in texts if text.strip()}
    for sign in _SEPARATORS:
        lists = [text for text in distinct if sign in text]
        if not lists or (sign == "," and all(map(_DECIMAL_COMMA.fullmatch, distinct))):
            continue
        parts = {text: {part for part in map(str.strip, text.split(sign)) if part} for text in distinct}
        if known:
            every = set[str]().union(*parts.values())
            if not distinct <= set(known) and 2 * len(every & set(known)) >= len(every):
                return sign
            continue
        counts = Counter(part for own in parts.values() for part in own)
        recurring = [counts[part] > 1 for text in lists for part in parts[text]]
        if len(counts) < len(distinct) <= 4 * len(lists) and sum(recurring) >= 0.8 * len(recurring):
            return sign
    return None


def label_values(table: Table, column: str) -> tuple[str | None, ...]:
    """Read the labels of a column with one label a row, stripped; None for missing ones."""
    cells = _cells(table, column)
    listed = next((row for row, cell in enumerate(cells) if isinstance(cell, (list, tuple))), None)
    texts = {cell for cell in cells if isinstance(cell, str)}
    lists = {text for text in texts if text.lstrip()[:1] in _BRACKETS and as_list(text) is not None}
    if listed is None and lists and 2 * len(lists) >= sum(bool(text.strip()) for text in texts):
        listed = next(row for row, cell in enumerate(cells) if isinstance(cell, str) and cell in lists)
    if listed is not None:
        raise table.error(
            listed,
            f"column {column!r} holds a list ({str(cells[listed])[:40]}), expected one label. If rows"
            " have several labels, use --task_type multi_label.",
            LabelError,
        )
    return tuple(None if value is None else value.strip() or None for value in table.values(column))


@dataclass(frozen=True)
class LabelLists:
    """The labels of each row of a column with several a row."""

    sets: list[LabelSet | None]  # the labels as they are written, without repetitions; None for missing ones
    names: tuple[str, ...]  # the labels in the order of the places of a vector, or of several columns
    separator: str  # what separates the labels of a text
    is_found: bool  # whether the separator was not given, and is not `SEPARATOR`
    is_vector: bool  # whether the cells are vectors of zeros and ones


def label_lists(table: Table, column: str, separator: str | None, known: Sequence[str] = ()) -> LabelLists:
    r"""Read the labels of each row: those of its list, or the names of the ones in its vector."""
    cells = _cells(table, column)
    columns = columns_of(column)
    texts = {cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()}
    if texts and all(text[:1] == "[" and text[-1] == "]" and not as_list(text) for text in texts):
        cells = [str(cell).strip()[1:-1] if isinstance(cell, str) else cell for cell in cells]
        texts = {text[1:-1] for text in texts}
    found = None
    if separator is None and not any(SEPARATOR in text for text in texts):
        found = found_separator((text for text in texts if as_list(text) is None), known)
    sign = found or (SEPARATOR if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t"))
    rows = [None if cell is None else _names_in(table, row, column, cell, sign) for row, cell in enumerate(cells)]
    length = 0 if len(columns) > 1 else _vector_length(table, column, rows, known)
    if not length:
        named = [None if own is None else tuple(dict.fromkeys(filter(None, own))) for own in rows]
        return LabelLists(named, columns if len(columns) > 1 else (), sign, found is not None, False)
    names = tuple(known) or tuple(f"label_{place}" for place in range(length))
    hot = [
        None if own is None else tuple(name for name, bit in zip(names, own, strict=True) if bit.lower() in _ONES)
        for own in rows
    ]
    return LabelLists(hot, names, sign, False, True)


def _vector_length(table: Table, column: str, rows: Sequence[list[str] | None], known: Sequence[str]) -> int:
    """Return the length of vectors of zeros and ones; 0 if the lists hold something else."""
    present = [(row, own) for row, own in enumerate(rows) if own is not None]
    if {"0", "1"} & set(known) or not all(name.lower() in _BITS for _, own in present for name in own):
        return 0
    lengths = {len(own) for _, own in present}
    if max(lengths, default=0) < 2 or (len(lengths) > 1 and not any(len(set(own)) < len(own) for _, own in present)):
        return 0
    expected = len(known) or len(present[0][1])
    for row, own in present:
        if len(own) != expected:
            raise table.error(
                row,
                f"column {column!r} holds {len(own)} zeros and ones, expected {expected}: one for each label"
                f"{f' ({some_names(known)})' if known else ', as in the first row'}. Correct the row, write the names"
                " of its labels, or give as many --label_names as there are places.",
                LabelError,
            )
    return expected


def _names_in(table: Table, row: int, column: str, cell: Any, separator: str) -> list[str]:
    values: Any = list(cell) if isinstance(cell, tuple) else cell
    if isinstance(cell, str):
        listed = as_list(cell)
        values = cell.split(separator) if listed is None else listed
    names = [as_cell(value) for value in values] if isinstance(values, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise table.error(
            row,
            f'column {column!r} holds {str(cell)[:40]}, expected labels: a list such as ["a", "b"], or a text with'
            f" {separator!r} between them (--label_separator).",
            LabelError,
        )
    return [str(name).strip() for name in names]


def _cells(table: Table, column: str) -> Sequence[Any]:
    """The cells of a label column; of several columns of zeros and ones, the list of those that hold a one."""
    columns = (column,) if column in table.columns else columns_of(column)
    if len(columns) == 1:
        return table.columns[columns[0]]
    parts = {name: table.values(name) for name in columns}
    return [_ones(table, row, {name: cells[row] for name, cells in parts.items()}) for row in range(len(table))]


def _ones(table: Table, row: int, cells: Mapping[str, str | None]) -> list[str] | None:
    """The columns that hold a one; None for a row whose cells are all empty or -1, as in test files without labels."""
    bits = {name: (cell or "").strip().lower() for name, cell in cells.items()}
    if all(bit in ("", "-1", "-1.0") for bit in bits.values()):
        return None
    for name, bit in bits.items():
        if bit not in _BITS:
            raise table.error(
                row,
                f"column {name!r} holds {quote(cells[name] or '')}, expected 0 or 1, as --label_column names several"
                " columns of one label each. If each holds the class that an annotator chose, use --task_type"
                " classification; if these are counts of votes, write 1 from some count on and 0 below.",
                LabelError,
            )
    return [name for name, bit in bits.items() if bit in _ONES]


# Several columns are labels of 0 and 1 if more than this share of their cells is. Probabilities may be rounded.
_MOST_CELLS, _SUM_TOLERANCE, _PERCENT_TOLERANCE = 0.5, 0.02, 2


def label_reading(table: Table, columns: Sequence[str], task_type: str | None, known: Collection[str] = ()) -> str:
    """Return what several label columns hold: "bits" (a label each), "probabilities" (a class each) or "votes"."""
    cells = zip(*map(table.values, columns), strict=True)
    rows = [[cell.strip() for cell in row if cell and cell.strip()] for row in cells]
    numbers = [[parse_number(cell) for cell in row] for row in rows]
    sums = [
        (sum(number or 0 for number in row), min(number or 0 for number in row)) if row else (1, 0) for row in numbers
    ]

    def refused(row: int, said: str) -> DataError:
        return table.error(row, f"the label columns {', '.join(map(repr, columns))} hold {said}", LabelError)

    percent = [row for row, (total, least) in enumerate(sums) if least >= 0 and abs(total - 100) <= _PERCENT_TOLERANCE]
    are_numbers = not any(None in row for row in numbers)
    if percent and are_numbers and len(percent) == sum(map(bool, numbers)) and task_type != "multi_label":
        raise refused(
            percent[0],
            f"numbers that sum to {sums[percent[0]][0]:g} in every row, expected probabilities of classes, which sum to"
            " 1. If they are percentages, divide them by 100.",
        )
    present = [cell for row in rows for cell in row]
    bits = sum(cell.lower() in _BITS or cell in _UNKNOWN_SCORES for cell in present)
    if task_type == "multi_label" or (task_type is None and bits > _MOST_CELLS * len(present)):
        return "bits"
    words = {cell for cell in present if parse_number(cell) is None}
    have_decimals = any((number or 0) % 1 for row in numbers for number in row)
    if words and {word.lower() for word in words} <= NO_LABEL and have_decimals:
        first = next(row for row, own in enumerate(rows) if words & set(own))
        here = ", ".join(sorted(words & set(rows[first])))
        raise refused(first, f"probabilities, and here {here}. Leave all cells of a row without labels empty.")
    if set(present) <= set(known) or not are_numbers:
        return "votes"
    wrong = [row for row, (total, least) in enumerate(sums) if least < 0 or abs(total - 1) > _SUM_TOLERANCE]
    if wrong and have_decimals:
        total, least = sums[wrong[0]]
        got = f"{least:g}" if least < 0 else f"numbers that sum to {total:g}"
        raise refused(
            wrong[0],
            f"{got}, expected probabilities of classes, which are not negative and sum to 1, or in each column the"
            " class that one annotator chose. Divide the numbers by their sum, leave all cells of a row without labels"
            " empty, or name one --label_column.",
        )
    if wrong:
        return "bits" if task_type is None else "votes"  # whole numbers may be counts: only if it is said
    return "probabilities"


def label_shares(
    table: Table,
    column: str,
    task_type: str,
    known: Sequence[str] = (),
    skipped: Collection[str] = (),
    reading: str | None = None,
) -> tuple[list[dict[str, float] | None], tuple[str, ...]]:
    """Return each row's distribution over the classes, None without labels; and the classes that columns stand for.

    `reading` is what the columns hold in the training rows; None decides it by these rows.
    """
    columns = columns_of(column)
    rows = [
        [cell.strip() for cell in row if cell and plain_label(cell)]
        for row in zip(*map(table.values, columns), strict=True)
    ]
    if reading == "probabilities" and label_reading(table, columns, task_type) == "votes":
        raise table.error(
            0,
            f"the label columns {', '.join(map(repr, columns))} hold classes here, but probabilities in the training"
            " rows, expected one form in all files. Write all of them in one form.",
            LabelError,
        )
    if (reading or label_reading(table, columns, task_type, known)) == "votes":
        votes = [Counter(cell for cell in row if label_key(cell) not in skipped) for row in rows]
        return [{name: count / own.total() for name, count in own.items()} or None for own in votes], ()
    starts = [columns[0][: place + 1] for place, sign in enumerate(columns[0]) if sign in "_-. "]
    start = max((len(one) for one in starts if all(name.startswith(one) for name in columns)), default=0)  # p_ of p_bad
    names = tuple(name[start:].strip() or name for name in columns)
    if len(known) == len(names) and not set(names) <= set(known):
        names = tuple(known)
    shares = list[dict[str, float] | None]()
    for cells in zip(*map(table.values, columns), strict=True):
        values = [float(cell) if cell and cell.strip() else 0.0 for cell in cells]
        total = sum(values)
        shares.append({name: value / total for name, value in zip(names, values, strict=True)} if total else None)
    return shares, names


# Up to this many rows, labels may all be different; above this many classes, rows of one each are pointed out.
_FEW_ROWS, _MANY_CLASSES = 10, 50
# Numbers that are no ids of classes: with decimals, or more different ones than this.
_MANY_NUMBERS = 20
_CLASS_WORDS = ("label", "class", "categor", "intent", "topic", "target")
_UNKNOWN_SCORES = frozenset({"-1", "-1.0"})
# Names that often mean that there is no label.
NO_LABEL = frozenset(
    {"", "-", "--", "?", "n/a", "#n/a", "na", "<na>", "none", "nan", "null", "nil", "unknown", "-1", "-1.0"}
)
# In natural language inference "-" means that the annotators did not agree.
_NLI, _NO_AGREEMENT = frozenset({"entailment", "neutral", "contradiction"}), "-"
_COMMA = re.compile(r"([0-9]),([0-9]+)$")
_WHOLE = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.0*)?", re.ASCII)
# Characters without width: soft hyphens, joiners, marks of direction, byte order marks, variation selectors.
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|\r\n?")


def plain_label(text: str) -> str:
    """Return a label as it looks: in Unicode's NFC, without invisible characters, with ordinary spaces."""
    if text.isascii() and "\r" not in text:
        return text.strip()
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return _SPACE.sub(lambda match: "\n" if match[0][0] == "\r" else " ", plain).strip()


def label_key(text: str, *, by_value: bool = False) -> str:
    """Return what labels are compared by: `1` for `1.0`; others as texts (`01`, `1.10`), except `by_value`."""
    plain = plain_label(text)
    if by_value and (number := parse_number(plain)) is not None:
        return f"{number + 0.0:.17g}"
    whole = _WHOLE.fullmatch(plain)
    return plain if whole is None else ("-" if whole[1] == "-" and whole[2] != "0" else "") + whole[2]


def left_out_labels(names: Collection[str], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels whose rows are left out: those that are given, and `-` beside the classes of NLI."""
    return (*(given or ()), *((_NO_AGREEMENT,) if {name.lower() for name in names} == _NLI else ()))


def decide_task_type(config: DataConfig, *, columns: int, reading: str | None) -> tuple[str, str]:
    """Decide the type of the labels, and explain it in a note; `reading` is that of several columns."""
    if columns > 1 and config.task_type == "regression":
        raise ConfigError(
            f"data.task_type: got regression and {columns} label columns, expected one column of scores. Name one"
            " --label_column, or write the mean of the scores in one."
        )
    if columns > 1 and reading != "bits":
        what = "the probabilities of the classes" if reading == "probabilities" else "the classes that annotators chose"
        return config.task_type or "classification", (
            f"Task type: {config.task_type or 'classification'} with soft labels: the {columns} label columns hold"
            f" {what}; the label is the most frequent class (labels of 0 and 1 would be --task_type multi_label)."
        )
    if config.task_type is not None:
        return config.task_type, f"Task type: {config.task_type}, as set by task_type."
    if columns > 1:
        return "multi_label", (
            f"Task type: multi_label, as there are {columns} label columns of 0 and 1 (--task_type classification reads"
            " them as probabilities of classes or votes of annotators)."
        )
    return (
        "classification",
        "Task type: classification, the default (else: --task_type regression, ordinal or multi_label).",
    )


def find_space(task_type: str, config: DataConfig, table: Table, column: str) -> tuple[LabelSpace, tuple[str, ...]]:
    """Find the label space of custom data: in the order of `label_names`, of the column's declaration, or sorted."""
    if task_type == "regression":
        if config.label_names is not None:
            raise ConfigError("data.label_names: scores of a regression have no names. Leave it out.")
        return LabelSpace(task_type), ()
    notes: list[str] = []
    order: tuple[str, ...] = ()
    if task_type == "multi_label":
        lists = label_lists(table, column, config.label_separator, config.label_names or ())
        counts = Counter(label for names in lists.sets for label in names or ())
        order = lists.names
        notes += _set_notes(lists, table, column, config)
    elif column not in table.columns and len(columns_of(column)) > 1:
        shares, order = label_shares(table, column, task_type, config.label_names or ())
        counts = Counter(label for own in shares for label in own or ())
    else:
        labels = label_values(table, column)
        counts = Counter(label for label in labels if label is not None and plain_label(label))
        if len(counts) == 1 and None in labels and "" not in (config.ignore_labels or ()):
            raise _no_label(labels, table, column)
    distinct = _merged(counts, by_value=task_type == "ordinal")
    named = config.label_names or [name for name in distinct if name != _NO_AGREEMENT]
    left_out = set(map(label_key, left_out_labels(named, config.ignore_labels)))
    notes += [
        f"ignore_labels: no row of {table.source} has the label {quote(label)}.{did_you_mean(label, distinct)}"
        for label in config.ignore_labels or ()
        if label and label_key(label) not in map(label_key, counts)
    ]
    distinct = [label for label in distinct if label_key(label) not in left_out]
    if len(order or distinct) < 2:
        got = f"only the label {quote(distinct[0])}" if distinct else "no labels"
        raise LabelError(
            f"column {column!r} holds {got}, expected at least two classes. Add rows of another class"
            " (or use --task_type regression for scores).",
            path=table.source,
        )
    count = sum(counts.values())
    if task_type == "classification" and column not in table.class_names and config.label_names is None:
        if count > _FEW_ROWS and len(distinct) == count:
            raise LabelError(
                f"column {column!r} holds a different label in each of its {count:,} rows ({quote(distinct[0])},"
                f" {quote(distinct[1])}, ...), expected classes that occur several times. Is it an id or a free text?"
                " Name the column of the classes with --label_column; for scores use --task_type regression.",
                path=table.source,
            )
        if len(distinct) > _MANY_CLASSES and len(distinct) > count / 2:
            notes.append(
                f"warning: column {column!r} holds {len(distinct):,} classes in {count:,} rows: most have one row. Is"
                " it an id or a free text? Name another --label_column; for scores use --task_type regression."
            )
    return LabelSpace(task_type, _ordered_names(task_type, config, table, column, order or distinct)), tuple(notes)


def _merged(counts: Mapping[str, int], *, by_value: bool) -> list[str]:
    """Return the names of the classes, sorted: of equal labels the one without invisible characters, or most rows."""
    names: dict[str, str] = {}
    for label in sorted(counts, key=lambda label: (label != plain_label(label), -counts[label])):
        names.setdefault(label_key(label, by_value=by_value), label)
    return sorted(names.values())


def task_type_doubt(names: Sequence[str], column: str) -> tuple[str, str] | None:
    """Return why labels may be scores, or lists of labels, and what settles it; None if they are classes."""
    separator = found_separator(names)
    if separator is not None:
        lists, sign = [name for name in names if separator in name], shown_label(separator)
        return (
            f"column {column!r}: {len(lists)} of the {len(names)} classes are lists of labels, such as"
            f" {quote(lists[0])}.",
            f"Settle it with --task_type: multi_label --label_separator '{sign}' (rows have several labels) or"
            " classification (each list is a class).",
        )
    read = [name for name in names if name.lower() not in NO_LABEL or name in _UNKNOWN_SCORES]
    numbers = [parse_number(_COMMA.sub(r"\1.\2", name)) for name in read]
    values = {number for number in numbers if number is not None}
    if None in numbers or len(values) < 2:
        return None
    has_decimals = any(number % 1 for number in values)
    are_ids = values in (set(range(len(values))), set(range(1, len(values) + 1)))
    are_classes = are_ids and any(word in column.lower() for word in _CLASS_WORDS)
    if not has_decimals and (are_classes or len(values) <= _MANY_NUMBERS):
        return None
    what = (
        f"column {column!r} holds {len(values)} different numbers from {min(values):g} to {max(values):g}"
        f"{', not all of them whole' if has_decimals else ''}: they may be scores instead of classes."
    )
    ordered = f", ordinal ({len(values)} classes in their order)" if len(values) <= _MANY_NUMBERS else ""
    return what, f"Settle it with --task_type: regression (scores){ordered} or classification (each number a class)."


def _set_notes(lists: LabelLists, table: Table, column: str, config: DataConfig) -> list[str]:
    """Return notes on how the labels of rows with several were read, and on what looks wrong."""
    names = {name for own in lists.sets for name in own or ()}
    if wrong := sorted(name for name in {*names, *lists.names, *(config.label_names or ())} if SEPARATOR in name):
        raise LabelError(
            f"got the label {wrong[0]!r}, expected none with {SEPARATOR!r} in its name, which stands between the labels"
            " of a row in our files. Rename it, or name what stands between labels in yours with --label_separator.",
            path=table.source,
        )
    if lists.is_vector:
        renamed = "" if config.label_names else " (--label_names gives other names)"
        shown = some_names(lists.names)
        return [f"Column {column!r} holds vectors of {len(lists.names)} zeros and ones: the labels {shown}{renamed}."]
    if names and names <= {"0", "1", "0.0", "1.0"} and all(len(own) == 1 for own in lists.sets if own is not None):
        raise LabelError(
            f"column {column!r} holds 0 or 1 in each row, expected the names of labels. If each label has a column of"
            f" its own, name all of them: --label_column {column},OTHER; if {column!r} is the only label, use"
            " --task_type classification.",
            path=table.source,
        )
    notes, shown = list[str](), shown_label(lists.separator)
    near = next((shown_label(sign) for sign in ";,|\n" if any(sign in name for name in names)), None)
    if lists.is_found:
        notes.append(f"The labels in column {column!r} are separated by '{shown}' (--label_separator sets it).")
    elif near is not None and not any(lists.separator in str(cell) for cell in table.columns.get(column, ())):
        notes.append(
            f"No row of column {column!r} holds '{shown}', so each text is one label; if '{near}' stands between"
            f" labels, use --label_separator '{near}'."
        )
    return notes


def _ordered_names(
    task_type: str, config: DataConfig, table: Table, column: str, distinct: Sequence[str]
) -> tuple[str, ...]:
    if config.label_names is not None:
        names = config.label_names
        if len(set(names)) < max(len(names), 2):
            raise ConfigError(
                f"data.label_names: got {', '.join(names)}, expected at least two names, each once, such as"
                " [bad, good]."
            )
        return names
    if column in table.class_names and task_type != "ordinal":
        return tuple(name.strip() for name in table.class_names[column])
    numbers = {label: parse_number(label) for label in distinct}
    if None not in numbers.values():
        return tuple(sorted(distinct, key=lambda label: (numbers[label], label)))
    if task_type == "ordinal":
        raise ConfigError(
            "data.label_names: an ordinal task needs its labels in order, lowest first (only numbers order"
            f" themselves). Found: {', '.join(distinct[:20])}. Give them as label_names, such as [bad, fair, good]."
        )
    return tuple(distinct)


class ReadLabels(NamedTuple):
    """The labels of some rows; None where a test file has none."""

    labels: np.ndarray | None  # class ids (int64), scores (float64), or of several labels a row (N, C) int64 ones
    targets: np.ndarray | None = None  # (N, C) float64, the probabilities or votes of several columns
    note: str | None = None  # on labels that are not spelled as the class that they are read as


@dataclass(frozen=True)
class LabelReader:
    space: LabelSpace  # the labels
    values: Mapping[str, str] = field(default_factory=dict)  # maps values in the file to class names
    separator: str | None = None  # multi-label: the separator in a cell; None finds it
    left_out: tuple[str, ...] = ()  # labels whose rows `read_rows` leaves out; "" for rows without a label
    reading: str | None = None  # what several columns hold in the training rows; see `label_reading`

    def read(self, table: Table, column: str, *, is_test: bool = False) -> ReadLabels:
        shares, has_sets = self._shares(table, column, self.left_out), self.space.is_multilabel
        sets = self._label_sets(table, column, shares)
        labels = [None if own is None else SEPARATOR.join(own) if has_sets else own[0] for own in sets]
        if is_test and all(self._is_missing(label, is_test=True) for label in labels):
            return ReadLabels(None)
        if not has_sets:
            labels = [None if self._is_missing(label, is_test=False) else label for label in labels]
        if None in labels:
            raise _no_label(labels, table, column)
        if self.space.task_type == "regression":
            return ReadLabels(self._scores([label or "" for label in labels], table))
        ids = self._known_ids(sets, table)
        note = self._spellings(ids, sets, table)
        if shares is not None:
            targets_NC = np.zeros((len(shares), self.space.num_labels))
            for row, distribution in enumerate(shares):
                for name, share in (distribution or {}).items():
                    targets_NC[row, ids[name]] += share
            return ReadLabels(targets_NC.argmax(axis=1), targets_NC, note)
        if not has_sets:
            return ReadLabels(np.array([ids[label or ""] for label in labels], dtype=np.int64), None, note)
        labels_NC = np.zeros((len(sets), self.space.num_labels), dtype=np.int64)
        for row, own in enumerate(sets):
            labels_NC[row, [ids[name] for name in own or ()]] = 1
        return ReadLabels(labels_NC, None, note)

    def _shares(self, table: Table, column: str, left_out: Sequence[str]) -> list[dict[str, float] | None] | None:
        """Return the distribution of each row over the classes, where several columns hold it; otherwise None."""
        if self.space.is_multilabel or column in table.columns or len(columns_of(column)) == 1:
            return None
        skipped = set(map(label_key, left_out))
        return label_shares(table, column, self.space.task_type, self.space.names, skipped, self.reading)[0]

    def _label_sets(
        self, table: Table, column: str, shares: Sequence[dict[str, float] | None] | None
    ) -> list[LabelSet | None]:
        """Return the labels of each row, one or several; None for missing ones."""
        if self.space.is_multilabel:
            return label_lists(table, column, self.separator, self.space.names).sets
        if shares is not None:
            return [None if own is None else tuple(own) for own in shares]
        return [None if label is None else (label,) for label in label_values(table, column)]

    def rows_left_out(self, table: Table, column: str) -> dict[int, str]:
        """Return the rows whose only label is one of `left_out`, with that label; "" for none."""
        if not self.left_out:
            return {}
        wanted = set(map(label_key, self.left_out))
        sets = self._label_sets(table, column, self._shares(table, column, ()))
        labels = ["" if own is None else SEPARATOR.join(own) or SEPARATOR for own in sets]
        return {row: label for row, label in enumerate(labels) if label_key(label) in wanted}

    def _spellings(self, ids: Mapping[str, int], sets: Sequence[LabelSet | None], table: Table) -> str | None:
        known = {*self.space.names, *self.values}
        counts = Counter(label for own in sets for label in own or () if label not in known)
        if not counts:
            return None
        read = (
            f"{_shown(label)} is read as {_shown(self.space.names[ids[label]])} ({count:,} row{'s' * (count > 1)})"
            for label, count in counts.items()
        )
        return f"{table.source}: {listed(read, 3)}: equal except for invisible characters or zeros."

    def _is_missing(self, label: str | None, *, is_test: bool) -> bool:
        if not label or not plain_label(label):
            return True
        if not is_test or label in self.space.names or label in self.values:
            return False
        return label in _UNKNOWN_SCORES or label in self.left_out

    def _known_ids(self, rows: Sequence[LabelSet | None], table: Table) -> dict[str, int]:
        """Return the class of each label: that of its name, otherwise the only one with its `label_key`."""
        labels = {label for own in rows for label in own or ()}
        label2id = self.space.label2id
        ids = label2id | {raw: label2id[name] for raw, name in self.values.items() if name in label2id}
        if other := labels - ids.keys():
            by_value = self.space.task_type == "ordinal"
            by_key: dict[str, set[int]] = {}
            for name, place in ids.items():
                by_key.setdefault(label_key(name, by_value=by_value), set()).add(place)
            places = {label: by_key.get(label_key(label, by_value=by_value), set()) for label in other}
            ids |= {label: next(iter(near)) for label, near in places.items() if len(near) == 1}
        first = {label: row for row, own in reversed(list(enumerate(rows))) for label in own or () if label not in ids}
        if not first:
            return ids
        names, ordered = self.space.names, sorted(first.items(), key=lambda item: item[1])
        near = {label: did_you_mean(label[:100], [name[:100] for name in names]) for label, _ in ordered[:10]}
        unknown = [
            f"{quote(label)} (first at {table.place(row)}{'.' + near[label] if near.get(label) else ''})"
            for label, row in ordered
        ]
        message = (
            f"unknown labels: {listed(unknown, 10)}. Known: {listed(map(quote, names), 30)}. Correct the rows (or"
            " label_names, where given), add training rows of these, or leave such rows out with --ignore_labels."
        )
        raise table.error(ordered[0][1], message, LabelError)

    def _scores(self, labels: Sequence[str], table: Table) -> np.ndarray:
        scores = np.empty(len(labels), dtype=np.float64)
        for row, label in enumerate(labels):
            score = parse_number(plain_label(label))
            if score is None:
                hint = " Write decimals with a point." if "," in label else ""
                if label.lower() in NO_LABEL:
                    hint = f" If it means that there is no score, leave such rows out with --ignore_labels={label}."
                raise table.error(
                    row, f"label {quote(label)}, expected a finite number (such as 3.5).{hint}", LabelError
                )
            scores[row] = score
        return scores


def check_same_labels(source: LabelSpace, target: LabelSpace, where: str) -> None:
    """Check that another space has the labels of this one, by name."""
    words = {"regression": "scores", "multi_label": "sets of labels"}
    kinds = [words.get(space.task_type, "classes") for space in (source, target)]
    if kinds[0] != kinds[1]:
        raise LabelError(
            f"the labels are {kinds[0]}, but the model was trained on {kinds[1]}. Score it on data of its own kind.",
            path=where,
        )
    unknown = [name for name in source.names if name not in target.label2id]
    if unknown:
        raise LabelError(
            f"the model does not know the label{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}; it was"
            f" trained on {', '.join(map(repr, target.names))}. Score it on data with these labels.",
            path=where,
        )


def _shown(label: str) -> str:
    return quote(label) if label == plain_label(label) else ascii(label)


def parse_number(text: str) -> float | None:
    """Parse a finite number in decimal notation (no 1_000, no nan); None if it is none."""
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _no_label(labels: Sequence[Any], table: Table, column: str) -> DataError:
    missing = [row for row, label in enumerate(labels) if label is None]
    what, places = ("row", missing) if table.lines is None else ("line", [table.lines[row] for row in missing])
    more = f", and in {len(missing) - 1:,} more rows ({what} {listed(places[1:])})" if len(missing) > 1 else ""
    return table.error(
        missing[0],
        f"column {', '.join(map(repr, columns_of(column)))} has no label here{more}, expected one in each row."
        ' Add it, take the row out, or leave such rows out with --skip_broken_rows or --ignore_labels "".',
        LabelError,
    )
