"""Runs of a comparison that train nothing: made-up records, and runs that only sleep in the worker processes.

A sleeping run appends "began RUN PID" and "ended RUN PID" to the file `log` in the comparison's folder.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attentune.config import Config, to_dict, to_flat
from attentune.results import RunResult
from attentune.runs.driver import FixedPlan
from attentune.runs.grid import Run, RunGrid
from attentune.runs.manifest import MANIFEST_FILE
from attentune.runs.records import RunRecord
from attentune.runs.worker import RunTask

RUNS = tuple(Run("cola", 250, method, seed) for seed in range(1, 7) for method in ("bert", "sesame"))
LOG = "log"


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


@dataclass(frozen=True)
class Sleep:
    """A trainer that sleeps."""

    folder: str  # the comparison's folder
    seconds: float  # how long

    def __call__(self, run: Run, config: Config) -> RunResult:
        self._note(f"began {run.name}")
        time.sleep(self.seconds)
        self._note(f"ended {run.name}")
        scores = {"validation": {"accuracy": run.seed / 100}}
        settings = to_dict(config)
        return RunResult(scores, {}, best=None, config=settings, seed=run.seed, versions={}, data_fingerprint={})

    def _note(self, text: str) -> None:
        with (Path(self.folder) / LOG).open("ab", buffering=0) as lines:  # one write, so that lines do not mix
            lines.write(f"{text} {os.getpid()}\n".encode())


@dataclass
class SleepingPlan(FixedPlan):
    """Runs that sleep."""

    seconds: float = 0.0

    def task(self, run: Run) -> RunTask:
        folder = str(self.folder.absolute())
        return RunTask(folder, MANIFEST_FILE, run, to_flat(Config()), Sleep(folder, self.seconds))


def sleeping_plan(folder: Path, runs: Sequence[Run] = RUNS, *, seconds: float = 0.0) -> SleepingPlan:
    """Make a comparison's folder with runs that sleep."""
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_FILE).touch()
    return SleepingPlan(folder, RunGrid(tuple(runs), {}, {}), seconds=seconds)


def noted(folder: Path, what: str) -> Counter[str]:
    """Return how often each run began or ended."""
    lines = [line.split() for line in (folder / LOG).read_text().splitlines()] if (folder / LOG).exists() else []
    return Counter(name for word, name, _ in lines if word == what)


def names(runs: Sequence[Run] = RUNS) -> set[str]:
    return {run.name for run in runs}
