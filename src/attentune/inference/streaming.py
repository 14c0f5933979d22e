"""Predict any number of rows chunk by chunk, in constant memory: to CSV, or to one part of a folder of parts."""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from attentune.data.dataset import SEPARATOR, LabelSpace, TextRows
from attentune.data.unlabelled import InputRows, RowChunks
from attentune.errors import CheckpointError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictions import csv_rows, csv_text, output_names
from attentune.inference.predictor import Predictor, Progress, predict_rows
from attentune.io.files import parse_json, sha256_of
from attentune.io.urls import read_if_there, written_whole
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.results import to_json

# The logits (N, C) of some rows, and the entries of further columns, one per row.
Predicted = tuple[np.ndarray, Sequence[Sequence[str]]]
# What the parts of a folder are of.
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
    saved: Predictor,
    chunks: RowChunks,
    *,
    precision: str | None = None,
    progress: Progress | None = None,
    more: Sequence[str] = (),
    predict: Callable[[TextRows], Predicted] | None = None,
    as_json: bool = False,
) -> Iterator[str]:
    """Yield `predictions_csv`, or JSON lines with the same columns, one piece per chunk; kept columns stand behind.

    Rows are batched within their chunk. As logits may depend on the batch in the last digits, they agree with those of
    a single chunk within the tolerance of the precision.
    """
    if predict is None:
        predict = partial(_only_logits, saved, precision=precision, progress=progress)
    names, is_first = (*more, *chunks.kept), True
    for rows in chunks.read():
        logits_NC, entries = predict(rows)
        if as_json:
            space = saved.label_space
            label = next(iter(_prediction_kinds(space))).replace("prediction", "label")
            known = {} if rows.labels is None else {label: [_label_value(space, one) for one in rows.labels]}
            columns = {"id": rows.ids, **known, **_prediction_values(space, logits_NC)}
            columns |= dict(zip(names, (*entries, *rows.kept), strict=True))
            yield _json_lines(columns, {**dict.fromkeys(columns, "text"), **_prediction_kinds(space)})
            continue
        text = csv_rows(rows, logits_NC, saved.label_space, (*entries, *rows.kept))
        is_labelled = rows.labels is not None  # in all chunks or none
        yield csv_text([output_names(saved.label_space, names, is_labelled=is_labelled)]) * is_first + text
        is_first = False


def _only_logits(saved: Predictor, rows: TextRows, **options: Any) -> Predicted:
    return predict_rows(saved, rows, **options), ()


def write_part(
    saved: Predictor,
    path: str,
    rows: InputRows,
    ranges: Iterable[tuple[int, int, int]],
    *,
    precision: str | None = None,
    progress: Progress | None = None,
    more: Sequence[str] = (),
    predict: Callable[[TextRows], Predicted] | None = None,
) -> None:
    """Predict the ranges of one part, and write its file, in the format that its ending names, whole or not at all."""
    if predict is None:
        predict = partial(_only_logits, saved, precision=precision, progress=progress)
    space, names = saved.label_space, ("id", *rows.kept, *more)
    kinds = {**dict.fromkeys(names, "text"), **_prediction_kinds(space)}
    # A copied column of labels stands behind the id, as in `predictions_csv`.
    labels = [name for name in rows.kept if name in ("label", "labels")]
    order = ["id", *labels, *_prediction_kinds(space), *more, *(name for name in rows.kept if name not in labels)]
    with (
        written_whole(path) as stream,
        row_writer(stream, path.rsplit(".", 1)[-1], {name: kinds[name] for name in order}) as write,
    ):
        for block in rows.read(ranges):
            logits_NC, entries = predict(block)
            columns = dict(zip(names, (block.ids, *block.kept, *entries), strict=True))
            write({**columns, **_prediction_values(space, logits_NC)})


def _prediction_kinds(space: LabelSpace) -> dict[str, str]:
    """Return the kind of each column of predictions."""
    if space.task_type == "regression":
        return {"prediction": "number"}
    first = {"predictions": "texts"} if space.is_multilabel else {"prediction": "text"}
    return {**first, **{f"p_{name}": "share" for name in space.names}}


def _prediction_values(space: LabelSpace, logits_NC: np.ndarray) -> dict[str, Any]:
    predictions = predictions_of(logits_NC, space)
    if space.task_type == "regression":
        return {"prediction": predictions.astype(np.float64)}
    shares_NC = probabilities_of(logits_NC, space)
    shares = {f"p_{name}": shares_NC[:, place] for place, name in enumerate(space.names)}
    if space.is_multilabel:
        return {"predictions": [space.names_of(one) for one in predictions], **shares}
    return {"prediction": [space.names[int(one)] for one in predictions], **shares}


def _label_value(space: LabelSpace, label: Any) -> Any:
    if space.task_type == "regression":
        return float(label)
    return space.names_of(label) if space.is_multilabel else space.text_of(label)


@contextlib.contextmanager
def row_writer(
    stream: IO[bytes], file_format: str, kinds: Mapping[str, str]
) -> Iterator[Callable[[Mapping[str, Sequence[Any]]], None]]:
    """Yield what writes columns to a stream as Parquet, JSON lines or CSV.

    The kinds of columns are "text", "texts" (a list), "number" and "share" (a probability, six digits in text formats).
    """
    if file_format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"text": pa.string(), "number": pa.float64(), "share": pa.float32(), "texts": pa.list_(pa.string())}
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
        if file_format == "csv":
            rows = zip(*(columns[name] for name in kinds), strict=True)
            fields = ([_field(value, kind) for value, kind in zip(row, kinds.values(), strict=True)] for row in rows)
            stream.write(csv_text(fields).encode())
        else:
            stream.write(_json_lines(columns, kinds).encode())

    yield write_lines


def _json_lines(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> str:
    """Format columns as JSON, one object a row."""
    values = (map(partial(_json_value, kind=kind), columns[name]) for name, kind in kinds.items())
    records = (dict(zip(kinds, row, strict=True)) for row in zip(*values, strict=True))
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def _field(value: Any, kind: str) -> str:
    if kind == "share":
        return f"{value:.6f}"
    if kind == "number":
        return LabelSpace("regression").text_of(value)
    return SEPARATOR.join(value) if kind == "texts" else str(value)


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
    except ValueError as error:
        raise CheckpointError(f"{place}: is not the record of parts ({error}). Name another --output_dir.") from error
    problems = []
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "input":
            gone, more = ([one for one in a if one not in b] for a, b in ((old or [], new), (new, old or [])))
            problems.append(f"the input: now {', '.join(more[:2]) or 'less'}, before {', '.join(gone[:2]) or 'less'}")
        elif name == "run":
            problems.append("the run's weights or settings")
        else:
            problems.append(f"{name}: now {new!r}, before {old!r}")
    if problems:
        raise CheckpointError(
            f"{place}: --output_dir has parts of another call, which differs in {'; '.join(problems)}. Repeat that call"
            " to go on with it, or name another --output_dir."
        )


def run_fingerprint(saved: Predictor) -> str:
    """Return a SHA-256 of the weights and settings of a run, and of the members of an ensemble."""
    folders = [saved.folder]
    if isinstance(saved, EnsemblePredictor):
        folders += [saved.folder / name for member in saved.members for name in member.folders]
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(Path(folder).iterdir()):
            if file.suffix in _WEIGHTS_AND_SETTINGS and file.name not in _RECORDS and file.is_file():
                digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
