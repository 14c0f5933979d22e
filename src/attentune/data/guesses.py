"""Columns that have no conventional name, chosen by what they hold where only one can be meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from attentune.config.schema import DataConfig
from attentune.data.columns import choose_columns, require
from attentune.data.headers import header_error, header_note
from attentune.data.label_cells import label_columns
from attentune.data.names import IDS, LABELS, no_content
from attentune.data.readers.table import Table
from attentune.errors import DataError

# Rows that are looked at; with fewer than the second number nothing is guessed.
_ROWS, _FEWEST_ROWS = 10_000, 10
# Texts: nearly all differ, and have some words (or, in writing without spaces, characters).
_DISTINCT_TEXTS, _TEXT_WORDS, _TEXT_CHARACTERS = 0.9, 3, 15
# Classes: few and short, each of some rows.
_MOST_CLASSES, _ROWS_PER_CLASS, _CLASS_CHARACTERS = 20, 5, 40
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?|(19|20)\d\d(\.0)?")


def with_guessed_columns(
    table: Table, config: DataConfig, *, want_label: bool = True
) -> tuple[DataConfig, tuple[str, ...]]:
    """Fill in the text and label columns that are neither given nor found by their names."""
    note = header_note(table, config)
    notes = () if note is None else (note,)
    guessed = []
    for setting, what in (("label_column", "label"), ("text_column", "text")):
        column = getattr(config, setting)
        if setting == "label_column" and not want_label:
            continue
        if column is not None:
            if label_columns(column, table.names) is None:
                require(table.names, column, table.source, f"--{setting}", _candidates(table, config, what)[0])
            continue
        try:
            choose_columns(table.names, config, table.source, want_label=setting == "label_column")
            continue
        except DataError as error:
            if setting == "label_column" and "--label_column" not in str(error):
                continue  # it is the text that is not found
            found, refused = _candidates(table, config, what)
            if not found and note is not None:
                raise header_error(table) from error
            if not found:
                if not refused:
                    continue
                raise DataError(
                    f"no column looks like the {what} by its name or by what it holds"
                    f" ({'; '.join(f'{name!r} {reason}' for name, reason in refused.items())}). Columns here:"
                    f" {', '.join(map(repr, table.names[:30]))}. Name it with --{setting}.",
                    path=table.source,
                ) from error
            if len(found) > 1:
                bits = [name for name in found if {"0", "1"} == set(table.columns[name])] if what == "label" else []
                several = ""
                if len(bits) > 1:
                    several = (
                        f" If each is a label of its own, name all: --label_column {','.join(bits)} (multi_label)."
                    )
                raise DataError(
                    f"no column looks like the {what} by its name, and {len(found)} could be it by what they hold:"
                    f" {', '.join(map(repr, found))}. Name it with --{setting}.{several}",
                    path=table.source,
                ) from error
        is_label = setting == "label_column"
        config = replace(config, label_column=found[0]) if is_label else replace(config, text_column=found[0])
        guessed.append(f"{what} {found[0]!r}")
    if not guessed:
        return config, notes
    chosen = ", ".join(guessed)
    return config, (
        *notes,
        f"Columns chosen by what they hold: {chosen}. If that is wrong, give --text_column or --label_column.",
    )


def label_candidates(table: Table, config: DataConfig, but: Collection[str | None]) -> list[str]:
    """Return the columns that could be the label by what they hold, except some."""
    return [name for name in _candidates(table, config, "label")[0] if name not in but]


def _candidates(table: Table, config: DataConfig, what: str) -> tuple[list[str], dict[str, str]]:
    """Return the columns that could be the label or the text by what they hold, and why others were refused."""
    given = (config.label_column, config.text_column, config.text_pair_column, config.id_column)
    found, refused = [], dict[str, str]()
    for name in table.names:
        cells = table.columns.get(name, ())[:_ROWS]
        if name in given or name.lower() in IDS or not (_could_be_label if what == "label" else _could_be_text)(cells):
            if name not in given and cells and not any(cells):
                refused[name] = "is empty"
            continue
        reason = None if name.lower() in LABELS else _no_content(name, cells)
        if reason is None:
            found.append(name)
        else:
            refused[name] = reason
    return found, refused


def _no_content(name: str, cells: Sequence[object]) -> str | None:
    """Return why a column is neither a text nor a label: it holds ids, dates or a counter."""
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
