"""Runs for rare classes through the command line: class weights, the focal loss, and the metric to choose by."""

import csv
import json
from pathlib import Path

import pytest
import torch

from attentune.config import load_config
from attentune.models.saving import load_model
from attentune.nn.losses import focal_rows
from helpers.samples import write_reviews

QUICK = ("--num_train_epochs", "2", "--per_device_train_batch_size", "8", "--max_length", "24", "--use_cpu")


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """Reviews of which few are bad."""
    rows = list(csv.DictReader(write_reviews(tmp_path / "all.csv", 96).open()))
    bad = [row for row in rows if row["label"] == "bad"][:8]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text", "label"])
        writer.writeheader()
        writer.writerows([*bad, *(row for row in rows if row["label"] == "good")])
    return tmp_path / "train.csv"


def flags(rare: Path, tiny, name: str) -> list[object]:
    run = rare.parent / name
    return [
        "--train_file",
        rare,
        "--validation_file",
        rare,
        "--model_name_or_path",
        tiny("bert"),
        *QUICK,
        "--output_dir",
        run,
    ]


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.integration
def test_focal_weights_and_macro_f1_go_together(attentune, tiny, rare: Path) -> None:
    more = ("--loss", "focal", "--focal-gamma", "3", "--class_weights", "balanced", "--load_best_model_at_end")
    chosen = ("--metric_for_best_model", "eval_recall_macro", "--format", "json")
    status, out, err = attentune("train", *flags(rare, tiny, "run"), *more, *chosen)
    assert status == 0, err
    run = rare.parent / "run"
    scores = json.loads(out)["validation"]
    assert list(scores) == ["accuracy", "f1_macro", "recall_macro"]
    record = json.loads((run / "run.json").read_text())
    assert record["best"]["metric"] == "recall_macro"
    assert record["best"]["value"] == pytest.approx(scores["recall_macro"])
    settings = load_config(run / "config.yaml").objective
    assert (settings.loss, settings.focal_gamma, settings.class_weights) == ("focal", 3.0, "balanced")
    model, tokenizer = load_model(run)
    batch = tokenizer(["a good film", "a bad film"], return_tensors="pt", padding=True)
    labels = torch.tensor([1, 0])
    with torch.inference_mode():
        output = model(**batch, labels=labels)
    expected = focal_rows(output.logits, labels, gamma=3.0).mean()
    torch.testing.assert_close(output.loss, expected)
