"""Predict an uploaded file of texts."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path

from attentune.app.limits import RequestLimits
from attentune.config import DataConfig
from attentune.data.files import read_table
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import AttentuneError, DataError
from attentune.explain.predict_explained import EXPLANATION, predict_explained
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict_rows
from attentune.io.files import write_text

# Plain text only: compressed files may expand far beyond the size limit.
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
_PREVIEW = 20
_FIELDS = {
    "--text_pair_column": 'the field "Second text column"',
    "--text_column": 'the field "Text column"',
    "--label_column": 'the field "Label column"',
}


@dataclass(frozen=True)
class Predictions:
    """The predictions for a file."""

    text: str  # the predictions as CSV
    header: list[str]  # the column names of `first`
    first: list[list[str]]  # the first rows, with their texts in the first columns
    total: int  # the number of rows

    def write(self, folder: Path, stem: str) -> Path:
        """Write the CSV into a folder and return its path."""
        path = folder / f"{stem}.csv"
        write_text(path, self.text)
        return path


def predict_file(
    saved: Predictor,
    path: Path,
    *,
    limits: RequestLimits,
    text_column: str | None = None,
    pair_column: str | None = None,
    with_words: bool = False,
    precision: str | None = None,
) -> Predictions:
    """Predict a file, with the same result as `attentune predict`."""
    check_upload(path, limits)
    config = saved.with_columns(DataConfig(text_column=text_column, text_pair_column=pair_column))
    try:
        if config.id_column not in read_table(str(path)).names:
            config = replace(config, id_column=None)  # files of texts to try out often have no ids
        rows = read_unlabelled(str(path), label_space=saved.label_space, is_pair=saved.is_pair, config=config)
        limits.check_rows(len(rows))
        if with_words:
            logits_NC, column = predict_explained(saved, rows, precision=precision)
            text = predictions_csv(rows, logits_NC, saved.label_space, {EXPLANATION: column})
        else:
            text = predictions_csv(rows, predict_rows(saved, rows, precision=precision), saved.label_space)
    except AttentuneError as error:
        raise DataError(with_field_names(str(error), path)) from error
    header, *lines = csv.reader(io.StringIO(text))
    texts = {"text": rows.texts, "pair": rows.pairs} if rows.pairs else {"text": rows.texts}
    first = [[*(column[place] for column in texts.values()), *line] for place, line in enumerate(lines[:_PREVIEW])]
    return Predictions(text, [*texts, *header], first, len(lines))


def check_upload(path: Path, limits: RequestLimits) -> None:
    """Check the kind and size of a file before it is read."""
    if path.suffix.lower() not in ENDINGS:
        raise DataError(f"{path.name}: unsupported file type, expected one of {', '.join(ENDINGS)}.")
    limits.check_file(path.stat().st_size)


def with_field_names(message: str, path: Path) -> str:
    """Name the fields of the page in place of flags, and the file without its folder."""
    message = message.replace(str(path), path.name)
    for flag, field in _FIELDS.items():
        message = message.replace(flag, field)
    return message
