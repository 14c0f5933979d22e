"""The queue gives each run to one worker, whatever is killed; with a journal file, and shared through a database."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import Trial

from attentune.errors import CheckpointError
from attentune.experiments.comparison.grid import Run
from attentune.experiments.comparison.record_store import RecordStore
from attentune.experiments.execution.queue import RunQueue
from attentune.experiments.execution.queue_storage import StorageConfig
from helpers.comparisons import is_alive, wait_for
from helpers.queue_worker import RUNS, names, noted, small_record, storage_in, worker

pytestmark = pytest.mark.integration


@pytest.fixture(params=["journal", "sqlite"])
def one_place(request, tmp_path: Path) -> StorageConfig:
    url = None if request.param == "journal" else f"sqlite:///{tmp_path}/queue.db"
    return storage_in(tmp_path / "comparison", url)


def test_every_run_is_done_once_by_several_workers(one_place: StorageConfig, tmp_path: Path) -> None:
    queue, log = RunQueue(one_place), tmp_path / "log"
    assert [run.name for run in queue.refill(RUNS).waiting] == [run.name for run in RUNS]
    assert len(queue.refill(RUNS).waiting) == len(RUNS)  # not queued again
    workers = [worker(one_place, log) for _ in range(3)]
    assert [process.wait(120) for process in workers] == [0, 0, 0]
    assert noted(log, "began") == noted(log, "ended") == Counter(names())
    queue_status = queue.refill(RUNS)
    assert (len(queue_status.recorded), queue_status.is_finished, queue_status.duplicates) == (len(RUNS), True, {})


def test_runs_of_killed_workers_are_taken_up_and_recorded_ones_are_not(
    one_place: StorageConfig, tmp_path: Path
) -> None:
    queue, log, draw = RunQueue(one_place), tmp_path / "log", random.Random(1)
    kills = 0
    while not queue.refill(RUNS).is_finished:
        process = worker(one_place, log, seconds=0.05)
        if kills < 8:
            before = sum(noted(log, "began").values())
            wait_for(lambda before=before: sum(noted(log, "began").values()) > before, "a run that begins")
            time.sleep(draw.random() * 0.12)
            process.kill()
            kills += 1
        process.wait(120)
    assert set(noted(log, "began")) == names()
    records = RecordStore(Path(one_place.folder)).records()
    assert {record.run for record in records} == set(RUNS)
    # One that was killed after its record was written and before it said so may lack its line, but has no second.
    assert set(noted(log, "ended").values()) == {1}
    assert sum(noted(log, "began").values()) > len(RUNS)
    assert queue.refill(RUNS).duplicates == {}


@pytest.mark.parametrize("writes", range(4))
def test_a_worker_that_dies_while_it_says_where_it_is_stops_nobody(tmp_path: Path, monkeypatch, writes: int) -> None:
    queue = RunQueue(storage_in(tmp_path / "comparison", f"sqlite:///{tmp_path}/queue.db"))
    queue.refill(RUNS[:1])
    told: list[str] = []
    tell = Trial.set_user_attr

    def set_user_attr(trial: Trial, key: str, value: object) -> None:
        if len(told) == writes:
            os._exit(9)
        told.append(key)
        tell(trial, key, value)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Trial, "set_user_attr", set_user_attr)
        RunQueue(queue.storage_config).run_next({RUNS[0].name: RUNS[0]}, lambda run: os._exit(9))  # type: ignore[arg-type]
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    queue_status = queue.refill(RUNS[:1])
    assert queue_status.running + queue_status.waiting == [*RUNS[:1]]
    wait_for(lambda: queue.refill(RUNS[:1]).waiting == [*RUNS[:1]], "the dead worker's run to wait again")


def test_a_run_whose_worker_lives_is_left_alone(one_place: StorageConfig, tmp_path: Path) -> None:
    queue, log, runs = RunQueue(one_place), tmp_path / "log", RUNS[:1]
    queue.refill(runs)
    process = worker(one_place, log, seconds=30, runs=runs)
    wait_for(lambda: noted(log, "began"), "a run that begins", None)
    time.sleep(4.5)  # longer than the database waits for heartbeats
    queue_status = queue.refill(runs)
    assert (queue_status.running, queue_status.waiting) == ([*runs], [])
    assert not queue.run_next({run.name: run for run in runs}, lambda run: pytest.fail("done twice"))
    assert queue.record_store.lock(runs[0]).holder() == process.pid
    process.kill()
    process.wait()
    queue_status = queue.refill(runs)
    assert (queue_status.running, queue_status.waiting) == ([], [*runs])


def test_a_run_in_work_is_safe_even_when_the_queue_is_lost(tmp_path: Path) -> None:
    where, log, runs = storage_in(tmp_path / "comparison"), tmp_path / "log", RUNS[:1]
    RunQueue(where).refill(runs)
    process = worker(where, log, seconds=60, runs=runs)
    try:
        wait_for(lambda: noted(log, "began"), "a run that begins")
        where.journal.unlink()
        queue = RunQueue(where)
        queue_status = queue.refill(runs)
        assert (queue_status.running, queue_status.waiting) == ([*runs], [])
        queue.enqueue(runs[0].name, {})
        assert queue.run_next({runs[0].name: runs[0]}, lambda run: pytest.fail("done twice"))
    finally:
        process.kill()
        process.wait()
    assert queue.refill(runs).waiting == [*runs]


def test_a_command_does_its_own_runs_only(one_place: StorageConfig, tmp_path: Path) -> None:
    queue, log, few = RunQueue(one_place), tmp_path / "log", RUNS[-2:]
    queue.refill(RUNS)
    assert worker(one_place, log, runs=few).wait(120) == 0
    assert set(noted(log, "began")) == names(few)
    queue_status = queue.refill(RUNS)
    assert set(queue_status.waiting) == set(RUNS) - set(few)
    assert worker(one_place, log).wait(120) == 0
    assert noted(log, "ended") == Counter(names())


def test_a_failed_run_is_not_queued_again_until_it_is_forgotten(one_place: StorageConfig) -> None:
    queue, run = RunQueue(one_place), RUNS[0]
    queue.refill([run])

    def fail(run: Run) -> str:
        queue.record_store.write(small_record(run, status="failed", score=None), Path(one_place.folder))
        return "failed"

    assert queue.run_next({run.name: run}, fail)
    assert queue.refill([run]).recorded == [run]
    assert not queue.run_next({run.name: run}, fail)
    queue.record_store.forget(run)
    assert queue.refill([run]).waiting == [run]


def test_what_a_worker_raises_leaves_its_run_to_be_taken_up(one_place: StorageConfig) -> None:
    queue, run = RunQueue(one_place), RUNS[0]
    queue.refill([run])

    def stop(run: Run) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.run_next({run.name: run}, stop)
    assert queue.refill([run]).waiting == [run]


def test_a_torn_line_of_the_journal_is_cut_off(tmp_path: Path) -> None:
    where = storage_in(tmp_path)
    RunQueue(where).refill(RUNS[:4])
    with where.journal.open("ab") as journal:
        journal.write(b'{"op_code":4,"worker_id":"x","study_i')
    queue = RunQueue(where)
    assert len(queue.refill(RUNS[:4]).waiting) == 4
    assert len(queue.refill(RUNS).waiting) == len(RUNS)
    assert len(RunQueue(where).refill(RUNS).waiting) == len(RUNS)


def test_a_damaged_journal_is_named_with_its_cure_and_records_stand(tmp_path: Path) -> None:
    where = storage_in(tmp_path)
    queue = RunQueue(where)
    queue.refill(RUNS[:2])
    queue.record_store.write(small_record(RUNS[0]), tmp_path)
    where.journal.write_bytes(b"nonsense\n" + where.journal.read_bytes())
    with pytest.raises(CheckpointError, match=r"queue.journal: is damaged .* Delete it while no worker runs"):
        RunQueue(where)
    where.journal.unlink()
    queue_status = RunQueue(where).refill(RUNS[:2])
    assert (queue_status.recorded, queue_status.waiting) == ([RUNS[0]], [RUNS[1]])


# Machines that share a database and no folder: what one does, the other sees through the database only.


def two_places(tmp_path: Path) -> tuple[StorageConfig, StorageConfig]:
    url = f"sqlite:///{tmp_path}/queue.db"
    return storage_in(tmp_path / "here", url, folder_id="here"), storage_in(tmp_path / "there", url, folder_id="there")


def test_two_folders_share_the_runs_of_one_study(tmp_path: Path) -> None:
    here, there = two_places(tmp_path)
    log = tmp_path / "log"
    for where in (here, there):
        RunQueue(where).refill(RUNS)
    workers = [worker(where, log, seconds=0.1) for where in (here, there)]
    assert [process.wait(120) for process in workers] == [0, 0]
    assert noted(log, "ended") == Counter(names())
    standings = [RunQueue(where).refill(RUNS) for where in (here, there)]
    assert all(queue_status.is_finished for queue_status in standings)
    assert set(standings[0].recorded) == set(standings[1].elsewhere)
    assert set(standings[1].recorded) == set(standings[0].elsewhere)
    assert 0 < len(standings[0].recorded) < len(RUNS)
    assert all(text.endswith(there.folder) for text in standings[0].elsewhere.values())


def test_a_run_that_both_have_queued_is_done_once(tmp_path: Path) -> None:
    here, there = two_places(tmp_path)
    queues, run = [RunQueue(here), RunQueue(there)], RUNS[0]
    for queue in queues:  # as if each had looked before the other had queued it
        queue.enqueue(run.name, {})
    done: list[str] = []

    def do(which: int) -> str:
        done.append(f"{which}")
        queues[which].record_store.write(small_record(run), tmp_path)
        return "done"

    for which in (1, 0, 1):
        queues[which].run_next({run.name: run}, lambda run, which=which: do(which))
    assert done == ["1"]
    assert [queue.refill([run]).is_finished for queue in queues] == [True, True]


def freeze(process: subprocess.Popen[str], database: Path) -> None:
    """Stop a process, but not before its first heartbeat, nor in a write: unlike a dead one it would keep the lock."""

    def has_beaten() -> bool:
        with contextlib.closing(sqlite3.connect(database, timeout=5)) as connection:
            return bool(connection.execute("SELECT COUNT(*) FROM trial_heartbeats").fetchone()[0])

    def stopped() -> bool:
        os.kill(process.pid, signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(database, timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE").connection.rollback()
                return True
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)
                return False

    wait_for(has_beaten, "a heartbeat")
    wait_for(stopped, "a moment without a write")


def test_missing_heartbeats_give_a_run_to_another_machine_and_a_late_comer_is_noticed(tmp_path: Path) -> None:
    here, there = two_places(tmp_path)
    log, runs = tmp_path / "log", RUNS[:1]
    RunQueue(here).refill(runs)
    lost = worker(here, log, seconds=1, runs=runs)
    wait_for(lambda: noted(log, "began"), "a run that begins")
    freeze(lost, tmp_path / "queue.db")  # gone, as far as the others can see
    try:
        other = RunQueue(there)
        assert other.refill(runs).running == [*runs]
        wait_for(lambda: other.refill(runs).waiting, "a run taken up")
        assert worker(there, log, runs=runs).wait(120) == 0
        assert other.refill(runs).recorded == [*runs]
    finally:
        os.kill(lost.pid, signal.SIGCONT)
    assert lost.wait(120) == 0
    assert not is_alive(lost.pid)
    assert noted(log, "ended") == Counter({runs[0].name: 2})
    queue_status = RunQueue(there).refill(runs)
    assert list(queue_status.duplicates) == [runs[0].name]
    assert queue_status.duplicates[runs[0].name].endswith(here.folder)


def test_other_settings_of_a_method_are_refused_by_a_shared_study(tmp_path: Path) -> None:
    here, there = two_places(tmp_path)
    flat = {"training.learning_rate": 1e-4, "data.data_dir": "here"}

    def bert(**changes: object) -> dict[str, dict[str, object]]:
        values = flat | {name.replace("__", "."): value for name, value in changes.items()}
        return {"bert": {"own": ["preset"], "of_tasks": [], "tasks": {"cola": values}}}

    RunQueue(here).register_settings(bert())
    RunQueue(there).register_settings(bert(data__data_dir="there"))
    with pytest.raises(CheckpointError, match=r"study 'compare': .* bert on cola: training.learning_rate: was 0.0001"):
        RunQueue(there).register_settings(bert(training__learning_rate=1e-3))
