"""Whole runs on rows with weights, from extra files, and on rows with soft targets."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentune.config import load_config
from attentune.data.dataset import TaskData, TextRows
from attentune.data.load import load_data
from attentune.errors import CheckpointError, DataError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import probabilities_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.interrupted import assert_same, die_after_step, losses_of, outcome, run
from helpers.samples import settings, trainer_of, write_reviews

# Weights of rows


def extra(folder: Path, weight: float | None = 0.5, rows: int = 16, seed: int = 9) -> dict[str, object]:
    write_reviews(folder / "silver.csv", rows, seed=seed)
    weights = {} if weight is None else {"data__extra_train_weights": [weight]}
    return {"data__extra_train_files": [str(folder / "silver.csv")], **weights}


@pytest.mark.integration
def test_weight_one_is_a_longer_file_and_weight_zero_the_file_alone(tiny, tmp_path: Path) -> None:
    homes = {name: tmp_path / name for name in ("one", "longer", "zero", "plain")}
    for home in homes.values():
        home.mkdir()
    run(homes["one"], tiny("bert"), preset="ssa-co", **extra(homes["one"], None))
    run(homes["zero"], tiny("bert"), preset="ssa-co", **extra(homes["zero"], 0.0))
    run(homes["plain"], tiny("bert"), preset="ssa-co")
    write_reviews(homes["longer"] / "validation.csv", 20, seed=2)
    lines = (homes["one"] / "train.csv").read_text(), (homes["one"] / "silver.csv").read_text()
    # Of one file every id stands once.
    more = [line.replace("r", "s", 1) for line in lines[1].splitlines(keepends=True)[1:]]
    (homes["longer"] / "train.csv").write_text(lines[0] + "".join(more))
    run(homes["longer"], tiny("bert"), preset="ssa-co")
    found = {name: outcome(home / "run") for name, home in homes.items()}
    for name, other in (("one", "longer"), ("zero", "plain")):
        for value in (found[name], found[other]):
            value["train"].pop("rows_from", None)
            value.pop("labels", None)  # the file names its rows by their print, ids and all
        assert_same(found[name], found[other])
    assert found["one"]["weights"] != found["plain"]["weights"]


def test_the_first_step_is_the_weighted_loss_of_its_rows(tiny, tmp_path: Path) -> None:
    """One step of all rows, in batches of 8, from fresh weights and without dropout, against single rows."""
    whole = {
        "training__max_steps": 1,
        "training__gradient_accumulation_steps": 8,
        "model__dropout": 0,
        "model__head__dropout": 0,
        "training__precision": "fp32",
        **extra(tmp_path),
    }
    parts = trainer_of(load_config(overrides=settings(tmp_path, tiny("bert"), **whole)))
    model, features, losses = parts.model.eval(), parts.inputs.features["train"], []
    with torch.no_grad(), parts.embeddings.whole(1.0):
        for row in range(len(features)):
            ids = torch.from_numpy(features.ids[features.row(row)].astype(np.int64))[None]
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            losses.append(float(-logits.log_softmax(dim=-1)[0, parts.inputs.labels[row]]))
    assert len(losses) == 64
    expected = math.fsum(losses[:48]) / 64 + 0.5 * math.fsum(losses[48:]) / 64
    run(tmp_path, tiny("bert"), **whole)
    assert losses_of(tmp_path / "run")[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.integration
def test_a_killed_run_goes_on_with_the_weights_it_had(tiny, tmp_path: Path) -> None:
    method = {"preset": "ssa-co", "labels__generator": "flip", "training__save_steps": 3}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        home.mkdir()
    run(whole, tiny("bert"), **method, **extra(whole))
    more = extra(broken)
    die_after_step(11, lambda: run(broken, tiny("bert"), **method, **more))
    before = (broken / "silver.csv").read_text()
    extra(broken, seed=10)
    with pytest.raises(CheckpointError, match=r"cannot be resumed: the rows \(train\) changed since it was begun"):
        run(broken, tiny("bert"), **method, **more, training__resume=True)
    (broken / "silver.csv").write_text(before)
    with pytest.raises(CheckpointError, match=r"data.extra_train_weights: was \[0.5\], now \[0.25\]"):
        run(broken, tiny("bert"), **method, **more | {"data__extra_train_weights": [0.25]}, training__resume=True)
    run(broken, tiny("bert"), **method, **more, training__resume=True)
    found, expected = outcome(broken / "run"), outcome(whole / "run")
    for value in (found, expected):
        for part in value["train"].pop("rows_from"):
            assert (part["rows"], part["weight"]) in ((48, 1.0), (16, 0.5))
    assert_same(found, expected)


KINDS: dict[str, dict[str, object]] = {
    "scores": {"data__task_type": "regression", "labels__generator": "flip", "preset": "ssa-hybrid"},
    "ordered": {"data__task_type": "ordinal", "objective__loss": "corn", "preset": "ssa-co"},
    "sets": {"data__task_type": "multi_label", "objective__class_weights": "balanced", "preset": "ssa-co"},
    "pairs": {"preset": "bi-encoder-mean", "model__head__combine": "concat"},
    "windows": {"data__long_texts": "windows", "data__max_length": 8, "data__stride": 2, "preset": "ssa-co"},
    "frozen": {"training__freeze_encoder": True},
    "calibrated": {"training__calibrate": "temperature", "data__calibration_share": 0.25},
    "masked": {"preset": "bert-mask"},
}
LABELS = {"scores": "{}.5", "sets": "a|{}"}


@pytest.mark.integration
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_task_takes_extra_rows(tiny, tmp_path: Path, name: str) -> None:
    for file, rows in (("train.csv", 30), ("validation.csv", 9), ("silver.csv", 12)):
        lines = ["text,text_pair,label" if name == "pairs" else "text,label"]
        for number in range(rows):
            texts = [f"we saw the film {file[0]} {number} and it was so very fine in town"]
            texts += [f"a story {number}"] if name == "pairs" else []
            lines.append(",".join([*texts, LABELS.get(name, "{}").format(number % 3)]))
        (tmp_path / file).write_text("\n".join(lines) + "\n")
    files = {"data__extra_train_files": str(tmp_path / "silver.csv"), "data__extra_train_weights": "0.4"}
    run(tmp_path, tiny("bert"), **files, **KINDS[name])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    own = 22 if name == "calibrated" else 30
    assert [(part["rows"], part["weight"]) for part in record["train"]["rows_from"]] == [(own, 1.0), (12, 0.4)]
    assert record["train"]["rows"] == own + 12
    losses = losses_of(tmp_path / "run")
    assert len(losses) > 3
    assert np.isfinite(losses).all()


def test_validation_rows_without_labels_are_refused_before_training(tiny, tmp_path: Path) -> None:
    config = load_config(overrides=settings(tmp_path, tiny("bert")))
    data = load_data(config.data, seed=1)
    validation = replace(data.splits["validation"], labels=None)
    with pytest.raises(DataError, match=r"has no labelled validation rows\. Give some, or set --eval_strategy no"):
        train(config, data=replace(data, splits={**data.splits, "validation": validation}))
    assert not (tmp_path / "run").exists()


# Soft targets


def soft_data(folder: Path, encoder: Path, **changes: Any) -> tuple[Any, TaskData]:
    """Return a configuration and its rows, whose targets are the opposite of their labels."""
    config = load_config(overrides=settings(folder, encoder, **changes))
    data = load_data(config.data, seed=1)
    rows = data.splits["train"]
    targets = 0.9 - 0.8 * np.eye(2)[rows.labels]
    return config, replace(data, splits={**data.splits, "train": replace(rows, targets=targets)})


def quiet(config: Any, data: TaskData) -> Any:
    return train(config, data=data, display=ProgressDisplay(quiet=True))


def test_a_run_learns_its_soft_targets_and_not_its_labels(tiny, tmp_path):
    config, data = soft_data(tmp_path, tiny("bert"), training__num_train_epochs=12, training__learning_rate=3e-3)
    assert quiet(config, data).scores["validation"]["accuracy"] < 0.5
    rows = data.splits["train"]
    shares = probabilities_of(predict_rows(tmp_path / "run", rows), data.label_space)
    assert np.mean(shares.argmax(axis=1) == rows.labels) < 0.1
    assert np.abs(shares - rows.targets).mean() < 0.1
    assert Predictor.load(tmp_path / "run").label_space == data.label_space


@pytest.mark.integration
def test_a_resumed_run_with_soft_targets_is_the_same_run(tiny, tmp_path):
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    quiet(*soft_data(tmp_path / "whole", tiny("bert")))
    config, data = soft_data(tmp_path / "resumed", tiny("bert"))
    die_after_step(8, lambda: quiet(config, data))
    again = replace(config, training=replace(config.training, resume=True))
    changed = replace(data.splits["train"], targets=data.splits["train"].targets[:, ::-1])
    with pytest.raises(CheckpointError, match=r"cannot be resumed: the rows \(train\) changed"):
        quiet(again, replace(data, splits={**data.splits, "train": changed}))
    quiet(again, data)
    assert_same(outcome(tmp_path / "resumed" / "run"), outcome(tmp_path / "whole" / "run"))


def test_targets_follow_their_rows_and_change_the_fingerprint():
    rows = TextRows(("1", "2", "3"), ("x", "y", "z"), None, np.array([0, 1, 0]), "here", targets=np.eye(3))
    assert rows.take([2, 0]).targets.tolist() == [[0, 0, 1], [1, 0, 0]]
    others = (replace(rows, targets=targets).fingerprint() for targets in (None, np.eye(3)[::-1]))
    assert rows.fingerprint() not in others


def test_extra_files_have_no_soft_targets(tiny, tmp_path):
    config, data = soft_data(tmp_path, tiny("bert"))
    more = replace(config.data, extra_train_files=(str(tmp_path / "train.csv"),))
    with pytest.raises(DataError, match=r"got soft labels and data\.extra_train_files"):
        quiet(replace(config, data=more), data)
