"""The driver of a command's runs, and one run in a worker process."""

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from attentune.config import load_config
from attentune.errors import CheckpointError, StorageError
from attentune.execution.executor import WorkerKilled
from attentune.runs.driver import ComparisonStopped, Driver, RunTask, _train_alone, execute_run, only_driver
from attentune.runs.grid import Run
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore, RunRecord
from attentune.training.run_folder import Interrupted, StopRequest
from helpers.samples import settings
from helpers.tasks import RUNS, names, noted, sleeping_plan, small_record


@dataclass
class Here:
    """An executor that executes tasks in this process, when their futures are waited for."""

    size: int = 1
    act: Callable[[RunTask], Any] = lambda task: None  # called with each task instead of executing it
    order: list[Run] = field(default_factory=list)
    is_stopped: bool = False

    def room(self, expected_bytes: int) -> int:
        return self.size

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        return [self._done(function, *call) for call in calls]

    def _done(self, function: Callable[..., Any], task: RunTask) -> Future[Any]:
        future: Future[Any] = Future()
        self.order.append(task.run)
        try:
            given = self.act(task)
            future.set_result(function(task, stop=StopRequest()) if given is None else given)
        except Exception as error:
            future.set_exception(error)
        return future

    def request_stop(self) -> None:
        self.is_stopped = True

    def shutdown(self, *, wait_s: float | None = None) -> None:
        self.is_stopped = True


def drive(folder: Path, executor: Any, runs: Sequence[Run] = RUNS, **options: Any) -> Driver:
    plan = sleeping_plan(folder, runs)
    driver = Driver(plan, RecordStore(folder), executor, ComparisonProgress(quiet=True), **options)
    driver.run(StopRequest())
    return driver


def recorded(folder: Path) -> set[str]:
    return {record.run.name for record in RecordStore(folder).records()}


def test_one_run_of_each_kind_comes_first_and_then_they_come_in_order(tmp_path):
    executor, runs = Here(), sorted(RUNS)
    drive(tmp_path / "comparison", executor, runs)
    assert [run.method for run in runs] == ["bert"] * 6 + ["sesame"] * 6
    assert [run.method for run in executor.order] == ["bert", "sesame", *["bert"] * 5, *["sesame"] * 5]
    assert recorded(tmp_path / "comparison") == names()


def test_open_runs_are_expected_to_take_the_time_of_those_that_have_ended(tmp_path, monkeypatch):
    class Watched(ComparisonProgress):
        def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
            told.append((number, total, left))

    def act(task: RunTask) -> None:
        clock.monotonic.return_value += 10.0

    told: list[tuple[int, int, float | None]] = []
    drive(tmp_path / "comparison", Here(), RUNS[:2])
    clock = Mock(wraps=time, monotonic=Mock(return_value=5.0))
    monkeypatch.setattr("attentune.runs.driver.time", clock)
    plan, store = sleeping_plan(tmp_path / "comparison", RUNS[:5]), RecordStore(tmp_path / "comparison")
    Driver(plan, store, Here(act=act), Watched(quiet=True)).run(StopRequest())
    assert told == [(3, 5, 20.0), (4, 5, 10.0), (5, 5, 0.0)]


@pytest.mark.integration
def test_a_run_whose_worker_is_killed_three_times_is_recorded_as_failed(tmp_path):
    kills = deque(["signal 9"] * 5)

    def act(task: RunTask) -> None:
        if task.run in RUNS[:2] and kills:
            raise WorkerKilled(f"killed by {kills.popleft()}")

    executor = Here(act=act)
    drive(tmp_path / "comparison", executor)
    records = {record.run: record for record in RecordStore(tmp_path / "comparison").records()}
    failed = [run for run, record in records.items() if record.status == "failed"]
    assert len(failed) == 1  # three kills of one, and two of the other
    error = records[failed[0]].error
    assert error["kind"] == "WorkerKilled"
    assert "was killed by signal 9, 3 times in all; if memory ran out, give fewer --jobs" in error["message"]
    assert len(executor.order) == len(RUNS) + 4


@pytest.mark.integration
def test_a_run_that_a_worker_of_a_killed_command_still_saves_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr("attentune.runs.driver._REFRESH_S", 0.0)
    folder = tmp_path / "comparison"
    plan, store = sleeping_plan(folder), RecordStore(folder)
    orphan = store.lock(RUNS[0])
    assert orphan.take()
    executor = Here()

    def act(task: RunTask) -> None:
        if len(executor.order) == len(RUNS) - 2:  # the orphan ends last
            store.write_draft(small_record(RUNS[0], score=0.75))
            orphan.free()

    executor.act = act
    execute_run(plan.task(RUNS[1]), stop=StopRequest())  # its command was killed before it wrote the record
    drive(folder, executor)
    assert RUNS[0] not in executor.order
    assert RUNS[1] not in executor.order
    assert store.load(RUNS[0]).score == 0.75
    assert recorded(folder) == names()


@pytest.mark.integration
def test_the_folder_of_a_recorded_run_goes_if_the_command_was_killed_before_it_went(tmp_path):
    folder, run = tmp_path / "comparison", RUNS[0]
    sleeping_plan(folder)
    store = RecordStore(folder)
    store.write_draft(small_record(run))
    store.write(small_record(run), store.run_folder(run))
    drive(folder, Here())
    assert recorded(folder) == names()
    assert not (folder / "runs").exists()
    store.write_draft(small_record(run))
    drive(folder, Here(), keep_runs=True)
    assert store.run_folder(run).exists()


@pytest.mark.integration
@pytest.mark.parametrize("error", [StorageError("the disk is full"), CheckpointError("not seen from here")])
def test_what_would_fail_again_ends_the_command_and_keeps_what_is_done(tmp_path, error):
    folder = tmp_path / "comparison"

    def act(task: RunTask) -> None:
        if task.run == RUNS[2]:
            raise error

    executor = Here(act=act)
    with pytest.raises(type(error), match=str(error)):
        drive(folder, executor)
    assert executor.is_stopped
    assert RUNS[2].name not in recorded(folder)
    assert len(recorded(folder)) == len(executor.order) - 1
    drive(folder, Here())
    assert recorded(folder) == names()


def test_a_bug_in_a_worker_names_its_log(tmp_path):
    def act(task: RunTask) -> None:
        raise LookupError("a bug")

    with pytest.raises(RuntimeError, match=r"seed-1: its worker failed; logs are in .*logs"):
        drive(tmp_path / "comparison", Here(act=act))


def test_a_stop_request_ends_with_what_is_recorded(tmp_path):
    folder, stop = tmp_path / "comparison", StopRequest()
    executor = Here()

    def act(task: RunTask) -> None:
        stop.requested = len(executor.order) == 3

    executor.act = act
    driver = Driver(sleeping_plan(folder), RecordStore(folder), executor, ComparisonProgress(quiet=True))
    with pytest.raises(ComparisonStopped, match="stopped with 3 of 12 runs recorded"):
        driver.run(stop)
    assert executor.is_stopped
    assert len(recorded(folder)) == 3


def test_a_second_command_is_refused(tmp_path):
    folder = tmp_path / "comparison"
    folder.mkdir()
    with only_driver(folder), pytest.raises(CheckpointError) as caught, only_driver(folder):
        pass
    assert "another command is working in this folder (.locks" in str(caught.value)
    assert "Wait for it, or stop it with Ctrl-C" in str(caught.value)
    with only_driver(folder):
        pass


def test_memory_that_runs_have_needed_is_expected_of_further_ones(tmp_path):
    asked: list[int] = []

    class Watched(Here):
        def room(self, expected_bytes: int) -> int:
            asked.append(expected_bytes)
            return 1

    peaks = iter([2e9, 5e9, 3e9])
    act = lambda task: replace(small_record(task.run), train={"peak_memory_bytes": int(next(peaks))})  # noqa: E731
    drive(tmp_path / "comparison", Watched(act=act), RUNS[:3])
    assert asked == [1_000_000_000, 2_000_000_000, 5_000_000_000]


# One run in a worker process: its record, its folder, and what another process has done before.


RUN = RUNS[0]


@pytest.fixture
def task(tmp_path) -> RunTask:
    return sleeping_plan(tmp_path / "comparison").task(RUN)


def store(task: RunTask) -> RecordStore:
    return RecordStore(Path(task.folder))


def test_a_run_leaves_its_record_in_its_folder_and_is_not_repeated(task):
    record = execute_run(pickle.loads(pickle.dumps(task)), stop=StopRequest())
    assert (record.run, record.status, record.score) == (RUN, "done", 0.01)
    assert store(task).draft(RUN) == record
    assert not store(task).has(RUN)  # that is for the command to write
    assert not store(task).lock(RUN).is_held()
    assert execute_run(task, stop=StopRequest()) == record
    assert noted(Path(task.folder), "began") == {RUN.name: 1}
    draft = store(task).run_folder(RUN) / "record.json"
    draft.write_text(draft.read_text()[:40])
    assert execute_run(task, stop=StopRequest()) is not None
    assert noted(Path(task.folder), "began") == {RUN.name: 2}


def test_a_run_of_another_process_is_left_alone_and_a_stop_request_heeded_before_and_during_it(task):
    with store(task).lock(RUN):
        assert execute_run(task, stop=StopRequest()) is None
    stop = StopRequest()
    stop.requested = True
    assert execute_run(task, stop=stop) is None
    assert not noted(Path(task.folder), "began")

    def interrupted(run: Run, config: object) -> None:
        raise Interrupted("here", 3)

    assert execute_run(replace(task, trainer=interrupted), stop=StopRequest()) is None  # type: ignore[arg-type]
    assert store(task).draft(RUN) is None


def test_a_run_that_fails_has_a_record_and_a_disk_that_refuses_has_none(task):
    def failing(run: Run, config: object) -> None:
        raise ValueError("no such luck")

    record = execute_run(replace(task, trainer=failing), stop=StopRequest())  # type: ignore[arg-type]
    assert (record.status, record.error["kind"], record.error["message"]) == ("failed", "ValueError", "no such luck")

    def refused(run: Run, config: object) -> None:
        raise StorageError("the disk is full")

    other = replace(task, run=RUNS[1], trainer=refused)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="full"):
        execute_run(other, stop=StopRequest())
    assert store(task).draft(RUNS[1]) is None


def test_a_machine_that_does_not_see_the_folder_says_so(task):
    (Path(task.folder) / task.manifest).unlink()
    with pytest.raises(CheckpointError, match=r"has no compare.json as seen from .* a disk that all machines share"):
        execute_run(task, stop=StopRequest())


@pytest.mark.integration
@pytest.mark.parametrize("named", ["auto", "tfidf-linear"])
def test_runs_of_a_comparison_fit_the_baselines_that_are_named(named, tiny, tmp_path):
    config = load_config(overrides=settings(tmp_path, tiny("bert")) | {"training.baselines": named})
    found = _train_alone(RUN, config).baselines
    names = None if found is None else {one["name"] for one in found["methods"]}
    assert names == (None if named == "auto" else {"this model", "tfidf-linear"})
