"""Read the runs, HANS results and layer weights of the folders that a report is made from."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.errors import CheckpointError
from attentune.experiments.comparison.records import (
    Run,
    RunRecord,
    log_facts,
    read_records,
    record_file,
    score_to_compare_by,
)
from attentune.inference.predictions import values_of
from attentune.io.files import read_json, read_text
from attentune.results import RESULT_FILE, TASKS_FILE, RunResult

_MEND = "Delete the record and its predictions; the same command makes them again."


@dataclass(frozen=True)
class Predictions:
    """A `predictions` file.

    Attributes:
        ids: of the rows.
        names: the classes in the order of their ids; empty for regression.
        labels_N: (N,) class ids (int64) or scores (float64); with several labels a row (N, C) ones and zeros.
        predictions_N: the same.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    labels_N: np.ndarray
    predictions_N: np.ndarray


@dataclass(frozen=True)
class RecordedRun:
    """A record and the files of its predictions, by split."""

    record: RunRecord
    files: dict[str, Path]

    @property
    def split(self) -> str | None:
        """The split that its score is of: the first of validation; None if it failed or has none."""
        return next((split for split in self.record.scores if split.startswith("validation")), None)

    def predictions(self) -> Predictions | None:
        """Those on the split of the score; None where the file is not there.

        Raises:
            CheckpointError: the file cannot be read.
        """
        file = None if self.split is None else self.files.get(self.split)
        return None if file is None or not file.is_file() else read_predictions(file)


def recorded_runs(folder: Path, records: Iterable[RunRecord]) -> list[RecordedRun]:
    """These records of a comparison's folder with their files."""
    return [
        RecordedRun(
            record,
            {split: record_file(folder, record.run).with_name(name) for split, name in record.predictions.items()},
        )
        for record in records
    ]


def read_predictions(file: Path) -> Predictions:
    """Read the labels and predictions of a `predictions` file.

    Raises:
        CheckpointError: it cannot be read, or has no labels.
    """
    try:
        if file.is_symlink():
            raise ValueError("it is a link")
        header, *rows = csv.reader(io.StringIO(read_text(file), newline=""))
        names = tuple(column.removeprefix("p_") for column in header[3:] if column.startswith("p_"))
        ids, labels, predictions = zip(*(row[:3] for row in rows), strict=True)
        if header[:3] not in (["id", "label", "prediction"], ["id", "labels", "predictions"]):
            raise ValueError(f"its columns are {', '.join(header[:3])}")
        several = header[1] == "labels"
        return Predictions(ids, names, *(values_of(texts, names, several=several) for texts in (labels, predictions)))
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise CheckpointError(f"{file}: holds no predictions with labels ({error}). {_MEND}") from error


HANS_FILE, LAYERS_FILE, MANIFEST_FILE = "hans.json", "layers.json", "compare.json"


@dataclass(frozen=True)
class ReportData:
    """The content of the folders of a report.

    Attributes:
        folders: the folders' names as given.
        runs: the runs, with methods in the order of their comparison.
        hans: by folder the results of `attentune hans`.
        layers: by run the layer weights of `attentune layers --output_file`.
    """

    folders: tuple[str, ...]
    runs: tuple[RecordedRun, ...]
    hans: dict[str, dict[str, Any]]
    layers: dict[str, dict[str, Any]]


def collect(folders: Sequence[str]) -> ReportData:
    """Read comparison folders, run folders and folders of `attentune hans`.

    Raises:
        CheckpointError: a folder does not exist or holds none of these, or a file cannot be read.
    """
    by_folder = {folder: _recorded(Path(folder)) for folder in dict.fromkeys(folders)}
    hans: dict[str, dict[str, Any]] = {}
    layers: dict[str, dict[str, Any]] = {}
    for folder, runs in by_folder.items():
        hans |= {name: _read_extra(file, "lines") for name, file in _extras(Path(folder), HANS_FILE)}
        layers |= {name: _read_extra(file, None) for name, file in _extras(Path(folder), LAYERS_FILE)}
        if not runs and not any(True for name in (HANS_FILE, LAYERS_FILE) for _ in _extras(Path(folder), name)):
            raise CheckpointError(
                f"{folder}: holds no finished run. Expected the folder of a comparison (attentune compare), of a run"
                f" (attentune train), or one with {HANS_FILE} or {LAYERS_FILE}."
            )
    return ReportData(tuple(by_folder), tuple(_with_distinct_methods(by_folder)), hans, layers)


def _recorded(folder: Path) -> list[RecordedRun]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder. Expected the folder of a comparison or a run.")
    if (folder / "records").is_dir():
        return _comparison(folder)
    runs = sorted(file.parent for file in folder.glob(f"*/{RESULT_FILE}")) if (folder / TASKS_FILE).is_file() else []
    return [_run(run) for run in (runs or ([folder] if (folder / RESULT_FILE).is_file() else []))]


def _comparison(folder: Path) -> list[RecordedRun]:
    """Read the records, with methods and tasks in the order of the comparison's manifest."""
    runs = recorded_runs(folder, [record for record, _ in read_records(folder)])
    try:
        manifest_methods = read_json(folder / MANIFEST_FILE)["methods"]
        methods = list(manifest_methods)
        tasks = [task for method in manifest_methods.values() for task in method["tasks"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return runs
    order = {name: index for index, name in enumerate(dict.fromkeys([*methods, *tasks]))}

    def position(one: RecordedRun) -> tuple[int, int]:
        return order.get(one.record.run.task, len(order)), order.get(one.record.run.method, len(order))

    return sorted(runs, key=position)


def _run(folder: Path) -> RecordedRun:
    """Read a single run as a comparison would record it; its method is its preset."""
    result = RunResult.load(folder / RESULT_FILE)
    data, training = result.config.get("data", {}), result.config.get("training", {})
    metric, score = score_to_compare_by(result.scores, training.get("metric_for_best_model"))
    files = {path.stem.removeprefix("predictions_"): path for path in sorted(folder.glob("predictions_*.csv"))}
    run = Run(
        str(data.get("task") or "own"),
        data.get("max_train_samples"),
        str(result.config.get("preset") or folder.resolve().name),
        result.seed,
    )
    record = RunRecord(
        **vars(result),
        run=run,
        status="done",
        metric=metric,
        score=score,
        predictions={split: file.name for split, file in files.items()},
        **log_facts(folder),
    )
    return RecordedRun(record, files)


def _with_distinct_methods(by_folder: dict[str, list[RecordedRun]]) -> Iterator[RecordedRun]:
    """Yield the runs of all folders; if two folders have the same run, add the folder's name to all methods."""
    runs = [one.record.run for recorded in by_folder.values() for one in recorded]
    clash = len(set(runs)) < len(runs)
    names = [Path(folder).resolve().name for folder in by_folder]
    for number, (folder, recorded) in enumerate(by_folder.items()):
        name = names[number] if names.count(names[number]) == 1 else folder
        for one in recorded:
            if not clash:
                yield one
                continue
            run = dataclasses.replace(one.record.run, method=f"{one.record.run.method} in {name}")
            yield dataclasses.replace(one, record=dataclasses.replace(one.record, run=run))


def _extras(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of this name in a folder and in the run folders of a comparison, with their source's name."""
    if (folder / name).is_file():
        yield folder.resolve().name, folder / name
    for file in sorted((folder / "runs").glob(f"*/*/*/seed-*/{name}")):
        yield str(file.parent.relative_to(folder / "runs")), file


def _read_extra(file: Path, key: str | None) -> dict[str, Any]:
    try:
        content = read_json(file)
        if not isinstance(content, dict) or (key is not None and key not in content):
            raise ValueError("unexpected content")
        return content
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error}). Repeat the command that wrote it, or remove the file."
        ) from error
