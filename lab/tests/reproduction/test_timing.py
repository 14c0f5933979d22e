"""The expected time of runs, before they start."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attentune.runs.grid import Method, plan_grid
from attentune.runs.records import RecordStore
from attentune.runs.search_settings import SearchSettings
from attentune.training.run import train
from attentune_lab.reproduction.timing import (
    RowSize,
    epochs_of,
    plan_search,
    planned_runs,
    seconds_per_token,
    size_of,
)
from helpers.samples import settings
from helpers.tasks import small_record


def test_passes_follow_from_the_settings():
    size = RowSize(1000, 20.0)
    assert epochs_of({"training.num_train_epochs": 3}, size) == 3.0
    assert epochs_of({"training.max_steps": 500, "training.per_device_train_batch_size": 16}, size) == 8.0
    assert epochs_of({"training.max_steps": -1, "training.num_train_epochs": 0.5}, size) == 0.5
    assert epochs_of({}, size) > 0  # the default, which depends on the rows


def test_recorded_runs_say_how_long_further_ones_take_and_others_are_predicted(tiny, tmp_path, monkeypatch):
    values = settings(tmp_path, tiny("bert"), training__num_train_epochs=2)
    del values["training.output_dir"]
    methods = [Method("bert", "bert"), Method("sesame", "sesame"), Method("majority", "majority")]
    grid = plan_grid(tasks=None, methods=methods, seeds=[1, 2, 3], overrides=values)
    folder, timed = tmp_path / "comparison", []
    for run in grid.runs[:1]:
        record = replace(small_record(run, seconds=36.0), config={"baseline": None})
        RecordStore(folder).write(record, folder)
    monkeypatch.setattr("attentune_lab.reproduction.timing.seconds_per_token", lambda flat: 0.25)
    found = {one.method: one for one in planned_runs(folder, grid, timed.append)}
    bert, sesame, majority = found["bert"], found["sesame"], found["majority"]
    assert (bert.runs, bert.done, bert.seconds, bert.is_measured) == (3, 1, 36.0, True)
    assert bert.hours == pytest.approx(2 * 36 / 3600)
    tokens = size_of(grid.config(grid.runs[0], folder), None)
    assert sesame.seconds == pytest.approx(2 * tokens.rows * tokens.mean_tokens * 0.25)
    assert (sesame.done, sesame.is_measured) == (0, False)
    assert (majority.seconds, majority.hours) == (0.0, 0.0)
    assert timed == ["timing sesame on 128 rows of train.csv"]


def test_methods_are_timed_on_the_threads_of_a_run(tiny, tmp_path, monkeypatch):
    values = settings(tmp_path, tiny("bert"))
    del values["training.output_dir"]
    used = []
    monkeypatch.setattr(
        "attentune.training.run.train",
        lambda *given, **named: used.append(torch.get_num_threads()) or train(*given, **named),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert seconds_per_token(values, "bert") > 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == [1]


@pytest.mark.integration
def test_trials_of_a_search_that_differ_in_training_only_are_timed_once(tiny, tmp_path):
    values = settings(tmp_path, tiny("bert"), training__num_train_epochs=1)
    for name in ("training.output_dir", "training.num_train_epochs", "training.learning_rate"):
        values.pop(name)  # a setting with a fixed value is not searched
    space, said = {"training.learning_rate": [1e-4, 1e-3], "training.num_train_epochs": [1, 4]}, []
    planned = plan_search(tmp_path / "search", SearchSettings(space=space, overrides=values, seeds=2), said.append)
    assert [(one.runs, one.done) for one in planned] == [(2, 0)] * 4
    # Both learning rates take the same time, four passes four times that of one.
    seconds = sorted(one.seconds for one in planned)
    assert seconds == pytest.approx([seconds[0]] * 2 + [4 * seconds[0]] * 2)
    assert len(said) == 1
    assert not (tmp_path / "search").exists()
