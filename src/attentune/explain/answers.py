"""What a model says of one text: as it is, and with a chosen word masked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.attribution.base import Settings
from attentune.data.dataset import LabelSpace, TextRows
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import Explanation
from attentune.explain.words import Subword, merge_subwords
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.models.attention import attention_by


@dataclass(frozen=True)
class Answer:
    """What a model says of a text.

    Attributes:
        prediction: the class, or the score of a regression.
        probabilities: of each class by its name; empty for regression.
    """

    prediction: str | float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class MaskedWord:
    """What masking a word changes.

    Attributes:
        word: the word as the text has it, with its place.
        tokens: how many of the model's tokens were masked; 0 where the model does not read that far.
        before: of the text as it is.
        after: with the mask token in the place of each of them.
    """

    word: Subword
    tokens: int
    before: Answer
    after: Answer


def answer(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> Answer:
    """What a run says of the first of these rows."""
    return _answer(predict_rows(saved, rows, precision=precision)[0], saved.label_space)


def _answer(logits_C: np.ndarray, space: LabelSpace) -> Answer:
    predicted = predictions_of(logits_C[None], space)[0]
    if space.task_type == "regression":
        return Answer(float(predicted), {})
    shares = probabilities_of(logits_C[None], space)[0].tolist()
    return Answer(space.text_of(predicted), dict(zip(space.names, shares, strict=True)))


def explained_answer(
    saved: Predictor,
    rows: TextRows,
    *,
    method: str,
    target: str | None = None,
    unit: str = "word",
    settings: Settings | None = None,
    precision: str | None = None,
) -> tuple[Answer, Explanation]:
    """What a run says of the first of these rows, and why; see `explain_rows`.

    Raises:
        ConfigError: the method does not work on this run, or there is no such class.
    """
    with attention_by(saved.model):
        explainer = Explainer(saved, rows, precision=precision)
        found = explainer.attributions(method, target=target, settings=settings)
        explanation = explainer.explanations(method, unit, found)[0]
    return _answer(found[0].logits, saved.label_space), explanation


def words_read(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> tuple[Subword, ...]:
    """The words of the first row, as far as the model reads it; their scores are 0."""
    explainer = Explainer(saved, rows, precision=precision)
    pieces = explainer.pieces(0, np.zeros(explainer.scorer.features.lengths[0]))
    return merge_subwords(pieces, rows.texts[0], rows.pairs[0] if rows.pairs else None, signed=True)


def answer_masked(saved: Predictor, rows: TextRows, word: Subword, *, precision: str | None = None) -> MaskedWord:
    """What a run says of the first row with a word masked, and without.

    All tokens that share a character with the word are masked. The run may be another one than the one whose words
    these are.

    Args:
        saved: the run.
        rows: the text or pair.
        word: one of `words_read`.
        precision: another one than the run's.

    Source: SSA (Kou et al. 2020, figure 1).
    """
    explainer = Explainer(saved, rows, precision=precision)
    length = int(explainer.scorer.features.lengths[0])
    ordinary = explainer.scorer.features.non_special_positions(0)
    pieces = explainer.pieces(0, np.zeros(length))
    touched = np.array([_touches(piece, word) for piece in pieces], dtype=bool)
    logits_2C = explainer.scorer.scores(np.array([0, 0]), [None, ordinary[touched]]).logits_NC
    before, after = (_answer(logits_C, saved.label_space) for logits_C in logits_2C)
    return MaskedWord(word, int(touched.sum()), before, after)


def _touches(piece: Subword, word: Subword) -> bool:
    return piece.within == word.within and piece.start < word.end and word.start < piece.end
