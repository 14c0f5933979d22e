"""A worker's run: one fold of a fine-tuned member, on tiny random encoders."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from attentune.automl import members
from attentune.automl.auto import _Training
from attentune.automl.budget import BudgetPlan, Schedule, SpeedModel
from attentune.automl.folds import save_folds
from attentune.automl.members import MemberTrainer, WorkerSetup
from attentune.automl.portfolio import Member
from attentune.automl.work import AutoProgress, AutoSettings
from attentune.config import load_config, to_flat
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.runs.driver import RunTask, execute_run
from attentune.runs.records import RecordStore, Run, RunRecord
from attentune.training.run_folder import stop_on_signal
from helpers.tasks import small_record

ROWS, UPDATES = 24, 10


@pytest.fixture
def train_fold(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RunRecord | None, Path]]:
    """`train_fold(deadline_s=10, ending_s=0)`: the record of fold 1 of `bert-mean`, and its folder."""
    texts = tuple(f"the {('dull', 'lovely')[row % 2]} film number {row}" for row in range(ROWS))
    rows = TextRows(tuple(map(str, range(ROWS))), texts, None, np.arange(ROWS) % 2, "test")
    data = TaskData("test", LabelSpace("classification", ("bad", "good")), ("accuracy",), {"train": rows})
    settings = {"training.seed": load_config().training.seed, "training.learning_rate": 1e-3}
    setup = WorkerSetup(data=data, settings=settings, max_length=16, use_cpu=True)
    monkeypatch.setattr(members, "_SETUP", setup, raising=False)
    save_folds(tmp_path / "folds.safetensors", np.arange(ROWS) // 2 % 3 + 1)
    (tmp_path / "plan.json").touch()
    member = Member("bert-mean", "fine-tuned", "bert-mean", encoder=str(tiny("bert", layers=1, hidden=16)))

    def run(
        *, deadline_s: float, ending_s: float, fewest_updates: int | None = UPDATES // 2, tokens_per_s: float = 0.0
    ) -> tuple[RunRecord | None, Path]:
        trainer = MemberTrainer(
            member=member,
            folds=(1,),
            folds_file=str(tmp_path / "folds.safetensors"),
            deadline=time.time() + deadline_s,
            fewest_updates=fewest_updates,
            ending_s=ending_s,
            tokens_per_s=tokens_per_s,
        )
        training = {"max_steps": UPDATES, "save_steps": UPDATES, "per_device_train_batch_size": 4}
        flat, fold = to_flat(setup.config(member, "bert-mean", **training)), Run("own", None, "bert-mean", 43)
        with stop_on_signal() as stop:  # as in a worker process
            record = execute_run(RunTask(str(tmp_path), "plan.json", fold, flat, trainer), stop=stop)
        return record, RecordStore(tmp_path).run_folder(fold)

    return run


@pytest.mark.parametrize(
    ("given", "ended_at"),
    [
        pytest.param({"deadline_s": 3600, "ending_s": 0}, None, id="with time"),
        pytest.param({"deadline_s": 3600, "ending_s": 7200}, UPDATES // 2, id="late"),
        # It would have an hour for its end; at a thousandth of the predicted speed it needs far more.
        pytest.param({"deadline_s": 7200, "ending_s": 3600, "tokens_per_s": 1e9}, UPDATES // 2, id="slow"),
        pytest.param({"deadline_s": 3600, "ending_s": 7200, "fewest_updates": None}, None, id="fixed updates"),
    ],
)
def test_a_late_fold_ends_early_and_predicts_its_rows(train_fold, given, ended_at):
    record, folder = train_fold(**given)
    assert record.is_done
    assert (record.train["ended_at"], record.train["steps"]) == (ended_at, ended_at or UPDATES)
    held_out = load_file(folder / "heldout.safetensors")
    assert held_out["rows"].tolist() == [row for row in range(ROWS) if row // 2 % 3 == 0]
    assert np.isfinite(held_out["logits"]).all()
    assert not list(folder.glob("checkpoint-*"))


def test_a_fold_that_is_too_late_for_that_is_stopped_with_a_checkpoint(train_fold):
    record, folder = train_fold(deadline_s=-1, ending_s=0)
    assert record is None
    assert list(folder.glob("checkpoint-*"))
    # It goes on from there.
    record, _ = train_fold(deadline_s=3600, ending_s=0)
    assert (record.is_done, record.train["steps"]) == (True, UPDATES)


def test_a_resumed_member_goes_on_with_the_updates_of_its_finished_folds(tmp_path):
    config = load_config(overrides={"training.output_dir": str(tmp_path)})
    work = _Training(config, AutoSettings(), AutoProgress(quiet=True))
    work.folds_N, member = np.array([1, 2, 3]), Member("bert", "fine-tuned", "bert", encoder="tiny")
    work.schedule = Schedule(BudgetPlan(3, 2, 1, updates=600, batch_size=16, tokens_per_row=5.0), SpeedModel({}))
    run = work._state(member).run(2)
    record = replace(small_record(run), config={"training": {"max_steps": 90}})
    work.store.write(record, work.store.run_folder(run))
    state = work._state(member)
    assert (state.done, state.waiting, work.schedule.updates_of(state)) == ([2], [1, 3], 90)
