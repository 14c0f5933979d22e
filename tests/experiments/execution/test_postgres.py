"""Comparisons that share their work through a real PostgreSQL server, with workers and commands killed in between."""

from __future__ import annotations

import csv
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from attentune.experiments.comparison.record_store import RecordStore
from attentune.experiments.execution.queue import RunQueue
from helpers.comparisons import (
    checkpointed,
    command,
    finish,
    is_alive,
    kill,
    outcomes,
    start,
    wait_for,
    worker_at,
    workers_of,
)
from helpers.postgres import Server, running_server
from helpers.queue_worker import RUNS, names, noted, storage_in, worker

pytestmark = pytest.mark.slow
FLAGS = ("--presets", "bert,bert-mean", "--seeds", "3", "--jobs", "1", "--heartbeat", "1", "--study", "shared")
LONG = {"training__num_train_epochs": 3, "training__save_steps": 3}


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as found:
        yield found


def test_two_machines_do_every_run_once(server: Server, tmp_path: Path) -> None:
    places = [storage_in(tmp_path / name, server.url, folder_id=name) for name in ("here", "there")]
    log = tmp_path / "log"
    for where in places:
        RunQueue(where).refill(RUNS)
    workers = [worker(where, log, seconds=0.05) for where in (*places, *places)]
    assert [process.wait(120) for process in workers] == [0] * 4
    assert noted(log, "ended") == noted(log, "began") == Counter(names())
    standings = [RunQueue(where).refill(RUNS) for where in places]
    assert all(queue_status.is_finished and not queue_status.duplicates for queue_status in standings)
    assert set(standings[0].recorded) == set(standings[1].elsewhere)


def test_killed_workers_lose_no_run_and_repeat_none_unnoticed(server: Server, tmp_path: Path) -> None:
    places = [storage_in(tmp_path / name, server.url, folder_id=name) for name in ("here", "there")]
    queues, log, draw = [RunQueue(where) for where in places], tmp_path / "log", random.Random(2)
    deadline, kills = time.monotonic() + 240, 0
    workers = [worker(where, log, seconds=0.2) for where in places]
    while not all(queue.refill(RUNS).is_finished for queue in queues):
        assert time.monotonic() < deadline
        time.sleep(draw.random() * 0.5)
        for which, process in enumerate(workers):
            if kills < 10 and draw.random() < 0.5 and process.poll() is None:
                process.kill()
                process.wait()
                kills += 1
            if process.poll() is not None:
                workers[which] = worker(places[which], log, seconds=0.2)
    for process in workers:
        process.wait(120)
    assert kills == 10
    here, there = ({record.run for record in RecordStore(Path(where.folder)).records()} for where in places)
    assert here | there == set(RUNS)
    noticed = set(queues[0].refill(RUNS).duplicates)
    assert {run.name for run in here & there} <= noticed
    assert {name for name, count in noted(log, "ended").items() if count > 1} <= noticed


def test_commands_that_share_a_study_when_one_is_killed(server: Server, tiny, tmp_path: Path) -> None:
    words = {
        name: command(tmp_path, tiny("bert"), *FLAGS, "--storage", server.url, output=name, **LONG)
        for name in ("first", "second")
    }
    alone = command(tmp_path, tiny("bert"), *FLAGS[:4], "--jobs", "2", output="alone", **LONG)
    assert finish(start(alone))[0] == 0
    first, second = start(words["first"]), start(words["second"])
    run = wait_for(checkpointed(tmp_path / "first"), "checkpoint", first)[0]
    victim = worker_at(tmp_path / "first", run)
    kill(first.pid)
    kill(victim)
    first.communicate()
    status, _, errors = finish(second)
    assert status == 0, errors
    assert not is_alive(victim)
    found = {name: outcomes(tmp_path / name) for name in ("alone", "first", "second")}
    assert not set(found["first"]) & set(found["second"])
    assert {**found["first"], **found["second"]} == found["alone"]
    if found["first"]:
        assert "are recorded elsewhere" in errors
    # The killed one has nothing left to do, and tidies up.
    status, _, errors = finish(start(words["first"]))
    assert status == 0, errors
    assert not (tmp_path / "first" / "runs").exists()
    assert outcomes(tmp_path / "first") == found["first"]


def test_a_server_that_goes_away_stops_the_command_and_the_same_command_goes_on(server, tiny, tmp_path: Path) -> None:
    words = command(tmp_path, tiny("bert"), *FLAGS, "--storage", server.url, **LONG)
    process = start(words)
    wait_for(checkpointed(tmp_path / "comparison"), "checkpoint", process)
    server.stop()
    status, _, errors = finish(process)
    assert status == 2, errors
    assert "--storage postgresql+psycopg://attentune@/postgres" in errors
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert not workers_of(tmp_path / "comparison")
    server.start()
    status, _, errors = finish(start(words))
    assert status == 0, errors
    for file in (tmp_path / "comparison").glob("records/*/*/*/*.csv"):
        assert len(list(csv.DictReader(file.open()))) == 20
    assert len(list((tmp_path / "comparison").glob("records/*/*/*/*.json"))) == 6
