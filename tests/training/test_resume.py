"""A run that was killed and resumed ends with the same weights and labels, bit for bit, as one that was not."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import attentune.training.card as card_module
import attentune.training.checkpoint as checkpoint_module
from attentune.config import load_config
from attentune.token_labels.planner import EpochPlanner
from attentune.training.callbacks import ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from attentune.training.run import train
from attentune.training.run_folder import Interrupted
from helpers.interrupted import LABELS_FILE, assert_same, die, die_after_step, killed, log_of, outcome, run
from helpers.samples import settings, write_reviews

Tiny = Callable[..., Path]
Method = Callable[..., None]
Reference = Callable[[str], tuple[Path, dict[str, object]]]
MASKED: dict[str, Any] = {
    "labels__generator": "masked-rows",
    "labels__ratio": 0.5,
    "training__gradient_accumulation_steps": 2,
    "training__num_train_epochs": 3,
    "training__save_steps": 2,
    "training__eval_strategy": "steps",
    "training__eval_steps": 3,
    "training__early_stopping_patience": 5,
}
# 6 batches of 8 an epoch, 3 steps of two each.
RATES: dict[str, Any] = {
    "training__gradient_accumulation_steps": 2,
    "training__num_train_epochs": 3,
    "training__save_steps": 2,
    "training__eval_strategy": "steps",
    "training__eval_steps": 3,
    "training__load_best_model_at_end": True,
}
# 6 steps an epoch, so step 8 stands within the second epoch, 12 at its end, 16 within the third.
LABELS: dict[str, Any] = {
    "preset": "ssa-co",
    "training__num_train_epochs": 3,
    "training__learning_rate": 3e-4,
    "training__eval_strategy": "no",
    "training__save_steps": 4,
    "training__save_total_limit": 9,
}
FLIP = LABELS | {"labels__generator": "flip", "labels__ratio": 1.0}
FROZEN = RATES | {"training__freeze_encoder": True}
ORDERED = {"data__task_type": "ordinal", "data__label_names": ("bad", "good"), "objective__loss": "corn"}
METHODS: dict[str, dict[str, Any]] = {
    "masked rows": MASKED,
    "own rate": RATES | {"training__encoder_learning_rate": 1e-4},
    "frozen and kept": FROZEN,
    "frozen in each step": FROZEN | {"labels__generator": "masked-rows"},
    "frozen with a gate": FROZEN | {"preset": "ssa-hybrid"},
    "adapters": RATES | {"preset": "blur-value", "training__lora_rank": 3, "training__lora_dropout": 0.1},
    "probe": RATES | {"training__linear_probe": True, "training__l2_sp": 30.0},
    "pearson": RATES | {"data__task_type": "regression", "objective__loss": "pearson"},
    "corn": RATES | ORDERED | {"objective__ordinal_prediction": "expected-value"},
    "flip": FLIP,
}


@pytest.fixture
def trained(tiny: Tiny, tmp_path: Path) -> Method:
    """`trained("pearson", **changes)`: a run in `tmp_path/run`."""
    encoder = tiny("bert")  # built here, not in a process that is killed
    return lambda method, **changes: train_method(tmp_path, encoder, method, **changes)


def train_method(folder: Path, encoder: Path, method: str, **changes: Any) -> None:
    """Train on reviews; for scores with 1 and 4.5 in the place of bad and good."""
    if method == "pearson" and not (folder / "train.csv").exists():
        for seed, (name, rows) in enumerate((("train", 48), ("validation", 20)), start=1):
            file = write_reviews(folder / f"{name}.csv", rows, seed=seed)
            file.write_text(file.read_text().replace(",good", ",4.5").replace(",bad", ",1"))
    run(folder, encoder, **METHODS[method] | changes)


@pytest.fixture(scope="module")
def reference(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """`reference("pearson")`: the folder of a run that nobody disturbed, and its outcome."""
    made: dict[str, tuple[Path, dict[str, object]]] = {}

    def get(method: str) -> tuple[Path, dict[str, object]]:
        if method not in made:
            folder = tmp_path_factory.mktemp("reference")
            train_method(folder, tiny("bert"), method)
            made[method] = folder / "run", outcome(folder / "run")
        return made[method]

    return get


def test_the_same_command_twice_gives_identical_results(trained: Method, tmp_path: Path, reference: Reference) -> None:
    trained("masked rows")
    assert_same(outcome(tmp_path / "run"), reference("masked rows")[1])


@pytest.mark.integration
def test_labels_were_made_and_say_something(reference: Reference) -> None:
    """Without which the other tests here would prove nothing."""
    folder, _ = reference("flip")
    facts = [line["labels"] for line in log_of(folder) if "labels" in line]
    assert len(facts) == 3
    for epoch in (1, 2):
        assert 0 < facts[epoch]["correct"] < facts[epoch]["probed"]
        assert min(facts[epoch]["ones"], facts[epoch]["zeros"]) > 5
        assert 0 < facts[epoch]["token_loss"] < 5
    assert [path.name for path in checkpoint_folders(folder)] == [f"checkpoint-{step}" for step in (4, 8, 12, 16, 18)]
    made = {step: load_file(folder / f"checkpoint-{step}" / LABELS_FILE) for step in (8, 12, 16, 18)}
    for first, second, same in ((8, 12, True), (12, 16, False), (16, 18, True)):
        assert np.array_equal(made[first]["values"], made[second]["values"]) == same
    for name, values in load_file(folder / LABELS_FILE).items():
        assert np.array_equal(values, made[18][name])
    counts = [int((made[step]["values"] >= 0).sum()) for step in (8, 16)]
    assert counts == [facts[epoch]["ones"] + facts[epoch]["zeros"] for epoch in (1, 2)]


@pytest.mark.integration
def test_the_log_tells_both_rates(reference: Reference) -> None:
    lines = [line for line in log_of(reference("own rate")[0]) if "loss" in line]
    assert len(lines) == 9
    for line in lines:
        assert line["encoder_learning_rate"] == pytest.approx(0.1 * line["learning_rate"], rel=1e-12)
    assert max(line["learning_rate"] for line in lines) == 1e-3
    for method in ("frozen and kept", "pearson"):
        assert not [line for line in log_of(reference(method)[0]) if "encoder_learning_rate" in line]


# Killed

# Of the runs with labels, step 5: the first epoch, without labels made by asking. 10 and 17: within an epoch whose
# labels came with the checkpoint. 12: at an epoch's end, before its line in the log and its checkpoint. 13: after it.
STEPS = {
    "masked rows": (1, 2, 8, 14),
    **dict.fromkeys(("own rate", "frozen and kept", "frozen in each step", "frozen with a gate"), (1, 4, 8)),
    **dict.fromkeys(("pearson", "corn", "adapters", "probe"), (1, 4, 8)),
    "flip": (5, 10, 12, 13, 17),
}
KILLS = [
    ("masked rows", 5),
    *(pytest.param(one, step, marks=pytest.mark.integration) for one, steps in STEPS.items() for step in steps),
]


@pytest.mark.parametrize(("method", "step"), KILLS)
def test_killed_after_a_step(trained: Method, tmp_path: Path, reference: Reference, method: str, step: int) -> None:
    die_after_step(step, lambda: trained(method))
    assert not (tmp_path / "run" / "run.json").exists()
    every, kept = METHODS[method]["training__save_steps"], checkpoint_folders(tmp_path / "run")
    saved = (step - 1) // every * every
    assert int(kept[-1].name.split("-")[1] if kept else 0) in (saved, saved + 1)  # scored ones are saved, too
    trained(method, training__resume=True)
    assert_same(outcome(tmp_path / "run"), reference(method)[1])


# Calls within one save: the manifest, flushed files, the flushed folder, the rename, the removal of old checkpoints.
@pytest.mark.integration
@pytest.mark.parametrize(
    ("function", "call"),
    [("write_manifest", 1), ("sync_file", 2), ("sync_folder", 1), ("sync_folder", 2), ("keep_newest", 3)],
)
def test_killed_during_a_save(trained, tmp_path, reference, monkeypatch, function, call):
    original, calls = getattr(checkpoint_module, function), []

    def count_then_die(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == call:
            die()
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, function, count_then_die)
        assert killed(lambda: trained("masked rows")) == signal.SIGKILL
    for folder in checkpoint_folders(tmp_path / "run"):
        assert verify_checkpoint(folder) is None, "a folder with a checkpoint's name is whole"
    trained("masked rows", training__resume=True)
    assert_same(outcome(tmp_path / "run"), reference("masked rows")[1])
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".writing")]


@pytest.mark.integration
@pytest.mark.parametrize("method", ["masked rows", "pearson", "frozen and kept"])
def test_killed_twice_while_finishing(trained, tmp_path, reference, monkeypatch, method):
    """After the scale has been fitted, before it is saved: it is fitted anew, not twice."""
    with monkeypatch.context() as patched:
        patched.setattr(card_module, "predictions_csv", lambda *arguments: die())
        assert killed(lambda: trained(method)) == signal.SIGKILL
        assert killed(lambda: trained(method, training__resume=True)) == signal.SIGKILL
    trained(method, training__resume=True)
    assert_same(outcome(tmp_path / "run"), reference(method)[1])


@pytest.mark.integration
def test_resumed_without_the_checkpoints_labels_a_run_ends_differently(tmp_path, reference, monkeypatch):
    """So the checkpoint must carry them: the model has moved on since they were made."""
    shutil.copytree(reference("flip")[0], tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    for step in (12, 16, 18):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    monkeypatch.setattr(EpochPlanner, "restore", lambda self, tensors: None)
    resume = {"training.output_dir": str(tmp_path / "run"), "training.resume": True}
    train(load_config(tmp_path / "run" / "config.yaml", resume), display=ProgressDisplay(quiet=True))
    got, expected = outcome(tmp_path / "run"), reference("flip")[1]
    assert got["checkpoints"] == expected["checkpoints"]
    assert got["weights"] != expected["weights"]
    assert got["log"] != expected["log"]


# Stopped


@pytest.mark.integration
def test_ctrl_c_while_labels_are_made_ends_the_asking_and_loses_nothing(
    trained: Method, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = []

    def interrupted(self: ProgressDisplay, rows: int) -> None:
        ticks.append(rows)
        if len(ticks) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ProgressDisplay, "on_prediction_step", interrupted)
        with pytest.raises(Interrupted):
            trained("flip")
    assert len(ticks) == 1
    assert checkpoint_folders(tmp_path / "run")[-1].name == "checkpoint-6"  # the end of the first epoch
    trained("flip", training__resume=True)
    assert_same(without_checkpoints(outcome(tmp_path / "run")), without_checkpoints(reference("flip")[1]))


def without_checkpoints(found: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name != "checkpoints"}


def test_a_finished_run_is_not_trained_again(tiny: Tiny, reference: Reference) -> None:
    folder, expected = reference("masked rows")
    began = time.time()
    overrides = settings(folder.parent, tiny("bert"), **METHODS["masked rows"], training__resume=True)
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    assert (folder / "model.safetensors").stat().st_mtime < began
    assert_same(outcome(folder), expected)
