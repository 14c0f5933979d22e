"""Runs with each loss: what is saved predicts as it was scored, by every way in."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attentune.inference.predictor import Predictor, evaluate, predict
from attentune.models.saving import load_model
from helpers import interrupted
from helpers.interrupted import log_of, losses_of
from helpers.samples import BAD, FILLER, GOOD

Tiny = Callable[..., Path]
STARS = ("1", "2", "3", "4")
ORDINAL = {"data__task_type": "ordinal", "data__label_names": STARS}
EXPECTED = {"objective__ordinal_prediction": "expected-value"}


def write_stars(path: Path, rows: int, *, seed: int) -> None:
    """Texts of three telling words among others; the label counts the good ones, from 1."""
    draw, lines = random.Random(seed), ["text,label"]
    for _ in range(rows):
        good = draw.randrange(4)
        words = [*draw.choices(GOOD, k=good), *draw.choices(BAD, k=3 - good), *draw.choices(FILLER, k=4)]
        draw.shuffle(words)
        lines.append(f"{' '.join(words)},{good + 1}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(tiny: Tiny, tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """`run("name", **settings)` trains on stars; gives the result and the folder."""
    write_stars(tmp_path / "train.csv", 48, seed=1)
    write_stars(tmp_path / "validation.csv", 24, seed=2)

    def run_with(name: str = "run", **changes: Any) -> tuple[Any, Path]:
        fixed = {"training__output_dir": str(tmp_path / name), "training__precision": "fp32"}
        options = fixed | {"training__num_train_epochs": 3} | changes
        return interrupted.run(tmp_path, tiny("bert"), **options), tmp_path / name

    return run_with


def texts_of(folder: Path) -> list[str]:
    rows = csv.DictReader((folder.parent / "validation.csv").read_text().splitlines())
    return [row["text"] for row in rows]


def table_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "predictions_validation.csv").read_text().splitlines()))


# Classes with an order


@pytest.mark.integration
@pytest.mark.parametrize("loss", ["cross-entropy", "corn"])
def test_expected_values_are_predicted_by_every_way_in(run, tmp_path: Path, loss: str) -> None:
    method = {**ORDINAL, "objective__loss": loss, "preset": "ssa-co", "training__learning_rate": 3e-3}
    result, folder = run("mean", **method, **EXPECTED)
    plain_result, plain = run("argmax", **method)
    assert load_file(folder / "model.safetensors").keys() == load_file(plain / "model.safetensors").keys()
    saved = Predictor.load(folder)
    assert saved.label_space.ordinal_prediction == "expected-value"
    assert Predictor.load(plain).label_space.ordinal_prediction == "argmax"

    table = table_of(folder)
    shares_NC = np.array([[float(row[f"p_{name}"]) for name in STARS] for row in table])
    means_N = shares_NC @ np.arange(4)
    assert np.abs(shares_NC.sum(axis=1) - 1).max() < 1e-5
    assert [row["prediction"] for row in table] == [STARS[int(np.floor(mean + 0.5))] for mean in means_N]
    assert [row["prediction"] for row in table_of(plain)] != [row["prediction"] for row in table]
    accuracy = np.mean([row["prediction"] == row["label"] for row in table])
    assert result.scores["validation"]["accuracy"] == pytest.approx(accuracy)
    assert evaluate(saved)["validation"] == pytest.approx(result.scores["validation"])
    assert evaluate(plain)["validation"] == pytest.approx(plain_result.scores["validation"])

    texts = texts_of(folder)
    assert [line["prediction"] for line in predict(saved, texts)] == [row["prediction"] for row in table]


def test_corn_is_saved_with_the_model_and_loads_with_its_outputs(run) -> None:
    _, folder = run(**ORDINAL, objective__loss="corn", training__learning_rate=3e-3)
    content = json.loads((folder / "config.json").read_text())
    assert (content["loss"], len(content["id2label"])) == ("corn", 4)
    assert load_file(folder / "model.safetensors")["classifier.weight"].shape[0] == 3
    model, tokenizer = load_model(folder)
    inputs = dict(tokenizer(texts_of(folder), padding=True, return_tensors="pt"))
    labels_B = torch.tensor([int(row["label"]) - 1 for row in table_of(folder)])
    with torch.no_grad():
        output = model(**inputs, labels=labels_B)
    assert output.logits.shape == (24, 4)
    torch.testing.assert_close(output.logits.exp().sum(dim=1), torch.ones(24))
    tasks_B = (labels_B + 1).clamp(max=3)
    expected = -output.logits[torch.arange(24), labels_B].sum() / tasks_B.sum()
    torch.testing.assert_close(output.loss, expected)
    losses = losses_of(folder)
    assert losses[0] == pytest.approx(np.log(2), abs=0.05), "at first each conditional task is a coin's throw"
    assert losses[-1] < losses[0]


def test_a_run_of_auto_says_what_it_was_trained_with(run) -> None:
    for name, changes, loss in (("classes", {}, "cross-entropy"), ("scores", {"data__task_type": "regression"}, "mse")):
        _, folder = run(name, **changes, training__num_train_epochs=1)
        assert json.loads((folder / "config.json").read_text())["loss"] == loss


# Correlation

PEARSON = {"data__task_type": "regression", "objective__loss": "pearson", "training__learning_rate": 3e-3}


def test_predictions_after_pearson_are_on_the_labels_scale(run) -> None:
    result, folder = run(**PEARSON, training__num_train_epochs=6)
    saved = Predictor.load(folder)
    train_rows = saved.data(None, ("train",)).splits["train"]
    found = np.array([line["prediction"] for line in predict(saved, list(train_rows.texts))])
    slope, intercept = np.polyfit(found, train_rows.labels, 1)
    assert (slope, intercept) == (pytest.approx(1.0, abs=1e-4), pytest.approx(0.0, abs=1e-3))
    assert np.corrcoef(found, train_rows.labels)[0, 1] > 0.6

    scale, offset = (float(load_file(folder / "model.safetensors")[f"outputs.{name}"]) for name in ("scale", "offset"))
    assert scale > 0
    std, mean = saved.model.config.score_std, saved.model.config.score_mean
    scale, offset = std * scale, std * offset + mean
    assert result.notes[-1] == f"Predictions are {scale:.6g} x output + {offset:.6g}, fitted on train."
    checkpoint = load_file(folder / "checkpoint-36" / "model.safetensors")
    assert (float(checkpoint["outputs.scale"]), float(checkpoint["outputs.offset"])) == (1.0, 0.0)

    table = table_of(folder)
    assert evaluate(saved)["validation"] == pytest.approx(result.scores["validation"])
    validation = [line["prediction"] for line in predict(saved, texts_of(folder))]
    assert [float(row["prediction"]) for row in table] == pytest.approx(validation, rel=1e-4)
    before = evaluate(Predictor.load(folder / "checkpoint-36"))["validation"]
    for name in ("pearson", "spearmanr"):  # which do not see scale and offset
        assert before[name] == pytest.approx(result.scores["validation"][name])


def test_a_last_batch_of_one_row_teaches_nothing_and_breaks_nothing(run) -> None:
    _, folder = run(**PEARSON, data__max_train_samples=9, training__num_train_epochs=2)
    losses = losses_of(folder)
    norms = [line["grad_norm"] for line in log_of(folder) if "loss" in line]
    assert len(losses) == 4
    assert [loss == 0.0 for loss in losses] == [norm == 0.0 for norm in norms]
    assert sum(loss == 0.0 for loss in losses) == 2


def test_labels_that_never_differ_leave_the_scale_as_it_is(run, tmp_path: Path) -> None:
    lines = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([lines[0], *(line[:-1] + "2" for line in lines[1:])]) + "\n")
    result, folder = run(**PEARSON, training__num_train_epochs=1)
    assert set(losses_of(folder)) == {0.0}
    weights = load_file(folder / "model.safetensors")
    assert (float(weights["outputs.scale"]), float(weights["outputs.offset"])) == (1.0, 0.0)
    assert result.notes[-1].startswith("Predictions do not rise with the labels of train")


def test_the_best_weights_get_their_own_line(run) -> None:
    best = {"training__load_best_model_at_end": True, "training__eval_strategy": "steps", "training__eval_steps": 2}
    result, folder = run(**PEARSON | best | {"training__learning_rate": 2e-2})
    weights = load_file(folder / "model.safetensors")
    kept = load_file(folder / f"checkpoint-{result.train['final_step']}" / "model.safetensors")
    assert all(torch.equal(weights[name], kept[name]) for name in weights if not name.startswith("outputs."))
    assert evaluate(folder)["validation"] == pytest.approx(result.scores["validation"])
