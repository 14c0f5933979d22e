"""NaN, infinity, and data from which little can be learnt: one message that names the rows, or a correct result."""

import csv
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import attentune.inference.scoring as scoring_module
import attentune.training.run as run_module
from attentune.models import precision
from attentune.models.precision import resolve_precision
from attentune.training import trainer
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from helpers.samples import write_reviews
from helpers.tiers import leading

Answer = tuple[int, str, str]
BOTH = ("good", "bad")
ROW = 17  # of the rows r0, r1, ...; on line 19 of the file


@pytest.fixture
def train(attentune: Callable[..., Answer], tiny: Callable[..., Path], tmp_path: Path) -> Callable[..., Answer]:
    """`train(rows, dev_rows, "--flag", 1)`: status, standard output and error of a run in `tmp_path/run`."""

    def write(name: str, rows: Iterable[tuple[str, Any]]) -> Path:
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        return tmp_path / name

    def run(rows: Iterable[tuple[str, Any]], dev: Iterable[tuple[str, Any]], *words: object) -> Answer:
        files = ["--train_file", write("train.csv", rows), "--validation_file", write("dev.csv", dev)]
        common = ("--use_cpu", "--quiet", "--max_length", 32, "--precision", "fp32", "--num_train_epochs", 2)
        where = ("--model_name_or_path", tiny("bert", layers=2, hidden=16), "--output_dir", tmp_path / "run")
        return attentune("train", *files, *common, *where, *words)

    return run


def texts(count: int, labels: Iterable[Any]) -> list[tuple[str, Any]]:
    named = [list(labels)[number % len(list(labels))] for number in range(count)]
    return [(f"the film number {number} was {name}", name) for number, name in enumerate(named)]


def check_refused(outcome: Answer, *expected: str) -> str:
    """The message of an outcome that is a user's mistake."""
    status, out, err = outcome
    assert (status, out) == (2, ""), err
    (line,) = [line for line in err.splitlines() if line.startswith("attentune: ")]
    for text in expected:
        assert text in line
    assert "Traceback" not in err
    return line


def names_of(run: Path) -> list[str]:
    return [folder.name for folder in checkpoint_folders(run)]


# A loss or gradient that is no number stops the run at that step and names the rows


@pytest.fixture
def poisoned(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """An encoder with a NaN in the embedding of one word, which one training row holds."""
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "poisoned"))
    token = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("water")
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][token, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def command(tmp_path: Path, tiny: Callable[..., Path]) -> Callable[..., tuple[object, ...]]:
    """`command(encoder)`: a run with a checkpoint after each step, four rows a batch."""
    lines = write_reviews(tmp_path / "train.csv", 24, seed=1).read_text().splitlines()
    number, text, label = lines[ROW + 1].split(",")
    lines[ROW + 1] = f"{number},water {text},{label}"
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    dev = write_reviews(tmp_path / "dev.csv", 8, seed=2)
    flags = ("--train_file", tmp_path / "train.csv", "--validation_file", dev, "--max_length", 32, "--use_cpu")
    flags += ("--per_device_train_batch_size", 4, "--save_steps", 1, "--logging_steps", 1, "--save_total_limit", 99)
    flags += ("--quiet", "--output_dir", tmp_path / "run")
    return lambda encoder=None: ("train", "--model_name_or_path", encoder or tiny("bert"), *flags)


def test_the_run_stops_at_the_step_and_names_its_rows(attentune, command, poisoned, tmp_path):
    message = check_refused(attentune(*command(poisoned)), f"r{ROW} (line {ROW + 2})", "--learning_rate")
    assert message.count("(line ") == 4, "the rows of this step, and no others"
    start, rest = message.split(" at step ")
    assert start == "attentune: the loss became nan"
    step, run = int(rest.split(";")[0]), tmp_path / "run"
    # The checkpoints before it stand and hold numbers; the row's poisoned word was not trained on.
    assert names_of(run) == [f"checkpoint-{done}" for done in range(1, step)]
    for folder in checkpoint_folders(run):
        assert verify_checkpoint(folder) is None
        assert sum(int(weight.isnan().sum()) for weight in load_file(folder / "model.safetensors").values()) == 1
    assert [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()] == list(range(1, step))
    assert not (run / "run.json").exists()
    assert not (run / "model.safetensors").exists()


def test_a_row_without_line_or_id_is_named_by_its_number(attentune, command, poisoned, tmp_path):
    table = pyarrow.csv.read_csv(tmp_path / "train.csv").drop_columns("id")
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    message = check_refused(attentune(*command(poisoned), "--train_file", tmp_path / "train.parquet"))
    rows = message.split("the rows of this step: ")[1].split(". No weight")[0].split(", ")
    assert str(ROW) in rows
    assert len(rows) == 4


def test_many_rows_are_not_all_listed_and_nothing_is_left_of_a_first_step(attentune, command, poisoned, tmp_path):
    words = (*command(poisoned), "--per_device_train_batch_size", 6, "--gradient_accumulation_steps", 4)
    message = check_refused(attentune(*words), "and 16 more", " at step 1;")
    assert message.count("(line ") == 8
    assert not (tmp_path / "run").exists()


@pytest.mark.integration
def test_a_gradient_that_is_not_finite_leaves_a_checkpoint_from_which_the_run_goes_on(
    attentune, command, tmp_path, monkeypatch
):
    original, calls = trainer.clip_gradients, []

    def clip(*arguments):
        calls.append(original(*arguments))
        return float("inf") if len(calls) == 3 else calls[-1]

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "clip_gradients", clip)
        check_refused(attentune(*command()), "the gradient's norm became inf at step 3; the rows of this step: r")
    assert names_of(tmp_path / "run") == ["checkpoint-1", "checkpoint-2"]
    assert attentune("train", "--resume", "--quiet", "--output_dir", tmp_path / "run")[0] == 0
    assert attentune(*command(), "--output_dir", tmp_path / "whole")[0] == 0
    ends = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert ends[0] == ends[1]


def test_weights_that_the_last_step_spoils_are_neither_saved_nor_scored(train: Any, tmp_path: Path) -> None:
    """The loss before the step was a number, and no step comes after it."""
    flags = ("--learning_rate", "3e38", "--lr_scheduler_type", "constant", "--max_steps", 3, "--weight_decay", 1)
    words = (*flags, "--per_device_train_batch_size", 8, "--save_steps", 1)
    outcome = train(texts(8, BOTH), texts(4, BOTH), *words)
    check_refused(outcome, "weights became infinite or NaN at step 1; the rows of this step: ", "They are not saved")
    assert not (tmp_path / "run").exists()


def test_spoilt_weights_leave_the_last_good_checkpoint(train, tmp_path, monkeypatch):
    training_step = run_module.training_step

    def spoil(task: Any, plan: Any, group: Any) -> Any:
        logs = training_step(task, plan, group)
        if task.state.step == 2:
            with torch.no_grad():
                next(task.model.parameters())[0, 0] = float("nan")
        return logs

    monkeypatch.setattr(run_module, "training_step", spoil)
    words = ("--per_device_train_batch_size", 4, "--save_steps", 1, "--save_total_limit", 9)
    check_refused(train(texts(16, BOTH), texts(4, BOTH), *words), "1 weights became infinite or NaN at step 2")
    assert names_of(tmp_path / "run") == ["checkpoint-1"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers_are_not_scored(train, tmp_path, monkeypatch, value):
    original = scoring_module.ModelEvaluator.compute_logits

    def spoilt(*arguments: Any, **options: Any) -> np.ndarray:
        logits_NC = original(*arguments, **options)
        logits_NC[1, 0] = value
        return logits_NC

    monkeypatch.setattr(scoring_module.ModelEvaluator, "compute_logits", spoilt)
    outcome = train(texts(16, BOTH), texts(4, BOTH))
    check_refused(outcome, "validation: the model's outputs are infinite or NaN for 1 of 4 rows (1)", "learning_rate")
    assert not (tmp_path / "run" / "run.json").exists()


# bf16


@pytest.mark.parametrize(
    ("wanted", "has_fast", "settled"), [("auto", True, "bf16"), ("auto", False, "fp32"), ("bf16", False, "bf16")]
)
def test_bf16_falls_back_where_the_hardware_lacks_it(monkeypatch, wanted, has_fast, settled):
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
def test_avx512_bf16_is_used_where_it_is_faster_than_fp32(monkeypatch, instructions, speed, is_fast):
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

EMPTY = [("", name) for _, name in texts(8, BOTH)]
REGRESSION = ("--task_type", "regression")


@leading(
    "rows, dev, words",
    [
        (texts(12, BOTH), texts(5, ["good"]), ()),
        (texts(12, [2.5]), texts(5, [2.5]), (*REGRESSION, "--early_stopping_patience", 1)),
        ([("the film was good", 1.5)], texts(3, [1, 2]), REGRESSION),
        (texts(2, BOTH), texts(2, BOTH), ("--preset", "ssa-hybrid")),
        ([*texts(10, BOTH), ("", "good"), ("   ", "bad")], [*texts(2, BOTH), ("", "good")], ()),
        (EMPTY, EMPTY, ("--preset", "sesame")),
        (texts(12, BOTH), texts(1, BOTH), ("--per_device_eval_batch_size", 64)),
        ([*texts(7, [0.5, 2]), ("the film", 1e38)], texts(4, [1, 2]), REGRESSION),
        *((texts(2, BOTH), texts(2, BOTH), ("--preset", preset)) for preset in ("bert", "sesame")),
        *((EMPTY, EMPTY, ("--preset", preset)) for preset in ("bert-mean", "ssa-hybrid")),
    ],
    fast=6,
    ids=[
        "one class in dev", "constant scores", "one row", "two rows: ssa", "some empty texts", "empty texts: sesame",
        "one row in dev", "a score too large to be squared", "two rows: bert", "two rows: sesame",
        "empty texts: mean", "empty texts: ssa",
    ],
)  # fmt: skip
def test_little_is_trained_on_and_scored_by_what_is_predicted(train, tmp_path, rows, dev, words):
    status, out, err = train(rows, dev, *words)
    if rows == EMPTY and status == 2:
        check_refused((status, out, err), "empty")
        return
    assert status == 0, err
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    table = list(csv.DictReader((tmp_path / "run" / "predictions_validation.csv").open()))
    assert (result["train"]["rows"], len(table)) == (len(rows), len(dev))
    if REGRESSION[1] in words:
        assert np.isfinite([float(row["prediction"]) for row in table]).all()
        constant = len({label for _, label in dev}) == 1
        assert (result["scores"]["validation"]["pearson"] is None) == (result["best"] is None) == constant
    else:
        right = sum(row["prediction"] == label for row, (_, label) in zip(table, dev, strict=True))
        assert result["scores"]["validation"]["accuracy"] == pytest.approx(right / len(dev))
        shares = [float(row["p_good"]) for row in table]
        assert np.isfinite(shares).all()
        assert rows != EMPTY or len(set(shares)) == 1
