"""Predictions with each word's score from the same forward pass: by fast-shap, else by the token gate."""

from __future__ import annotations

import json

import numpy as np

from attentune.attribution.base import PREDICTED, Scorer
from attentune.attribution.fast_shap import signed_scores
from attentune.attribution.registry import score_unit
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import token_dicts, token_json
from attentune.explain.words import merge_subwords
from attentune.inference.predictor import ModelPredictor, Predictor, Progress
from attentune.inference.scoring import RowScores, score_rows
from attentune.nn.compiled.memory import kept_memory
from attentune.results import without_nan

# Name of the output column.
EXPLANATION = "explanation"


def predict_explained(
    saved: Predictor, rows: TextRows, *, precision: str | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, list[str]]:
    """Predict rows as `predict_rows` does, with a score for each word."""
    model_run = saved.single_model("the scores of words with predictions (--explain)")
    check_explained(model_run)
    explainer = Explainer(model_run, rows, precision=precision, with_spans=True)
    scorer, head = explainer.scorer, model_run.attribution_head
    with kept_memory():
        scored = score_rows(
            scorer.model,
            scorer.features,
            pad_token_id=scorer.pad_token_id,
            batch_size=explainer.batch_size,
            accelerator=scorer.accelerator,
            with_details=head is None,
            attribution_head=head,
            progress=progress,
        )
    predicted_N = np.full(len(rows), PREDICTED, dtype=np.int64)
    target_N = scorer.targets(scored.logits_NC, predicted_N) if len(rows) else predicted_N
    by_row = _scores(scorer, scored, target_N)
    names, method = saved.label_space.names or ("",), "ssa" if head is None else "fast-shap"
    units = [json.dumps(score_unit(method, saved.label_space, name), ensure_ascii=False) for name in names]
    is_finite = all(np.isfinite(scores).all() for scores in by_row)
    column = []
    for row, scores in enumerate(by_row):
        pair = rows.pairs[row] if rows.pairs else None
        pieces = explainer.pieces(row, scores)
        words = merge_subwords(pieces, rows.texts[row], pair, signed=head is not None)
        if is_finite:
            tokens = token_json(words, is_pair=pair is not None)
        else:
            tokens = json.dumps(without_nan(token_dicts(words, is_pair=pair is not None)), ensure_ascii=False)
        column.append(f'{{"unit": {units[target_N[row]]}, "tokens": {tokens}}}')
    return scored.logits_NC, column


def scores_words(saved: Predictor) -> bool:
    """Whether a run scores words in the pass that predicts: by a fitted head, or by a token gate."""
    if not isinstance(saved, ModelPredictor):
        return False
    return saved.attribution_head is not None or saved.model.token_gate is not None


def check_explained(saved: ModelPredictor) -> None:
    """Check that a run scores words in the pass that predicts."""
    if not scores_words(saved):
        raise ConfigError(
            f"--explain: {saved.folder} does not score words when it predicts. Fit a head to it once: attentune"
            f" fit-explainer {saved.folder}; or use attentune explain, which works on every run."
        )


def _scores(scorer: Scorer, scored: RowScores, target_N: np.ndarray) -> list[np.ndarray]:
    """Return each row's scores for its class, one for each token."""
    if scored.attributions is None:
        return list(scored.token_scores or ())  # no rows, no scores
    return signed_scores(scored, scorer, np.arange(len(target_N)), target_N)
