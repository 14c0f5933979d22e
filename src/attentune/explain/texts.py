"""Explains the predictions of a saved run on texts, in one call."""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import Explainer, default_method, explainer_for, weak_head_note
from attentune.explain.explanation import LEVELS, Explanation, merge_subwords, token_dicts
from attentune.explain.fast_shap import FitFacts, fit_attribution_head, signed_scores
from attentune.explain.fast_shap import Progress as FitProgress
from attentune.explain.methods import METHODS, check_contrast, method_of, score_unit
from attentune.explain.scorer import PREDICTED, Settings, class_ids, contrast_id
from attentune.inference.predictor import ModelPredictor, Predictor, Progress, run_and_rows
from attentune.inference.scoring import evaluating, score_rows
from attentune.io.files import write_text
from attentune.models.cpu_layers import attention_by
from attentune.models.saving import save_attribution_head
from attentune.nn.compiled.memory import kept_memory
from attentune.results import without_nan
from attentune.seeding import numpy_generator


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
        method: a key of `explain.methods.METHODS`; by default "fast-shap" for runs with a fitted head that explains
            enough, and "leave-one-out" for all others.
        target: the class to explain, for all texts or one per text; by default the predicted class.
        level: "word", or "token" for the encoder's subwords.
        seed: of the random methods.
        steps: of integrated gradients.
        samples: masked copies per text for LIME (default 5,000) and SHAP (default 500).
        contrast: a class to compare the explained one with: the scores then say why the one and not the other, by the
            difference of their logits. Where it is the predicted class, the most likely other class is explained.
        precision: fp32 (default); auto, bf16 or fp16 round small scores.
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
    saved: Predictor,
    rows: TextRows,
    *,
    methods: Sequence[str],
    target: str | Sequence[str] | None = None,
    level: str = "word",
    settings: Settings | None = None,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Explanation]]:
    """Explain rows by several methods with a loaded run; see `explain_texts`.

    All arguments are checked before the first method runs.
    """
    settings = settings or Settings()
    _check(saved, rows, methods, target, level, settings)
    if not len(rows):
        return {name: [] for name in methods}
    # Explaining changes the attention of a model.
    with attention_by(saved.model) if isinstance(saved, ModelPredictor) else contextlib.nullcontext():
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
            method_of(method, saved)
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


def fit_explainer(
    run: str | Path | Predictor,
    rows: TextRows | None = None,
    *,
    max_samples: int = 2000,
    copies: int = 8,
    seed: int = 0,
    precision: str | None = None,
    progress: FitProgress | None = None,
) -> FitFacts:
    """Fit a head that explains a run's predictions, and save it in the run's folder.

    The run's model is not changed. Afterwards `explain` has the method "fast-shap". If the head explains at least half
    of the variance on held-out texts, it is the default and `predict --explain` uses it. The run's card says so.

    Source: FastSHAP (Jethani et al., ICLR 2022); see `explain.fast_shap`.
    """
    if copies < 2 or copies % 2:
        raise ConfigError(f"copies: got {copies}, expected an even number from 2: each second copy masks the others.")
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("attentune explain --fit")
    if saved.model.config.is_bi_encoder:
        raise ConfigError(
            f"explain --fit: {saved.folder} encodes the texts of a pair apart, so the vectors of a text, which the head"
            " reads, do not know the other one; expected a run of single texts, or one that reads pairs together. Use"
            " attentune explain, which works on every run."
        )
    try:
        rows = saved.data(None, ("train",)).splits["train"] if rows is None else rows
    except DataError as error:
        message = f"{error} To fit on other texts, name a file; it needs no labels: --input_file texts.csv."
        raise DataError(message) from error
    if len(rows) > max_samples:
        rows = rows.take(np.sort(numpy_generator("fit-explainer", seed).permutation(len(rows))[:max_samples]))
    with attention_by(saved.model):
        scorer = Explainer(saved, rows, precision=precision or saved.config.training.precision).scorer
        with evaluating(scorer.model):
            head, facts = fit_attribution_head(scorer, copies=copies, seed=seed, progress=progress)
    save_attribution_head(head, saved.model, asdict(facts), saved.folder)
    _write_in_card(saved.folder / "README.md", facts.note("This run"))
    return facts


def _write_in_card(card: Path, note: str) -> None:
    """Add a section to the card of a run, if it has one, in place of that of an earlier fit."""
    if card.is_file():
        text = re.sub(r"^## Explanations\n.*?(?=^## |\Z)", "", card.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        write_text(card, f"{text.rstrip()}\n\n## Explanations\n\n{note}\n")


def predict_explained(
    saved: Predictor, rows: TextRows, *, precision: str | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, list[str]]:
    """Predict rows as `predict_rows` does, with a score for each word."""
    model_run = saved.single_model("the scores of words with predictions (--explain)")
    if not scores_words(model_run):
        raise ConfigError(
            weak_head_note(model_run)
            or f"--explain: {saved.folder} does not score words when it predicts. Fit a head to it once: attentune"
            f" explain {saved.folder} --fit; or use attentune explain, which works on every run."
        )
    explainer = Explainer(model_run, rows, precision=precision)
    scorer, head = explainer.scorer, None if default_method(model_run) != "fast-shap" else model_run.attribution_head
    with kept_memory():
        scored = score_rows(
            scorer.model,
            scorer.features,
            pad_token_id=scorer.pad_token_id,
            batch_size=saved.config.training.per_device_eval_batch_size,
            accelerator=scorer.accelerator,
            with_details=head is None,
            attribution_head=head,
            progress=progress,
        )
    predicted_N = np.full(len(rows), PREDICTED, dtype=np.int64)
    target_N = scorer.targets(scored.logits_NC, predicted_N) if len(rows) else predicted_N
    if scored.attributions is None:
        by_row = list(scored.token_scores or ())  # no rows, no scores
    else:
        by_row = signed_scores(scored, scorer, np.arange(len(rows)), target_N)
    names, method = saved.label_space.names or ("",), "ssa" if head is None else "fast-shap"
    units = [score_unit(method, saved.label_space, name) for name in names]
    column, read = [], explainer.rows
    for row, scores in enumerate(by_row):
        text, pair = read.texts[row], read.pairs[row] if read.pairs else None
        words = merge_subwords(explainer.pieces(row, scores), text, pair, signed=head is not None)
        content: dict[str, Any] = {"unit": units[target_N[row]], "tokens": token_dicts(words, is_pair=pair is not None)}
        if ignored := explainer.ignored_words(row):  # the spans are of the text that was read
            content |= {"ignored": list(ignored), "text": text, **({} if pair is None else {"pair": pair})}
        column.append(json.dumps(without_nan(content), ensure_ascii=False))
    return scored.logits_NC, column


def scores_words(saved: Predictor) -> bool:
    """Whether a run scores words in the pass that predicts: by a fitted head that explains enough, or a token gate."""
    has_gate = isinstance(saved, ModelPredictor) and saved.model.token_gate is not None
    return has_gate or default_method(saved) == "fast-shap"
