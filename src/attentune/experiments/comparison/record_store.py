"""The records of a comparison: one JSON file a run, whole or not there. They say what is done."""

from __future__ import annotations

import os
import platform
import shutil
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attentune.config import Config, to_dict
from attentune.errors import AttentuneError
from attentune.experiments.comparison.manifest import LOCKS
from attentune.experiments.comparison.records import (
    Run,
    RunRecord,
    log_facts,
    read_records,
    record_file,
    score_to_compare_by,
    unpaired,
)
from attentune.io.files import storage_errors, sync_file, sync_folder, write_bytes
from attentune.io.locks import FileLock
from attentune.results import RunResult, versions
from attentune.training.signals import Pruned

__all__ = ["RecordStore", "Run", "RunRecord", "failed_record", "record_of", "unpaired"]

_KEPT = ".kept"


def record_of(run: Run, config: Config, result: RunResult, folder: Path, *, wall_seconds: float) -> RunRecord:
    """The record of a finished run, whose files are in `folder`."""
    metric, score = score_to_compare_by(result.scores, config.training.metric_for_best_model)
    predictions = {split: f"seed-{run.seed}.{split}.csv" for split in _predicted(folder)}
    return RunRecord(
        **vars(result) | {"config": _settings(config)},
        run=run,
        status="done",
        metric=metric,
        score=score,
        predictions=predictions,
        **log_facts(folder),
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
        **log_facts(folder),
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


class RecordStore:
    """The records in a comparison's folder, and where its runs lie while they are at work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, run: Run) -> Path:
        """Where a run's record is or will be."""
        return record_file(self.folder, run)

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
        return [record for record, _ in read_records(self.folder)]

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
        """Remove the folder of a run that is recorded, and those above it that are then empty; or mark it as kept.

        Called with the run's lock held. What writers that were killed have left of its record goes too.
        """
        for half in self.file(run).parent.glob(f".{self.file(run).stem}.*.tmp"):
            half.unlink(missing_ok=True)
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
