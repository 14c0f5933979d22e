"""Columns that have no conventional name, chosen by what they hold where only one can be meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attentune.config.schema import DataConfig
from attentune.data.columns import choose_columns
from attentune.data.headers import header_error, header_note
from attentune.data.names import IDS
from attentune.data.readers.table import Table
from attentune.errors import DataError

# Rows that are looked at; with fewer than the second number nothing is guessed.
_ROWS, _FEWEST_ROWS = 10_000, 10
# Texts: nearly all differ, and have some words (or, in writing without spaces, characters).
_DISTINCT_TEXTS, _TEXT_WORDS, _TEXT_CHARACTERS = 0.9, 3, 15
# Classes: few and short, each of some rows.
_MOST_CLASSES, _ROWS_PER_CLASS, _CLASS_CHARACTERS = 20, 5, 40


def with_guessed_columns(
    table: Table, config: DataConfig, *, want_label: bool = True
) -> tuple[DataConfig, tuple[str, ...]]:
    """Fill in the text and label columns that are neither given nor found by their names.

    Args:
        table: the rows.
        config: the settings.
        want_label: whether a label column is needed.

    Returns:
        The settings, with the columns that were guessed, and notes that name them, or on a first row that may be no
        header.

    Raises:
        DataError: several columns could be meant, which the message lists; or the first row is no header.
    """
    note = header_note(table, config)
    notes = () if note is None else (note,)
    guessed = []
    for setting, what, find in (("label_column", "label", _could_be_label), ("text_column", "text", _could_be_text)):
        if getattr(config, setting) is not None or (setting == "label_column" and not want_label):
            continue
        try:
            choose_columns(table.names, config, table.source, want_label=setting == "label_column")
            continue
        except DataError as error:
            if setting == "label_column" and "--label_column" not in str(error):
                continue  # it is the text that is not found
            given = (config.label_column, config.text_pair_column, config.id_column)
            names = [name for name in table.names if name not in given and name.lower() not in IDS]
            found = [name for name in names if find(table.columns.get(name, ())[:_ROWS])]
            if not found and note is not None:
                raise header_error(table) from error
            if not found:
                continue
            if len(found) > 1:
                raise DataError(
                    f"no column looks like the {what} by its name, and {len(found)} could be it by what they hold:"
                    f" {', '.join(map(repr, found))}. Name it with --{setting}.",
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


def _could_be_text(cells: Sequence[object]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
    if len(cells) < _FEWEST_ROWS or len(texts) < _DISTINCT_TEXTS * len(cells):
        return False
    words = sum(len(text.split()) for text in texts) / len(texts)
    characters = sum(map(len, texts)) / len(texts)
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
