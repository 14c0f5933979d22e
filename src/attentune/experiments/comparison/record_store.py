"""Writes the records of a comparison: one JSON file for each finished run, written atomically."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attentune.config import Config, to_dict
from attentune.errors import AttentuneError, CheckpointError
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
from attentune.io.files import storage_errors, sync_file, sync_folder, write_bytes, write_text
from attentune.io.locks import FileLock
from attentune.metrics.metrics import METRICS
from attentune.results import RunResult, versions
from attentune.training.signals import Pruned

__all__ = ["RecordStore", "Run", "RunRecord", "failed_record", "record_of", "unpaired"]

# In a run folder: that it is kept, and the record of a run whose command has not taken it over yet.
_KEPT, _DRAFT = ".kept", "record.json"
# The content of the former if the run is kept for having the best score, rather than with all others.
_AS_BEST = b"best\n"


def record_of(run: Run, config: Config, result: RunResult, folder: Path, *, wall_seconds: float) -> RunRecord:
    """Build the record of a finished run, whose files are in `folder`."""
    metric, score = score_to_compare_by(result.scores, config.training.metric_for_best_model)
    predictions = {split: f"seed-{run.seed}.{split}.csv" for split in _predicted(folder)}
    return RunRecord(
        **vars(result) | {"config": _without_folder(result.config)},
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
    """Build the record of a run that failed or was pruned."""
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
    """Return the settings without folder and resume flags, so that a resumed run has the same record."""
    return _without_folder(to_dict(config))


def _without_folder(settings: dict[str, Any]) -> dict[str, Any]:
    once = {"output_dir": None, "resume": False, "overwrite_output_dir": False}
    return settings | {"training": settings["training"] | once}


def _predicted(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("predictions_*.csv")):
        yield path.stem.removeprefix("predictions_")


class RecordStore:
    """The records in a comparison's folder, and the folders of runs in progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, run: Run) -> Path:
        """Return the path of a run's record."""
        return record_file(self.folder, run)

    def run_folder(self, run: Run) -> Path:
        """Return the folder in which a run is trained."""
        return self.folder / "runs" / run.name

    def lock(self, run: Run) -> FileLock:
        """Return the lock that the process executing this run holds."""
        return FileLock(self.folder / LOCKS / "runs" / f"{run.name}.lock")

    def has(self, run: Run) -> bool:
        """Return whether the run is recorded, done or failed."""
        return self.file(run).exists()

    def load(self, run: Run) -> RunRecord:
        """Read a run's record."""
        return RunRecord.load(self.file(run))

    def records(self, runs: Iterable[Run] | None = None) -> list[RunRecord]:
        """Read the records of these runs, or of all; runs without a record are skipped."""
        if runs is not None:
            return [self.load(run) for run in runs if self.has(run)]
        return [record for record, _ in read_records(self.folder)]

    def write_draft(self, record: RunRecord) -> None:
        """Leave the record of a run in its folder, for the command that is or will be in charge of it."""
        folder = self.run_folder(record.run)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _DRAFT, record.to_json())

    def draft(self, run: Run) -> RunRecord | None:
        """Return the record that a worker has left in a run's folder; None if there is none, or it is damaged."""
        file = self.run_folder(run) / _DRAFT
        try:
            return RunRecord.load(file) if file.is_file() else None
        except CheckpointError:
            return None

    def write(self, record: RunRecord, folder: Path) -> bool:
        """Write a record, with the predictions in its run folder; return False if the run already has a record.

        A second record is discarded, unless it is the first successful one.
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
        """Remove a record, so that its run is executed again."""
        with storage_errors(self.file(run)):
            self.file(run).unlink(missing_ok=True)

    def tidy(self, run: Run, *, keep: bool = False, keep_best: bool = False) -> None:
        """Remove the folder of a recorded run and empty parents, or mark it as kept; remove leftover temporary files.

        Call it with the run's lock held.
        """
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
        """Return whether a run has a better score than the kept best run of its task, size and method."""
        if (rank := self._rank(run)) is None:
            return False
        others = [self._rank(dataclasses.replace(run, seed=_seed(folder))) for folder in self._kept_as_best(run)]
        return all(other is None or rank > other for other in others)

    def _rank(self, run: Run) -> tuple[float, int] | None:
        """Return a key by which the best run is the highest: its score, then the lower seed; None without a score."""
        record = self.load(run) if self.has(run) else None
        if record is None or not record.is_done or record.score is None or record.metric is None:
            return None
        return record.score if METRICS[record.metric].greater_is_better else -record.score, -run.seed

    def _kept_as_best(self, run: Run) -> list[Path]:
        """Return the folders of other runs of the same task, size and method that are kept as the best."""
        folder = self.run_folder(run)
        return [
            kept.parent
            for kept in sorted(folder.parent.glob(f"seed-*/{_KEPT}"))
            if kept.parent != folder and kept.read_bytes() == _AS_BEST
        ]

    def _remove(self, folder: Path) -> None:
        """Remove a run folder, and the folders above it that are empty then."""
        shutil.rmtree(folder, ignore_errors=True)
        for parent in list(folder.parents)[:4]:
            try:
                parent.rmdir()
            except OSError:
                return


def _seed(folder: Path) -> int:
    """Return the seed of a run from the name of its folder."""
    return int(folder.name.removeprefix("seed-"))


def _put(temporary: Path, target: Path) -> bool:
    """Move a file to a new name; return False if the name exists (unlike a rename, which would replace it)."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links; the run's lock must suffice
        temporary.replace(target)
    return True
