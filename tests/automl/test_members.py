"""A worker's task: one fold of a fine-tuned member, on tiny random encoders."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from attentune.automl import members
from attentune.automl.members import FoldTask, TaskResult, WorkerSetup, fold_folder, run_task, save_folds
from attentune.automl.portfolio import Member
from attentune.config import load_config
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.training.signals import stop_on_signal

ROWS, UPDATES = 24, 10


@pytest.fixture
def train_fold(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[TaskResult, Path]]:
    """`train_fold(deadline_s=10, ending_s=0)`: how fold 1 of `bert-mean` ended, and its folder."""
    texts = tuple(f"the {('dull', 'lovely')[row % 2]} film number {row}" for row in range(ROWS))
    rows = TextRows(tuple(map(str, range(ROWS))), texts, None, np.arange(ROWS) % 2, "test")
    data = TaskData("test", LabelSpace("classification", ("bad", "good")), ("accuracy",), {"train": rows})
    settings = {"training.seed": load_config().training.seed, "training.learning_rate": 1e-3}
    setup = WorkerSetup(data=data, settings=settings, max_length=16, use_cpu=True)
    monkeypatch.setattr(members, "_SETUP", setup, raising=False)
    save_folds(tmp_path / "folds.safetensors", np.arange(ROWS) // 2 % 3 + 1)
    member = Member("bert-mean", "fine-tuned", "bert-mean", encoder=str(tiny("bert", layers=1, hidden=16)))

    def run(
        *, deadline_s: float, ending_s: float, fewest_updates: int | None = UPDATES // 2, tokens_per_s: float = 0.0
    ) -> tuple[TaskResult, Path]:
        task = FoldTask(
            member=member,
            folds=(1,),
            folder=str(tmp_path / "bert-mean"),
            folds_file=str(tmp_path / "folds.safetensors"),
            updates=UPDATES,
            batch_size=4,
            save_steps=UPDATES,
            deadline=time.time() + deadline_s,
            fewest_updates=fewest_updates,
            ending_s=ending_s,
            tokens_per_s=tokens_per_s,
        )
        with stop_on_signal() as stop:  # as in a worker process
            return run_task(task, stop=stop), fold_folder(tmp_path / "bert-mean", 1)

    return run


def steps_of(folder: Path) -> int:
    return json.loads((folder / "metrics.json").read_text())["train"]["steps"]


def test_a_fold_with_time_does_all_updates(train_fold):
    result, folder = train_fold(deadline_s=3600, ending_s=0)
    assert (result.status, result.ended_at, steps_of(folder)) == ("done", None, UPDATES)


def test_a_late_fold_ends_early_and_predicts_its_rows(train_fold):
    result, folder = train_fold(deadline_s=3600, ending_s=7200)
    assert (result.status, result.ended_at, steps_of(folder)) == ("done", UPDATES // 2, UPDATES // 2)
    held_out = load_file(folder / "heldout.safetensors")
    assert held_out["rows"].tolist() == [row for row in range(ROWS) if row // 2 % 3 == 0]
    assert np.isfinite(held_out["logits"]).all()
    assert not list(folder.glob("checkpoint-*"))


def test_a_fold_that_is_slower_than_predicted_ends_earlier(train_fold):
    """It would have an hour for its end; at a thousandth of the predicted speed it needs far more."""
    result, _ = train_fold(deadline_s=7200, ending_s=3600, tokens_per_s=1e9)
    assert (result.status, result.ended_at) == ("done", UPDATES // 2)


def test_a_fold_that_is_too_late_for_that_is_stopped_with_a_checkpoint(train_fold):
    result, folder = train_fold(deadline_s=-1, ending_s=0)
    assert result.status == "stopped"
    assert list(folder.glob("checkpoint-*"))
    # It goes on from there.
    result, folder = train_fold(deadline_s=3600, ending_s=0)
    assert (result.status, steps_of(folder)) == ("done", UPDATES)


def test_a_fold_of_fixed_updates_does_not_end_early(train_fold):
    result, folder = train_fold(deadline_s=3600, ending_s=7200, fewest_updates=None)
    assert (result.status, result.ended_at, steps_of(folder)) == ("done", None, UPDATES)
