"""A run that is killed, wherever it stands and whatever it does, goes on to the same end, bit for bit.

How many kills a test makes is kept as its property `kills` (`pytest --junitxml`).
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.training.run_folder import stop_on_signal
from helpers.interrupted import (
    ENDED_AT_ONCE,
    FINISHED,
    POLITE,
    STEPS,
    STOPPED,
    at_file_events,
    at_steps,
    check_resumes,
    check_whole,
    ending,
    file_events,
    forked,
    log_of,
    outcome,
    signals_at,
    train_in,
)

pytestmark = pytest.mark.integration

SIGNALS = (signal.SIGKILL, *POLITE)
# The slow tests cut the moments of a run into so many parts, each a test of its own.
PARTS = 10
Reference = tuple[Path, dict[str, object]]


@pytest.fixture(scope="module")
def encoder(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", layers=2, hidden=16)


@pytest.fixture(scope="module")
def reference(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run that nobody disturbed, and its outcome."""
    folder = tmp_path_factory.mktemp("reference")
    train_in(folder, encoder)
    return folder, outcome(folder / "run")


@pytest.fixture(scope="module")
def moments(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many things a run does to its files."""
    folder = tmp_path_factory.mktemp("moments")
    return file_events(lambda: train_in(folder, encoder), folder / "run", folder / "tally")


def test_the_run_has_all_that_is_to_survive(reference: Reference, moments: int) -> None:
    """Without which the other tests here would prove little."""
    folder = reference[0] / "run"
    result = json.loads((folder / "run.json").read_text())
    assert result["train"]["stopped_early"]
    assert (result["train"]["steps"], result["best"]["step"], result["train"]["final_step"]) == (STEPS, 6, 6)
    assert [line["step"] for line in log_of(folder) if "loss" in line] == [*range(1, STEPS + 1)]
    labelled = [line["labels"]["ones"] for line in log_of(folder) if "ones" in line.get("labels", {})]
    assert len(labelled) == 3
    assert max(labelled) > 0
    assert reference[1]["checkpoints"] == ["checkpoint-6", "checkpoint-12"]
    assert json.loads((folder / "config.json").read_text())["encoder"]["hidden_dropout_prob"] > 0
    assert moments > 200


def kill_at_step(folder: Path, encoder: Path, expected: dict[str, object], step: int, number: int) -> None:
    status = ending(forked(lambda: train_in(folder, encoder), at_steps({step: [number]})))
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:  # at its last step a run is not told apart from one that ends
        assert status == (FINISHED if step == STEPS else STOPPED)
        assert step == STEPS or (folder / "run" / f"checkpoint-{step}").is_dir()
    check_resumes(folder, encoder, expected, polite=number != signal.SIGKILL)


@pytest.mark.parametrize(
    ("step", "number"), [(1, signal.SIGKILL), (7, signal.SIGKILL), (5, signal.SIGTERM), (8, signal.SIGINT)]
)
def test_a_signal_after_a_step(encoder: Path, reference: Reference, tmp_path: Path, step: int, number: int) -> None:
    kill_at_step(tmp_path, encoder, reference[1], step, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_every_step(encoder, reference, tmp_path, number, record_property):
    for step in range(1, STEPS + 1):
        kill_at_step(tmp_path / str(step), encoder, reference[1], step, number)
    record_property("kills", STEPS)


def kill_at_moment(folder: Path, encoder: Path, expected: dict[str, object], moment: int, *numbers: int) -> None:
    """Signals at this file operation and the next ones."""
    folder.mkdir(exist_ok=True)
    signals = {moment + place: number for place, number in enumerate(numbers)}
    status = ending(forked(lambda: train_in(folder, encoder), at_file_events(folder / "run", signals_at(signals))))
    polite = signal.SIGKILL not in numbers
    assert status in ((FINISHED, STOPPED, ENDED_AT_ONCE, -signal.SIGTERM) if polite else (-signal.SIGKILL,))
    check_resumes(folder, encoder, expected, polite=polite)


@pytest.mark.parametrize(
    ("share", "numbers"),
    [
        *((share, [signal.SIGKILL]) for share in (0.015, 0.1, 0.35, 0.55, 0.857, 0.97)),
        *((share, [signal.SIGINT] * 2) for share in (0.4, 0.8)),
    ],
)
def test_signals_at_a_file_operation(encoder, reference, moments, tmp_path, share, numbers):
    """The second Ctrl-C ends a run at once."""
    kill_at_moment(tmp_path, encoder, reference[1], int(share * moments), *numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "every", "numbers"),
    [
        *((1 + part, PARTS, [signal.SIGKILL]) for part in range(PARTS)),
        *((4, 9, numbers) for numbers in ([signal.SIGTERM], [signal.SIGINT] * 2)),
    ],
)
def test_signals_at_every_file_operation(encoder, reference, moments, tmp_path, first, every, numbers, record_property):
    mine = range(first, moments + 1, every)
    for moment in mine:
        kill_at_moment(tmp_path / str(moment), encoder, reference[1], moment, *numbers)
    record_property("kills", len(mine))


def kill_until_done(folder: Path, encoder: Path, draw: random.Random, seconds: float, limit: int) -> int:
    """Kill a run at random times until it comes to its end, or that often; how often it was killed."""
    for kills in range(limit):
        resume = (folder / "run" / "config.yaml").exists()
        child = forked(lambda resume=resume: train_in(folder, encoder, resume=resume))
        time.sleep(draw.random() * seconds)
        os.kill(child, signal.SIGKILL)
        if ending(child) == FINISHED:
            return kills
        check_whole(folder / "run")
    return limit


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_at_random_times(encoder, reference, tmp_path, seed, record_property):
    began = time.monotonic()
    train_in(tmp_path / "timed", encoder)
    seconds = time.monotonic() - began
    draw, kills, attempt = random.Random(seed), 0, 0
    while not kills:  # a run that was done before its first kill shows nothing; the next is killed earlier
        seconds, attempt = 0.8 * seconds, attempt + 1
        kills = kill_until_done(tmp_path / str(attempt), encoder, draw, seconds, 12)
    check_resumes(tmp_path / str(attempt), encoder, reference[1], polite=False)
    record_property("kills", kills)


# Requests for a stop, inside each other too


def test_the_first_signal_asks_and_the_second_ends():
    before = signal.getsignal(signal.SIGTERM)  # Ray has one of its own
    with stop_on_signal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stop_asked_for_before_stops_what_begins_after():
    with stop_on_signal() as outer:
        os.kill(os.getpid(), signal.SIGINT)
        with stop_on_signal() as inner:
            assert inner.requested
        assert signal.getsignal(signal.SIGINT) is outer


def test_elsewhere_than_in_the_main_thread_nothing_is_caught():
    seen = []

    def look() -> None:
        with stop_on_signal() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    with stop_on_signal() as outer:
        outer.requested = True
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [(False, outer)]
