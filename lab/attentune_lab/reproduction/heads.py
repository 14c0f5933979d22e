"""The attention heads of a run's last layer on one text, and their figure (SSA, Kou et al. 2020, figures 1 and 8)."""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.tables import visible
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import merge_subwords
from attentune.explain.methods import first_token_attention
from attentune.explain.scorer import PREDICTED
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import evaluating, numpy_of
from attentune.models.cpu_layers import attention_by
from attentune.report.charts import name_ticks, new_figure, set_text, shaded_grid


@dataclass(frozen=True)
class HeadAttention:
    """Attention weights of each head of the last layer from the first token ([CLS]), by word of one text."""

    text: str
    label: str | float  # the predicted class, or score
    probability: float | None  # of that class; None for regression
    layer: int  # the layer's number, from 1
    words: tuple[str, ...]
    attention_WH: np.ndarray  # (W, H): of a word the highest weight of its tokens
    importance_W: np.ndarray | None  # (W,) the token gate's importance; None without a token gate


def head_attention(run: Predictor, rows: TextRows) -> HeadAttention:
    """Compute the attention weights of the last layer's heads from the first token, for the only row."""
    saved, only = run.single_model("attention heads"), np.array([0])
    with attention_by(saved.model):
        explainer = Explainer(saved, rows)
        scorer = explainer.scorer
        with evaluating(scorer.model):
            logits_1C, weights_1TH = first_token_attention(scorer, only)
            gate_1T = scorer.scores(only).token_scores
    columns = [*numpy_of(weights_1TH)[0].T, *([] if gate_1T is None else [gate_1T[0]])]
    by_column = [
        merge_subwords(explainer.pieces(0, column_T), rows.texts[0], None, signed=False) for column_T in columns
    ]
    scores_CW = np.array([[word.score for word in words] for words in by_column])
    num_heads = weights_1TH.shape[-1]
    logits_NC = numpy_of(logits_1C)
    (target,) = scorer.targets(logits_NC, np.array([PREDICTED]))
    label, probability, _ = explainer.prediction_of(logits_NC[0], int(target))
    return HeadAttention(
        text=rows.texts[0],
        label=label,
        probability=probability,
        layer=saved.model.encoder.config.num_hidden_layers,
        words=tuple(word.text for word in by_column[0]),
        attention_WH=scores_CW[:num_heads].T,
        importance_W=None if gate_1T is None else scores_CW[num_heads],
    )


def heads_figure(table: HeadAttention) -> Any:
    """Draw words as rows and heads as columns, with the token gate's importance beside them.

    Cells of at least 0.1 show their value, for readers who cannot see the colour.
    """
    num_words, num_heads = table.attention_WH.shape
    figure = new_figure(3.2 + 0.42 * num_heads, 1.6 + 0.24 * num_words, layout="constrained")
    names = [textwrap.shorten(visible(word, one_line=True), 24, placeholder="...") for word in table.words]
    widths = [num_heads] if table.importance_W is None else [num_heads, 1]
    axes = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    _draw_columns(axes[0], table.attention_WH, [str(head + 1) for head in range(num_heads)], names)
    axes[0].set_xlabel(f"heads of layer {table.layer}", fontsize=9)
    if table.importance_W is not None:
        _draw_columns(axes[1], table.importance_W[:, None], ["SSA"], [""] * num_words)
    label = visible(str(table.label), one_line=True)
    prediction = label if table.probability is None else f"{label} ({table.probability:.3f})"
    set_text(figure.suptitle("-", fontsize=10), f"predicted {prediction}; attention of the first token")
    return figure


def _draw_columns(axis: Any, values_WC: np.ndarray, columns: list[str], lines: list[str]) -> None:
    most = float(values_WC.max())
    shaded_grid(axis, values_WC, colours="Oranges", most=most or 1.0)
    for (row, column), value in np.ndenumerate(values_WC):
        if value >= 0.1:
            colour = "#fefefe" if value > 0.75 * most else "#010101"
            axis.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7, color=colour)
    name_ticks(axis, "x", columns, fontsize=8)
    name_ticks(axis, "y", lines, fontsize=9)
