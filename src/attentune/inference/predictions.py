"""The format of `predictions_SPLIT.csv`: one row per text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attentune.data.dataset import SEPARATOR, LabelSpace, TextRows
from attentune.io.files import csv_text
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.metrics.rejection import IN_SCOPE_SCORE, REJECTED

EXPLANATION = "explanation"
# The kinds of the columns behind the probabilities.
FURTHER_KINDS = {REJECTED: "flag", IN_SCOPE_SCORE: "number", EXPLANATION: "text"}


def predictions_csv(
    rows: TextRows,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    further: Mapping[str, Sequence[Any]] | None = None,
) -> str:
    """Format CSV text with the columns id, label, prediction, one p_<label> per class, and those of `further`.

    Unlabelled rows have no column `label`. For regression `prediction` is the score. For multi-label the columns are
    called labels and predictions, and names are joined by `SEPARATOR`. `further` has the columns of `FURTHER_KINDS`.
    """
    columns, kinds = prediction_columns(rows, logits_NC, label_space, further or {})
    return csv_text([columns]) + csv_lines(columns, kinds)


def prediction_kinds(space: LabelSpace) -> dict[str, str]:
    """Return the kind of each column: "text", "texts" (a list), "flag", "number" or "share" (a probability)."""
    if space.task_type == "regression":
        return {"prediction": "number"}
    first = {"predictions": "texts"} if space.is_multilabel else {"prediction": "text"}
    return {**first, **{f"p_{name}": "share" for name in space.names}}


def prediction_columns(
    rows: TextRows,
    logits_NC: np.ndarray,
    space: LabelSpace,
    further: Mapping[str, Sequence[Any]],
    kept: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[dict[str, Sequence[Any]], dict[str, str]]:
    """Return the columns of predictions in their order, and the kind of each; those to keep are texts."""
    kinds, columns = prediction_kinds(space), dict[str, Sequence[Any]](id=rows.ids)
    if rows.labels is not None:
        first = next(iter(kinds))
        kinds = {(label := first.replace("prediction", "label")): kinds[first], **kinds}
        columns[label] = label_values(rows.labels, space)
    shares_NC = probabilities_of(logits_NC, space) if space.names else logits_NC
    values = (label_values(predictions_of(logits_NC, space), space), *shares_NC.T[: len(space.names)])
    columns |= dict(zip(prediction_kinds(space), values, strict=True)) | dict(further) | dict(kept or {})
    return columns, {**dict.fromkeys(columns, "text"), **kinds, **{name: FURTHER_KINDS[name] for name in further}}


def label_values(labels: np.ndarray, space: LabelSpace) -> list[Any]:
    """Return labels or predictions as names, lists of names, or scores."""
    if space.task_type == "regression":
        return labels.astype(np.float64).tolist()
    return [space.names_of(one) if space.is_multilabel else space.names[int(one)] for one in labels]


def csv_lines(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> str:
    """Format columns as the lines of CSV below the header."""
    texts = [[_field(value, kinds[name]) for value in values] for name, values in columns.items()]
    return csv_text(zip(*texts, strict=True))


def _field(value: Any, kind: str) -> str:
    if kind == "share":
        return f"{value:.6f}"
    if kind == "number":
        return LabelSpace("regression").text_of(value)
    if kind == "flag":
        return str(value).lower()
    return SEPARATOR.join(value) if kind == "texts" else str(value)


def values_of(texts: Iterable[str], names: Sequence[str], *, several: bool = False) -> np.ndarray:
    """Parse a column of labels or predictions: (N,) class ids, or scores if there are no names."""
    if not names:
        return np.array([float(text) for text in texts])
    number = {name: index for index, name in enumerate(names)}
    if not several:
        return np.array([number[text] for text in texts], dtype=np.int64)
    sets = [{number[name] for name in text.split(SEPARATOR) if name} for text in texts]
    return np.array([[int(index in ids) for index in range(len(names))] for ids in sets], dtype=np.int64)
