"""How long a comparison will go on."""

from collections import Counter
from dataclasses import replace

import pytest

from attentune.runs.grid import Run
from attentune.runs.progress import RunTimes, as_duration, group_of
from helpers.tasks import small_record


def run(task: str = "cola", size: int | None = 250, method: str = "bert", seed: int = 1) -> Run:
    return Run(task, size, method, seed)


def seconds_left(done, waiting, running, workers):
    times = RunTimes()
    for record in done:
        times.add(record)
    return times.left(Counter(map(group_of, waiting)), running, workers)


def test_runs_are_expected_to_last_as_those_like_them():
    done = [
        small_record(run(), seconds=10),
        small_record(run(seed=2), seconds=14),
        small_record(run(seed=6), seconds=1000),  # the machine slept
        small_record(run(method="sesame"), seconds=40),
        small_record(run(task="rte"), seconds=110),
    ]
    assert seconds_left([], [run(seed=3)], {}, 1) is None
    assert seconds_left(done, [run(seed=3)], {}, 1) == 14  # the median of its own task, size and method
    assert seconds_left(done, [run(task="rte", method="ssa-co")], {}, 1) == 110  # of its task and size
    assert seconds_left(done, [run(task="sst2")], {}, 1) == 40  # of all
    assert seconds_left(done, [run(seed=3), run(seed=4)], {}, 2) == 14
    # What is at work counts for the rest of its time, and never below nothing.
    assert seconds_left(done, [run(seed=3)], {run(seed=4): 5.0, run(seed=5): 99.0}, 2) == pytest.approx(11.5)
    # The last run does not end sooner for two workers.
    assert seconds_left(done, [], {run(task="rte", seed=3): 10.0, run(seed=4): 15.0}, 2) == 100


def test_baselines_say_nothing_about_the_time_of_trained_runs():
    baseline = replace(small_record(run(method="tfidf-linear"), seconds=0.5), config={"baseline": "tfidf-linear"})
    assert seconds_left([baseline], [run()], {}, 1) is None
    assert seconds_left([baseline], [], {run(): 3.0}, 1) is None
    assert seconds_left([baseline], [run(method="tfidf-linear", seed=2)], {}, 1) == 0.5
    trained = small_record(run(), seconds=60)
    assert seconds_left([baseline, baseline, trained], [run(method="sesame")], {}, 1) == 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (40.4, "about 40 s"), (61, "about 1 min"), (3599, "about 1 h 0 min"), (7500, "about 2 h 5 min")],
)
def test_durations_in_words(seconds, text):
    assert as_duration(seconds) == text
