"""What a search will take."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from attentune.runs.search import PlannedSearch, plan_search
from attentune.runs.search_settings import SearchSettings
from helpers.samples import settings


def test_hours_are_those_of_the_runs_or_of_the_longest_one():
    planned = PlannedSearch(trials=4, seeds=3, done=2, seconds=(360.0, 720.0), is_measured=False)
    assert planned.runs == 10
    assert planned.hours(1) == pytest.approx(10 * 540 / 3600)
    assert planned.hours(2) == pytest.approx(5 * 540 / 3600)
    assert planned.hours(100) == pytest.approx(720 / 3600)
    assert replace(planned, done=12).hours(1) == 0.0


@pytest.mark.integration
def test_the_plan_of_a_grid_and_of_what_is_recorded(attentune, tiny, tmp_path):
    values = settings(tmp_path, tiny("bert"), training__num_train_epochs=1)
    for name in ("training.output_dir", "training.num_train_epochs", "training.learning_rate"):
        values.pop(name)  # a setting with a fixed value is not searched
    space = {"training.learning_rate": [1e-4, 1e-3], "training.num_train_epochs": [1, 4]}
    said: list[str] = []
    planned = plan_search(tmp_path / "search", SearchSettings(space=space, overrides=values, seeds=2), said.append)
    assert (planned.trials, planned.seeds, planned.done, planned.runs) == (4, 2, 0, 8)
    # Both learning rates take the same time, four passes four times that of one.
    assert sorted(planned.seconds) == pytest.approx([planned.seconds[0]] * 2 + [4 * planned.seconds[0]] * 2)
    assert len(said) == 1
    assert not (tmp_path / "search").exists()
    flags = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    flags += ["--search", "training.num_train_epochs=1,2", "--output_dir", str(tmp_path / "search"), "--jobs", "1"]
    status, out, err = attentune("search", *flags, "--plan", "--quiet")
    assert status == 0, err
    assert re.match(r"2 trials with 1 seed each: 2 runs are left, 0 are recorded\.\nAbout 0\.\d\d hours with 1", out)
    assert attentune("search", *flags, "--quiet")[0] == 0
    status, out, _ = attentune("search", *flags, "--plan", "--quiet")
    assert status == 0
    assert "0 runs are left, 2 are recorded" in out
    assert "by the recorded runs" in out
