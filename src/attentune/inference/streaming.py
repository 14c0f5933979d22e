"""Predict any number of rows chunk by chunk, in constant memory: to CSV, or to one part of a folder of parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tables import has_return
from attentune.data.unlabelled import InputRows, RowChunks
from attentune.data.writers import OutputColumn, row_writer
from attentune.errors import CheckpointError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictions import csv_header, csv_rows
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
) -> Iterator[str]:
    """Yield the text of `predictions_csv`, one piece per chunk; columns that are kept stand behind.

    Rows are batched within their chunk. As logits may depend on the batch in the last digits, they agree with those of
    a single chunk within the tolerance of the precision.
    """
    if predict is None:
        predict = partial(_only_logits, saved, precision=precision, progress=progress)
    quotes_all = chunks.has_return or has_return(saved.label_space.names)
    header = csv_header(saved.label_space, (*more, *chunks.kept), quotes_all=quotes_all)
    for rows in chunks.read():
        logits_NC, entries = predict(rows)
        more_entries = (*entries, *rows.kept)
        yield header + csv_rows(rows, logits_NC, saved.label_space, more_entries, quotes_all=quotes_all)
        header = ""


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
    texts, types = [OutputColumn(name, "text") for name in more], rows.types()
    columns = [OutputColumn("id", "text"), *_prediction_columns(saved.label_space), *texts]
    with written_whole(path) as stream, row_writer(stream, path.rsplit(".", 1)[-1], columns, types) as to:
        for block, kept in rows.read(ranges, types):
            logits_NC, entries = predict(block)
            values = {"id": block.ids, **_prediction_values(saved.label_space, logits_NC)}
            to.add(values | dict(zip(more, entries, strict=True)), kept)


def _prediction_columns(space: LabelSpace) -> list[OutputColumn]:
    if space.task_type == "regression":
        return [OutputColumn("prediction", "number")]
    first = OutputColumn("predictions", "texts") if space.is_multilabel else OutputColumn("prediction", "text")
    return [first, *(OutputColumn(f"p_{name}", "share") for name in space.names)]


def _prediction_values(space: LabelSpace, logits_NC: np.ndarray) -> dict[str, Any]:
    predictions = predictions_of(logits_NC, space)
    if space.task_type == "regression":
        return {"prediction": predictions.astype(np.float64)}
    shares_NC = probabilities_of(logits_NC, space)
    shares = {f"p_{name}": shares_NC[:, place] for place, name in enumerate(space.names)}
    if space.is_multilabel:
        return {"predictions": [space.names_of(one) for one in predictions], **shares}
    return {"prediction": [space.names[int(one)] for one in predictions], **shares}


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
