"""What a run does step by step, seen from its folder."""

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import attentune.training.run as run_module
import attentune.training.trainer as trainer_module
from attentune import Predictor, evaluate
from attentune.config import load_config
from attentune.data.load import load_data
from attentune.inference.scoring import Evaluator
from attentune.nn.blur import raw_of
from attentune.nn.compiled.memory import peak_memory_bytes
from attentune.results import RunResult
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.optimizer import bare_optimizer
from helpers import interrupted
from helpers.interrupted import die_after_step, log_of, losses_of
from helpers.samples import write_reviews
from helpers.tiers import leading

STEPS_PER_EPOCH = 6  # 48 rows in batches of 8
NO_DROPOUT = {"model__dropout": 0, "model__head__dropout": 0, "training__precision": "fp32"}


@pytest.fixture
def run(tiny, tmp_path):
    """`run(**settings)` trains in a folder of its own; gives the result and the folder."""

    def run_with(name: str = "run", family: str = "bert", **changes: Any) -> tuple[RunResult, Path]:
        folder = tmp_path / name
        return interrupted.run(tmp_path, tiny(family), training__output_dir=str(folder), **changes), folder

    return run_with


@pytest.fixture
def scripted(monkeypatch):
    """`scripted([0.1, nan])` makes these the validation accuracies, one a scoring; the end's scoring takes none."""

    original = Evaluator.score

    def script(values: list[float], metric: str = "accuracy") -> Iterator[float]:
        left = iter(values)

        def score(self, splits, **options):
            scores = original(self, splits, **options)
            if "reuse" not in options:
                scores["validation"][metric] = next(left)
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


def names_of(folder: Path) -> list[str]:
    return [path.name for path in checkpoint_folders(folder)]


def same_weights(a: Path, b: Path) -> bool:
    return (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


# Rows, batches and steps


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
    prints = {rows.fingerprint() for rows in drawn}
    assert result.data_fingerprint["train"] == drawn[0].fingerprint()
    assert len(prints) == 4


@leading(
    "epochs, max_steps, steps",
    [(1.5, -1, 9), (2, 4, 4), (0.01, -1, 1), (2, -1, 12), (0.5, -1, 3), (1, 13, 13)],
    fast=3,
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


# The loss

WEIGHTED = {"objective__class_weights": {"bad": 5, "good": 0.5}}
TOKEN_LABELS = {"preset": "ssa-hybrid", "objective__alpha": 0.3, "objective__token_loss_warmup_epochs": 2}


@leading("objective", [{**TOKEN_LABELS, **WEIGHTED}, {}, WEIGHTED, {"objective__label_smoothing": 0.2, **WEIGHTED}])
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


def test_the_loss_is_divided_by_the_weights_of_its_rows(run, tmp_path):
    """Of a step that moves nothing it can be computed from what is predicted."""
    write_reviews(tmp_path / "train.csv", seed=1)
    unmoved = {**NO_DROPOUT, **WEIGHTED, "training__learning_rate": 1e-12, "training__num_train_epochs": 1}
    batch = {"training__per_device_train_batch_size": 10, "training__gradient_accumulation_steps": 5}
    _, folder = run(**unmoved, **batch, data__validation_file=str(tmp_path / "train.csv"))
    weight_of = WEIGHTED["objective__class_weights"]
    rows = list(csv.DictReader((folder / "predictions_validation.csv").open()))
    each = [(weight_of[row["label"]], -math.log(float(row[f"p_{row['label']}"]))) for row in rows]
    expected = sum(weight * loss for weight, loss in each) / sum(weight for weight, _ in each)
    assert losses_of(folder) == [pytest.approx(expected, abs=1e-4)]
    assert abs(expected - np.mean([loss for _, loss in each])) > 1e-3


@pytest.mark.integration
def test_the_log_has_each_logging_step_once_also_after_two_kills(run):
    """Steps 4 and 10 are logged, and the checkpoints before them stand within what their lines sum up."""
    logged = {"training__logging_steps": 2, "training__save_steps": 3}
    _, whole = run("whole", **logged)
    die_after_step(5, lambda: run(**logged))
    die_after_step(11, lambda: run(**logged, training__resume=True))
    _, folder = run(**logged, training__resume=True)
    assert [line["step"] for line in log_of(folder) if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert losses_of(folder) == losses_of(whole)
    assert same_weights(folder, whole)


# Scores, checkpoints and the best weights


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
def test_the_newest_and_the_best_checkpoints_are_kept(run, scripted):
    scripted([0.1, 0.9, 0.3, 0.9, 0.5])
    # A tie is no gain: the first of two best stays.
    result, folder = run(training__num_train_epochs=5, training__save_total_limit=3)
    assert result.best == {"metric": "accuracy", "value": 0.9, "step": 12}
    assert names_of(folder) == ["checkpoint-12", "checkpoint-24", "checkpoint-30"]
    scripted([0.1, 0.9, 0.3])
    _, folder = run("one", training__num_train_epochs=3, training__save_total_limit=1)
    assert names_of(folder) == ["checkpoint-12", "checkpoint-18"]
    _, folder = run("steps", training__eval_strategy="no", training__save_steps=4, training__save_total_limit=2)
    assert names_of(folder) == ["checkpoint-8", "checkpoint-12"]


@pytest.mark.integration
@pytest.mark.parametrize(("asked", "final"), [(True, 12), (False, 18)])
def test_the_best_weights_at_the_end_if_asked(run, scripted, asked, final):
    scripted([0.1, 0.9, float("nan")])
    result, folder = run(training__num_train_epochs=3, training__load_best_model_at_end=asked)
    assert result.train["final_step"] == final
    assert same_weights(folder, folder / f"checkpoint-{final}")
    assert not same_weights(folder, folder / f"checkpoint-{30 - final}")


def test_a_smaller_error_is_better(run, tmp_path, scripted):
    for name in ("train", "validation"):
        file = write_reviews(tmp_path / f"{name}.csv", seed=3)
        file.write_text(file.read_text().replace(",good", ",4.5").replace(",bad", ",1"))
    scripted([2.0, 0.5, 1.0], "mean_squared_error")
    wanted = {"data__task_type": "regression", "training__metric_for_best_model": "mean_squared_error"}
    result, _ = run(**wanted, training__num_train_epochs=3, training__load_best_model_at_end=True)
    assert result.best == {"metric": "mean_squared_error", "value": 0.5, "step": 12}
    assert result.train["final_step"] == 12
    names = ["pearson", "spearmanr", "mean_absolute_error", "mean_squared_error"]
    assert list(result.scores["validation"]) == names


@leading(
    "scores, threshold, stops_after, best",
    [
        ([0.5, 0.4, 0.6, 0.6, 0.6, 0.9], 0.0, 5, 3),  # a gain begins the count anew, a tie does not
        ([0.5, 0.51, 0.52, 0.9], 0.1, 3, 3),  # small gains are none for the count, but they are the best
        ([0.5, float("nan"), float("nan"), 0.9], 0.0, 3, 1),
        ([float("nan"), 0.2, 0.1, 0.1, 0.9], 0.0, 4, 2),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.0, 6, 6),
    ],
    fast=2,
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


# Blur with squeeze-and-excitation


@pytest.mark.parametrize(
    ("family", "learnable", "where"), [("bert", "layer", "context"), ("deberta-v2", "head", "scores")]
)
def test_sigma_is_learned_and_the_saved_run_repeats_the_scores(run, family: str, learnable: str, where: str) -> None:
    blur = {"model__blur__sigma": 0.5, "model__blur__learnable": learnable, "model__blur__where": where}
    result, folder = run(family=family, preset="sesame", training__num_train_epochs=1, **blur)
    weights = load_file(folder / "model.safetensors")
    moved = weights["blur.raw_sigma"] - raw_of(0.5)  # by about the learning rate a step
    assert moved.shape == ((3, 4) if learnable == "head" else (3,))
    assert (moved != 0).all()  # how far the least one moves depends on the processor's rounding
    assert 1e-3 < moved.abs().max() < 0.1
    assert {name for name in weights if name.startswith("layer_mix.")} == {
        f"layer_mix.excitation.{part}.{kind}" for part in ("squeeze", "excite") for kind in ("weight", "bias")
    }
    saved = json.loads((folder / "metrics.json").read_text())["validation"]
    assert evaluate(folder)["validation"] == result.scores["validation"] == saved
    model = Predictor.load(folder).model
    assert model.blur_hooks.layers == 3
    assert torch.equal(model.blur.raw_sigma.detach().cpu(), weights["blur.raw_sigma"])


# Memory

BYTES = 1 << 30
_PRINT_PEAK = """
import torch
from attentune.nn.compiled.memory import peak_memory_bytes
print(peak_memory_bytes(torch.device("cpu")))
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own mark is read under Linux only")
def test_the_peak_counts_what_is_held_but_not_by_the_process_that_started_this_one():
    before = peak_memory_bytes(torch.device("cpu"))
    held = np.ones(BYTES // 8)
    assert peak_memory_bytes(torch.device("cpu")) >= max(before, held.nbytes)
    found = subprocess.run([sys.executable, "-c", _PRINT_PEAK], check=True, capture_output=True, text=True)
    assert 1 << 26 < int(found.stdout) < held.nbytes


def test_after_the_last_step_gradients_and_moments_are_freed(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[trainer_module.Trainer] = []
    build = run_module.build
    monkeypatch.setattr(run_module, "build", lambda inputs: built.append(build(inputs)) or built[0])
    run(training__max_steps=2)
    optimizer = bare_optimizer(built[0].optimizer)
    assert not optimizer.state
    assert all(each.grad is None for group in optimizer.param_groups for each in group["params"])
