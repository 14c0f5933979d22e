"""Explains the predictions of a saved run on texts, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from attentune.attribution.base import Settings, class_ids, contrast_id
from attentune.attribution.registry import METHODS, check_contrast
from attentune.config.parse import did_you_mean
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError
from attentune.explain.explainer import check_method, default_method, explainer_for, unchanged_attention
from attentune.explain.explanation import LEVELS, Explanation
from attentune.inference.predictor import ModelPredictor, Predictor, run_and_rows


def explain_texts(
    run: str | Path | Predictor,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    method: str | None = None,
    target: str | Sequence[str] | None = None,
    level: str = "word",
    seed: int = 0,
    steps: int = 50,
    samples: int | None = None,
    contrast: str | None = None,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Explanation]:
    """Score how important each word of these texts is for the run's prediction.

    Args:
        run: a run folder or checkpoint.
        texts: the (first) texts; or a data frame, whose columns are read that the run was trained on.
        pairs: the second texts, for a model of text pairs.
        method: a key of `attribution.registry.METHODS`; by default "fast-shap" for runs with a fitted head, and
            "leave-one-out" for all others.
        target: the class to explain, for all texts or one per text; by default the predicted class.
        level: "word", or "token" for the encoder's subwords.
        seed: of the random methods.
        steps: of integrated gradients.
        samples: masked copies per text for LIME (default 5,000) and SHAP (default 500).
        contrast: a class to compare the explained one with: the scores then say why the one and not the other, by the
            difference of their logits. Where it is the predicted class, the most likely other class is explained.
        precision: overrides the run's precision; "fp32" keeps rounding errors out of small scores.
        progress: called with the number of texts after each batch.

    Returns:
        One `Explanation` per text.

    Raises:
        ConfigError: the method, class or level does not exist, or the method does not work on this run.
        InputError: a text is none, such as None or NaN.
        DataError: the two lists differ in length, or pairs are given to a model of single texts or missing for a model
            of pairs.
    """
    saved, rows = run_and_rows(run, texts, pairs)
    method = method or default_method(saved)
    return explain_rows(
        saved,
        rows,
        methods=(method,),
        target=target,
        level=level,
        settings=Settings(seed=seed, steps=steps, samples=samples, contrast=contrast),
        precision=precision,
        progress=progress,
    )[method]


def explain_rows(
    run: str | Path | Predictor,
    rows: TextRows,
    *,
    methods: Sequence[str],
    target: str | Sequence[str] | None = None,
    level: str = "word",
    settings: Settings | None = None,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Explanation]]:
    """Explain rows by several methods; see `explain_texts`. All arguments are checked before the first method runs."""
    settings = settings or Settings()
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    _check(saved, rows, methods, target, level, settings)
    if not len(rows):
        return {name: [] for name in methods}
    with unchanged_attention(saved):
        explainer = explainer_for(saved, rows, precision=precision)
        return {
            name: explainer.explanations(
                name,
                level,
                explainer.attributions(name, target=target, settings=settings, progress=progress),
                contrast=settings.contrast,
            )
            for name in methods
        }


def _check(
    saved: Predictor,
    rows: TextRows,
    methods: Sequence[str],
    target: str | Sequence[str] | None,
    level: str,
    settings: Settings,
) -> None:
    problems = []
    if level not in LEVELS:
        problems.append(f"level: got {level!r}, expected {' or '.join(LEVELS)}.{did_you_mean(level, LEVELS)}")
    for name, value in (("steps", settings.steps), ("samples", settings.samples)):
        if value is not None and value < 1:
            problems.append(f"{name}: got {value}, expected at least 1.")
    if not methods:
        problems.append("method: got none, expected at least one.")
    for method in methods:
        try:
            check_method(method, saved)
            if settings.contrast is not None:
                check_contrast(method)
            if level == "token" and not isinstance(saved, ModelPredictor) and METHODS[method].needs == "predictions":
                problems.append(
                    f"level: got token, but {method} deletes whole words from texts for this run ({saved.kind});"
                    " expected word."
                )
        except ConfigError as error:
            problems += error.problems
    try:
        class_ids(target, saved.label_space, len(rows))
        contrast_id(settings.contrast, target, saved.label_space)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)


def rank_correlation(first: Sequence[Explanation], second: Sequence[Explanation]) -> float | None:
    """Compute how similarly two methods rank the words of the same texts: Spearman's rho, averaged over texts."""
    from scipy.stats import spearmanr  # imports slowly

    found = []
    for one, other in zip(first, second, strict=True):
        scores = [np.array([token.score for token in explanation.words]) for explanation in (one, other)]
        if len(scores[0]) == len(scores[1]) > 1 and all(np.ptp(part) > 0 for part in scores):
            found.append(spearmanr(*scores).statistic)
    return float(np.mean(found)) if found else None
