"""The records of a comparison: one JSON file a run, whole or not there. They say what is done."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.config import Config, to_dict
from attentune.errors import AttentuneError, CheckpointError
from attentune.files import storage_errors, sync_file, sync_folder, write_bytes
from attentune.results import RunResult, to_json, versions
from attentune.training.folder import LOG_FILE
from attentune.training.locks import FileLock
from attentune.training.manifest import LOCKS
from attentune.training.matrix import Run
from attentune.training.signals import Pruned

_FORMAT = 1
_KEPT = ".kept"
_CURVE = ("step", "epoch", "seconds", "tokens", "loss", "learning_rate")


@dataclass(frozen=True)
class RunRecord:
    """All that a comparison keeps of a run.

    Attributes:
        run: task, size of the training part, method, seed.
        status: "done" or "failed"; in a search also "pruned", given up as it did worse than others.
        metric: the one to compare by: that of `metric_for_best_model`, else the task's first; None if failed.
        score: its value on the first validation split; None where it is undefined or not there.
        scores, train, best, config, seed, versions, data_fingerprint, notes: as in `RunResult`.
        predictions: by split the file with ids, labels, predictions and probabilities, beside the record.
        labels_by_epoch: what the log says of each epoch's token labels.
        curve: step, epoch, seconds in training steps, tokens and mean loss since the line before, as logged.
        scored: the validation scores while it trained: step, epoch, and metrics by split.
        wall_seconds: of its last sitting, with loading, scoring and saving.
        host: the machine.
        error: kind, message and traceback of a failed run, else None.
    """

    run: Run
    status: str
    metric: str | None
    score: float | None
    scores: dict[str, dict[str, float | None]]
    train: dict[str, Any]
    best: dict[str, Any] | None
    config: dict[str, Any]
    seed: int
    versions: dict[str, str]
    data_fingerprint: dict[str, str]
    notes: list[str] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)
    labels_by_epoch: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    wall_seconds: float = 0.0
    host: str = ""
    error: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has scores."""
        return self.status == "done"

    def result(self) -> RunResult:
        """The run's own record."""
        names = (part.name for part in dataclasses.fields(RunResult))
        return RunResult(**{name: getattr(self, name) for name in names})

    def to_json(self) -> str:
        """JSON text; not-a-number becomes null."""
        return to_json({"format": _FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def load(cls, file: Path) -> RunRecord:
        """Read a record.

        Raises:
            CheckpointError: it is missing or none.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("format") != _FORMAT:
                raise ValueError("of another format")
            return cls(**{**content, "run": Run(**content["run"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: is no record of a run ({error}). Delete it; the same command makes it again."
            ) from error


def record_of(run: Run, config: Config, result: RunResult, folder: Path, *, wall_seconds: float) -> RunRecord:
    """The record of a finished run, whose files are in `folder`."""
    validation = next((split for split in result.scores if split.startswith("validation")), None)
    scores = {} if validation is None else result.scores[validation]
    wanted = config.training.metric_for_best_model
    metric = next(iter(scores), None) if wanted is None else wanted.removeprefix("eval_")
    predictions = {split: f"seed-{run.seed}.{split}.csv" for split in _predicted(folder)}
    return RunRecord(
        **{
            **{part.name: getattr(result, part.name) for part in dataclasses.fields(RunResult)},
            "config": _settings(config),
        },
        run=run,
        status="done",
        metric=metric,
        score=None if metric is None else scores.get(metric),
        predictions=predictions,
        **_log_facts(folder),
        wall_seconds=round(wall_seconds, 3),
        host=platform.node(),
    )


def failed_record(
    run: Run, config: Config, error: BaseException, folder: Path, *, wall_seconds: float, status: str = "failed"
) -> RunRecord:
    """The record of a run that failed, or was pruned."""
    trace = None if isinstance(error, (AttentuneError, Pruned)) else "".join(traceback.format_exception(error))
    return RunRecord(
        run=run,
        status=status,
        metric=None,
        score=None,
        scores={},
        train={},
        best=None,
        config=_settings(config),
        seed=run.seed,
        versions=versions(),
        data_fingerprint={},
        **_log_facts(folder),
        wall_seconds=round(wall_seconds, 3),
        host=platform.node(),
        error={"kind": type(error).__name__, "message": str(error), "traceback": trace},
    )


def _settings(config: Config) -> dict[str, Any]:
    """Without what tells how a run was begun or where it lay: the same for a run that was broken off and one that was
    not."""
    values = to_dict(config)
    values["training"] |= {"output_dir": None, "resume": False, "overwrite_output_dir": False}
    return values


def _predicted(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("predictions_*.csv")):
        yield path.stem.removeprefix("predictions_")


def _log_facts(folder: Path) -> dict[str, Any]:
    """The log's lines by what they tell of; none where there is no log. A last line that was cut short is left out."""
    lines = []
    try:
        for text in (folder / LOG_FILE).read_text(encoding="utf-8").splitlines():
            lines.append(json.loads(text))
    except (OSError, ValueError):
        pass
    return {
        "labels_by_epoch": [{"epoch": line["epoch"], **line["labels"]} for line in lines if "labels" in line],
        "curve": [{name: line[name] for name in _CURVE if name in line} for line in lines if "loss" in line],
        "scored": [
            {name: value for name, value in line.items() if name != "is_best"} for line in lines if "is_best" in line
        ],
    }


class Ledger:
    """The records in a comparison's folder, and where its runs lie while they are at work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, run: Run) -> Path:
        """Where a run's record is or will be."""
        return self.folder / "records" / f"{run.name}.json"

    def run_folder(self, run: Run) -> Path:
        """Where it is trained."""
        return self.folder / "runs" / run.name

    def lock(self, run: Run) -> FileLock:
        """Held by the process that is at this run."""
        return FileLock(self.folder / LOCKS / "runs" / f"{run.name}.lock")

    def has(self, run: Run) -> bool:
        """Whether the run is recorded, done or failed."""
        return self.file(run).exists()

    def load(self, run: Run) -> RunRecord:
        """A run's record.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        return RunRecord.load(self.file(run))

    def records(self, runs: Iterable[Run] | None = None) -> list[RunRecord]:
        """The records of these runs, or of all, as far as there are some.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        if runs is not None:
            return [self.load(run) for run in runs if self.has(run)]
        files = (self.folder / "records").glob("*/*/*/seed-*.json")
        return sorted((RunRecord.load(file) for file in files), key=_order)

    def write(self, record: RunRecord, folder: Path) -> bool:
        """Keep a record and the predictions in its run folder; whether it is the run's first. A second one is dropped,
        unless the first is of a failure and the second is not.

        Raises:
            StorageError: the disk refused; the record is not there.
        """
        target = self.file(record.run)
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        if self.has(record.run):
            if self.load(record.run).is_done or not record.is_done:
                return False
            target.unlink()
        for split, name in record.predictions.items():
            write_bytes(target.with_name(name), (folder / f"predictions_{split}.csv").read_bytes())
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        with storage_errors(target):
            try:
                temporary.write_text(record.to_json(), encoding="utf-8")
                sync_file(temporary)
                if not _put(temporary, target):
                    return False
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(target.parent)
        return True

    def forget(self, run: Run) -> None:
        """Take a record away, so that its run is done again."""
        with storage_errors(self.file(run)):
            self.file(run).unlink(missing_ok=True)

    def tidy(self, run: Run, *, keep: bool = False) -> None:
        """Remove the folder of a run that is recorded, and those above it that are then empty; or mark it as kept."""
        folder = self.run_folder(run)
        if not folder.exists() or (folder / _KEPT).exists():
            return
        if keep:
            write_bytes(folder / _KEPT, b"")
            return
        shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[:4]:
            try:
                parent.rmdir()
            except OSError:
                return


def _put(temporary: Path, target: Path) -> bool:
    """Give a file its name; of two that come at once one is refused, which is what a rename alone would not do."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without links; there the run's lock has to do
        temporary.replace(target)
    return True


def _order(record: RunRecord) -> tuple[Any, ...]:
    run = record.run
    return (run.task, run.train_size is None, run.train_size or 0, run.method, run.seed)


def unpaired(records: Iterable[RunRecord]) -> list[str]:
    """Tasks, sizes and seeds whose methods did not all see the same rows, one text each."""
    seen: dict[tuple[str, str, int], dict[str, list[str]]] = {}
    for record in records:
        if record.is_done:
            rows = json.dumps(record.data_fingerprint, sort_keys=True)
            key = (record.run.task, record.run.size, record.run.seed)
            seen.setdefault(key, {}).setdefault(rows, []).append(record.run.method)
    return [
        f"{task}, {size} rows, seed {seed}: {' | '.join(', '.join(methods) for methods in by_rows.values())}"
        for (task, size, seed), by_rows in seen.items()
        if len(by_rows) > 1
    ]
