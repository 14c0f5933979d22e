"""NaN and infinity, and data from which little can be learnt: a clear message or a correct result."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attentune.training.run as run_module
from attentune.models import precision
from attentune.models.precision import resolve_precision
from attentune.training.checkpoint import checkpoint_folders

Attentune = Callable[..., tuple[int, str, str]]
BOTH = ("good", "bad")


def write(path: Path, rows: Iterable[tuple[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture
def train(attentune: Attentune, tiny: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """`train(rows, dev_rows, "--flag", 1)`: status, standard output and error of a run in `tmp_path/run`."""
    encoder = tiny("bert", layers=2, hidden=16)

    def run(rows: Iterable[tuple[str, Any]], dev: Iterable[tuple[str, Any]] | None, *words: object) -> Any:
        files = ["--train_file", write(tmp_path / "train.csv", rows)]
        files += [] if dev is None else ["--validation_file", write(tmp_path / "dev.csv", dev)]
        common = ("--use_cpu", "--quiet", "--max_length", 32, "--precision", "fp32", "--num_train_epochs", 2)
        where = ("--model_name_or_path", encoder, "--output_dir", tmp_path / "run")
        return attentune("train", *files, *common, *where, *words)

    return run


def texts(count: int, labels: Iterable[Any]) -> list[tuple[str, Any]]:
    names = list(labels)
    return [
        (f"the film number {number} was {names[number % len(names)]}", names[number % len(names)])
        for number in range(count)
    ]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "run.json").read_text())


def check_refused(outcome: tuple[int, str, str], *expected: str) -> None:
    status, out, err = outcome
    assert (status, out) == (2, ""), err
    (line,) = [line for line in err.splitlines() if line.startswith("attentune: ")]
    for text in expected:
        assert text in line
    assert "Traceback" not in err


# NaN and infinity


def test_a_score_that_is_too_large_to_be_squared_is_trained_on(train: Any, tmp_path: Path) -> None:
    outcome = train([*texts(7, [0.5, 2]), ("the film", 1e38)], texts(4, [1, 2]), "--task_type", "regression")
    assert outcome[0] == 0, outcome
    assert 1e37 < json.loads((tmp_path / "run" / "config.json").read_text())["score_std"] < 1e38


def test_weights_that_the_last_step_spoils_are_neither_saved_nor_scored(train: Any, tmp_path: Path) -> None:
    """The loss before the step was a number, and no step comes after it."""
    flags = ("--learning_rate", "3e38", "--lr_scheduler_type", "constant", "--max_steps", 3, "--weight_decay", 1)
    words = (*flags, "--per_device_train_batch_size", 8, "--save_steps", 1)
    outcome = train(texts(8, BOTH), texts(4, BOTH), *words)
    check_refused(outcome, "weights became infinite or NaN at step 1; the rows of this step: ", "They are not saved")
    assert not (tmp_path / "run").exists()


def test_spoilt_weights_leave_the_last_good_checkpoint_and_a_run_that_goes_on(
    train: Any, attentune: Attentune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_step = run_module.training_step

    def spoil(task: Any, plan: Any, group: Any) -> Any:
        logs = training_step(task, plan, group)
        if task.state.step == 2:
            with torch.no_grad():
                next(task.model.parameters())[0, 0] = float("nan")
        return logs

    words = ("--per_device_train_batch_size", 4, "--save_steps", 1, "--save_total_limit", 9)
    with monkeypatch.context() as patched:
        patched.setattr(run_module, "training_step", spoil)
        outcome = train(texts(16, BOTH), texts(4, BOTH), *words)
    check_refused(outcome, "1 weights became infinite or NaN at step 2")
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["checkpoint-1"]
    assert attentune("train", "--resume", "--quiet", "--output_dir", tmp_path / "run")[0] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers_are_not_scored(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    import attentune.inference.scoring as evaluator_module

    original = evaluator_module.predict_logits

    def spoilt(*arguments: Any, **options: Any) -> np.ndarray:
        logits_NC = original(*arguments, **options)
        logits_NC[1, 0] = value
        return logits_NC

    monkeypatch.setattr(evaluator_module, "predict_logits", spoilt)
    outcome = train(texts(16, BOTH), texts(4, BOTH))
    check_refused(outcome, "validation: the model's outputs are infinite or NaN for 1 of 4 rows (1)", "learning_rate")
    assert not (tmp_path / "run" / "run.json").exists()


# bf16


@pytest.mark.parametrize(
    ("wanted", "has_fast", "settled"), [("auto", True, "bf16"), ("auto", False, "fp32"), ("bf16", False, "bf16")]
)
def test_bf16_falls_back_where_the_hardware_lacks_it(
    monkeypatch: pytest.MonkeyPatch, wanted: str, has_fast: bool, settled: str
) -> None:
    monkeypatch.setattr("attentune.models.precision.has_fast_bf16", lambda device: has_fast)
    assert resolve_precision(wanted, torch.device("cpu")) == settled


@pytest.mark.parametrize(
    ("instructions", "speed", "is_fast"),
    [
        (("amx_tile", "avx512_bf16"), None, True),
        (("avx512_bf16",), 2.0, True),
        (("avx512_bf16",), 0.55, False),
        ((), None, False),
    ],
)
def test_avx512_bf16_is_used_where_it_is_faster_than_fp32(
    monkeypatch: pytest.MonkeyPatch, instructions: tuple[str, ...], speed: float | None, is_fast: bool
) -> None:
    """Elsewhere nothing is measured: None would fail."""
    monkeypatch.setattr(precision, "_supports", lambda name: name in instructions)
    monkeypatch.setattr(precision, "_bf16_speed", lambda: speed)
    assert precision.has_fast_bf16(torch.device("cpu")) is is_fast


def test_the_speed_of_bf16_is_measured_in_turn_with_that_of_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []

    def timed(left: torch.Tensor, right: torch.Tensor) -> float:
        asked.append(left.dtype)
        compiling = len(asked) <= 2
        return (10.0 if compiling else 3.0) if left.dtype == torch.float32 else (99.0 if compiling else 2.0)

    monkeypatch.setattr(precision, "_timed_product", timed)
    assert precision._bf16_speed.__wrapped__() == 1.5
    assert asked[:4] == [torch.float32, torch.bfloat16] * 2


def test_the_speed_of_bf16_does_not_count_the_time_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda left, right: time.sleep(0.2))  # as if another program had the core
    assert precision._timed_product(torch.ones(1, 1), torch.ones(1, 1)) < 0.1


# Little to learn from


def test_one_class_only_in_dev_has_a_right_score(train: Any, tmp_path: Path) -> None:
    status, _, err = train(texts(12, BOTH), texts(5, ["good"]))
    assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "run" / "predictions_validation.csv").open()))
    right = sum(row["prediction"] == "good" for row in rows)
    assert result(tmp_path)["scores"]["validation"]["accuracy"] == pytest.approx(right / 5)


def test_constant_scores_are_trained_on_and_what_is_undefined_is_null(train: Any, tmp_path: Path) -> None:
    status, _, err = train(
        texts(12, [2.5]), texts(5, [2.5]), "--task_type", "regression", "--early_stopping_patience", 1
    )
    assert status == 0, err
    found = result(tmp_path)
    assert found["scores"]["validation"]["pearson"] is None
    assert found["best"] is None
    predicted = [
        float(row["prediction"]) for row in csv.DictReader((tmp_path / "run" / "predictions_validation.csv").open())
    ]
    assert np.isfinite(predicted).all()


def test_a_single_row_is_trained_on(train: Any, tmp_path: Path) -> None:
    status, _, err = train([("the film was good", 1.5)], texts(3, [1, 2]), "--task_type", "regression")
    assert status == 0, err
    assert result(tmp_path)["train"]["rows"] == 1
    assert result(tmp_path)["train"]["steps"] == 2


@pytest.mark.parametrize("preset", ["bert", "ssa-hybrid", "sesame"])
def test_two_rows_are_trained_on_by_every_kind_of_method(train: Any, tmp_path: Path, preset: str) -> None:
    status, _, err = train(texts(2, BOTH), texts(2, BOTH), "--preset", preset)
    assert status == 0, err


def test_a_dev_that_is_smaller_than_a_batch_is_scored_whole(train: Any, tmp_path: Path) -> None:
    status, _, err = train(texts(12, BOTH), texts(1, BOTH), "--per_device_eval_batch_size", 64)
    assert status == 0, err
    assert len((tmp_path / "run" / "predictions_validation.csv").read_text().splitlines()) == 2
    assert result(tmp_path)["scores"]["validation"]["accuracy"] in (0.0, 1.0)


@pytest.mark.parametrize("preset", ["bert", "bert-mean", "ssa-hybrid", "sesame"])
def test_texts_that_are_all_empty_are_told_or_trained_on(train: Any, tmp_path: Path, preset: str) -> None:
    rows = [("", name) for _, name in texts(8, BOTH)]
    status, out, err = train(rows, rows, "--preset", preset)
    if status == 2:
        check_refused((status, out, err), "empty")
        return
    assert status == 0, err
    predicted = [
        float(row["p_good"]) for row in csv.DictReader((tmp_path / "run" / "predictions_validation.csv").open())
    ]
    assert np.isfinite(predicted).all()
    assert len(set(predicted)) == 1


def test_some_empty_texts_change_no_other_row(train: Any, tmp_path: Path) -> None:
    rows = [*texts(10, BOTH), ("", "good"), ("   ", "bad")]
    status, _, err = train(rows, rows)
    assert status == 0, err
    assert len((tmp_path / "run" / "predictions_validation.csv").read_text().splitlines()) == 13
