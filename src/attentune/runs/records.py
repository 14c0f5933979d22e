"""Runs and their records: one JSON file for each run of a comparison, search or `auto`. Reading needs no PyTorch.

Also the predictions beside a record.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import platform
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import Config, to_dict
from attentune.data.dataset import data_name
from attentune.errors import AttentuneError, CheckpointError
from attentune.inference.predictions import values_of
from attentune.io.files import (
    FileLock,
    is_plain_name,
    parse_json,
    read_text,
    storage_errors,
    write_bytes,
    write_text,
)
from attentune.metrics.metrics import METRICS
from attentune.results import LOG_FILE, ORIGINAL_TRAIN, RunResult, check_fields, to_json, versions
from attentune.training.run_folder import Pruned

# The task of custom data in the names of folders and in settings files; people read `RunRecord.task_name`.
CUSTOM_TASK = "own"
# The folder of locks in that of a comparison or search.
LOCKS = ".locks"
TEST = "test"
STATUSES = ("done", "failed", "pruned")
_FORMAT = 1
_CURVE = ("step", "epoch", "seconds", "tokens", "loss", "learning_rate")
# In a run folder: that it is kept, and the record of a run whose command has not taken it over yet.
_KEPT, _DRAFT = ".kept", "record.json"
# The content of the former if the run is kept for having the best score, rather than with all others.
_AS_BEST = b"best\n"
# The methods, settings and tasks of a comparison.
MANIFEST_FILE = "compare.json"


@dataclass(frozen=True, order=True)
class Run:
    task: str  # a built-in task's name; `CUSTOM_TASK` for custom data
    train_size: int | None  # number of training rows; None for all
    method: str  # the name of a preset or method
    seed: int  # the seed of subsampling, new weights, row order and masks

    @property
    def size(self) -> str:
        return "all" if self.train_size is None else str(self.train_size)

    @property
    def name(self) -> str:
        """A relative path that is unique in the comparison."""
        return f"{self.task}/{self.size}/{self.method}/seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunResult):
    """The record of a run in a comparison: the result of the run, with fields that the comparison adds."""

    run: Run  # task, training size, method and seed
    status: str  # "done", "failed", or in a search "pruned"
    metric: str | None  # the metric to compare by: `metric_for_best_model`, or the task's first; None if the run failed
    score: float | None  # its value on the first validation split; None if it is undefined or missing
    # By split, the file next to the record with ids, labels, predictions and probabilities.
    predictions: dict[str, str] = field(default_factory=dict)
    labels_by_epoch: list[dict[str, Any]] = field(default_factory=list)  # the counts of each epoch's token labels
    curve: list[dict[str, Any]] = field(default_factory=list)  # the training curve from the log
    scored: list[dict[str, Any]] = field(default_factory=list)  # the validation scores during training
    wall_seconds: float = 0.0  # wall time since the run was last started or resumed
    host: str = ""  # the machine's name
    error: dict[str, Any] | None = None  # the kind, message and traceback if the run failed; None otherwise

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def task_name(self) -> str:
        """The task's name; for custom data, that of the file or data set."""
        return self.run.task if self.run.task != CUSTOM_TASK else data_name(self.config.get("data") or {})

    @property
    def split(self) -> str | None:
        """The split on which `score` is computed: the first validation split; None if the run failed or has none."""
        found = next((split for split in self.scores if split.startswith("validation")), None)
        # A report on runs without validation rows, such as those of `auto`, has set `score` by test rows.
        return found or (TEST if self.score is not None and TEST in self.scores else None)

    def to_json(self) -> str:
        return to_json({"format": _FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def load(cls, file: str | Path) -> RunRecord:
        try:
            text = read_text(Path(file))
        except (OSError, ValueError) as error:
            raise _no_record(str(file), error) from error
        return cls.from_json(text, str(file))

    @classmethod
    def from_json(cls, text: str, where: str) -> RunRecord:
        try:
            content = parse_json(text)
            if (found := content.pop("format", None)) != _FORMAT:
                raise ValueError(f"of another format: got {str(found)[:20]!r}, expected {_FORMAT}")
            check_fields(cls, content)
            check_fields(Run, content["run"])
            if content["status"] not in STATUSES:
                raise ValueError(f"its status is {str(content['status'])[:40]!r}")
            elsewhere = [name for name in content.get("predictions", {}).values() if not is_plain_name(name)]
            if elsewhere:
                raise ValueError(f"it names {elsewhere[0][:80]!r}, expected a file in the same folder")
            return cls(**{**content, "run": Run(**content["run"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_record(where, error) from error


def _no_record(where: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{where}: is no record of a run ({error}). Delete it, and its predictions if there are any; the same command"
        " makes it again."
    )


def record_of(run: Run, metric: str | None, result: RunResult, folder: Path, *, wall_seconds: float) -> RunRecord:
    """Build the record of a finished run, whose files are in `folder`; it is compared by `metric`, or the first one."""
    metric, score = score_to_compare_by(result.scores, metric)
    splits = [path.stem.removeprefix("predictions_") for path in sorted(folder.glob("predictions_*.csv"))]
    return RunRecord(
        **vars(result) | {"config": _without_folder(result.config)},
        run=run,
        status="done",
        metric=metric,
        score=score,
        predictions={split: f"seed-{run.seed}.{split}.csv" for split in splits},
        **log_facts(folder),
        wall_seconds=round(wall_seconds, 3),
        host=platform.node(),
    )


def failed_record(
    run: Run, config: Config, error: BaseException, folder: Path, *, wall_seconds: float, status: str = "failed"
) -> RunRecord:
    trace = None if isinstance(error, (AttentuneError, Pruned)) else "".join(traceback.format_exception(error))
    return RunRecord(
        run=run,
        status=status,
        metric=None,
        score=None,
        scores={},
        train={},
        best=None,
        config=_without_folder(to_dict(config)),
        seed=run.seed,
        versions=versions(),
        data_fingerprint={},
        **log_facts(folder),
        wall_seconds=round(wall_seconds, 3),
        host=platform.node(),
        error={"kind": type(error).__name__, "message": str(error), "traceback": trace},
    )


def _without_folder(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without folder and resume flags, so that a resumed run has the same record."""
    once = {"output_dir": None, "resume": False, "overwrite_output_dir": False}
    return settings | {"training": settings.get("training", {}) | once}


def score_to_compare_by(
    scores: dict[str, dict[str, float | None]], wanted: str | None, split: str = "validation"
) -> tuple[str | None, float | None]:
    """Return the metric to compare by and its value on the first such split, None if missing or undefined."""
    of_split = next((part for name, part in scores.items() if name.startswith(split)), {})
    metric = next(iter(of_split), None) if wanted is None else wanted.removeprefix("eval_")
    return metric, None if metric is None else of_split.get(metric)


def log_facts(folder: Path) -> dict[str, Any]:
    """Return the entries of a run's log by kind; empty if there is no log. Reading stops at an incomplete line."""
    lines: list[dict[str, Any]] = []
    try:
        for text in read_text(folder / LOG_FILE).removesuffix("\n").split("\n"):
            line = parse_json(text)
            if not isinstance(line, dict) or not isinstance(line.get("labels", {}), dict):
                raise ValueError("not a line of the log")
            lines.append(line)
    except (OSError, ValueError):
        pass
    return {
        "labels_by_epoch": [{"epoch": line.get("epoch"), **line["labels"]} for line in lines if "labels" in line],
        "curve": [{name: line[name] for name in _CURVE if name in line} for line in lines if "loss" in line],
        "scored": [
            {name: value for name, value in line.items() if name != "is_best"} for line in lines if "is_best" in line
        ],
    }


class RecordStore:
    """The records in a comparison's folder, and the folders of runs in progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, run: Run) -> Path:
        return self.folder / "records" / f"{run.name}.json"

    def run_folder(self, run: Run) -> Path:
        return self.folder / "runs" / run.name

    def lock(self, run: Run) -> FileLock:
        return FileLock(self.folder / LOCKS / "runs" / f"{run.name}.lock")

    @contextlib.contextmanager
    def holding(self, run: Run) -> Iterator[bool]:
        """Hold a run's lock; yield False if another process holds it, which may still save after its command ended."""
        lock = self.lock(run)
        is_mine = lock.take(wait=False)
        try:
            yield is_mine
        finally:
            if is_mine:
                lock.free()

    def has(self, run: Run) -> bool:
        return self.file(run).exists()

    def load(self, run: Run) -> RunRecord:
        return RunRecord.load(self.file(run))

    def records(self, runs: Iterable[Run] | None = None) -> list[RunRecord]:
        """Read the records of these runs, without those that have none; or all, by task, size, method and seed."""
        if runs is not None:
            return [self.load(run) for run in runs if self.has(run)]
        found = [RunRecord.load(file) for file in self.folder.glob("records/*/*/*/seed-*.json")]
        return sorted(
            found, key=lambda one: (one.run.task, one.run.train_size or math.inf, one.run.method, one.run.seed)
        )

    def write_draft(self, record: RunRecord) -> None:
        """Leave a record in the run's folder, for the command that is or will be in charge of it."""
        folder = self.run_folder(record.run)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _DRAFT, record.to_json())

    def draft(self, run: Run) -> RunRecord | None:
        file = self.run_folder(run) / _DRAFT
        try:
            return RunRecord.load(file) if file.is_file() else None
        except CheckpointError:
            return None

    def write(self, record: RunRecord, folder: Path) -> bool:
        """Write a record, with the predictions in its run folder; return False if the run already has a record.

        A second record is discarded, unless it is the first successful one. Call it with the run's lock held.
        """
        target = self.file(record.run)
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        if self.has(record.run) and (self.load(record.run).is_done or not record.is_done):
            return False
        for split, name in record.predictions.items():
            write_bytes(target.with_name(name), (folder / f"predictions_{split}.csv").read_bytes())
        write_text(target, record.to_json())
        return True

    def forget(self, run: Run) -> None:
        with storage_errors(self.file(run)):
            self.file(run).unlink(missing_ok=True)

    def tidy(self, run: Run, *, keep: bool = False, keep_best: bool = False) -> None:
        """Remove the folder of a recorded run, or mark it as kept; the run's lock is held."""
        for leftover in self.file(run).parent.glob(f".{self.file(run).stem}.*.tmp"):
            leftover.unlink(missing_ok=True)
        folder = self.run_folder(run)
        if not folder.exists() or (folder / _KEPT).exists():
            return
        if keep or (keep_best and self._is_best_kept(run)):
            write_bytes(folder / _KEPT, b"" if keep else _AS_BEST)
            (folder / _DRAFT).unlink(missing_ok=True)
            # Only now, so that a killed command leaves one folder too many rather than none.
            for other in self._kept_as_best(run) if keep_best else ():
                self._remove(other)
            return
        self._remove(folder)

    def _is_best_kept(self, run: Run) -> bool:
        if (rank := self._rank(run)) is None:
            return False
        seeds = [int(folder.name.removeprefix("seed-")) for folder in self._kept_as_best(run)]
        others = [self._rank(dataclasses.replace(run, seed=seed)) for seed in seeds]
        return all(other is None or rank > other for other in others)

    def _rank(self, run: Run) -> tuple[float, int] | None:
        """Return a key that is highest for the best run; of equal scores the lower seed is better."""
        record = self.load(run) if self.has(run) else None
        if record is None or not record.is_done or record.score is None or record.metric is None:
            return None
        return record.score if METRICS[record.metric].greater_is_better else -record.score, -run.seed

    def _kept_as_best(self, run: Run) -> list[Path]:
        folder = self.run_folder(run)
        return [
            kept.parent
            for kept in sorted(folder.parent.glob(f"seed-*/{_KEPT}"))
            if kept.parent != folder and kept.read_bytes() == _AS_BEST
        ]

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[:4]:
            try:
                parent.rmdir()
            except OSError:
                return


@dataclass(frozen=True)
class Predictions:
    ids: tuple[str, ...]  # the ids of the rows
    names: tuple[str, ...]  # the class names in the order of their ids; empty for regression
    labels_N: np.ndarray  # (N,) class ids (int64) or scores (float64); for multi-label tasks, (N, C) zeros and ones
    predictions_N: np.ndarray  # predictions in the format of `labels_N`
    # (N, C); without columns for regression and where a file has none.
    probabilities_NC: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


# From the labels and predictions of a file without probabilities, and whether its rows have several labels: the classes
# (none for scores), and whether they have.
ClassFinder = Callable[[Sequence[str], Sequence[str], bool], tuple[tuple[str, ...], bool]]


def read_predictions(file: Path, find_classes: ClassFinder | None = None) -> Predictions:
    """Read the labels, predictions and probabilities in a file of predictions; columns p_NAME may be empty."""
    try:
        if file.is_symlink():
            raise ValueError("it is a link")
        header, *rows = csv.reader(io.StringIO(read_text(file), newline=""))
        if header[:3] not in (["id", "label", "prediction"], ["id", "labels", "predictions"]):
            raise ValueError(f"its columns are {', '.join(header[:3])}; expected id, label, prediction")
        if not rows:
            raise ValueError("it has no rows")
        columns = [cells[1:] for cells in zip(header, *rows, strict=True)]
        shares = [number for number, name in enumerate(header) if number > 2 and name.startswith("p_")]
        names, several = tuple(header[number].removeprefix("p_") for number in shares), header[1] == "labels"
        if not names and find_classes is not None:
            names, several = find_classes(columns[1], columns[2], several)
        labels_N, predictions_N = (values_of(texts, names, several=several) for texts in columns[1:3])
        shares_CN = [np.array(columns[number], dtype=np.float64) for number in shares if any(columns[number])]
        probabilities_NC = np.stack(shares_CN, axis=1) if shares_CN else np.zeros((len(labels_N), 0))
        return Predictions(columns[0], names, labels_N, predictions_N, probabilities_NC)
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise CheckpointError(
            f"{file}: holds no predictions with labels ({error}). Expected a CSV file with the columns id, label and"
            " prediction, as attentune evaluate and predict write it."
        ) from error


def unpaired(records: Iterable[RunRecord]) -> list[str]:
    """Return a message for each task, size and seed whose methods were not trained and scored on the same rows."""
    seen: dict[tuple[str, str, int], dict[str, list[str]]] = {}
    for record in records:
        if record.is_done:
            prints = dict(record.data_fingerprint)
            # Rows of extra training files belong to the method.
            prints |= {"train": train_print} if (train_print := prints.pop(ORIGINAL_TRAIN, None)) is not None else {}
            rows = json.dumps(prints, sort_keys=True)
            key = (record.task_name, record.run.size, record.run.seed)
            seen.setdefault(key, {}).setdefault(rows, []).append(record.run.method)
    return [
        f"{task}, {size} rows, seed {seed}: {' | '.join(', '.join(methods) for methods in by_rows.values())}"
        for (task, size, seed), by_rows in seen.items()
        if len(by_rows) > 1
    ]
