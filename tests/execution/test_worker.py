"""One run in a worker process: its record, its folder, and what another process has done before."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.errors import CheckpointError, StorageError
from attentune.runs.driver import RunTask, _train_alone, execute_run
from attentune.runs.grid import Run
from attentune.runs.records import RecordStore
from attentune.training.run_folder import Interrupted, StopRequest
from helpers.samples import settings
from helpers.tasks import RUNS, noted, sleeping_plan

RUN = RUNS[0]


@pytest.fixture
def task(tmp_path) -> RunTask:
    return sleeping_plan(tmp_path / "comparison").task(RUN)


def store(task: RunTask) -> RecordStore:
    return RecordStore(Path(task.folder))


def test_a_run_leaves_its_record_in_its_folder(task):
    record = execute_run(pickle.loads(pickle.dumps(task)), stop=StopRequest())
    assert record is not None
    assert (record.run, record.status, record.score) == (RUN, "done", 0.01)
    assert store(task).draft(RUN) == record
    assert not store(task).has(RUN)  # that is for the command to write
    assert not store(task).lock(RUN).is_held()


def test_a_run_that_an_earlier_worker_has_ended_is_not_repeated(task):
    first = execute_run(task, stop=StopRequest())
    assert execute_run(task, stop=StopRequest()) == first
    assert noted(Path(task.folder), "began") == {RUN.name: 1}
    draft = store(task).run_folder(RUN) / "record.json"
    draft.write_text(draft.read_text()[:40])
    assert execute_run(task, stop=StopRequest()) is not None
    assert noted(Path(task.folder), "began") == {RUN.name: 2}


def test_a_run_that_another_process_executes_is_left_alone(task):
    with store(task).lock(RUN):
        assert execute_run(task, stop=StopRequest()) is None
    assert not noted(Path(task.folder), "began")


def test_a_stop_request_is_heeded_before_and_during_a_run(task):
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
    assert record is not None
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
