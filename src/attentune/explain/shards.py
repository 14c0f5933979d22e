"""Shards of explanations: the tasks of `attentune explain` and `attentune predict --explain` with `--output_dir`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attentune.attribution.base import Settings
from attentune.data.dataset import TextRows
from attentune.data.writers import OutputColumn
from attentune.experiments.shards.task import Computed, ShardKind, prediction_names, prediction_values, write_shard
from attentune.explain.predict_explained import EXPLANATION, predict_explained
from attentune.explain.texts import explain_rows
from attentune.inference.predictor import Predictor, Progress, TextsRead
from attentune.training.signals import StopRequest


def _predicted_columns(saved: Predictor, options: Mapping[str, Any]) -> list[OutputColumn]:
    explanation = OutputColumn(EXPLANATION, "text")
    return [OutputColumn("id", "text"), *prediction_names(saved.label_space), explanation]


def _predict(saved: Predictor, options: Mapping[str, Any], rows: TextRows, progress: Progress) -> Computed:
    logits_NC, explanations = predict_explained(saved, rows, precision=options["precision"], progress=progress)
    return {"id": rows.ids, **prediction_values(saved.label_space, logits_NC), EXPLANATION: explanations}, None


def _explained_columns(saved: Predictor, options: Mapping[str, Any]) -> list[OutputColumn]:
    value = "number" if saved.label_space.task_type == "regression" else "text"
    kinds = {
        "id": "text",
        "text": "text",
        **({"pair": "text"} if saved.is_pair else {}),
        "method": "text",
        "label": value,
        **({} if options["settings"].get("contrast") is None else {"contrast": "text"}),
        "probability": "share",
        "prediction": value,
        "signed": "flag",
        "passes": "whole",
        "level": "text",
        "unit": "text",
        "tokens": "tokens",
    }
    return [OutputColumn(name, kind) for name, kind in kinds.items()]


def _explain(saved: Predictor, options: Mapping[str, Any], rows: TextRows, progress: Progress) -> Computed:
    """One row per text and method; without the seconds, which are never the same twice."""
    by_method = explain_rows(
        saved,
        rows,
        methods=options["methods"],
        target=options["target"],
        level=options["level"],
        settings=Settings(**options["settings"]),
        precision=options["precision"],
        progress=progress,
    )
    places = [row for row in range(len(rows)) for _ in by_method]
    found = [one.to_dict() for group in zip(*by_method.values(), strict=True) for one in group]
    names = [column.name for column in _explained_columns(saved, options) if column.name != "id"]
    values = {name: [one[name] for one in found] for name in names}
    return {"id": [rows.ids[row] for row in places], **values}, places


PREDICT_EXPLAINED = ShardKind(_predicted_columns, _predict)
EXPLAIN = ShardKind(_explained_columns, _explain)


def predict_explained_shard(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
    """Predict a shard with the importance of each word, as a task of an executor."""
    return write_shard(PREDICT_EXPLAINED, folder, shard, stop)


def explain_shard(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
    """Explain a shard, as a task of an executor."""
    return write_shard(EXPLAIN, folder, shard, stop)
