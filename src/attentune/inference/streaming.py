"""Predictions of any number of rows, part by part, so that memory does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.readers.table import has_return
from attentune.data.unlabelled import RowChunks
from attentune.inference.predictions import csv_header, csv_rows
from attentune.inference.predictor import Predictor, Progress, predict_rows

# The logits (N, C) of some rows, and the entries of further columns, one a row.
Predicted = tuple[np.ndarray, Sequence[Sequence[str]]]


def predictions_in_chunks(
    saved: Predictor,
    parts: RowChunks,
    *,
    precision: str | None = None,
    progress: Progress | None = None,
    more: Sequence[str] = (),
    predict: Callable[[TextRows], Predicted] | None = None,
) -> Iterator[str]:
    """The text of `predictions_csv` in pieces, one for each part.

    Rows of one part are batched by length among themselves. So numbers are the same to the last digit as if all rows
    were one part only where batches have no say in them; else they are within the precision's tolerance.

    Args:
        saved: the run.
        parts: the rows.
        precision: another one than the run's.
        progress: called with the number of rows done in each batch.
        more: the names of further columns.
        predict: gives logits and the entries of these columns; not needed where there are none.

    Raises:
        DataError: the rows can no longer be read as they were.
        NonFiniteLossError: some of the model's outputs are infinite or NaN.
    """
    if predict is None:
        predict = partial(_only_logits, saved, precision=precision, progress=progress)
    quotes_all = parts.has_return or has_return(saved.label_space.names)
    header = csv_header(saved.label_space, more, quotes_all=quotes_all)
    for rows in parts.read():
        logits_NC, entries = predict(rows)
        yield header + csv_rows(rows, logits_NC, saved.label_space, entries, quotes_all=quotes_all)
        header = ""


def _only_logits(saved: Predictor, rows: TextRows, **options: Any) -> Predicted:
    return predict_rows(saved, rows, **options), ()
