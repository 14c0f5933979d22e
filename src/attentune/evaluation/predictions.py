"""`predictions_SPLIT.csv`: one row a text, readable by any spreadsheet."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from attentune.data.rows import LabelSpace, TextRows
from attentune.evaluation.metrics import predictions_of, probabilities_of


def predictions_csv(
    rows: TextRows,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """CSV text with the columns id, label, prediction, for classes p_<label> for each, and then those of `more`.

    `label` is empty where the rows have none. For regression `prediction` is the score. `more` has by name one entry a
    row.
    """
    more = more or {}
    buffer = io.StringIO()
    # Older versions of Python leave a carriage return without quotes, where readers see the end of a line.
    has_return = any("\r" in text for text in itertools.chain(rows.ids, label_space.names, *more.values()))
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL)
    writer.writerow(["id", "label", "prediction", *(f"p_{name}" for name in label_space.names), *more])
    predictions = predictions_of(logits_NC, label_space)
    is_regression = label_space.task_type == "regression"
    probabilities = np.zeros((len(rows), 0)) if is_regression else probabilities_of(logits_NC)
    for number, row_id in enumerate(rows.ids):
        label = "" if rows.labels is None else _shown(rows.labels[number], label_space)
        shares = (f"{value:.6f}" for value in probabilities[number])
        others = (column[number] for column in more.values())
        writer.writerow([row_id, label, _shown(predictions[number], label_space), *shares, *others])
    return buffer.getvalue()


def _shown(value: float, label_space: LabelSpace) -> str:
    if label_space.task_type == "regression":
        return f"{float(value):.6g}"
    return label_space.names[int(value)]
