"""A run that was killed and resumed ends with the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attentune.training.checkpoint as checkpoint_module
import attentune.training.run as run_module
from attentune.config import load_config
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from attentune.training.run import train
from attentune.training.signals import Interrupted
from helpers.interrupted import assert_same, die, die_after_step, killed, outcome, run
from helpers.samples import settings

METHOD = {
    "labels__generator": "masked-rows",
    "labels__ratio": 0.5,
    "training__gradient_accumulation_steps": 2,
    "training__num_train_epochs": 3,
    "training__save_steps": 2,
    "training__eval_strategy": "steps",
    "training__eval_steps": 3,
    "training__early_stopping_patience": 5,
}


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("reference")
    run(folder, tiny("bert"), **METHOD)
    return folder, outcome(folder / "run")


def resumed_outcome(folder: Path, encoder: Path) -> dict[str, object]:
    run(folder, encoder, **METHOD, training__resume=True)
    return outcome(folder / "run")


def test_the_same_command_twice_gives_identical_results(tiny, tmp_path, reference):
    run(tmp_path, tiny("bert"), **METHOD)
    assert_same(outcome(tmp_path / "run"), reference[1])


@pytest.mark.integration
def test_another_seed_gives_other_weights(tiny, tmp_path, reference):
    run(tmp_path, tiny("bert"), **METHOD, training__seed=7)
    assert outcome(tmp_path / "run")["weights"] != reference[1]["weights"]


@pytest.mark.parametrize("step", [1, 2, 5, 8, 14])
def test_killed_after_a_step(tiny, tmp_path, reference, monkeypatch, step):
    die_after_step(monkeypatch, step, lambda: run(tmp_path, tiny("bert"), **METHOD))
    assert not (tmp_path / "run" / "run.json").exists()
    assert_same(resumed_outcome(tmp_path, tiny("bert")), reference[1])


# Calls within one save: the manifest, flushed files, the flushed folder, the rename, the removal of old checkpoints.
@pytest.mark.integration
@pytest.mark.parametrize(
    ("function", "call"),
    [("write_manifest", 1), ("sync_file", 2), ("sync_folder", 1), ("sync_folder", 2), ("keep_newest", 3)],
)
def test_killed_during_a_save(tiny, tmp_path, reference, monkeypatch, function, call):
    original, calls = getattr(checkpoint_module, function), []

    def count_then_die(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            die()
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, function, count_then_die)
        ended_by = killed(lambda: run(tmp_path, tiny("bert"), **METHOD))
    assert ended_by == signal.SIGKILL
    for folder in checkpoint_folders(tmp_path / "run"):
        assert verify_checkpoint(folder) is None, "a folder with a checkpoint's name is whole"
    assert_same(resumed_outcome(tmp_path, tiny("bert")), reference[1])
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".writing")]


@pytest.mark.integration
def test_killed_twice_and_while_finishing(tiny, tmp_path, reference, monkeypatch):
    import attentune.training.card as card_module

    with monkeypatch.context() as patched:
        patched.setattr(card_module, "predictions_csv", lambda *arguments: die())
        assert killed(lambda: run(tmp_path, tiny("bert"), **METHOD)) == signal.SIGKILL
        assert killed(lambda: run(tmp_path, tiny("bert"), **METHOD, training__resume=True)) == signal.SIGKILL
    assert_same(resumed_outcome(tmp_path, tiny("bert")), reference[1])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "changed", "removed"])
def test_a_torn_checkpoint_is_passed_over_with_a_warning(tiny, tmp_path, reference, monkeypatch, capfd, name, how):
    die_after_step(monkeypatch, 7, lambda: run(tmp_path, tiny("bert"), **METHOD))
    torn = checkpoint_folders(tmp_path / "run")[-1] / name
    content = torn.read_bytes()
    if how == "removed":
        torn.unlink()
    else:
        torn.write_bytes(content[:-3] if how == "cut" else content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    train(load_config(overrides=settings(tmp_path, tiny("bert"), **METHOD, training__resume=True)))
    assert_same(outcome(tmp_path / "run"), reference[1])
    assert "skipped" in capfd.readouterr().err


def test_ctrl_c_saves_and_says_how_to_go_on(tiny, tmp_path, reference, monkeypatch):
    training_step = run_module.training_step

    def step_then_interrupt(task, plan, group):
        logs = training_step(task, plan, group)
        if task.state.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return logs

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "training_step", step_then_interrupt)
        with pytest.raises(Interrupted, match="attentune train --resume --output_dir"):
            run(tmp_path, tiny("bert"), **METHOD)
    assert (tmp_path / "run" / "checkpoint-5").is_dir()
    got = resumed_outcome(tmp_path, tiny("bert"))
    assert_same({**got, "checkpoints": reference[1]["checkpoints"]}, reference[1])


def test_a_finished_run_is_not_trained_again(tiny, tmp_path, reference):
    folder, expected = reference
    began = time.time()
    run(folder, tiny("bert"), **METHOD, training__resume=True)
    assert (folder / "run" / "model.safetensors").stat().st_mtime < began
    assert_same(outcome(folder / "run"), expected)


@pytest.mark.integration
def test_the_command_line_killed_from_outside(tiny, tmp_path, reference):
    values = settings(tmp_path, tiny("bert"), **METHOD)
    flags = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "attentune.cli.main", "train", "--quiet", *flags]
    process = subprocess.Popen(command)
    deadline = time.time() + 120
    while not list(tmp_path.glob("run/checkpoint-*")) and time.time() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()
    bare = [sys.executable, "-m", "attentune.cli.main", "train", "--quiet", "--resume", "--output_dir"]
    subprocess.run([*bare, str(tmp_path / "run")], check=True)
    assert_same(outcome(tmp_path / "run"), reference[1])
