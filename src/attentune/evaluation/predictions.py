"""`predictions_SPLIT.csv`: one row a text, readable by any spreadsheet."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attentune.data.rows import SEPARATOR, LabelSpace, TextRows
from attentune.evaluation.metrics import predictions_of, probabilities_of


def predictions_csv(
    rows: TextRows,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """CSV text with the columns id, label, prediction, for classes p_<label> for each, and then those of `more`.

    `label` is empty where the rows have none. For regression `prediction` is the score. With several labels a row the
    columns are called labels and predictions, and hold names with `SEPARATOR` between them. `more` has by name one
    entry a row.
    """
    more = more or {}
    buffer = io.StringIO()
    # Older versions of Python leave a carriage return without quotes, where readers see the end of a line.
    has_return = any("\r" in text for text in itertools.chain(rows.ids, label_space.names, *more.values()))
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL)
    s = "s" if label_space.has_several else ""
    writer.writerow(["id", f"label{s}", f"prediction{s}", *(f"p_{name}" for name in label_space.names), *more])
    predictions = predictions_of(logits_NC, label_space)
    is_regression = label_space.task_type == "regression"
    probabilities = np.zeros((len(rows), 0)) if is_regression else probabilities_of(logits_NC, label_space)
    for number, row_id in enumerate(rows.ids):
        label = "" if rows.labels is None else label_space.text_of(rows.labels[number])
        shares = (f"{value:.6f}" for value in probabilities[number])
        others = (column[number] for column in more.values())
        writer.writerow([row_id, label, label_space.text_of(predictions[number]), *shares, *others])
    return buffer.getvalue()


def values_of(texts: Iterable[str], names: Sequence[str], *, several: bool = False) -> np.ndarray:
    """What a column of labels or predictions says: (N,) class ids, or scores where there are no names.

    Args:
        texts: its cells.
        names: the classes in the order of their ids.
        several: the column is called labels or predictions, and a cell may hold several names; then (N, C) ones and
            zeros.

    Raises:
        KeyError, ValueError: a cell holds no such name, or no number.
    """
    if not names:
        return np.array([float(text) for text in texts])
    number = {name: place for place, name in enumerate(names)}
    if not several:
        return np.array([number[text] for text in texts], dtype=np.int64)
    sets = [{number[name] for name in text.split(SEPARATOR) if name} for text in texts]
    return np.array([[int(place in own) for place in range(len(names))] for own in sets], dtype=np.int64)
