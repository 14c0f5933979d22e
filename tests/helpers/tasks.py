"""Tasks for executors, and runs of a comparison that only sleep."""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config, to_dict, to_flat
from attentune.results import RunResult
from attentune.runs.driver import FixedPlan, RunTask
from attentune.runs.grid import MANIFEST_FILE, Run, RunGrid
from attentune.runs.records import RunRecord

HELD: list[Any] = []


def echo(value: Any, *, stop: Any) -> Any:
    return value


def hold(value: Any) -> None:
    HELD.append(value)


def facts(*, stop: Any) -> dict[str, Any]:
    import torch

    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "held": list(HELD),
        "stopped": stop.requested,
    }


def blocked_signals(*, stop: Any) -> set[int]:
    return set(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def fail(*, stop: Any) -> None:
    print("about to fail", flush=True)
    raise ValueError("this task fails")


def die(*, stop: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def until_stopped(file: str, *, stop: Any) -> str:
    """Write the process id, and wait for a stop request."""
    Path(file).write_text(str(os.getpid()))
    while not stop.requested:
        time.sleep(0.01)
    Path(file).write_text("saved")
    return "saved"


def note_and_sleep(file: str, seconds: float, *, stop: Any) -> None:
    """Write the process id, and look at no stop request for some time."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(seconds)


def add_line(folder: str, name: str, seconds: float, *, stop: Any) -> str:
    time.sleep(seconds)
    with (Path(folder) / name).open("a") as file:
        file.write("done\n")
    return name


# Runs of a comparison that train nothing: made-up records, and runs that only sleep in the worker processes. A sleeping
# run appends "began RUN PID" and "ended RUN PID" to the file `log` in the comparison's folder.

RUNS = tuple(Run("cola", 250, method, seed) for seed in range(1, 7) for method in ("bert", "sesame"))
LOG = "log"


def small_record(run: Run, *, status: str = "done", score: float | None = 0.5, seconds: float = 1.0) -> RunRecord:
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
    seconds: float = 0.0

    def task(self, run: Run) -> RunTask:
        folder = str(self.folder.absolute())
        return RunTask(folder, MANIFEST_FILE, run, to_flat(Config()), Sleep(folder, self.seconds))


def sleeping_plan(folder: Path, runs: Sequence[Run] = RUNS, *, seconds: float = 0.0) -> SleepingPlan:
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_FILE).touch()
    return SleepingPlan(folder, RunGrid(tuple(runs), {}, {}), seconds=seconds)


def noted(folder: Path, what: str) -> Counter[str]:
    """Return how often each run began or ended."""
    lines = [line.split() for line in (folder / LOG).read_text().splitlines()] if (folder / LOG).exists() else []
    return Counter(name for word, name, _ in lines if word == what)


def names(runs: Sequence[Run] = RUNS) -> set[str]:
    return {run.name for run in runs}
