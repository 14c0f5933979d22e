"""Lists rows with their tokens, each token's training label and its importance by the token gate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import TaskData, TextRows
from attentune.data.tokenization import token_spans
from attentune.errors import CheckpointError, ConfigError
from attentune.inference.predictor import Predictor, Progress
from attentune.inference.scoring import score_rows
from attentune.metrics.metrics import predictions_of
from attentune.token_labels.plan import LABELS_FILE, EpochPlan, load_labels


def list_tokens(
    run: str | Path | Predictor,
    rows: TextRows | None = None,
    *,
    max_samples: int | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """List each token's training label and predicted importance: of these rows, or of the run's training rows.

    `max_samples` takes the first so many rows, `precision` overrides the run's, and `progress` is called with the
    number of rows after each batch. Yields for each row {"id", "text", "pair" (where there is one), "gold" (where
    known), "predicted", "tokens"}. Tokens, without special ones, are {"text", "start", "end", "in" ("text" or "pair"),
    "label", "score"}; start and end count characters. label is the training label of the last epoch, from 0 to 1 or
    None; score is the token head's importance from 0 to 1, None without a token head.
    """
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("label")
    has_labels = (saved.folder / LABELS_FILE).is_file()
    if saved.model.token_gate is None and not has_labels:
        raise ConfigError(
            f"{saved.folder}: has neither token labels nor a token head, so there is nothing to show; train with a"
            " preset such as ssa-co."
        )
    plan = None
    if rows is None:
        rows, plan = _training_rows(saved, has_labels)
    if max_samples is not None:
        rows = rows.take(range(min(max_samples, len(rows))))
    evaluator = saved.evaluator(TaskData("input", saved.label_space, (), {"input": rows}), precision=precision)
    scores = score_rows(
        evaluator.model,
        evaluator.features["input"],
        pad_token_id=evaluator.pad_token_id,
        batch_size=evaluator.batch_size,
        accelerator=evaluator.accelerator,
        with_details=True,
        progress=progress,
    )
    predictions = predictions_of(scores.logits_NC, saved.label_space)
    model = saved.model.config
    spans = token_spans(rows, saved.tokenizer, max_length=model.max_seq_length, bi_encoder=model.is_bi_encoder)
    labels = {} if plan is None else _labels_by_row(plan)
    for number, tokens in enumerate(spans):
        token_scores = None if scores.token_scores is None else scores.token_scores[number]
        line: dict[str, Any] = {"id": rows.ids[number], **_texts(rows, number)}
        if rows.labels is not None:
            line["gold"] = _named(rows.labels[number], saved)
        line["predicted"] = _named(predictions[number], saved)
        yield line | {"tokens": _tokens(tokens, line, labels.get(number), token_scores)}


def _training_rows(saved: Predictor, has_labels: bool) -> tuple[TextRows, EpochPlan | None]:
    rows = saved.data(None, ("train",)).splits["train"]
    if not has_labels:
        return rows, None
    tensors, fingerprint = load_labels(saved.folder / LABELS_FILE)
    if rows.fingerprint() != fingerprint:
        raise CheckpointError(
            f"{saved.folder}: the training rows that its config.yaml names are not those that it was trained on, so the"
            " labels cannot be laid on them. Put them back, or name other rows to see the model's scores alone."
        )
    return rows, EpochPlan.from_tensors(tensors) if "rows" in tensors else None


def _labels_by_row(plan: EpochPlan) -> dict[int, np.ndarray]:
    """Return the labels of each row's first sample (labelled samples come before originals)."""
    if plan.token_labels is None:
        return {}
    places = {int(row): sample for sample, row in reversed(list(enumerate(plan.rows)))}
    return {row: plan.token_labels.sample(sample) for row, sample in places.items()}


def _texts(rows: TextRows, number: int) -> dict[str, str]:
    pair = {} if rows.pairs is None else {"pair": rows.pairs[number]}
    return {"text": rows.texts[number], **pair}


def _named(value: Any, saved: Predictor) -> str | float:
    if saved.label_space.task_type == "regression":
        return round(float(value), 6)
    return saved.label_space.text_of(value)


def _tokens(
    spans: list[tuple[str, int, int] | None],
    line: dict[str, Any],
    labels: np.ndarray | None,
    scores: np.ndarray | None,
) -> list[dict[str, Any]]:
    listed = []
    for place, span in enumerate(spans):
        if span is None:
            continue
        where, start, end = span
        label = None if labels is None or labels[place] < 0 else round(float(labels[place]), 6)
        score = None if scores is None else round(float(scores[place]), 6)
        token = {"text": line[where][start:end], "start": start, "end": end, "in": where}
        listed.append(token | {"label": label, "score": score})
    return listed
