"""Predictions with each word's importance by the token gate, from the same forward pass."""

from __future__ import annotations

import json

import numpy as np

from attentune.attribution.registry import method_for
from attentune.data.dataset import TextRows
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import token_dicts, token_json
from attentune.explain.words import merge_subwords
from attentune.inference.predictor import Predictor, Progress
from attentune.inference.scoring import score_rows
from attentune.results import without_nan

# Name of the output column.
EXPLANATION = "explanation"


def predict_explained(
    saved: Predictor, rows: TextRows, *, precision: str | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, list[str]]:
    """Predict rows as `predict_rows` does, with the importance of each word.

    Args:
        saved: a run with a token gate.
        rows: the rows.
        precision: overrides the run's precision.
        progress: called with the number of rows after each batch.

    Returns:
        The logits (N, C), and for each row a JSON list of {"text", "start", "end", "score"}, for pairs with "in" too. A
        word's score is the maximum of its subwords.

    Raises:
        ConfigError: the run has no token gate.
    """
    model_run = saved.single_model("the importance of words with predictions (--explain)")
    method_for("ssa", model_run.model)
    explainer = Explainer(model_run, rows, precision=precision, with_spans=True)
    scorer = explainer.scorer
    scored = score_rows(
        scorer.model,
        scorer.features,
        pad_token_id=scorer.pad_token_id,
        batch_size=explainer.batch_size,
        accelerator=scorer.accelerator,
        with_details=True,
        progress=progress,
    )
    if scored.token_scores is None:  # no rows
        return scored.logits_NC, []
    is_finite = all(np.isfinite(scores).all() for scores in scored.token_scores)
    column = []
    for row, scores in enumerate(scored.token_scores):
        pair = rows.pairs[row] if rows.pairs else None
        words = merge_subwords(explainer.pieces(row, scores), rows.texts[row], pair, signed=False)
        if is_finite:
            column.append(token_json(words, is_pair=pair is not None))
        else:
            column.append(json.dumps(without_nan(token_dicts(words, is_pair=pair is not None)), ensure_ascii=False))
    return scored.logits_NC, column
