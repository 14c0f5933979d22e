"""What a run does step by step, seen from its folder."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import attentune.training.trainer as trainer_module
from attentune.config import load_config
from attentune.data.load import load_data
from attentune.inference.scoring import Evaluator
from attentune.results import RunResult
from attentune.training.callbacks import JsonLogCallback, ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.run import train
from helpers.samples import settings, write_reviews

STEPS_PER_EPOCH = 6  # 48 rows in batches of 8
NO_DROPOUT = {"model__dropout": 0, "model__head__dropout": 0, "training__precision": "fp32"}


@pytest.fixture
def run(tiny, tmp_path):
    """`run(**settings)` trains in a folder of its own; gives the result and the folder."""

    def run_with(name: str = "run", **changes: Any) -> tuple[RunResult, Path]:
        folder = tmp_path / name
        values = settings(tmp_path, tiny("bert"), training__output_dir=str(folder), **changes)
        return train(load_config(overrides=values), display=ProgressDisplay(quiet=True)), folder

    return run_with


@pytest.fixture
def scripted(monkeypatch):
    """`scripted([0.1, nan])` makes these the validation accuracies, one a scoring; the end's scoring takes none."""

    original = Evaluator.score

    def script(values: list[float]) -> Iterator[float]:
        left = iter(values)

        def score(self, splits, **options):
            scores = original(self, splits, **options)
            if "reuse" not in options:
                scores["validation"]["accuracy"] = next(left)
            return scores

        monkeypatch.setattr(Evaluator, "score", score)
        return left

    return script


@pytest.fixture
def batches(monkeypatch) -> list[Any]:
    """The training batches in the order in which they were made."""
    made: list[Any] = []

    def pad_batch(features, rows, **options):
        batch = original(features, rows, **options)
        made.append((tuple(int(row) for row in rows), batch))
        return batch

    original = trainer_module.pad_batch
    monkeypatch.setattr(trainer_module, "pad_batch", pad_batch)
    return made


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in log_of(folder) if "loss" in line]


def names_of(folder: Path) -> list[str]:
    return [path.name for path in checkpoint_folders(folder)]


def same_weights(a: Path, b: Path) -> bool:
    return (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(run, batches):
    result, _ = run()
    epochs = [batches[:STEPS_PER_EPOCH], batches[STEPS_PER_EPOCH:]]
    orders = [[row for rows, _ in epoch for row in rows] for epoch in epochs]
    assert [sorted(order) for order in orders] == [list(range(48))] * 2
    assert orders[0] != orders[1]
    assert {frozenset(rows) for rows, _ in epochs[0]} != {frozenset(rows) for rows, _ in epochs[1]}
    real = sum(int(batch.inputs["attention_mask"].sum()) for _, batch in batches)
    assert result.train["tokens"] == real
    assert real < sum(batch.inputs["input_ids"].numel() for _, batch in batches)
    first = [rows for rows, _ in batches]
    batches.clear()
    run("again", model__head__kind="mean")
    assert [rows for rows, _ in batches] == first
    batches.clear()
    run("other", training__seed=7)
    assert [rows for rows, _ in batches] != first


WEIGHTED = {"objective__class_weights": {"bad": 5, "good": 0.5}}
TOKEN_LABELS = {"preset": "ssa-hybrid", "objective__alpha": 0.3, "objective__token_loss_warmup_epochs": 2}


@pytest.mark.parametrize(
    "objective", [{}, WEIGHTED, {"objective__label_smoothing": 0.2, **WEIGHTED}, {**TOKEN_LABELS, **WEIGHTED}]
)
def test_accumulated_small_batches_are_one_large_batch(run, objective):
    # A large epsilon: else AdamW makes whole steps of what rounding leaves where a gradient is zero.
    whole_epoch = {**NO_DROPOUT, **objective, "training__num_train_epochs": 3, "training__adam_epsilon": 1e-3}

    def outcome(size: int, count: int) -> tuple[dict[str, torch.Tensor], list[float]]:
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": count}
        result, folder = run(f"{size}", **whole_epoch, **{f"training__{key}": value for key, value in sizes.items()})
        assert result.train["steps"] == 3
        labelled = [line["epoch"] for line in log_of(folder) if "token_loss" in line.get("labels", {})]
        assert labelled == ([1, 2] if "preset" in objective else [])
        return load_file(folder / "model.safetensors"), losses_of(folder)

    weights, losses = outcome(48, 1)
    for size, count in ((24, 2), (10, 5)):  # the last batch of ten has eight rows
        got, got_losses = outcome(size, count)
        assert got_losses == pytest.approx(losses, abs=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(got[name], weight, atol=2e-5, rtol=0, msg=lambda text, name=name: name + text)


@pytest.mark.integration
@pytest.mark.parametrize("weights", [None, {"bad": 5, "good": 0.5}, "balanced"])
@pytest.mark.parametrize(("size", "count"), [(48, 1), (10, 5)])
def test_the_loss_is_divided_by_the_weights_of_its_rows(run, tmp_path, weights, size, count):
    write_reviews(tmp_path / "train.csv", seed=1)
    unmoved = {**NO_DROPOUT, "training__learning_rate": 1e-12, "training__num_train_epochs": 1}
    batch = {"training__per_device_train_batch_size": size, "training__gradient_accumulation_steps": count}
    where = {"data__validation_file": str(tmp_path / "train.csv"), "objective__class_weights": weights}
    _, folder = run(**unmoved, **batch, **where)
    rows = list(csv.DictReader((folder / "predictions_validation.csv").open()))
    counts = Counter(row["label"] for row in rows)
    if weights == "balanced":
        weights = {name: len(rows) / (2 * count) for name, count in counts.items()}
    weight_of = weights or dict.fromkeys(counts, 1)
    each = [(weight_of[row["label"]], -math.log(float(row[f"p_{row['label']}"]))) for row in rows]
    expected = sum(weight * loss for weight, loss in each) / sum(weight for weight, _ in each)
    assert losses_of(folder) == [pytest.approx(expected, abs=1e-4)]
    plain = np.mean([loss for _, loss in each])
    assert weights is None or abs(expected - plain) > 1e-3


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"), [(2, -1, 12), (0.5, -1, 3), (1.5, -1, 9), (0.01, -1, 1), (2, 4, 4), (1, 13, 13)]
)
def test_the_number_of_steps(run, epochs, max_steps, steps):
    result, folder = run(training__num_train_epochs=epochs, training__max_steps=max_steps)
    assert result.train["steps"] == result.train["final_step"] == steps
    lines = [line for line in log_of(folder) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    # The learning rate has fallen to (nearly) nothing, however short the run is.
    peak = max(line["learning_rate"] for line in lines)
    assert lines[-1]["learning_rate"] <= peak / max(1, steps - 2) * 1.001
    assert names_of(folder)[-1] == f"checkpoint-{steps}"
    assert "validation" in result.scores


@pytest.mark.integration
@pytest.mark.parametrize(
    ("strategy", "every", "scored"), [("epoch", None, [6, 12]), ("steps", 5, [5, 10, 12]), ("no", None, [])]
)
def test_when_the_validation_rows_are_scored(run, strategy, every, scored):
    result, folder = run(training__eval_strategy=strategy, training__eval_steps=every)
    assert [line["step"] for line in log_of(folder) if "validation" in line] == scored
    assert set(result.scores) == {"validation"}
    assert (result.best is None) == (strategy == "no")
    assert (folder / "predictions_validation.csv").is_file()


@pytest.mark.integration
def test_the_log_has_each_logging_step_once_also_after_a_crash(run, monkeypatch):
    logged = {"training__logging_steps": 2, "training__save_steps": 3}
    on_log, crashes = JsonLogCallback.on_log, [4, 10]
    run("whole", **logged)

    def crash_late(self, state, logs):
        on_log(self, state, logs)
        if state.step == crashes[0]:
            raise RuntimeError("crash")

    with monkeypatch.context() as patched:
        patched.setattr(JsonLogCallback, "on_log", crash_late)
        with pytest.raises(RuntimeError, match="crash"):
            run(**logged)
        crashes.pop(0)
        with pytest.raises(RuntimeError, match="crash"):
            run(**logged, training__resume=True)
    _, folder = run(**logged, training__resume=True)
    assert [line["step"] for line in log_of(folder) if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert losses_of(folder) == losses_of(folder.parent / "whole")
    assert same_weights(folder, folder.parent / "whole")


@pytest.mark.integration
def test_the_newest_and_the_best_checkpoints_are_kept(run, scripted):
    scripted([0.1, 0.9, 0.3, 0.9, 0.5])
    # A tie is no gain: the first of two best stays.
    result, folder = run(training__num_train_epochs=5, training__save_total_limit=3)
    assert result.best == {"metric": "accuracy", "value": 0.9, "step": 12}
    assert names_of(folder) == ["checkpoint-12", "checkpoint-24", "checkpoint-30"]
    scripted([0.1, 0.9, 0.3])
    assert names_of(run("one", training__num_train_epochs=3, training__save_total_limit=1)[1]) == [
        "checkpoint-12",
        "checkpoint-18",
    ]
    _, folder = run("steps", training__eval_strategy="no", training__save_steps=4, training__save_total_limit=2)
    assert names_of(folder) == ["checkpoint-8", "checkpoint-12"]


@pytest.mark.integration
def test_the_best_weights_at_the_end_if_asked(run, scripted):
    for name, asked, final in (("best", True, 12), ("last", False, 18)):
        scripted([0.1, 0.9, float("nan")])
        result, folder = run(name, training__num_train_epochs=3, training__load_best_model_at_end=asked)
        assert result.train["final_step"] == final
        assert same_weights(folder, folder / f"checkpoint-{final}")
        assert not same_weights(folder, folder / f"checkpoint-{30 - final}")


def test_a_smaller_error_is_better(run, tmp_path, scripted, monkeypatch):
    for name in ("train", "validation"):
        write_reviews(tmp_path / f"{name}.csv", seed=3)
        text = (tmp_path / f"{name}.csv").read_text().replace(",good", ",4.5").replace(",bad", ",1")
        (tmp_path / f"{name}.csv").write_text(text)
    original, values = Evaluator.score, iter([2.0, 0.5, 1.0])

    def score(self, splits, **options):
        scores = original(self, splits, **options)
        if "reuse" not in options:
            scores["validation"]["mean_squared_error"] = next(values)
        return scores

    monkeypatch.setattr(Evaluator, "score", score)
    wanted = {"data__task_type": "regression", "training__metric_for_best_model": "mean_squared_error"}
    result, _ = run(**wanted, training__num_train_epochs=3, training__load_best_model_at_end=True)
    assert result.best == {"metric": "mean_squared_error", "value": 0.5, "step": 12}
    assert result.train["final_step"] == 12
    assert list(result.scores["validation"]) == [
        "pearson", "spearmanr", "mean_absolute_error", "mean_squared_error",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "threshold", "stops_after", "best"),
    [
        ([0.5, 0.4, 0.4, 0.9], 0.0, 3, 1),
        ([0.5, 0.4, 0.6, 0.6, 0.6, 0.9], 0.0, 5, 3),  # a gain begins the count anew, a tie does not
        ([0.5, 0.51, 0.52, 0.9], 0.1, 3, 3),  # small gains are none for the count, but they are the best
        ([0.5, float("nan"), float("nan"), 0.9], 0.0, 3, 1),
        ([float("nan"), 0.2, 0.1, 0.1, 0.9], 0.0, 4, 2),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.0, 6, 6),
    ],
)
def test_early_stopping(run, scripted, scores, threshold, stops_after, best):
    left = scripted(scores)
    stopping = {"early_stopping_patience": 2, "early_stopping_threshold": threshold, "num_train_epochs": 6}
    result, folder = run(**{f"training__{key}": value for key, value in stopping.items()})
    assert result.train["steps"] == stops_after * STEPS_PER_EPOCH
    assert result.train["stopped_early"] == (stops_after < 6)
    assert len(list(left)) == len(scores) - stops_after
    assert result.best["step"] == result.train["final_step"] == best * STEPS_PER_EPOCH
    assert same_weights(folder, folder / f"checkpoint-{best * STEPS_PER_EPOCH}")


def test_a_part_of_the_rows_keeps_the_balance(run, tmp_path, batches):
    with (tmp_path / "train.csv").open("w") as file:
        file.write("text,label\n" + "".join(f"film {i},{'good' if i % 10 == 0 else 'bad'}\n" for i in range(100)))
    write_reviews(tmp_path / "validation.csv", 40, seed=2)
    part = {"data__max_train_samples": 20, "data__max_eval_samples": 10}
    result, folder = run(**part, training__num_train_epochs=1)
    assert result.train["rows"] == 20
    assert sorted(row for rows, _ in batches for row in rows) == list(range(20))
    assert "Only 20 of the 100 rows of train are used (stratified, seed 42)." in result.notes
    assert len((folder / "predictions_validation.csv").read_text().splitlines()) == 11
    drawn = [load_data(load_config(folder / "config.yaml").data, seed=seed).splits["train"] for seed in (42, 1, 2, 3)]
    assert [Counter(rows.labels.tolist()) for rows in drawn] == [{0: 18, 1: 2}] * 4
    rows = drawn[0]
    assert result.data_fingerprint["train"] == rows.fingerprint()
    assert run("other", **part, training__seed=1)[0].data_fingerprint["train"] != rows.fingerprint()
