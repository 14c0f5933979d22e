"""Comparisons and searches of which one process after the other is killed end as if nothing had happened."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.comparisons import command, is_alive, outcomes, start, times_done, wait_for, workers_of

pytestmark = pytest.mark.slow
KILLS, LIMIT_S = 10, 1800
LONG = {"training__num_train_epochs": 3, "training__save_steps": 2}
COMPARE = ("--presets", "bert,ssa-hybrid", "--seeds", "3", "--jobs", "2")
SEARCH = ("--search", "objective.alpha=0.5,0.7,0.9", "--preset", "ssa-hybrid", "--sampler", "grid", "--jobs", "2")


def words(verb: str, folder: Path, encoder: Path) -> list[str]:
    folder.mkdir()
    flags = COMPARE if verb == "compare" else SEARCH
    return command(folder, encoder, *flags, verb=verb, output="work", **LONG)


def to_end(line: list[str]) -> None:
    """The command as it ends when nobody disturbs it."""
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
    for _ in range(KILLS):
        kill_one(line, folder, draw)
    to_end(line)
    assert outcomes(folder) == outcomes(tmp_path / "whole" / "work")
    assert set(times_done(folder).values()) == {1}
    assert not (folder / "runs").exists()
    assert not list(folder.rglob("*.tmp"))
    record_property("kills", KILLS)
