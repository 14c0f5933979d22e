"""Fits the attribution head of a run, so that its predictions are explained in the same pass (method fast-shap)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attentune.attribution.fast_shap import FitFacts, Progress, fit_attribution_head
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import Explainer, unchanged_attention
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.models.attribution_heads import save_attribution_head
from attentune.seeding import numpy_generator


def fit_explainer(
    run: str | Path | Predictor,
    rows: TextRows | None = None,
    *,
    max_samples: int = 2000,
    copies: int = 8,
    seed: int = 0,
    precision: str | None = None,
    progress: Progress | None = None,
) -> FitFacts:
    """Fit a head that explains a run's predictions, and save it in the run's folder.

    The run's model is not changed. Afterwards `explain` has the method "fast-shap", which is then the default, and
    `predict --explain` works.

    Source:
        FastSHAP (Jethani et al., ICLR 2022); see `attribution.fast_shap`.
    """
    if copies < 2 or copies % 2:
        raise ConfigError(f"copies: got {copies}, expected an even number from 2: each second copy masks the others.")
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("fit-explainer")
    if saved.model.config.is_bi_encoder:
        raise ConfigError(
            f"fit-explainer: {saved.folder} encodes the texts of a pair apart, so the vectors of a text, which the head"
            " reads, do not know the other one; expected a run of single texts, or one that reads pairs together. Use"
            " attentune explain, which works on every run."
        )
    rows = training_rows(saved) if rows is None else rows
    if len(rows) > max_samples:
        rows = rows.take(np.sort(numpy_generator("fit-explainer", seed).permutation(len(rows))[:max_samples]))
    with unchanged_attention(saved):
        scorer = Explainer(saved, rows, precision=precision).scorer
        with scorer.evaluating():
            head, facts = fit_attribution_head(scorer, copies=copies, seed=seed, progress=progress)
    save_attribution_head(head, saved.model, facts.to_dict(), saved.folder)
    return facts


def training_rows(saved: ModelPredictor) -> TextRows:
    """Read the rows that a run was trained on."""
    try:
        return saved.data(None, ("train",)).splits["train"]
    except DataError as error:
        raise DataError(
            f"{error} To fit on other texts, name a file; it needs no labels: --input_file texts.csv."
        ) from error
