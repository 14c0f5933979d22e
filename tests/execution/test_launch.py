"""A run that several processes train together: its result, stops, errors, and the end of its worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attentune.errors import DataError
from attentune.results import RunResult
from attentune.training.run_folder import Interrupted, StopRequest
from helpers.comparisons import LONG, config_of, end_at_once, fail, is_alive, launched, train_quietly, wait_for
from helpers.interrupted import without_times

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Let the processes import `helpers`."""
    with pytest.MonkeyPatch.context() as patched:
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patched.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


def steps_of(folder: Path) -> int:
    """Return the last step in a run's log."""
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory) -> tuple[Path, RunResult]:
    """The folder of an undisturbed run, and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder / "run", launched(train_quietly, config_of(folder, tiny("bert")))


def test_both_processes_train_one_run(whole):
    folder, result = whole
    assert result.train["processes"] == 2
    # 48 rows, 8 a step, 4 epochs.
    assert result.train["steps"] == 24
    assert RunResult.load(folder / "run.json") == result
    assert steps_of(folder) == 24


def test_a_stopped_run_goes_on_to_the_same_weights(whole, tiny, tmp_path):
    config, stop = config_of(tmp_path, tiny("bert")), StopRequest()

    def ask() -> None:
        wait_for(lambda: steps_of(tmp_path / "run") >= 5, "some steps")
        stop.requested = True

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Interrupted) as interrupted:
        launched(train_quietly, config, stop)
    asking.join()
    assert 5 <= interrupted.value.step < 24
    # It was saved at the step at which both processes stopped, which need not be one of save_steps.
    assert (tmp_path / "run" / f"checkpoint-{interrupted.value.step}").is_dir()
    result = launched(train_quietly, config_of(tmp_path, tiny("bert"), training__resume=True))
    assert without_times(result.train) == without_times(whole[1].train)
    assert (tmp_path / "run/model.safetensors").read_bytes() == (whole[0] / "model.safetensors").read_bytes()


def test_an_error_of_the_trainer_is_that_of_the_run(tiny, tmp_path):
    with pytest.raises(DataError, match=r"somewhere\.csv:3: no such rows"):
        launched(fail, config_of(tmp_path, tiny("bert")))


def test_processes_that_end_without_a_word_are_told(tiny, tmp_path):
    with pytest.raises(RuntimeError, match=r"the 2 processes of this run ended with status 1(?s:.*)exitcode *: 7"):
        launched(end_at_once, config_of(tmp_path, tiny("bert")))


def test_no_process_outlives_a_killed_worker_and_the_next_one_goes_on(tiny, tmp_path):
    worker = subprocess.Popen([sys.executable, "-m", "helpers.comparisons", str(tmp_path), str(tiny("bert"))])
    wait_for(lambda: steps_of(tmp_path / "run") >= 5, "some steps", worker)
    children = _descendants(worker.pid)
    assert len(children) >= 3  # the launcher and two processes
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    wait_for(lambda: not any(map(is_alive, children)), "end of the processes")
    begun = steps_of(tmp_path / "run")
    stop = StopRequest()

    def ask() -> None:
        wait_for(lambda: steps_of(tmp_path / "run") > begun + 2, "more steps")
        stop.requested = True

    asking = threading.Thread(target=ask)
    asking.start()
    resumed = config_of(tmp_path, tiny("bert"), **LONG, training__resume=True)
    with pytest.raises(Interrupted):
        launched(train_quietly, resumed, stop)
    asking.join()
    steps = [line["step"] for line in map(json.loads, (tmp_path / "run/log.jsonl").open()) if "loss" in line]
    assert steps == list(range(1, len(steps) + 1))


def _descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they have started."""
    time.sleep(0.5)
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found
