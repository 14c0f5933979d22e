"""Workers and commands that are killed again and again, and a full disk: every run is recorded exactly once."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from attentune.errors import StorageError
from attentune.execution import make_executor
from attentune.execution.executor import ExecutorOptions
from attentune.runs.driver import Driver
from attentune.runs.grid import Run
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore
from attentune.training.run_folder import StopRequest
from helpers.comparisons import command, is_alive, outcomes, start, times_done, wait_for, workers_of
from helpers.interrupted import Disk
from helpers.slurm import running_slurm
from helpers.tasks import LOG, names, noted, sleeping_plan

pytestmark = pytest.mark.slow
# More runs than kills, as a busy machine ends some before their kill comes. On a cluster each starts a process that
# imports everything, which takes seconds.
RUNS = tuple(Run("cola", 250, method, seed) for seed in range(1, 51) for method in ("bert", "sesame"))
CLUSTER_RUNS = RUNS[:45]
RUN_S, WORKERS = 0.3, 3
KILLS, COMMAND_KILLS = 50, 10


@pytest.fixture(scope="module", params=["local", "ray", "slurm"])
def options(request, tmp_path_factory) -> Iterator[ExecutorOptions]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", _path())
        if request.param == "local":
            yield ExecutorOptions(jobs=WORKERS)
        elif request.param == "ray":
            ray = pytest.importorskip("ray")
            ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
            yield ExecutorOptions("ray", jobs=WORKERS, ray_address=ray.get_runtime_context().gcs_address)
            ray.shutdown()
        else:
            pytest.importorskip("submitit")
            with running_slurm(tmp_path_factory.mktemp("slurm")):
                yield ExecutorOptions("slurm", jobs=WORKERS, slurm=(("timeout_min", 30),))


def _path() -> str:
    return os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])


def runs_of(options: ExecutorOptions) -> tuple[Run, ...]:
    return RUNS if options.executor == "local" else CLUSTER_RUNS


class Killer(threading.Thread):
    """Kills the worker that began a run last, somewhere within the run or right after; each run twice at most."""

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._most, self._draw = folder, most, random.Random(4)
        self.kills, self.is_over = 0, False

    def run(self) -> None:
        killed: dict[str, int] = {}
        seen = 0
        while self.kills < self._most and not self.is_over:
            time.sleep(0.02)
            file = self._folder / LOG
            lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
            began = [line for line in lines if line[0] == "began"]
            if len(began) <= seen:
                continue
            seen = len(began)
            _, name, pid = began[-1]
            if killed.get(name, 0) >= 2:  # the third kill would be recorded as a failure
                continue
            time.sleep(self._draw.random() * 1.2 * RUN_S)
            if is_alive(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
                killed[name] = killed.get(name, 0) + 1
                self.kills += 1


def check(folder: Path, runs: Sequence[Run]) -> None:
    records = RecordStore(folder).records()
    assert sorted(record.run.name for record in records) == sorted(names(runs))
    assert {record.status for record in records} == {"done"}
    assert not (folder / "runs").exists()
    assert not list(folder.rglob("*.tmp"))


def test_killed_workers(options, tmp_path, record_property):
    folder = tmp_path / "comparison"
    runs = runs_of(options)
    plan = sleeping_plan(folder, runs, seconds=RUN_S)
    killer = Killer(folder, KILLS)
    killer.start()
    executor = make_executor(options, folder / "logs", [{"training.use_cpu": True}])
    Driver(plan, RecordStore(folder), executor, ComparisonProgress(quiet=True)).run(StopRequest())
    killer.is_over = True
    killer.join()
    check(folder, runs)
    record_property("kills", killer.kills)
    assert killer.kills >= KILLS // 2
    # A run that has ended is not repeated, except if its worker was killed before it left the record.
    assert sum(noted(folder, "ended").values()) <= len(runs) + killer.kills


_COMMAND = """
import sys
from pathlib import Path
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore
from attentune.runs.driver import Driver, only_driver
from attentune.execution.executor import ExecutorOptions
from attentune.execution import make_executor
from attentune.training.run_folder import StopRequest
from execution.test_driver_kills import RUN_S, runs_of
from helpers.tasks import sleeping_plan
folder, options = Path(sys.argv[1]), ExecutorOptions(**eval(sys.argv[2]))
plan = sleeping_plan(folder, runs_of(options), seconds=RUN_S)
with only_driver(folder):
    executor = make_executor(options, folder / "logs", [{"training.use_cpu": True}])
    Driver(plan, RecordStore(folder), executor, ComparisonProgress(quiet=True)).run(StopRequest())
"""


def test_ten_killed_commands(options, tmp_path):
    folder, draw = tmp_path / "comparison", random.Random(5)
    line = [sys.executable, "-c", _COMMAND, str(folder), repr(vars(options))]
    for _ in range(COMMAND_KILLS):
        before = sum(noted(folder, "began").values())
        process = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": _path()})
        while sum(noted(folder, "began").values()) < before + 3 and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.random() * 2 * RUN_S)
        process.kill()
        process.wait()
    # The next command starts while workers of the last one may still save.
    assert subprocess.run(line, env={**os.environ, "PYTHONPATH": _path()}, timeout=1200).returncode == 0
    runs = runs_of(options)
    check(folder, runs)
    ended = noted(folder, "ended")
    # Runs that ended and were killed before they left a record.
    assert sum(ended.values()) - len(runs) <= COMMAND_KILLS * WORKERS


def test_a_full_disk_keeps_what_is_recorded(options, tmp_path):
    disk = Disk(tmp_path / "disk", 300)
    try:
        folder, plan = disk.folder / "comparison", None
        runs = runs_of(options)
        for size in (3 * len(runs), 6 * len(runs), 100_000):
            disk.resize(size)
            plan = sleeping_plan(folder, runs)
            executor = make_executor(options, tmp_path / "logs", [{"training.use_cpu": True}])
            driver = Driver(plan, RecordStore(folder), executor, ComparisonProgress(quiet=True))
            if size < 100_000:
                with pytest.raises(StorageError, match="free some space"):
                    driver.run(StopRequest())
                records = RecordStore(folder).records()  # all can be read
                assert {record.status for record in records} <= {"done"}
                assert len(records) < len(runs)
            else:
                driver.run(StopRequest())
        check(folder, runs)
    finally:
        disk.remove()


# Comparisons and searches of which one process after the other is killed end as if nothing had happened.


ROUNDS, LIMIT_S = 10, 1800
LONG = {"training__num_train_epochs": 3, "training__save_steps": 2}
COMPARE = ("--presets", "bert,ssa-hybrid", "--seeds", "3", "--jobs", "2")
SEARCH = ("--search", "objective.alpha=0.5,0.7,0.9", "--preset", "ssa-hybrid", "--sampler", "grid", "--jobs", "2")


def words(verb: str, folder: Path, encoder: Path) -> list[str]:
    folder.mkdir()
    flags = COMPARE if verb == "compare" else SEARCH
    return command(folder, encoder, *flags, verb=verb, output="work", **LONG)


def to_end(line: list[str]) -> None:
    process = start(line)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors


def kill_one(line: list[str], folder: Path, draw: random.Random) -> None:
    """Start the command; once it has workers, kill one of them and then the command, or all at once, or ask it to stop.

    A run of which three workers were killed under one command is given up, so no command lives that long."""
    process = start(line, start_new_session=True)
    workers = wait_for(lambda: workers_of(folder) or process.poll() is not None, "workers")
    time.sleep(draw.random() * 3)
    number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    if isinstance(workers, list):
        victim = draw.choice(workers)
        if is_alive(victim) and draw.random() < 0.7:
            os.kill(victim, signal.SIGKILL)
    if process.poll() is None:
        process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    wait_for(lambda: not workers_of(folder), "end of the workers")


@pytest.mark.parametrize("verb", ["compare", "search"])
def test_killed_again_and_again(
    verb: str, tiny: Callable[..., Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    encoder, draw = tiny("bert", layers=2, hidden=16), random.Random(3)
    to_end(words(verb, tmp_path / "whole", encoder))
    line, folder = words(verb, tmp_path / "killed", encoder), tmp_path / "killed" / "work"
    for _ in range(ROUNDS):
        kill_one(line, folder, draw)
    to_end(line)
    assert outcomes(folder) == outcomes(tmp_path / "whole" / "work")
    assert set(times_done(folder).values()) == {1}
    assert not (folder / "runs").exists()
    assert not list(folder.rglob("*.tmp"))
    record_property("kills", ROUNDS)
