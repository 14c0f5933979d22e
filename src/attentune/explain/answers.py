"""A model's prediction for one text, and for the same text with words masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attentune.data.dataset import LabelSpace, TextRows
from attentune.explain.explainer import explainer_for
from attentune.explain.words import Subword, merge_subwords, overlap
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of


@dataclass(frozen=True)
class Answer:
    """A model's prediction for a text."""

    prediction: str | float  # the class, or for regression the score
    probabilities: dict[str, float]  # by class name; empty for regression


@dataclass(frozen=True)
class MaskedWords:
    """The predictions before and after masking words."""

    words: tuple[Subword, ...]  # the words with their spans in the text
    tokens: tuple[int, ...]  # for each word, how many of its tokens were masked; 0 if the text is truncated before it
    before: Answer  # the prediction for the unmasked text
    after: Answer  # the prediction with all of these tokens masked


def answer(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> Answer:
    """Predict the first of these rows."""
    return _answer(predict_rows(saved, rows, precision=precision)[0], saved.label_space)


def _answer(logits_C: np.ndarray, space: LabelSpace) -> Answer:
    predicted = predictions_of(logits_C[None], space)[0]
    if space.task_type == "regression":
        return Answer(float(predicted), {})
    shares = probabilities_of(logits_C[None], space)[0].tolist()
    return Answer(space.text_of(predicted), dict(zip(space.names, shares, strict=True)))


def words_read(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> tuple[Subword, ...]:
    """Return the words of the first row that are not truncated, with scores 0."""
    explainer = explainer_for(saved, rows, precision=precision)
    pieces = explainer.pieces(0, np.zeros(explainer.scorer.features.lengths[0]))
    return merge_subwords(pieces, rows.texts[0], rows.pairs[0] if rows.pairs else None, signed=True)


def answer_masked(
    saved: Predictor, rows: TextRows, words: Sequence[Subword], *, precision: str | None = None
) -> MaskedWords:
    """Predict the first row with words masked, and unmasked.

    All tokens that overlap with a word are masked. The words may come from another run's `words_read`.

    Source: SSA (Kou et al. 2020, figure 1).
    """
    explainer = explainer_for(saved, rows, precision=precision)
    length = int(explainer.scorer.features.lengths[0])
    ordinary = explainer.scorer.features.non_special_positions(0)
    pieces = explainer.pieces(0, np.zeros(length))
    is_masked_WT = np.array([[overlap(piece, word) for piece in pieces] for word in words], dtype=bool)
    is_masked_WT = is_masked_WT.reshape(len(words), len(pieces))
    masked = ordinary[is_masked_WT.any(axis=0)]
    logits_2C = explainer.scorer.scores(np.array([0, 0]), [None, masked]).logits_NC
    before, after = (_answer(logits_C, saved.label_space) for logits_C in logits_2C)
    return MaskedWords(tuple(words), tuple(is_masked_WT.sum(axis=1).tolist()), before, after)
