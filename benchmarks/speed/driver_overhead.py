"""The cost of the driver and of the local executor for each run and shard, with tasks that do nothing.

    taskset -c 0 python -m benchmarks.speed.driver_overhead [--runs 20000] [--tasks 100000]

Writes a line of results/bench/many.jsonl. `runs`: the driver of a comparison with an executor that returns a made-up
record at once: choosing the next run, writing the record to the disk, removing the run's folder, expected time left.
`tasks`: tasks that return at once, in worker processes that stay (as shards use them). `fresh tasks`: the same, each in
a process of its own (as runs do).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from attentune.execution.executor import Slots
from attentune.execution.local import LocalExecutor
from attentune.runs.driver import Driver, FixedPlan
from attentune.runs.grid import Run, RunGrid
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore, RunRecord
from attentune.runs.worker import RunTask
from attentune.training.signals import StopRequest
from benchmarks.common import MANY, command_of, write_line


class AtOnce:
    """An executor whose tasks return a made-up record at once."""

    size = 64

    def room(self, expected_bytes: int) -> int:
        return self.size

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        futures: list[Future[Any]] = []
        for (task,) in calls:
            future: Future[Any] = Future()
            future.set_result(_record(task.run))
            futures.append(future)
        return futures

    def request_stop(self) -> None:
        """Do nothing: there are no processes."""

    def shutdown(self, *, wait_s: float | None = None) -> None:
        """Do nothing: there are no processes."""


def _record(run: Run) -> RunRecord:
    return RunRecord(
        run=run,
        status="done",
        metric="accuracy",
        score=0.5,
        scores={"validation": {"accuracy": 0.5}},
        train={},
        best=None,
        config={},
        seed=run.seed,
        versions={},
        data_fingerprint={},
        wall_seconds=1.0,
    )


class NoPlan(FixedPlan):
    """Runs without settings."""

    def task(self, run: Run) -> RunTask:
        return RunTask("", "", run, {})


def nothing(number: int, *, stop: StopRequest) -> int:
    """Return at once."""
    return number


def runs_s(count: int) -> float:
    """Return the seconds of the driver for this many runs."""
    runs = tuple(Run(f"task-{n % 6}", 1000, f"method-{n // 6 % 14}", n // 84) for n in range(count))
    with tempfile.TemporaryDirectory() as folder:
        plan = NoPlan(Path(folder), RunGrid(runs, {}, {}))
        driver = Driver(plan, RecordStore(Path(folder)), AtOnce(), ComparisonProgress(quiet=True))
        began = time.perf_counter()
        driver.run(StopRequest())
        return time.perf_counter() - began


def tasks_s(count: int, *, reuse: bool) -> float:
    """Return the seconds of the local executor for this many tasks, after its first one."""
    from benchmarks.speed.driver_overhead import nothing  # not of the main module, which workers do not import

    with tempfile.TemporaryDirectory() as folder:
        executor = LocalExecutor(Slots(1, 1), Path(folder), reuse=reuse)
        executor.submit(nothing, [[0]])[0].result()
        began, running, submitted = time.perf_counter(), set[Future[Any]](), 0
        while submitted < count or running:
            fresh = min(64 - len(running), count - submitted)
            running |= set(executor.submit(nothing, [[number] for number in range(fresh)]))
            submitted += fresh
            running -= wait(running, return_when=FIRST_COMPLETED).done
        seconds = time.perf_counter() - began
        executor.shutdown()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--fresh", type=int, default=200)
    parser.add_argument("--output", type=Path, default=MANY)
    given = parser.parse_args()
    found = {
        "runs": {"count": given.runs, "seconds": runs_s(given.runs)},
        "tasks": {"count": given.tasks, "seconds": tasks_s(given.tasks, reuse=True)},
        "fresh tasks": {"count": given.fresh, "seconds": tasks_s(given.fresh, reuse=False)},
    }
    for name, one in found.items():
        print(f"{one['count']:,} {name}: {one['seconds']:.1f} s, {1000 * one['seconds'] / one['count']:.2f} ms each")
    write_line(given.output, {"command": command_of("benchmarks.speed.driver_overhead", sys.argv[1:]), **found})


if __name__ == "__main__":
    main()
