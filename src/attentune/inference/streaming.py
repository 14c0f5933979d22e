"""Predict any number of rows chunk by chunk, in constant memory: to CSV, or to one part of a folder of parts."""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from attentune.data.dataset import TaskData, TextRows
from attentune.data.unlabelled import RowChunks
from attentune.errors import CheckpointError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictions import (
    EXPLANATION,
    FURTHER_KINDS,
    csv_lines,
    prediction_columns,
    prediction_kinds,
)
from attentune.inference.predictor import Predictor, Progress
from attentune.io.files import csv_text, parse_json, sha256_of
from attentune.io.urls import read_if_there, written_whole
from attentune.metrics.rejection import IN_SCOPE_SCORE, REJECTED
from attentune.results import to_json

# Computes the logits (N, C) of some rows, and an explanation of each, the last column of predictions.
Explain = Callable[[TextRows], tuple[np.ndarray, Sequence[str]]]
# The command and input that the parts of a folder belong to.
PARTS_FILE = "parts.json"
# Files of a run folder that do not change what the run predicts.
_RECORDS = {
    "metrics.json",
    "run.json",
    "calibration.json",
    "labels.safetensors",
    "manifest.json",
    "heldout.safetensors",
}
_WEIGHTS_AND_SETTINGS = {".safetensors", ".json", ".yaml", ".txt", ".model"}


def predictions_in_chunks(
    saved: Predictor, chunks: RowChunks, *, as_json: bool = False, **options: Any
) -> Iterator[str]:
    """Yield `predictions_csv`, or JSON lines with the same columns, one piece per chunk; kept columns stand behind.

    Rows are batched within their chunk. As logits may depend on the batch in the last digits, they agree with those of
    a single chunk within the tolerance of the precision. `options` are those of `predicted`.
    """
    for number, (columns, kinds) in enumerate(_predicted_chunks(saved, chunks, **options)):
        header = csv_text([columns]) * (number == 0)
        yield _json_lines(columns, kinds) if as_json else header + csv_lines(columns, kinds)


def _predicted_chunks(
    saved: Predictor, chunks: RowChunks, **options: Any
) -> Iterator[tuple[dict[str, Sequence[Any]], dict[str, str]]]:
    """Yield the columns of each chunk, and the kind of each."""
    for rows in chunks.read():
        logits_NC, further = predicted(saved, rows, **options)
        kept = dict(zip(chunks.kept, rows.kept, strict=True))
        yield prediction_columns(rows, logits_NC, saved.label_space, further, kept)


def further_columns(saved: Predictor, *, with_explanation: bool) -> dict[str, str]:
    """Return the kind of each column that stands behind the probabilities."""
    left_out = {*(() if saved.rejection else (REJECTED, IN_SCOPE_SCORE)), *(() if with_explanation else (EXPLANATION,))}
    return {name: kind for name, kind in FURTHER_KINDS.items() if name not in left_out}


def predicted(
    saved: Predictor,
    rows: TextRows,
    precision: str | None = None,
    explain: Explain | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, dict[str, Sequence[Any]]]:
    """Return the logits of rows and their `further_columns`; of explained rows a second pass tells the rejected."""
    explained: dict[str, Sequence[Any]] = {}
    if explain is not None:
        logits_NC, texts = explain(rows)
        explained = {EXPLANATION: texts}
        if saved.rejection is None:
            return logits_NC, explained
    evaluator = saved.evaluator(TaskData("input", saved.label_space, (), {"input": rows}), precision=precision)
    logits_NC = evaluator.predict("input", progress if explain is None else None)
    return logits_NC, {**evaluator.rejection_columns("input"), **explained}


def write_part(
    saved: Predictor, path: str, chunks: RowChunks, *, explain: Explain | None = None, **options: Any
) -> None:
    """Predict one part, and write its file, in the format that its ending names, whole or not at all."""
    kinds, more = prediction_kinds(saved.label_space), further_columns(saved, with_explanation=explain is not None)
    # A copied column of labels stands behind the id, as in `predictions_csv`.
    labels = [name for name in chunks.kept if name in ("label", "labels")]
    rest = [name for name in chunks.kept if name not in labels]
    kinds = {**dict.fromkeys(("id", *labels), "text"), **kinds, **more, **dict.fromkeys(rest, "text")}
    with written_whole(path) as stream, row_writer(stream, path.rsplit(".", 1)[-1], kinds) as write:
        for columns, _ in _predicted_chunks(saved, chunks, explain=explain, **options):
            write(columns)


@contextlib.contextmanager
def row_writer(
    stream: IO[bytes], file_format: str, kinds: Mapping[str, str]
) -> Iterator[Callable[[Mapping[str, Sequence[Any]]], None]]:
    """Yield what writes columns, of these kinds and in their order, to a stream as Parquet, JSON lines or CSV."""
    if file_format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"text": pa.string(), "number": pa.float64(), "share": pa.float32(), "texts": pa.list_(pa.string())}
        types["flag"] = pa.bool_()
        schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:

            def write(columns: Mapping[str, Sequence[Any]]) -> None:
                table = pa.table([pa.array(columns[name], schema.field(name).type) for name in kinds], schema=schema)
                writer.write_table(table, row_group_size=max(len(table), 1))

            yield write
        return
    if file_format == "csv":
        stream.write(csv_text([kinds]).encode())

    def write_lines(columns: Mapping[str, Sequence[Any]]) -> None:
        write_text = csv_lines if file_format == "csv" else _json_lines
        stream.write(write_text({name: columns[name] for name in kinds}, kinds).encode())

    yield write_lines


def _json_lines(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> str:
    values = (map(partial(_json_value, kind=kind), columns[name]) for name, kind in kinds.items())
    records = (dict(zip(kinds, row, strict=True)) for row in zip(*values, strict=True))
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def _json_value(value: Any, kind: str) -> Any:
    """Return a value as JSON has it, NaN as null."""
    if kind not in ("share", "number"):
        return value
    number = round(float(value), 6) if kind == "share" else float(value)
    return number if math.isfinite(number) else None


def check_same_parts(folder: str, request: Mapping[str, Any], *, record: bool = False) -> None:
    """Check that the parts in a folder, if any, are of the same run, input and settings; or record these."""
    place, now = f"{folder}/{PARTS_FILE}", json.loads(to_json(request))
    content = read_if_there(place)
    if content is None and not record:
        return
    if content is None:
        with written_whole(place) as stream:
            stream.write(to_json(request).encode())
        return
    try:
        before = dict(parse_json(content.decode()))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{place}: is not the record of parts ({error}). Name another --output_dir.") from error
    differing = [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]
    if differing:
        raise CheckpointError(
            f"{place}: --output_dir has parts of another call, which differs in {', '.join(differing)}. Repeat that"
            " call, which this file records, to go on with it, or name another --output_dir."
        )


def run_fingerprint(saved: Predictor) -> str:
    """Return a SHA-256 of the weights and settings of a run, and of the members of an ensemble."""
    folders = [saved.folder]
    if isinstance(saved, EnsemblePredictor):
        folders += [saved.folder / name for name in saved.folders]
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(Path(folder).iterdir()):
            if file.suffix in _WEIGHTS_AND_SETTINGS and file.name not in _RECORDS and file.is_file():
                digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
