"""A distilled model learns an ensemble's out-of-fold predictions; a worker's run of one fold."""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from attentune import Predictor, evaluate
from attentune.automl import distill as module
from attentune.automl import members
from attentune.automl.auto import _Training
from attentune.automl.budget import REFIT_FOLDER, BudgetPlan, Schedule, SpeedModel
from attentune.automl.distill import (
    Distillation,
    OutOfTime,
    predicted_targets,
    soft_targets,
    student_config,
)
from attentune.automl.folds import make_folds, save_folds
from attentune.automl.members import MemberTrainer, WorkerSetup
from attentune.automl.portfolio import Member
from attentune.automl.work import AutoProgress, AutoSettings
from attentune.baselines.registry import TfidfLinear, load_run
from attentune.config import Config, load_config, to_flat, to_yaml
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.load import load_data
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.metrics.metrics import probabilities_of
from attentune.results import RunResult
from attentune.runs.driver import RunTask, execute_run
from attentune.runs.records import RecordStore, Run, RunRecord
from attentune.training.run_folder import stop_on_signal
from helpers.samples import settings
from helpers.tasks import small_record
from helpers.tiers import leading
from helpers.tiny_runs import saved_ensemble, write_run_config

SPACES = {
    "classification": LabelSpace("classification", ("a", "b", "c")),
    "multi_label": LabelSpace("multi_label", ("a", "b", "c")),
    "regression": LabelSpace("regression"),
}


def hard_target(kind: str, labels: np.ndarray, row: int, column: int) -> float:
    if kind == "regression":
        return float(labels[row])
    return float(labels[row, column]) if kind == "multi_label" else float(labels[row] == column)


def soft_target(kind: str, logits: np.ndarray, column: int) -> float:
    if kind == "regression":
        return float(logits[column])
    if kind == "multi_label":
        return float(1 / (1 + np.exp(-logits[column])))
    return float(np.exp(logits[column]) / np.exp(logits).sum())


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_targets_mix_labels_and_out_of_fold_predictions(kind):
    space, draw = SPACES[kind], np.random.default_rng(1)
    logits_NC = draw.normal(size=(4, space.num_labels))
    logits_NC[3] = np.nan
    labels = {"multi_label": draw.integers(0, 2, (4, 3)), "regression": draw.normal(size=4)}.get(kind, np.arange(4) % 3)
    rows = TextRows(tuple("1234"), tuple("abcd"), None, labels, "here")
    targets_NC = soft_targets(rows, logits_NC, space)
    for row in range(4):
        for column in range(space.num_labels):
            hard = hard_target(kind, labels, row, column)
            expected = hard if row == 3 else 0.5 * hard + 0.5 * soft_target(kind, logits_NC[row], column)
            assert targets_NC[row, column] == pytest.approx(expected)


@pytest.fixture(scope="module")
def ensemble(tiny, tmp_path_factory) -> Path:
    """An ensemble of untrained models, whose settings train a student quickly."""
    run = saved_ensemble(tmp_path_factory.mktemp("teacher") / "run", tiny)
    for place in run.glob("members/*/*"):
        write_run_config(
            place, {"name_or_path": str(tiny("bert"))}, num_train_epochs=12.0, learning_rate=3e-3,
            per_device_train_batch_size=8,
        )  # fmt: skip
    return run


def distil(folder: Path, data: TaskData, config: Config, *, output_dir: Path, **given: Any) -> RunResult:
    config = replace(config, training=replace(config.training, output_dir=str(output_dir)))
    given.setdefault("folds", make_folds(data.splits["train"], data.label_space, folds=5, seed=42))
    return Distillation(teacher=Predictor.load(folder), data=data, config=config, **given).run()


@pytest.fixture
def task(tiny, tmp_path) -> tuple[Config, TaskData, np.ndarray]:
    """Settings, rows, and out-of-fold logits with a probability of 0.6 for the right class."""
    config = load_config(overrides=settings(tmp_path, tiny("bert")))
    data = load_data(config.data, seed=1)
    return config, data, 0.4 * np.eye(2)[data.splits["train"].labels] - 0.2


@pytest.mark.integration
def test_the_estimate_on_held_out_rows(ensemble, task, tmp_path):
    config, data, out_of_fold = task
    single = tmp_path / "single"
    result = distil(ensemble, data, config, out_of_fold=out_of_fold, output_dir=single)
    saved = Predictor.load(single)
    assert isinstance(saved, ModelPredictor)
    facts = result.train["distillation"]
    assert (facts["metric"], facts["scored"], facts["rows"]) == ("accuracy", "held-out rows", 20)
    for name, folder in (("ensemble", ensemble), ("single", single)):
        assert facts[name] == evaluate(folder, config.data)["validation"]["accuracy"]
    assert result.scores["validation"]["accuracy"] == facts["single"]
    assert result.notes[-1].startswith(f"Distilled from an ensemble: accuracy {facts['single']:.4f}, the ensemble")
    assert RunResult.load(single / "run.json").train["distillation"] == facts
    # It learned the probabilities, not only the classes.
    rows = data.splits["train"]
    expected = soft_targets(rows, out_of_fold, data.label_space)
    assert np.abs(probabilities_of(predict_rows(saved, rows), data.label_space) - expected).mean() < 0.1


@pytest.mark.integration
@pytest.mark.parametrize("splits", [("train",), ("train", "validation")])
def test_the_student_has_the_ensembles_decision_thresholds(ensemble, task, tmp_path, splits):
    config, data, out_of_fold = task
    teacher = Path(shutil.copytree(ensemble, tmp_path / "teacher"))
    content = json.loads((teacher / "ensemble.json").read_text())
    content["label_space"]["thresholds"] = [0.999]
    (teacher / "ensemble.json").write_text(json.dumps(content))
    data = replace(data, splits={name: data.splits[name] for name in splits})
    single = tmp_path / "single"
    result = distil(teacher, data, config, out_of_fold=out_of_fold, output_dir=single)
    assert Predictor.load(single).label_space.thresholds == (0.999,)
    facts = result.train["distillation"]
    # With that threshold nearly every row is of the first class, for the ensemble and for the student.
    labels = data.splits[splits[-1]].labels
    assert facts["ensemble"] == pytest.approx(np.mean(labels == 0), abs=0.15)
    assert facts["single"] == pytest.approx(facts["ensemble"], abs=0.15)


@pytest.mark.integration
def test_the_estimate_out_of_fold(ensemble, task, tmp_path):
    config, data, out_of_fold = task
    data = replace(data, splits={"train": data.splits["train"]})
    out_of_fold[0] = np.nan  # never scored
    out_of_fold[4] *= -1  # the ensemble is wrong here
    single, folds = tmp_path / "single", np.arange(48) % 4
    result = distil(ensemble, data, config, out_of_fold=out_of_fold, folds=folds, output_dir=single)
    facts = result.train["distillation"]
    assert (facts["rows"], facts["ensemble"]) == (11, pytest.approx(10 / 11))
    without = RunResult.load(single / "estimate" / "run.json")
    assert without.data_fingerprint != result.data_fingerprint
    scored = data.splits["train"].take(np.arange(4, 48, 4))
    predicted = predict_rows(single / "estimate", replace(scored, labels=None)).argmax(axis=1)
    assert facts["single"] == pytest.approx(np.mean(predicted == scored.labels))
    assert "did not see" in result.notes[-1]


@pytest.mark.integration
def test_the_time_may_be_up_before_the_comparison_or_before_the_encoder_is_trained(ensemble, task, tmp_path):
    config, data, out_of_fold = task
    data = replace(data, splits={"train": data.splits["train"]})
    options: dict[str, Any] = {"out_of_fold": out_of_fold, "max_steps": 5}
    asked = iter([1.0] * 7 + [0.0] * 10)
    single = tmp_path / "single"
    result = distil(ensemble, data, config, output_dir=single, left_s=lambda: next(asked), **options)
    assert len(list(asked)) == 9  # five updates, then three of the run without a fold
    assert result.train["steps"] == 5
    assert "distillation" not in result.train
    assert RunResult.load(single / "run.json").notes[-1] == (
        "Distilled from an ensemble; no time was left to compare the two."
    )
    assert isinstance(Predictor.load(single), ModelPredictor)
    with pytest.raises(OutOfTime):
        distil(ensemble, data, config, output_dir=tmp_path / "none", left_s=lambda: 0.0, **options)


@pytest.mark.integration
def test_unlabelled_rows_have_the_ensembles_predictions_as_targets(ensemble, task, tmp_path, monkeypatch):
    config, data, out_of_fold = task
    seen: list[TextRows] = []
    original = module.train

    def train(config: Config, *, data: TaskData, **options: Any) -> RunResult:
        seen.append(data.splits["train"])
        return original(config, data=data, **options)

    monkeypatch.setattr(module, "train", train)
    known = data.splits["train"].texts[0]
    more = TextRows(("0", "1", "2"), ("a fine story", known, "a dull film"), None, None, "more.csv")
    options: dict[str, Any] = {"out_of_fold": out_of_fold}
    result = distil(ensemble, data, config, unlabeled=more, output_dir=tmp_path / "s", **options)
    assert result.train["distillation"]["unlabeled_rows"] == 2
    (rows,) = seen
    assert rows.texts[48:] == ("a fine story", "a dull film")
    assert rows.ids[48:] == ("unlabeled-0", "unlabeled-2")
    logits_NC = predict_rows(ensemble, more.take([0, 2]))
    np.testing.assert_allclose(rows.targets[48:], predicted_targets(logits_NC, data.label_space), rtol=1e-5)
    assert rows.labels[48:].tolist() == logits_NC.argmax(axis=1).tolist()


def test_the_student_has_the_settings_of_the_heaviest_model(tiny, tmp_path):
    run = saved_ensemble(tmp_path / "run", tiny)
    overrides = {"data.max_length": 48, "training.output_dir": "somewhere", "training.learning_rate": 2e-4}
    for name, head in (("bert", "mean"), ("roberta", "cls")):
        changes = {"model.head.kind": head, "objective.loss": "cross-entropy", "objective.class_weights": "balanced"}
        changes |= {"objective.debias": "product"}
        for place in (run / "members" / name).iterdir():
            (place / "config.yaml").write_text(to_yaml(load_config(overrides=overrides | changes)))
    mine = load_config(overrides={"training.seed": 9, "training.use_cpu": True, "data.train_file": "mine.csv"})
    mine = replace(mine, training=replace(mine.training, output_dir=str(tmp_path / "out")))
    student = student_config(Predictor.load(run), mine)
    assert student.model.head.kind == "mean"
    assert (student.training.learning_rate, student.training.seed, student.training.use_cpu) == (2e-4, 9, True)
    assert (student.objective.loss, student.objective.class_weights) == ("auto", None)
    assert student.objective.debias == "none"
    assert (student.data.train_file, student.data.max_length) == ("mine.csv", 48)
    assert (student.training.output_dir, student.training.eval_strategy) == (str(tmp_path / "out"), "no")


# A worker's run: one fold of a fine-tuned member, on tiny random encoders.


ROWS, UPDATES = 24, 10


@pytest.fixture
def train_fold(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RunRecord | None, Path]]:
    """`train_fold(deadline_s=10, ending_s=0)`: the record of fold 1 of `bert-mean`, and its folder."""
    texts = tuple(f"the {('dull', 'lovely')[row % 2]} film number {row}" for row in range(ROWS))
    rows = TextRows(tuple(map(str, range(ROWS))), texts, None, np.arange(ROWS) % 2, "test")
    data = TaskData("test", LabelSpace("classification", ("bad", "good")), ("accuracy",), {"train": rows})
    base = load_config(overrides={"training.learning_rate": 1e-3, "training.use_cpu": True, "data.max_length": 16})
    setup = WorkerSetup(data, base)
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


@leading(
    "given, ended_at",
    [
        ({"deadline_s": 3600, "ending_s": 7200}, UPDATES // 2),
        ({"deadline_s": 3600, "ending_s": 0}, None),
        # It would have an hour for its end; at a thousandth of the predicted speed it needs far more.
        ({"deadline_s": 7200, "ending_s": 3600, "tokens_per_s": 1e9}, UPDATES // 2),
        ({"deadline_s": 3600, "ending_s": 7200, "fewest_updates": None}, None),
    ],
    fast=2,
    ids=["late", "with time", "slow", "fixed updates"],
)
def test_a_late_fold_ends_early_and_predicts_its_rows(train_fold, given, ended_at):
    record, folder = train_fold(**given)
    assert record.is_done
    assert (record.train["ended_at"], record.train["steps"]) == (ended_at, ended_at or UPDATES)
    held_out = load_file(folder / "heldout.safetensors")
    assert held_out["rows"].tolist() == [row for row in range(ROWS) if row // 2 % 3 == 0]
    assert np.isfinite(held_out["logits"]).all()
    assert not list(folder.glob("checkpoint-*"))


@pytest.mark.parametrize("rejects", [True, False])
def test_energies_of_a_baseline_have_the_penalty_of_all_rows(tmp_path, monkeypatch, rejects):
    """Folds of 8 rows take a middle penalty, all 24 rows choose one; held-out energies are those of the latter."""
    texts = tuple(f"the {('dull', 'lovely', 'odd')[row % 3]} film number {row}" for row in range(24))
    rows, folds = (
        TextRows(tuple(map(str, range(24))), texts, None, np.arange(24) % 3, "test"),
        np.arange(24) % 4 % 3 + 1,
    )
    space = SPACES["classification"]
    data = TaskData("test", space, ("accuracy",), {"train": rows})
    base = load_config(overrides={"training.reject": 0.05 if rejects else None})
    monkeypatch.setattr(members, "_SETUP", WorkerSetup(data, base), raising=False)
    save_folds(tmp_path / "folds.safetensors", folds)
    member = Member("tfidf-linear", "baseline", "tfidf-linear")
    config = load_config(overrides={"training.output_dir": str(tmp_path / "run")})
    MemberTrainer(member, (1, 2, 3), str(tmp_path / "folds.safetensors"), time.time() + 3600)(
        Run("own", None, "x", 1), config
    )
    held = load_file(tmp_path / "run" / "heldout.safetensors")
    assert ("energies" in held) == rejects
    whole = load_run(tmp_path / "run" / REFIT_FOLDER).baseline
    penalty = TfidfLinear(seed=config.training.seed).fit(rows, space).penalty
    assert whole.notes == (penalty.note,)
    for fold in (1, 2, 3) if rejects else ():
        model = TfidfLinear(seed=config.training.seed)
        model.fit(rows.take(np.flatnonzero(folds != fold)), space, penalty)
        for place in np.flatnonzero(folds[held["rows"]] == fold):
            logits = model.logits(rows.take(held["rows"][[place]]))[0]
            expected = math.log(sum(math.exp(value - logits.mean()) for value in logits))
            assert held["energies"][place] == pytest.approx(expected)


@pytest.mark.integration
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
