"""Predict any number of rows chunk by chunk, in constant memory."""

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

# The logits (N, C) of some rows, and the entries of further columns, one per row.
Predicted = tuple[np.ndarray, Sequence[Sequence[str]]]


def predictions_in_chunks(
    saved: Predictor,
    chunks: RowChunks,
    *,
    precision: str | None = None,
    progress: Progress | None = None,
    more: Sequence[str] = (),
    predict: Callable[[TextRows], Predicted] | None = None,
) -> Iterator[str]:
    """Yield the text of `predictions_csv`, one piece per chunk; columns that are kept stand behind.

    Rows are batched within their chunk. As logits may depend on the batch in the last digits, they agree with those of
    a single chunk within the tolerance of the precision.
    """
    if predict is None:
        predict = partial(_only_logits, saved, precision=precision, progress=progress)
    quotes_all = chunks.has_return or has_return(saved.label_space.names)
    header = csv_header(saved.label_space, (*more, *chunks.kept), quotes_all=quotes_all)
    for rows in chunks.read():
        logits_NC, entries = predict(rows)
        more_entries = (*entries, *rows.kept)
        yield header + csv_rows(rows, logits_NC, saved.label_space, more_entries, quotes_all=quotes_all)
        header = ""


def _only_logits(saved: Predictor, rows: TextRows, **options: Any) -> Predicted:
    return predict_rows(saved, rows, **options), ()
