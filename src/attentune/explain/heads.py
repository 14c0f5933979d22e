"""The attention weights of each head of a layer, with the token gate's importance for comparison.

Source: SSA (Kou et al. 2020, figures 1 and 8), which draws both for the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attentune.attribution.attention import first_token_attention
from attentune.attribution.base import PREDICTED, numpy_of
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import HeadAttention
from attentune.explain.words import Subword, merge_subwords
from attentune.inference.predictor import Predictor
from attentune.models.attention import attention_by


def head_attention(
    run: str | Path | Predictor,
    rows: TextRows,
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    level: str = "word",
    precision: str | None = None,
) -> list[HeadAttention]:
    """Compute the attention weights of a layer's heads from the first token, for each row."""
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("attention heads")
    encoder = saved.model.encoder.config
    layer = encoder.num_hidden_layers if layer is None else layer
    chosen = tuple(range(1, encoder.num_attention_heads + 1)) if heads is None else tuple(heads)
    _check_numbers("layer", (layer,), encoder.num_hidden_layers, "last")
    _check_numbers("heads", chosen, encoder.num_attention_heads, "all")
    by_row = []
    with attention_by(saved.model):
        explainer = Explainer(saved, rows, precision=precision)
        with explainer.scorer.evaluating():
            for row in range(len(rows)):
                by_row.append(_of_row(explainer, rows, row, layer, chosen, level))
    return by_row


def _of_row(
    explainer: Explainer, rows: TextRows, row: int, layer: int, heads: tuple[int, ...], level: str
) -> HeadAttention:
    scorer, place = explainer.scorer, np.array([row])
    logits_1C, weights_1TH = first_token_attention(scorer, place, layer - 1)
    logits_C = numpy_of(logits_1C)[0]
    weights_TH = numpy_of(weights_1TH)[0][:, [head - 1 for head in heads]]
    gate = scorer.scores(place).token_scores
    columns = [*weights_TH.T, *([] if gate is None else [gate[0]])]
    target = int(scorer.targets(logits_C[None], np.array([PREDICTED]))[0])
    text, pair = rows.texts[row], rows.pairs[row] if rows.pairs else None

    def tokens(scores_T: np.ndarray) -> tuple[Subword, ...]:
        pieces = explainer.pieces(row, scores_T)
        return merge_subwords(pieces, text, pair, signed=False) if level == "word" else pieces

    merged = [tokens(column_T) for column_T in columns]
    by_token = list(zip(*([token.score for token in column] for column in merged[: len(heads)]), strict=True))
    label, probability, _ = explainer.prediction_of(logits_C, target)
    return HeadAttention(
        text=text,
        pair=pair,
        label=label,
        probability=probability,
        layer=layer,
        heads=heads,
        level=level,
        tokens=tuple(
            token._replace(score=float(np.mean(shares))) for token, shares in zip(merged[0], by_token, strict=True)
        ),
        attention=tuple(by_token),
        importance=None if gate is None else tuple(token.score for token in merged[-1]),
    )


def _check_numbers(name: str, numbers: Sequence[int], most: int, word: str) -> None:
    wrong = [number for number in numbers if not 1 <= number <= most]
    if wrong or not numbers:
        got = ", ".join(map(str, wrong)) or "none"
        raise ConfigError(f"{name}: got {got}, expected numbers from 1 to {most}, or {word}.")
