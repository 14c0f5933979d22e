"""The file of likely label errors, which a person marks, and the corrected copy of the rows after these marks."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.columns import choose_columns, with_guessed_columns
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_table
from attentune.data.tables import Table
from attentune.data.text_formats import FileOptions, open_bytes
from attentune.errors import ConfigError, DataError
from attentune.io.files import write_text
from attentune.labels.label_check import LabelCheck

ENDINGS = (".csv", ".tsv", ".jsonl")


def check_ending(path: str, flag: str = "--output_file") -> None:
    """Check that a file's name ends in .csv, .tsv or .jsonl."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"{flag}: got {path}, expected a name that ends in {', '.join(ENDINGS)}.")


def write_rows(path: str, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; see `rows_text`."""
    check_ending(path)
    write_text(path, rows_text(names, lines, Path(path).suffix.lower()))


def rows_text(names: Sequence[str], lines: Sequence[Mapping[str, Any]], ending: str) -> str:
    """Format rows."""
    if ending == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    buffer = io.StringIO()
    # Older versions of Python do not quote a carriage return by themselves, so that all texts are quoted.
    separator = "\t" if ending == ".tsv" else ","
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    writer.writerows([_field(line.get(name)) for name in names] for line in lines)
    return buffer.getvalue()


def _field(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return json.dumps(cell, ensure_ascii=False, default=str)


KEEP, FIX, REMOVE = "keep", "fix", "remove"
MARKS = (KEEP, FIX, REMOVE)
_HEADER = ("mark", "row", "id", "where", "label", "suggested", "p_label", "p_suggested", "words", "text", "text_pair")
_READ = ("mark", "row", "label", "suggested", "text")


@dataclass(frozen=True)
class Mark:
    """What a person wants done with a row."""

    row: int  # its number, from 0
    action: str  # `FIX` (give it the label `label`) or `REMOVE`
    label: str = ""  # the new label; empty with `REMOVE`


def write_errors(path: str, check: LabelCheck) -> None:
    """Write the likely label errors as a file with an empty column `mark` for a person to fill."""
    has_pairs = any(suspect.pair is not None for suspect in check.suspects)
    names = _HEADER if has_pairs else _HEADER[:-1]
    lines: list[dict[str, Any]] = []
    for suspect in check.suspects:
        values = {
            "mark": "",
            "row": str(suspect.row),
            "id": suspect.id,
            "where": suspect.where,
            "label": suspect.label,
            "suggested": suspect.suggested,
            "p_label": f"{suspect.label_probability:.4f}",
            "p_suggested": f"{suspect.suggested_probability:.4f}",
            "words": ", ".join(suspect.words or ()),
            "text": suspect.text,
            "text_pair": suspect.pair or "",
        }
        lines.append({name: values[name] for name in names})
    write_rows(path, names, lines)


def read_marks(path: str, rows: TextRows, label_space: LabelSpace) -> list[Mark]:
    """Read the marks of a file that `write_errors` wrote.

    A mark is empty or "keep" (nothing is changed), "fix" (the row gets the label in the column `suggested`, in which a
    person may have written another one) or "remove". Rows of the file may be missing, or be in another order.
    """
    table = read_table(path)
    for name in _READ:
        if name not in table.names:
            raise DataError(
                f"there is no column {name!r}.{did_you_mean(name, table.names)} Expected a file that attentune doctor"
                " --labels --output_file wrote, with marks in its column 'mark'.",
                path=path,
            )
    columns = {name: [cell or "" for cell in table.values(name)] for name in _READ}
    marks: list[Mark] = []
    seen: set[int] = set()
    for number in range(len(table)):
        cells = {name: columns[name][number] for name in _READ}
        row = _row(table, number, cells, rows, label_space)
        if row in seen:
            raise table.error(number, f"row {row} is there twice; expected each row once. Remove one of the two.")
        seen.add(row)
        action, label = cells["mark"].strip().casefold(), cells["suggested"].strip()
        if action not in ("", *MARKS):
            raise table.error(
                number,
                f"mark: got {cells['mark']!r}, expected {', '.join(MARKS)} or nothing.{did_you_mean(action, MARKS)}"
                " For another label than the suggested one, write it in the column 'suggested' and mark the row fix.",
            )
        if action == FIX and label not in label_space.label2id:
            raise table.error(
                number,
                f"suggested: got {label!r}, expected one of the labels: {', '.join(label_space.names)}."
                f"{did_you_mean(label, label_space.names)}",
            )
        if action == FIX:
            marks.append(Mark(row, FIX, label))
        elif action == REMOVE:
            marks.append(Mark(row, REMOVE))
    if not marks:
        raise DataError(
            f"no row is marked. Write {FIX} in the column 'mark' of rows that get the suggested label, {REMOVE} of rows"
            " to leave out.",
            path=path,
        )
    return marks


def _row(table: Table, number: int, cells: dict[str, str], rows: TextRows, space: LabelSpace) -> int:
    """Return the number of a row, if it is the row that the file was made from."""
    text = cells["row"].strip().removesuffix(".0")
    row = int(text) if text.isdecimal() else -1
    if not 0 <= row < len(rows):
        raise table.error(number, f"row: got {cells['row']!r}, expected a number from 0 to {len(rows) - 1}.")
    assert rows.labels is not None
    label = space.names[int(rows.labels[row])]
    # Spreadsheets change spaces and line ends.
    if rows.texts[row].split() != cells["text"].split() or label != cells["label"].strip():
        raise table.error(
            number,
            f"row {row} has the text {cells['text'][:60]!r} and the label {cells['label']!r} here, but"
            f" {rows.texts[row][:60]!r} and {label!r} in {rows.source}. Give the file that this list was made from,"
            " with the same flags.",
        )
    return row


def count_marks(marks: Sequence[Mark]) -> str:
    """Say how many labels are changed and rows removed."""
    counts = Counter(mark.action for mark in marks)
    fixed, removed = counts[FIX], counts[REMOVE]
    return f"{fixed} label{'s' * (fixed != 1)} changed, {removed} row{'s' * (removed != 1)} removed"


def write_corrected(path: str, marks: Sequence[Mark], rows: TextRows, label_space: LabelSpace, data: DataConfig) -> int:
    """Write a corrected copy of the rows.

    A copy of an own file has all of its columns, as they are, in their order; only marked labels differ. Rows of known
    tasks and data sets are written with the columns id, text, text_pair (of pairs) and label.
    """
    check_ending(path)
    if data.train_file is not None and Path(path).absolute() == Path(data.train_file).expanduser().absolute():
        raise ConfigError(
            f"--output_file: got {path}, the file of the rows itself, which is never changed. Name another."
        )
    names, lines, label_column, places = _content(rows, label_space, data)
    for mark in marks:
        place = places[mark.row]
        if mark.action == FIX:
            lines[place] = {**lines[place], label_column: _like(lines[place][label_column], mark.label)}
    removed = {places[mark.row] for mark in marks if mark.action == REMOVE}
    kept = [line for row, line in enumerate(lines) if row not in removed]
    write_rows(path, names, kept)
    return len(kept)


def _content(
    rows: TextRows, space: LabelSpace, data: DataConfig
) -> tuple[tuple[str, ...], list[dict[str, Any]], str, Sequence[int]]:
    """Return the columns, the cells of each line, the column of the labels, and the place of each row in the lines."""
    if data.train_file is not None and rows.sources is None:
        table = read_table(data.train_file, options=FileOptions.of(data))
        config, _ = with_guessed_columns(table, data, want_label=True)
        columns, _ = choose_columns(table.names, config, table.source)
        places = _places(rows, table)
        if places is not None and columns.label is not None:
            if _is_json_lines(data.train_file) and table.lines is not None:
                return table.names, _objects(data.train_file, table.lines), columns.label, places
            cells = [table.columns[name] for name in table.names]
            lines = [dict(zip(table.names, values, strict=True)) for values in zip(*cells, strict=True)]
            return table.names, lines, columns.label, places
    assert rows.labels is not None
    names = ("id", "text", *(() if rows.pairs is None else ("text_pair",)), "label")
    content = []
    for row in range(len(rows)):
        pair = {} if rows.pairs is None else {"text_pair": rows.pairs[row]}
        label = space.names[int(rows.labels[row])]
        content.append({"id": rows.ids[row], "text": rows.texts[row], **pair, "label": label})
    return names, content, "label", range(len(rows))


def _places(rows: TextRows, table: Table) -> Sequence[int] | None:
    """Return where each row stands in its file, some lines of which may be no rows; None if that is not known."""
    if len(table) == len(rows):
        return range(len(rows))
    if rows.lines is None or table.lines is None:
        return None
    by_line = {line: place for place, line in enumerate(table.lines)}
    return [by_line[line] for line in rows.lines]


def _is_json_lines(path: str) -> bool:
    return Path(path.removesuffix(".gz")).suffix.lower() in (".jsonl", ".ndjson")


def _objects(path: str, lines: Sequence[int]) -> list[dict[str, Any]]:
    """Return the objects at these lines as they are written, with numbers, where a table has texts."""
    with open_bytes(Path(path).expanduser()) as stream:
        written = stream.read().decode("utf-8-sig").split("\n")
    return [json.loads(written[line - 1]) for line in lines]


def _like(before: Any, label: str) -> Any:
    """Return a label as the type of the one that it replaces: 1, not "1", in a JSON file with numbers."""
    if isinstance(before, bool) or not isinstance(before, (int, float)):
        return label
    return json.loads(label)
