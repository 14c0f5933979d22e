"""A worker of a comparison's queue whose runs only sleep: `python queue_worker.py TASK.json`.

It appends "began RUN" and "ended RUN" to the log file of the task, and records each run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from attentune.experiments.comparison.grid import Run
from attentune.experiments.comparison.record_store import RunRecord
from attentune.experiments.execution.queue import RunQueue
from attentune.experiments.execution.queue_storage import StorageConfig

RUNS = tuple(Run("cola", 250, method, seed) for seed in range(1, 7) for method in ("bert", "sesame"))


def storage_in(folder: Path, storage: str | None = None, *, folder_id: str = "one") -> StorageConfig:
    folder.mkdir(exist_ok=True)
    return StorageConfig(str(folder), folder_id, storage, heartbeat_s=1)


def worker(
    where: StorageConfig, log: Path, *, seconds: float = 0.0, runs: tuple[Run, ...] = RUNS
) -> subprocess.Popen[bytes]:
    """Start a process of this module."""
    task = {"storage_config": dataclasses.asdict(where), "log": str(log), "seconds": seconds}
    task["runs"] = [dataclasses.asdict(run) for run in runs]
    file = log.with_name(f"{log.stem}-{where.folder_id}-{time.monotonic_ns()}.json")
    file.write_text(json.dumps(task))
    return subprocess.Popen([sys.executable, __file__, str(file)], start_new_session=True)


def noted(log: Path, what: str) -> Counter[str]:
    """Return how often each run began or ended."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return Counter(name for word, name, _ in lines if word == what)


def names(runs: tuple[Run, ...] = RUNS) -> set[str]:
    return {run.name for run in runs}


def small_record(run: Run, *, status: str = "done", score: float | None = 0.5, seconds: float = 1.0) -> RunRecord:
    """Return a synthetic record, without training."""
    return RunRecord(
        run=run,
        status=status,
        metric="accuracy",
        score=score,
        scores={"validation": {"accuracy": score}},
        train={},
        best=None,
        config={},
        seed=run.seed,
        versions={},
        data_fingerprint={"train": f"{run.task} {run.size} {run.seed}"},
        wall_seconds=seconds,
    )


def main(file: str) -> None:
    task = json.loads(Path(file).read_text())
    queue, log = RunQueue(StorageConfig(**task["storage_config"])), Path(task["log"])
    runs = {run.name: run for run in (Run(**fields) for fields in task["runs"])}

    def note(text: str) -> None:
        with log.open("ab", buffering=0) as lines:  # a single write, so that lines of several processes do not mix
            lines.write(f"{text} {os.getpid()}\n".encode())

    def do(run: Run) -> str:
        note(f"began {run.name}")
        time.sleep(task["seconds"])
        is_first = queue.record_store.write(small_record(run), Path(task["storage_config"]["folder"]))
        note(f"ended {run.name}")
        return "done" if is_first else "duplicate"

    while queue.run_next(runs, do):
        pass


if __name__ == "__main__":
    main(sys.argv[1])
