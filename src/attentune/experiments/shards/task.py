"""One shard: read its rows, compute, and write its file whole or not at all. `predict` and `evaluate` are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attentune.data.builtin import label_reader
from attentune.data.columns import read_rows
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.labels import LabelReader, left_out_labels
from attentune.data.ranges import (
    DATASET,
    RowChunk,
    RowRange,
    RowSource,
    dataset_source,
    find_sources,
    read_range,
    schema_of,
)
from attentune.data.writers import OutputColumn, read_written, row_writer
from attentune.errors import CheckpointError, DataError
from attentune.experiments.shards.plan import PLAN_FILE, ShardPlan, read_plan, run_fingerprint
from attentune.inference.predictor import Predictor, Progress, TextsRead, predict_rows
from attentune.io.urls import OutputFolder, StoredFile, find_files
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.training.signals import StopRequest

# The values of each computed column; and the numbers of their rows, if they are not one per row.
Computed = tuple[Mapping[str, Any], Sequence[int] | None]
LOGITS = "logits"


@dataclass(frozen=True)
class ShardKind:
    """What is computed of rows."""

    columns: Callable[[Predictor, Mapping[str, Any]], list[OutputColumn]]  # returns the columns of a run's output
    # Returns their values for some rows; calls a function after each batch.
    compute: Callable[[Predictor, Mapping[str, Any], TextRows, Progress], Computed]
    reads_labels: bool = False  # whether rows have labels


def write_shard(kind: ShardKind, folder: str, shard: int, stop: StopRequest) -> TextsRead | None:
    """Compute a shard and write its file."""
    output = OutputFolder(folder)
    (file,) = find_files(output.place(PLAN_FILE), ())
    plan = _read_plan(folder, file)
    request = plan.request
    saved = _loaded_run(request.run, request.run_fingerprint, output.place(PLAN_FILE))
    before = replace(saved.read)
    sources = {part.source: _unchanged(request.sources[part.source]) for part in plan.shards[shard]}
    types = schema_of(request.sources[0], plan.kept)
    left_out = left_out_labels(saved.label_space.names, request.data.ignore_labels) if kind.reads_labels else ()
    reader = label_reader(None, saved.label_space, request.data.label_separator, left_out)
    columns, read = kind.columns(saved, request.options), plan.columns

    def check_stop(rows: int) -> None:
        if stop.requested:
            raise _Stopped

    wanted = [name for name in (read.text, read.pair, *read.labels, read.id) if name is not None]
    try:
        with (
            output.write(plan.file_name(shard)) as stream,
            row_writer(stream, request.output_format, columns, types) as to,
        ):
            for part in plan.shards[shard]:
                for chunk in read_range(sources[part.source], part, wanted, plan.kept):
                    rows, used = _rows_of(chunk, plan, part, reader)
                    if used is not None and not len(used):
                        continue
                    values, places = kind.compute(saved, request.options, rows, check_stop)
                    kept = chunk.kept_as(types)
                    kept = kept if used is None else kept.take(used)
                    to.add(values, kept if places is None else kept.take(places))
    except _Stopped:
        return None
    return TextsRead(plan.rows_of(shard), saved.read.cut - before.cut, saved.read.limit)


class _Stopped(Exception):
    """A stop was requested, so what is written of a shard is discarded."""


@lru_cache(maxsize=1)
def _read_plan(folder: str, file: StoredFile) -> ShardPlan:
    """Read the plan once in a process; it may be long."""
    return read_plan(OutputFolder(folder))


@lru_cache(maxsize=1)
def _loaded_run(run: str, fingerprint: str, plan_file: str) -> Predictor:
    """Load the run once in a process."""
    saved = Predictor.load(run)
    if run_fingerprint(saved) != fingerprint:
        raise CheckpointError(
            f"{run}: has changed since {plan_file} was written, so its shards would differ from those that are there."
            " Start again with another --output_dir."
        )
    return saved


def _unchanged(source: RowSource) -> RowSource:
    """Check that a source is as it was when its rows were counted."""
    if source.kind == DATASET:
        now = dataset_source(source.path, source.config_name, source.split or "")
    else:
        (now,) = find_sources(source.path, options=source.options)
    if now != source:
        raise DataError(
            f"has changed since its rows were counted (now {now.bytes} bytes, before {source.bytes}). Start again with"
            " another --output_dir.",
            path=source.name,
        )
    return source


def _rows_of(
    chunk: RowChunk, plan: ShardPlan, part: RowRange, reader: LabelReader
) -> tuple[TextRows, list[int] | None]:
    """Interpret the cells of a chunk. Ids are copied from their column; without one, rows are counted from 0."""
    table, read = chunk.table, plan.columns
    if read.id is None:
        first = plan.first_row(part) - part.start.row + table.first_row
        ids = tuple(map(str, range(first, first + len(table))))
    else:
        ids = tuple("" if value is None else value for value in table.values(read.id))
    left_out = {} if read.label is None else reader.rows_left_out(table, read.label)
    used = [row for row in range(len(table)) if row not in left_out] if left_out else None
    if used is not None:
        table, ids = table.take(used), tuple(ids[row] for row in used)
    rows, _ = read_rows(table, replace(read, id=None), reader, ids=ids)
    return rows, used


def prediction_names(space: LabelSpace) -> list[OutputColumn]:
    """The columns of predictions and probabilities, with the names of `predictions_csv`."""
    if space.task_type == "regression":
        return [OutputColumn("prediction", "number")]
    first = OutputColumn("predictions", "texts") if space.is_multilabel else OutputColumn("prediction", "text")
    return [first, *(OutputColumn(f"p_{name}", "share") for name in space.names)]


def prediction_values(space: LabelSpace, logits_NC: np.ndarray) -> dict[str, Any]:
    """The values of these columns."""
    predictions = predictions_of(logits_NC, space)
    if space.task_type == "regression":
        return {"prediction": predictions.astype(np.float64)}
    shares_NC = probabilities_of(logits_NC, space)
    shares = {f"p_{name}": shares_NC[:, place] for place, name in enumerate(space.names)}
    if space.is_multilabel:
        return {"predictions": [space.names_of(one) for one in predictions], **shares}
    return {"prediction": [space.names[int(one)] for one in predictions], **shares}


def _prediction_columns(saved: Predictor, options: Mapping[str, Any]) -> list[OutputColumn]:
    return [OutputColumn("id", "text"), *prediction_names(saved.label_space)]


def _predict(saved: Predictor, options: Mapping[str, Any], rows: TextRows, progress: Progress) -> Computed:
    logits_NC = predict_rows(saved, rows, precision=options["precision"], progress=progress)
    return {"id": rows.ids, **prediction_values(saved.label_space, logits_NC)}, None


def _evaluation_columns(saved: Predictor, options: Mapping[str, Any]) -> list[OutputColumn]:
    texts = [OutputColumn("text", "text"), *([OutputColumn("text_pair", "text")] if saved.is_pair else [])]
    kind = {"regression": "number", "multi_label": "texts"}.get(saved.label_space.task_type, "text")
    label = OutputColumn("label", kind)
    return [
        OutputColumn("id", "text"),
        *texts,
        label,
        *prediction_names(saved.label_space),
        OutputColumn(LOGITS, "shares"),
    ]


def _evaluate(saved: Predictor, options: Mapping[str, Any], rows: TextRows, progress: Progress) -> Computed:
    space = saved.label_space
    logits_NC = predict_rows(saved, rows, precision=options["precision"], progress=progress)
    assert rows.labels is not None  # the column is required
    if space.task_type == "regression":
        labels: Any = rows.labels
    elif space.is_multilabel:
        labels = [space.names_of(one) for one in rows.labels]
    else:
        labels = [space.names[int(one)] for one in rows.labels]
    values: dict[str, Any] = {"id": rows.ids, "text": rows.texts, "label": labels, LOGITS: list(logits_NC)}
    if rows.pairs is not None:
        values["text_pair"] = rows.pairs
    return {**values, **prediction_values(space, logits_NC)}, None


PREDICT = ShardKind(_prediction_columns, _predict)
EVALUATE = ShardKind(_evaluation_columns, _evaluate, reads_labels=True)


def predict_shard(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
    """Predict a shard, as a task of an executor."""
    return write_shard(PREDICT, folder, shard, stop)


def evaluate_shard(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
    """Predict a shard of labelled rows, as a task of an executor."""
    return write_shard(EVALUATE, folder, shard, stop)


def evaluated_rows(output: OutputFolder, plan: ShardPlan, space: LabelSpace) -> tuple[TextRows, np.ndarray]:
    """Read the shards of an evaluation: the rows with their labels, and the (N, C) logits."""
    names = ["id", "text", "label", LOGITS, *(["text_pair"] if plan.columns.pair else [])]
    table = read_written((output.read(plan.file_name(shard)) for shard in range(len(plan.shards))), names)
    if not len(table):
        raise DataError("all rows are left out for their labels, so none can be scored.", path=output.path)
    flat = table.column(LOGITS).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return TextRows(
        tuple(table.column("id").to_pylist()),
        tuple(table.column("text").to_pylist()),
        tuple(table.column("text_pair").to_pylist()) if plan.columns.pair else None,
        _label_values(table.column("label").to_pylist(), space),
        output.path,
    ), flat.reshape(len(table), -1)


def _label_values(labels: Sequence[Any], space: LabelSpace) -> np.ndarray:
    if space.task_type == "regression":
        return np.array(labels, dtype=np.float64)
    ids = space.label2id
    if space.is_multilabel:
        return np.array([[int(name in names) for name in space.names] for names in labels], dtype=np.int64)
    return np.array([ids[name] for name in labels], dtype=np.int64)
