"""Fifty kills of workers: no record is lost, none is there twice, and nobody waits for the dead."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from attentune.experiments.comparison.grid import Run
from attentune.experiments.comparison.record_store import RecordStore
from attentune.experiments.execution.queue import RunQueue
from attentune.experiments.execution.queue_storage import StorageConfig
from helpers.comparisons import is_alive
from helpers.postgres import running_server
from helpers.queue_worker import names, noted, storage_in, worker

pytestmark = pytest.mark.slow
# More runs than kills, as a busy machine ends some before their kill comes.
RUNS = tuple(Run("cola", 250, method, seed) for seed in range(1, 51) for method in ("bert", "sesame"))
KILLS, WORKERS, RUN_S, LIMIT_S = 50, 3, 0.3, 3000


@contextlib.contextmanager
def storage(kind: str) -> Iterator[str | None]:
    """The URL of the queue's database; None is the journal file."""
    if kind == "journal":
        yield None
        return
    with running_server() as server:
        yield server.url


def killed_in_time(log: Path, seen: int, workers: list[subprocess.Popen[bytes]], draw: random.Random) -> bool:
    """Kill the worker that began a run last, somewhere within it or right after; whether there was one to kill."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("began")] if log.exists() else []
    if len(lines) <= seen:
        return False
    victim = next((process for process in workers if process.pid == int(lines[-1].split()[-1])), None)
    time.sleep(draw.random() * 1.2 * RUN_S)
    if victim is None or victim.poll() is not None:
        return False
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    return True


def do_all(queue: RunQueue, where: StorageConfig, log: Path, draw: random.Random) -> tuple[int, list[int]]:
    """Keep workers at the runs, and kill one after the other, until all is done; kills, and all processes."""
    workers: list[subprocess.Popen[bytes]] = []
    kills, pids, deadline = 0, [], time.monotonic() + LIMIT_S
    while not queue.refill(RUNS).is_finished:
        assert time.monotonic() < deadline, f"{kills} kills, {len(RecordStore(Path(where.folder)).records())} records"
        workers = [process for process in workers if process.poll() is None]
        while len(workers) < WORKERS:
            workers.append(worker(where, log, seconds=RUN_S, runs=RUNS))
            pids.append(workers[-1].pid)
        seen = sum(noted(log, "began").values())
        until = time.monotonic() + 2
        while kills < KILLS and time.monotonic() < until:
            if killed_in_time(log, seen, workers, draw):
                kills += 1
                break
            time.sleep(0.01)
    for process in workers:
        process.wait(120)
    return kills, pids


@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_fifty_kills_of_workers(kind: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    log = tmp_path / "log"
    with storage(kind) as url:
        where = storage_in(tmp_path / "comparison", url)
        queue = RunQueue(where)
        kills, pids = do_all(queue, where, log, random.Random(5))
        assert kills == KILLS
        queue_status = queue.refill(RUNS)
        assert (len(queue_status.recorded), queue_status.is_finished, queue_status.duplicates) == (len(RUNS), True, {})
        # No trial is left as if somebody were at it.
        assert not [trial for trial in queue.trials() if trial.state in (TrialState.RUNNING, TrialState.WAITING)]
    records = RecordStore(Path(where.folder)).records()
    assert len(records) == len({record.run for record in records}) == len(RUNS)
    assert all(record.status == "done" for record in records)
    for run in RUNS:  # as a command does when all is recorded
        queue.record_store.tidy(run)
    files = [path for path in (tmp_path / "comparison" / "records").rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".json"] * len(RUNS)  # nothing half-written lies about
    for path in files:
        json.loads(path.read_text())
    # Nothing was done again that had been recorded: a line may lack where the kill came before it was written.
    assert set(noted(log, "ended").values()) == {1}
    assert set(noted(log, "began")) == names(RUNS)
    assert sum(noted(log, "began").values()) > len(RUNS)
    assert not [pid for pid in pids if is_alive(pid)]
    record_property("kills", kills)
