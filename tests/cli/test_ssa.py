"""Self-Supervised Attention from the command line, on every type of task: what is logged, said and refused."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from helpers.samples import write_reviews

Command = Callable[..., tuple[int, str, str]]
Tiny = Callable[..., Path]
EPOCHS = 3
LABEL_FACTS = {"probed", "correct", "flipped", "ones", "zeros", "seconds"}
TOKEN_FACTS = {"token_loss", "token_accuracy", "majority_accuracy"}
TASKS: dict[str, tuple[str, ...]] = {
    "classification": (),
    "pair": ("--text_pair_column", "second"),
    # So coarse that the tiny model, which says nearly the same of all texts, is right on some of them.
    "regression": ("--label_column", "score", "--task_type", "regression", "--set", "labels.tolerance=1.2"),
    "ordinal": ("--label_column", "stars", "--task_type", "ordinal", "--seed", "1"),
}


@pytest.fixture
def flags(tiny: Tiny, tmp_path: Path) -> tuple[object, ...]:
    """A tiny run on rows with a label, a score from 0 to 5, stars from 1 to 3 and a second text."""
    draw = random.Random(3)
    for name, seed in (("train", 1), ("validation", 2)):
        rows = list(csv.DictReader(write_reviews(tmp_path / "reviews.csv", 48, seed=seed).open()))
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "second", "label", "score", "stars"])
            for row in rows:
                high = row["label"] == "good"
                second = draw.choice(rows)["text"]
                score = round(draw.uniform(3, 5) if high else draw.uniform(0, 2), 2)
                writer.writerow([row["id"], row["text"], second, row["label"], score, 1 + high + draw.randint(0, 1)])
    return (
        "--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "validation.csv",
        "--text_column", "text", "--label_column", "label", "--model_name_or_path", tiny("bert"),
        "--output_dir", tmp_path / "run", "--num_train_epochs", EPOCHS, "--max_length", 48, "--use_cpu",
        "--learning_rate", "3e-4", "--per_device_train_batch_size", 8,
    )  # fmt: skip


def label_lines(run: Path) -> list[dict[str, Any]]:
    """What the log says of each epoch's labels."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "labels" in line]
    assert [(line["epoch"], line["step"]) for line in lines] == [(epoch, 6 * (epoch + 1)) for epoch in range(EPOCHS)]
    return [line["labels"] for line in lines]


def check_labelled(facts: dict[str, Any]) -> None:
    """What an epoch with labels tells, and how its numbers hang together."""
    assert set(facts) == LABEL_FACTS | TOKEN_FACTS
    assert facts["probed"] == 48
    assert 0 <= facts["flipped"] <= facts["correct"] <= facts["probed"]
    assert facts["correct"] > 0
    count = facts["ones"] + facts["zeros"]
    assert count > 10
    assert facts["majority_accuracy"] == max(facts["ones"], facts["zeros"]) / count
    assert facts["token_accuracy"] * count == pytest.approx(round(facts["token_accuracy"] * count), abs=1e-6)
    assert 0.01 < facts["token_loss"] < 3
    assert facts["seconds"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("task", TASKS)
def test_a_run_tells_of_each_epochs_labels(
    attentune: Command, flags: tuple[object, ...], tmp_path: Path, task: str
) -> None:
    run = tmp_path / "run"
    status, _, err = attentune("train", "--preset", "ssa-co", *flags, *TASKS[task])
    assert status == 0, err
    first, *others = label_lines(run)
    assert first == {"reason": "no labels exist before the first epoch ends", "seconds": first["seconds"]}
    for epoch, facts in enumerate(others, start=2):
        check_labelled(facts)
        assert f"epoch {epoch}: labels: 48 probed, {facts['correct']} correct, {facts['flipped']} flipped; " in err
    assert task == "regression" or sum(facts["flipped"] for facts in others) > 0
    assert "no token is labelled" not in err
    record = json.loads((run / "run.json").read_text())
    assert record["train"]["label_seconds"] == pytest.approx(sum(facts["seconds"] for facts in others), abs=0.01)
    values = load_file(run / "labels.safetensors")["values"]
    assert [(values >= 0.5).sum(), ((values >= 0) & (values < 0.5)).sum()] == [others[-1]["ones"], others[-1]["zeros"]]


def test_without_a_label_generator_nothing_is_said_of_labels(
    attentune: Command, flags: tuple[object, ...], tmp_path: Path
) -> None:
    status, _, err = attentune("train", "--preset", "ssa-co", *flags, "--set", "labels.generator=none")
    assert status == 0, err
    assert "labels:" not in err
    assert "no token is labelled" not in err
    assert '"labels"' not in (tmp_path / "run" / "log.jsonl").read_text()
    assert not (tmp_path / "run" / "labels.safetensors").exists()
