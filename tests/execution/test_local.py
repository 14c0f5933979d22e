"""Processes of this machine: tasks, killed workers, stop requests, and the end of the command."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import pytest

from attentune.execution import make_executor
from attentune.execution.executor import (
    ExecutorOptions,
    Slots,
    WorkerKilled,
    available_memory_bytes,
    cpu_quota,
    default_slots,
    limit_threads,
    resident_bytes,
    usable_cores,
)
from attentune.execution.local import LocalExecutor
from helpers import tasks
from helpers.comparisons import is_alive, wait_for

Make = Callable[..., LocalExecutor]


@pytest.fixture
def make(tmp_path) -> Iterator[Make]:
    made: list[LocalExecutor] = []

    def executor(count: int = 2, **options: object) -> LocalExecutor:
        devices = options.pop("devices", ())
        made.append(LocalExecutor(Slots(count, 1, devices), tmp_path / "logs", **options))  # type: ignore[arg-type]
        return made[-1]

    yield executor
    for one in made:
        one.shutdown(wait_s=0.0)


def test_tasks_return_or_raise_and_have_a_log(make, tmp_path):
    executor = make()
    futures = executor.submit(tasks.echo, [[number] for number in range(5)])
    failing, dying = executor.submit(tasks.fail, [()])[0], executor.submit(tasks.die, [()])[0]
    assert [future.result(60) for future in futures] == list(range(5))
    with pytest.raises(ValueError, match="this task fails"):
        failing.result(60)
    with pytest.raises(WorkerKilled, match="killed by signal 9"):
        dying.result(60)
    assert executor.submit(tasks.echo, [["after"]])[0].result(60) == "after"
    assert "about to fail" in "".join(log.read_text() for log in (tmp_path / "logs").iterdir())


@pytest.mark.parametrize("reuse", [False, True])
def test_a_process_is_fresh_or_stays(make, reuse):
    executor = make(1, reuse=reuse, initializer=tasks.hold, initargs=("rows",))
    found = [executor.submit(tasks.facts, [()])[0].result(60) for _ in range(2)]
    assert [one["held"] for one in found] == [["rows"]] * 2
    assert [one["threads"] for one in found] == [1, 1]
    assert (found[0]["pid"] == found[1]["pid"]) == reuse


@pytest.mark.integration
def test_each_slot_sees_its_own_device(make):
    executor = make(2, devices=("3", "5"), reuse=False)
    futures = executor.submit(tasks.facts, [()] * 4)
    assert {future.result(120)["device"] for future in futures} == {"3", "5"}


def test_a_stop_request_lets_tasks_save_and_cancels_those_that_wait(make, tmp_path):
    executor = make(1)
    first, second = executor.submit(tasks.until_stopped, [[str(tmp_path / "one")], [str(tmp_path / "two")]])
    wait_for((tmp_path / "one").exists, "start")
    executor.request_stop()
    assert first.result(60) == "saved"
    assert second.cancelled()
    executor.shutdown()
    assert executor.pids == []
    assert not (tmp_path / "two").exists()


def test_a_killed_worker_that_waits_for_a_stop_request_does_not_block_it(make, tmp_path):
    executor = make(2)
    futures = executor.submit(tasks.until_stopped, [[str(tmp_path / name)] for name in "ab"])
    wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), "start")
    time.sleep(0.1)
    os.kill(int((tmp_path / "a").read_text()), signal.SIGKILL)
    assert len(wait(futures, timeout=30, return_when="FIRST_COMPLETED").done) == 1
    began = time.monotonic()
    executor.shutdown()
    assert time.monotonic() - began < 30
    assert (tmp_path / "b").read_text() == "saved"


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.integration)])
def test_ctrl_c_while_a_worker_starts_takes_effect_after_that(make, tmp_path, monkeypatch, method):
    """It used to be lost; and a new process must not get it."""
    executor = make(1)
    executor._context = multiprocessing.get_context(method)
    started = ProcessPoolExecutor.submit

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return started(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPoolExecutor, "submit", interrupted)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                executor.submit(tasks.facts, [()])
        finally:
            signal.signal(signal.SIGINT, before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # The executor goes on, and programs that tasks start can be interrupted.
    (future,) = executor.submit(tasks.blocked_signals, [()])
    assert signal.SIGINT not in future.result(60)


def test_workers_that_do_not_save_in_time_are_killed(make, tmp_path):
    executor = make(1)
    executor.submit(tasks.add_line, [[str(tmp_path), "late", 600.0]])
    wait_for(lambda: executor.pids, "worker")
    (pid,) = executor.pids
    executor.shutdown(wait_s=0.1)
    wait_for(lambda: not is_alive(pid), "end of the worker")
    assert not (tmp_path / "late").exists()


_PROGRAM = """
import sys, time
from pathlib import Path
from attentune.execution.executor import Slots
from attentune.execution.local import LocalExecutor
from attentune.execution.executor import available_memory_bytes, resident_bytes
from helpers import tasks
print("main module", flush=True)
executor = LocalExecutor(Slots(1, 1), Path(sys.argv[1]) / "logs")
task, *rest = (tasks.until_stopped,) if sys.argv[2] == "saves" else (tasks.note_and_sleep, 600.0)
executor.submit(task, [[sys.argv[1] + "/worker", *rest]])
time.sleep(600)
"""


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["saves", "hangs"])
def test_workers_end_within_two_seconds_of_a_command_that_is_killed(tmp_path, kind):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, program, tmp_path, kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    wait_for(lambda: (tmp_path / "worker").exists() and (tmp_path / "worker").read_text(), "worker", process)
    pid = int((tmp_path / "worker").read_text())
    process.kill()
    killed = time.monotonic()
    out, _ = process.communicate()
    wait_for(lambda: not is_alive(pid), "end of the worker")
    assert time.monotonic() - killed < 10  # it is 1.6 with a free core
    assert (tmp_path / "worker").read_text() == ("saved" if kind == "saves" else str(pid))
    assert out == "main module\n"  # workers do not import it


def test_slots_and_their_room_are_what_cores_gpus_and_memory_leave(monkeypatch, make, tmp_path):
    import torch

    monkeypatch.setattr("attentune.execution.executor.usable_cores", lambda: 6)
    assert default_slots([{"training.use_cpu": True}]) == Slots(6, 1)
    assert default_slots([{}], jobs=3) == Slots(3, 1)
    executor = make_executor(ExecutorOptions(jobs=3), tmp_path, [{"training.use_cpu": True}])
    assert (type(executor), executor.size) == (LocalExecutor, 3)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert default_slots([{"training.use_cpu": True}]) == Slots(6, 1)
    assert default_slots([{}]) == Slots(2, None, ("0", "1"))
    assert default_slots([{}], jobs=3) == Slots(3, None, ("0", "1", "0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert default_slots([{}]) == Slots(2, None, ("4", "7"))
    # Room is what memory leaves.
    executor = make(4)
    for available, expected in ((None, 4), (100, 4), (22, 1), (5, 1)):
        monkeypatch.setattr("attentune.execution.local.available_memory_bytes", lambda size=available: size)
        # A tenth is left to the system; one task may always start.
        assert executor.room(20) == expected
    assert executor.room(0) == 4
    # The system says how much memory is available and used.
    available = available_memory_bytes()
    assert available is None or 1_000_000 < available < 1 << 50
    assert 1_000_000 < resident_bytes(os.getpid()) < 1 << 40
    assert resident_bytes(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_limits_cores_and_threads(tmp_path, monkeypatch, files, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path) == cores
    monkeypatch.setattr("attentune.execution.executor.cpu_quota", lambda: cores)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert usable_cores() == (cores or 64)
    for given in (None, "3"):
        monkeypatch.setattr("os.environ", {} if given is None else {"OMP_NUM_THREADS": given})
        limit_threads()
        assert os.environ.get("OMP_NUM_THREADS") == (given or (cores and str(cores)))
