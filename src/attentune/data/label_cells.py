"""The cells of label columns: one label, a list in JSON or Python, a vector or several columns of zeros and ones."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from attentune.data.dataset import SEPARATOR
from attentune.data.readers.table import Table, as_cell, quote
from attentune.errors import DataError, LabelError

LabelSet = tuple[str, ...]

_ONES = frozenset({"1", "1.0", "1.", "true"})
_BITS = _ONES | {"0", "0.0", "0.", "false"}
# What may stand between the labels of a cell, if no separator is given.
_SEPARATORS = (SEPARATOR, ";", ",", "\n", "/", "\t")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ARRAY = re.compile(r"\[[\s0-9.eE+-]+\]|\[(\s*(True|False))+\s*\]")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


@overload
def label_columns(column: str, names: None) -> tuple[str, ...]: ...


@overload
def label_columns(column: str, names: Collection[str]) -> tuple[str, ...] | None: ...


def label_columns(column: str, names: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the columns that a label setting names: one, or several in a JSON list or with commas."""
    if names is not None and column in names:
        return (column,)
    listed = as_list(column) if column.startswith("[") else None
    if listed is not None:
        columns = tuple(map(str, listed))
        return columns if names is None or set(columns) <= set(names) else None
    if names is None:
        return (column,)
    parts, found = column.split(","), []
    while parts:
        joined = ((count, ",".join(parts[:count]).strip()) for count in range(len(parts), 0, -1))
        count, name = next(((count, name) for count, name in joined if name in names), (0, ""))
        if not count:
            return None
        found.append(name)
        parts = parts[count:]
    return tuple(found)


def label_setting(columns: Sequence[str]) -> str:
    """Return the setting that names these columns and no others; the inverse of `label_columns`."""
    return columns[0] if len(columns) == 1 else json.dumps(list(columns), ensure_ascii=False)


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


def looks_listed(texts: Iterable[str]) -> bool:
    """Whether at least half of some labels are lists, as JSON or Python print them."""
    found = [as_list(text) is not None for text in texts if text.strip()]
    return bool(found) and 2 * sum(found) >= len(found)


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
        counts: dict[str, int] = {}
        for part in (part for own in parts.values() for part in own):
            counts[part] = counts.get(part, 0) + 1
        recurring = [counts[part] > 1 for text in lists for part in parts[text]]
        if len(counts) < len(distinct) <= 4 * len(lists) and sum(recurring) >= 0.8 * len(recurring):
            return sign
    return None


def label_values(table: Table, column: str) -> tuple[str | None, ...]:
    """Read the labels of a column with one label a row, stripped; None for missing ones."""
    cells = _cells(table, column)
    listed = next((row for row, cell in enumerate(cells) if isinstance(cell, (list, tuple))), None)
    texts = {cell for cell in cells if isinstance(cell, str)}
    if listed is None and any(text.lstrip()[:1] in _BRACKETS for text in texts) and looks_listed(texts):
        listed = next(row for row, cell in enumerate(cells) if isinstance(cell, str) and as_list(cell) is not None)
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

    rows: list[list[str] | None]  # the labels as they are written, with repetitions; None for missing ones
    names: tuple[str, ...]  # the labels in the order of the places of a vector, or of several columns
    separator: str  # what separates the labels of a text
    is_found: bool  # whether the separator was not given, and is not `SEPARATOR`
    is_vector: bool  # whether the cells are vectors of zeros and ones

    @property
    def sets(self) -> list[LabelSet | None]:
        """The labels of each row without repetitions; () for none."""
        return [None if own is None else tuple(dict.fromkeys(own)) for own in self.rows]


def label_lists(table: Table, column: str, separator: str | None, known: Sequence[str] = ()) -> LabelLists:
    r"""Read the labels of each row: those of its list, or the names of the ones in its vector."""
    cells = _cells(table, column)
    columns = label_columns(column, None)
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
        named = [own and [name for name in own if name] for own in rows]
        return LabelLists(named, columns if len(columns) > 1 else (), sign, found is not None, False)
    if known and len(known) != length:
        raise table.error(
            next(row for row, own in enumerate(rows) if own is not None),
            f"column {column!r} holds {length} zeros and ones in each row, expected one for each of the {len(known)}"
            f" labels ({', '.join(map(quote, known[:10]))}). Give as many --label_names as there are places.",
            LabelError,
        )
    names = tuple(known) or tuple(f"label_{place}" for place in range(length))
    hot = [own and [name for name, bit in zip(names, own, strict=True) if bit.lower() in _ONES] for own in rows]
    return LabelLists(hot, names, sign, False, True)


def _vector_length(table: Table, column: str, rows: Sequence[list[str] | None], known: Sequence[str]) -> int:
    """Return the length of vectors of zeros and ones; 0 if the lists hold something else."""
    present = [(row, own) for row, own in enumerate(rows) if own is not None]
    if {"0", "1"} & set(known) or not all(name.lower() in _BITS for _, own in present for name in own):
        return 0
    lengths = {len(own) for _, own in present}
    if len(lengths) == 1:
        length = lengths.pop()
        return length if length > 1 else 0
    if any(len(set(own)) < len(own) for _, own in present):
        first = len(present[0][1])
        row, own = next((row, own) for row, own in present if len(own) != first)
        raise table.error(
            row,
            f"column {column!r} holds {len(own)} zeros and ones, expected {first} as in the first row: one for each"
            " label. Correct the row, or write the names of its labels.",
            LabelError,
        )
    return 0


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
    columns = (column,) if column in table.columns else label_columns(column, None)
    if len(columns) == 1:
        return table.columns[columns[0]]
    parts = {name: table.values(name) for name in columns}
    return [_ones(table, row, {name: cells[row] for name, cells in parts.items()}) for row in range(len(table))]


def _ones(table: Table, row: int, cells: Mapping[str, str | None]) -> list[str] | None:
    """The columns that hold a one; None for a row whose cells are all empty or -1, as in test files without labels."""
    bits = {name: (cell or "").strip().lower() for name, cell in cells.items()}
    if all(bit in ("", "-1", "-1.0") for bit in bits.values()):
        return None
    wrong = next((name for name, bit in bits.items() if bit not in _BITS), None)
    if wrong is not None:
        raise _no_bit(table, row, wrong, cells[wrong])
    return [name for name, bit in bits.items() if bit in _ONES]


def _no_bit(table: Table, row: int, column: str, cell: str | None) -> DataError:
    return table.error(
        row,
        f"column {column!r} holds {quote(cell or '')}, expected 0 or 1, as --label_column names several columns of one"
        " label each. If these are votes, decide from how many on a label counts, and write 1 for it and 0 below.",
        LabelError,
    )
