"""A loss or gradient that is no number stops the run at that step and names the rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from attentune.training import trainer
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from helpers.samples import write_reviews

ROW = 17  # of the rows r0, r1, ...; on line 19 of the file


@pytest.fixture
def poisoned(tiny, tmp_path) -> Path:
    """An encoder with a NaN in the embedding of one word, which one training row holds."""
    folder = tmp_path / "poisoned"
    shutil.copytree(tiny("bert"), folder)
    token = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("water")
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][token, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def command(tmp_path, tiny):
    """`command(encoder)`: a run with a checkpoint after each step, four rows a batch."""
    lines = write_reviews(tmp_path / "train.csv", 24, seed=1).read_text().splitlines()
    number, text, label = lines[ROW + 1].split(",")
    lines[ROW + 1] = f"{number},water {text},{label}"
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    files = (
        "--train_file",
        tmp_path / "train.csv",
        "--validation_file",
        write_reviews(tmp_path / "dev.csv", 8, seed=2),
    )
    numbers = ("--per_device_train_batch_size", 4, "--save_steps", 1, "--max_length", 32, "--logging_steps", 1)
    flags = (*files, *numbers, "--use_cpu", "--quiet", "--save_total_limit", 99, "--output_dir", tmp_path / "run")

    def words(encoder: Path | None = None) -> tuple[object, ...]:
        return ("train", "--model_name_or_path", encoder or tiny("bert"), *flags)

    return words


def step_of(err: str) -> int:
    return int(err.split(" at step ")[1].split(";")[0])


def test_the_run_stops_at_the_step_and_names_its_rows(attentune, command, poisoned, tmp_path):
    status, out, err = attentune(*command(poisoned))
    assert (status, out) == (2, "")
    (message,) = err.splitlines()
    assert message.startswith("attentune: the loss became nan at step ")
    assert f"r{ROW} (line {ROW + 2})" in message
    assert message.count("(line ") == 4, "the rows of this step, and no others"
    assert "--learning_rate" in message
    step = step_of(err)
    run = tmp_path / "run"
    # The checkpoints before it stand and hold numbers; the row's poisoned word was not trained on.
    assert [folder.name for folder in checkpoint_folders(run)] == [f"checkpoint-{done}" for done in range(1, step)]
    for folder in checkpoint_folders(run):
        assert verify_checkpoint(folder) is None
        odd = {name: weight.isnan().sum() for name, weight in load_file(folder / "model.safetensors").items()}
        assert sum(odd.values()) == 1
    assert [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()] == list(range(1, step))
    assert not (run / "run.json").exists()
    assert not (run / "model.safetensors").exists()


def test_a_row_without_line_or_id_is_named_by_its_number(attentune, command, poisoned, tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.csv.read_csv(tmp_path / "train.csv").drop_columns("id")
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    status, _, err = attentune(*command(poisoned), "--train_file", tmp_path / "train.parquet")
    assert status == 2
    rows = err.split("the rows of this step: ")[1].split(". No weight")[0].split(", ")
    assert str(ROW) in rows
    assert len(rows) == 4


def test_many_rows_are_not_all_listed(attentune, command, poisoned, tmp_path):
    words = (*command(poisoned), "--per_device_train_batch_size", 6, "--gradient_accumulation_steps", 4)
    status, _, err = attentune(*words)
    assert status == 2
    assert err.count("(line ") == 8
    assert "and 16 more" in err
    # Nothing had been saved yet, so nothing is left.
    assert step_of(err) == 1
    assert not (tmp_path / "run").exists()


def test_a_learning_rate_that_bursts_the_weights(attentune, command, tmp_path):
    words = (*command(), "--learning_rate", "1e37", "--lr_scheduler_type", "constant", "--eval_strategy", "no")
    status, out, err = attentune(*words)
    assert (status, out) == (2, "")
    assert step_of(err) == 2
    assert "became nan" in err or "became inf" in err
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["checkpoint-1"]


@pytest.mark.integration
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_gradient_that_is_not_finite(attentune, command, tmp_path, monkeypatch, value):
    original, calls = trainer.clip_gradients, []

    def clip(*arguments):
        calls.append(original(*arguments))
        return float(value) if len(calls) == 3 else calls[-1]

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "clip_gradients", clip)
        status, _, err = attentune(*command())
    assert status == 2
    assert err.startswith(f"attentune: the gradient's norm became {value} at step 3; the rows of this step: r")
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["checkpoint-1", "checkpoint-2"]
    # The checkpoint is good: from it the run goes on, to where it would have gone.
    assert attentune("train", "--resume", "--quiet", "--output_dir", tmp_path / "run")[0] == 0
    assert attentune(*command(), "--output_dir", tmp_path / "whole")[0] == 0
    ends = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert ends[0] == ends[1]
