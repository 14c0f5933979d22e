"""The format of `predictions_SPLIT.csv`: one row per text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from attentune.data.dataset import SEPARATOR, LabelSpace, TextRows
from attentune.metrics.metrics import predictions_of, probabilities_of

_QUOTE, _SPECIAL = '"', re.compile(r'[",\r\n]')


def predictions_csv(
    rows: TextRows,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Format CSV text with the columns id, label, prediction, one p_<label> per class, and those of `more`.

    Unlabelled rows have no column `label`. For regression `prediction` is the score. For multi-label the columns are
    called labels and predictions, and names are joined by `SEPARATOR`. `more` maps column names to one entry per row.
    """
    more = more or {}
    header = csv_text([output_names(label_space, tuple(more), is_labelled=rows.labels is not None)])
    return header + csv_rows(rows, logits_NC, label_space, tuple(more.values()))


def csv_text(lines: Iterable[Iterable[str]]) -> str:
    """Format lines of CSV; the standard library's writer does not quote a carriage return in older versions."""
    return "".join(f"{','.join(map(_quoted, line)) or _QUOTE * 2}\n" for line in lines)


def _quoted(cell: str) -> str:
    return f'"{cell.replace(_QUOTE, _QUOTE * 2)}"' if _SPECIAL.search(cell) else cell


def output_names(label_space: LabelSpace, more: Sequence[str] = (), *, is_labelled: bool = True) -> list[str]:
    """Return the names of the columns of `predictions_csv`."""
    s = "s" if label_space.is_multilabel else ""
    labels = [f"label{s}"] if is_labelled else []
    return ["id", *labels, f"prediction{s}", *(f"p_{name}" for name in label_space.names), *more]


def csv_rows(
    rows: TextRows,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    more: Sequence[Sequence[str]] = (),
) -> str:
    """Format the lines of `predictions_csv` below the header."""
    predictions = predictions_of(logits_NC, label_space)
    is_regression = label_space.task_type == "regression"
    probabilities = np.zeros((len(rows), 0)) if is_regression else probabilities_of(logits_NC, label_space)

    def fields(number: int) -> Iterator[str]:
        yield rows.ids[number]
        if rows.labels is not None:
            yield label_space.text_of(rows.labels[number])
        yield label_space.text_of(predictions[number])
        yield from (f"{value:.6f}" for value in probabilities[number])
        yield from (column[number] for column in more)

    return csv_text(map(fields, range(len(rows))))


def values_of(texts: Iterable[str], names: Sequence[str], *, several: bool = False) -> np.ndarray:
    """Parse a column of labels or predictions: (N,) class ids, or scores if there are no names."""
    if not names:
        return np.array([float(text) for text in texts])
    number = {name: index for index, name in enumerate(names)}
    if not several:
        return np.array([number[text] for text in texts], dtype=np.int64)
    sets = [{number[name] for name in text.split(SEPARATOR) if name} for text in texts]
    return np.array([[int(index in ids) for index in range(len(names))] for ids in sets], dtype=np.int64)
