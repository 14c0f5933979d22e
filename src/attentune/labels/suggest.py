"""Texts to label next: those with the least certain predictions."""

from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import TextRows
from attentune.errors import ConfigError, DataError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of


@dataclass(frozen=True)
class Suggestion:
    row: int  # its number in the file, from 0
    id: str
    # text, pair: its texts; `pair` is None for single texts.
    text: str
    pair: str | None
    prediction: str  # what the run predicts
    probability: float  # of the most probable class
    margin: float  # the probability of the most probable class minus that of the second


def suggest_texts(saved: Predictor, rows: TextRows, *, count: int) -> list[Suggestion]:
    """Choose the distinct texts with the smallest margins, whose labels would probably help most."""
    space = saved.label_space
    if space.task_type not in ("classification", "ordinal"):
        raise ConfigError(
            f"suggest: got {saved.folder}, which predicts labels of the type {space.task_type}; expected a run that"
            " predicts one class a row (classification or ordinal)."
        )
    if not len(rows):
        raise DataError(f"{rows.source}: got no rows, expected some to choose from.")
    first: dict[tuple[str, str], int] = {}
    for row, text in enumerate(zip(rows.texts, rows.pairs or ("",) * len(rows), strict=True)):
        first.setdefault(text, row)
    distinct = np.array(list(first.values()), dtype=np.int64)
    pool = rows.take(distinct)
    logits_MC = predict_rows(saved, pool)
    probabilities_MC = probabilities_of(logits_MC, space)
    predictions, margins_M = predictions_of(logits_MC, space), margins(probabilities_MC)
    return [
        Suggestion(
            row=int(distinct[place]),
            id=pool.ids[place],
            text=pool.texts[place],
            pair=None if pool.pairs is None else pool.pairs[place],
            prediction=space.text_of(predictions[place]),
            probability=round(float(probabilities_MC[place].max()), 6),
            margin=round(float(margins_M[place]), 6),
        )
        for place in np.argsort(margins_M, kind="stable")[:count].tolist()
    ]


def margins(probabilities_NC: np.ndarray) -> np.ndarray:
    """Return the highest probability of each row minus the second highest, (N,).

    Source: Scheffer, Decomain and Wrobel, "Active hidden Markov models for information extraction", IDA 2001.
    """
    highest_N2 = np.sort(probabilities_NC, axis=1)[:, -2:]
    return highest_N2[:, 1] - highest_N2[:, 0]
