"""The validation rows of a run: the example that the page begins with, and the rows that the run got wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.app.files import check_upload, with_field_names
from attentune.app.limits import RequestLimits
from attentune.config import DataConfig
from attentune.data.dataset import TextRows
from attentune.errors import AttentuneError, ConfigError, DataError
from attentune.inference.evaluation import RowError, row_errors
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.runs.records import read_predictions, read_probabilities

# Larger data files are not read for the page.
MOST_BYTES = 200_000_000
_EXAMPLE_WORDS = (6, 30)
_EXAMPLE_ROWS = 1000
_NEUTRAL = "The first half was slow, but the ending was worth the wait."
_NEUTRAL_PAIR = "The ending was good."


@dataclass(frozen=True)
class Example:
    """The text that the page begins with."""

    text: str  # the (first) text
    pair: str  # the second one; "" for single texts
    about: str  # where it comes from, in a sentence


@dataclass(frozen=True)
class WrongRows:
    """The rows of a split or file that a run gets wrong."""

    source: str  # where the rows come from, for the heading
    rows: TextRows
    errors: tuple[RowError, ...]  # the wrong ones, worst first; for scores all rows
    task_type: str  # that of the run's `LabelSpace`
    classes: tuple[str, ...] = ()  # those of the run


def validation_rows(saved: Predictor) -> tuple[str, TextRows]:
    """Read the validation rows of a run from the files that its configuration names; of several splits the first."""
    config = saved.config.data
    if config.dataset_name is not None:
        raise ConfigError(f"The page does not load the data set {config.dataset_name}, which the run was trained on.")
    files = [Path(name) for name in (config.train_file, config.validation_file) if name is not None]
    large = [file for file in files if file.is_file() and file.stat().st_size > MOST_BYTES]
    if large:
        raise DataError(f"{large[0].name} is larger than {MOST_BYTES / 1e6:.0f} MB, so the page does not read it.")
    data = saved.data(None, ("validation",))
    return next(iter(data.splits.items()))


def example_of(saved: Predictor) -> Example:
    """Choose the text that the page begins with.

    It is the first of the run's first 1,000 validation rows that has 6 to 30 words, both texts of a pair together: long
    enough to have something to explain, short enough to be explained in a moment. If no row has, or the rows cannot be
    read, it is a sentence of ours.
    """
    try:
        _, rows = validation_rows(saved)
    except (AttentuneError, OSError, ValueError):
        return _neutral(saved.is_pair)
    for row in range(min(len(rows), _EXAMPLE_ROWS)):
        text, pair = rows.texts[row], rows.pairs[row] if rows.pairs is not None else ""
        if _EXAMPLE_WORDS[0] <= len(f"{text} {pair}".split()) <= _EXAMPLE_WORDS[1]:
            label = "" if rows.labels is None else f", labelled {saved.label_space.text_of(rows.labels[row])}"
            return Example(text, pair, f"An example: row {rows.ids[row]} of the validation rows{label}. Type your own.")
    return _neutral(saved.is_pair)


def _neutral(is_pair: bool) -> Example:
    return Example(_NEUTRAL, _NEUTRAL_PAIR if is_pair else "", "An example. Type your own.")


def wrong_validation_rows(saved: Predictor, *, limits: RequestLimits, precision: str | None = None) -> WrongRows:
    """Return the validation rows that a run gets wrong.

    The predictions are those in the run folder, if they are of the same rows; otherwise the rows are predicted.
    """
    split, rows = validation_rows(saved)
    source = f"{len(rows):,} {split.replace('_', ' ')} rows"
    file = saved.folder / f"predictions_{split}.csv"
    if file.is_file():
        kept = read_predictions(file)
        if kept.ids == rows.ids and kept.names == saved.label_space.names:
            errors = row_errors(rows, kept.predictions_N, read_probabilities(file), saved.label_space)
            return _wrong_rows(saved, source, rows, errors)
    limits.check_rows(len(rows))
    return _wrong_rows(saved, source, rows, _errors(saved, rows, precision))


def wrong_file_rows(
    saved: Predictor,
    path: Path,
    *,
    limits: RequestLimits,
    columns: Mapping[str, Any],
    precision: str | None = None,
) -> WrongRows:
    """Return the rows of a labelled file that a run gets wrong, as `attentune evaluate --errors_file` writes them."""
    check_upload(path, limits)
    config = DataConfig(validation_file=str(path), **columns)
    try:
        rows = saved.data(config, ("validation",)).splits["validation"]
        limits.check_rows(len(rows))
        errors = _errors(saved, rows, precision)
    except AttentuneError as error:
        raise DataError(with_field_names(str(error), path)) from error
    return _wrong_rows(saved, f"{len(rows):,} rows of {path.name}", rows, errors)


def have_same_rows(first: WrongRows, second: WrongRows) -> bool:
    """Whether two runs were asked for the same labels of the same rows, so that their errors can be compared."""
    if (first.task_type, first.classes) != (second.task_type, second.classes):
        return False
    one, other = first.rows, second.rows
    same_texts = (one.ids, one.texts, one.pairs) == (other.ids, other.texts, other.pairs)
    return same_texts and np.array_equal(np.asarray(one.labels), np.asarray(other.labels))


def _wrong_rows(saved: Predictor, source: str, rows: TextRows, errors: tuple[RowError, ...]) -> WrongRows:
    return WrongRows(source, rows, errors, saved.label_space.task_type, saved.label_space.names)


def _errors(saved: Predictor, rows: TextRows, precision: str | None) -> tuple[RowError, ...]:
    if rows.labels is None:
        raise DataError(f"{rows.source}: has no labels to compare the predictions with.")
    logits_NC = predict_rows(saved, rows, precision=precision)
    space = saved.label_space
    return row_errors(rows, predictions_of(logits_NC, space), probabilities_of(logits_NC, space), space)
