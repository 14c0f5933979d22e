"""Which columns of a user's own data are the texts, the label and the row's id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.ids import IDS
from attentune.data.readers.csv import separator_hint
from attentune.errors import DataError

TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("query", "passage"),
)
TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "document", "sentence1", "premise", "question1")
LABELS = (
    "label",
    "labels",
    "gold_label",
    "target",
    "class",
    "category",
    "sentiment",
    "score",
    "similarity",
    "rating",
    "is_duplicate",
)


@dataclass(frozen=True)
class Columns:
    """The columns to use: `pair` None for single texts, `label` None without labels, `id` None for the default."""

    text: str
    pair: str | None = None
    label: str | None = None
    id: str | None = None


def require(names: Sequence[str], column: str, source: str, setting: str) -> str:
    """The column, if it is there.

    Raises:
        DataError: if not, with those that are.
    """
    if column in names:
        return column
    raise DataError(
        f"there is no column {column!r}.{did_you_mean(column, names)} Columns here: {_listed(names)}."
        f" Name the right one with {setting}.{separator_hint(names)}",
        path=source,
    )


def choose_columns(
    names: Sequence[str], config: DataConfig, source: str, *, want_label: bool = True
) -> tuple[Columns, tuple[str, ...]]:
    """The columns that the settings name, else those with conventional names.

    Args:
        names: the columns at hand.
        config: the settings; a pair is guessed only where neither text column is named.
        source: the file, for messages.
        want_label: whether not finding a label column is an error.

    Returns:
        The columns, and a sentence on what was guessed (or none).

    Raises:
        DataError: if a named column is missing, or none can be guessed.
    """
    label = config.label_column
    if label is not None:
        label = require(names, label, source, "--label_column") if want_label or label in names else None
    else:
        label = _first(LABELS, [name for name in names if name not in (config.text_column, config.text_pair_column)])
        if label is None and want_label:
            raise _not_found("label", "--label_column", names, source)
    if config.id_column is not None:
        require(names, config.id_column, source, "--id_column")
    text, pair = _choose_texts(names, config, source, label)
    guessed = [f"text {text!r}"] if config.text_column is None else []
    guessed += [f"second text {pair!r}"] if pair is not None and config.text_pair_column is None else []
    guessed += [f"label {label!r}"] if label is not None and config.label_column is None else []
    notes = (f"Columns chosen by their names: {', '.join(guessed)}.",) if guessed else ()
    return Columns(text, pair, label, config.id_column), notes


def _choose_texts(names: Sequence[str], config: DataConfig, source: str, label: str | None) -> tuple[str, str | None]:
    pair = config.text_pair_column
    if pair is not None:
        require(names, pair, source, "--text_pair_column")
    if config.text_column is not None:
        return require(names, config.text_column, source, "--text_column"), pair
    rest = [name for name in names if name not in (label, pair, config.id_column)]
    if pair is None:
        for first, second in TEXT_PAIRS:
            found = _first((first,), rest), _first((second,), rest)
            if found[0] is not None and found[1] is not None:
                return found[0], found[1]
    known = tuple(first for first, second in TEXT_PAIRS if pair is not None and second == pair.lower()) + TEXTS
    text = _first(known, rest)
    unnamed = [name for name in rest if name.lower() not in IDS]
    if text is None and len(unnamed) == 1:
        text = unnamed[0]
    if text is None:
        raise _not_found("text", "--text_column", names, source)
    return text, pair


def _first(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """The first wanted name that is there, whatever its case."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def _not_found(what: str, setting: str, names: Sequence[str], source: str) -> DataError:
    return DataError(
        f"no column looks like the {what} by its name. Columns here: {_listed(names)}. Name it with {setting}."
        f"{separator_hint(names)}",
        path=source,
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:30]))
    return f"{shown}, and {len(names) - 30} more" if len(names) > 30 else shown
