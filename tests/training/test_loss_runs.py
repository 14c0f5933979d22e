"""Runs with each loss and scores of any scale: what is saved predicts as it was scored, by every way in."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import AttentuneError
from attentune.explain.explainer import Explainer
from attentune.explain.scorer import Settings
from attentune.inference.predictor import Predictor, evaluate, predict, predict_rows
from attentune.integrations.transformers import stock_model
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import load_model, save_model
from attentune.training.baselines import _constant
from attentune.training.prepare import Prepared
from helpers import interrupted
from helpers.interrupted import log_of, losses_of
from helpers.samples import BAD, FILLER, GOOD
from helpers.tiers import leading
from helpers.tiny_models import FIRST, LONG, SECOND, build, encoded, logits_of, rows_of

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


# Regression on scores of any offset and scale: years, prices, a million and a little


Tiny = Callable[..., Path]
SCORES = LabelSpace("regression")
# Offset and scale of the scores of `train_on`, whose standard deviation is about 1.
SCALES = {"plain": (0.0, 1.0), "years": (1985.0, 20.0), "tiny": (0.02, 0.005), "a million": (1e6, 0.5)}


def train_on(folder: Path, encoder: Path, offset: float, scale: float, **changes: object) -> Path:
    """Train on scores that words decide, moved and stretched; return the run folder."""
    folder.mkdir()
    draw = random.Random(1)
    for name, rows in (("train", 48), ("validation", 24)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(rows):
                good = draw.random()
                words = [draw.choice(GOOD if draw.random() < good else BAD) for _ in range(3)]
                words += draw.choices(FILLER, k=draw.randint(2, 8))
                writer.writerow([" ".join(words), repr(offset + scale * (3.5 * good - 1.7))])
    interrupted.run(folder, encoder, data__task_type="regression", **changes)
    return folder / "run"


def predictions(run: Path, precision: str | None = None) -> np.ndarray:
    saved = Predictor.load(run)
    return predict_rows(saved, saved.data(None, ("validation",)).splits["validation"], precision=precision)[:, 0]


@pytest.fixture(scope="module")
def scaled(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`scaled("years")`: the folder of a run on these scores, trained once."""
    folder, made = tmp_path_factory.mktemp("scales"), {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = train_on(folder / name, tiny("bert"), *SCALES[name])
        return made[name]

    return get


@leading("name", ["years", "tiny", "a million"])
def test_predictions_move_and_stretch_with_the_scores(scaled: Callable[[str], Path], name: str) -> None:
    offset, scale = SCALES[name]
    found_N, expected_N = predictions(scaled(name)), predictions(scaled("plain"))
    assert len(np.unique(expected_N)) == 24
    np.testing.assert_allclose((found_N - offset) / scale, expected_N, atol=2e-3)
    assert list(np.argsort(found_N)) == list(np.argsort(expected_N))
    written = [float(row["prediction"]) for row in csv.DictReader((scaled(name) / "predictions_validation.csv").open())]
    np.testing.assert_allclose(written, found_N, atol=1e-3 * max(scale, 0.001))


def test_years_are_not_rounded_in_lower_precision(scaled: Callable[[str], Path]) -> None:
    exact_N, lower_N = (predictions(scaled("years"), one) for one in ("fp32", "bf16"))
    assert len(np.unique(lower_N)) == len(exact_N)  # bf16 has steps of 8 near 2,000
    np.testing.assert_allclose(lower_N, exact_N, atol=2.0)


def test_training_in_bf16_learns_years(tiny: Tiny, tmp_path: Path) -> None:
    run = train_on(tmp_path / "years", tiny("bert"), *SCALES["years"], training__precision="bf16")
    assert len(np.unique(predictions(run))) == 24


@pytest.mark.parametrize("loss", ["mse", "pearson"])
def test_a_run_on_another_scale_starts_from_the_same_predictions(tiny: Tiny, tmp_path: Path, loss: str) -> None:
    first = _fresh(tiny("bert"), (1985.0, 20.0), loss)
    if loss == "pearson":
        first[0].outputs.scale.fill_(3.0)
        first[0].outputs.offset.fill_(2.5)
    save_model(*first, tmp_path)
    again = _fresh(tmp_path, (550.0, 250.0), "mse")
    torch.testing.assert_close(logits_of(again, FIRST, LONG), logits_of(first, FIRST, LONG), rtol=1e-6, atol=0.0)


def _fresh(folder: Path, scale: tuple[float, float], loss: str = "mse") -> tuple:
    config = load_config(overrides={"model.name_or_path": str(folder)}).model
    tokenizer = load_tokenizer(config)
    options = {"max_length": 64, "is_pair": False, "seed": 1, "loss": loss}
    options |= {"score_mean": scale[0], "score_std": scale[1]}
    return build_model(config, SCORES, tokenizer, **options).eval(), tokenizer


def test_the_loss_of_a_model_is_of_standardised_scores(tiny: Tiny) -> None:
    model, tokenizer = _fresh(tiny("bert"), (1985.0, 20.0))
    labels_B = torch.tensor([1990.0, 1950.0])
    output = model(**encoded(tokenizer, FIRST, SECOND), labels=labels_B)
    expected = (((output.logits[:, 0] - labels_B) / 20.0) ** 2).mean()
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=0.0)


def test_labels_and_soft_targets_of_a_regression_are_standardised() -> None:
    def prepared(*scores: float, targets: np.ndarray | None = None) -> Prepared:
        rows = replace(rows_of("abc"[: len(scores)], labels=scores), targets=targets)
        return Prepared(config=None, data=SimpleNamespace(label_space=SCORES, splits={"train": rows}), metric=None)

    years = (1980.0, 1990.0, 2000.0)
    np.testing.assert_allclose(prepared(*years).targets, [-(1.5**0.5), 0.0, 1.5**0.5], rtol=1e-6)
    soft = prepared(*years, targets=np.array([[1990.0], [1990.0], [2000.0]])).targets
    np.testing.assert_allclose(soft, [0.0, 0.0, 1.5**0.5], rtol=1e-6)
    assert soft.dtype == np.float32
    assert prepared(5.0, 5.0).score_scale == (5.0, 1.0), "equal scores have no scale"


def test_transformers_class_has_the_scores(tiny: Tiny) -> None:
    built = _fresh(tiny("bert"), (1985.0, 20.0))
    logits = stock_model(built[0])(**encoded(built[1], FIRST, LONG)).logits
    torch.testing.assert_close(logits.double(), logits_of(built, FIRST, LONG), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("method", ["leave-one-out", "gradient", "shap"])
def test_explanations_are_those_of_the_standardised_scores(tiny: Tiny, tmp_path: Path, method: str) -> None:
    runs = {}
    for name, scale in (("near", (0.0, 1.0)), ("far", (1e6, 2.0))):
        save_model(*_fresh(tiny("bert"), scale), tmp_path / name)
        (tmp_path / name / "config.yaml").write_text("training: {precision: fp32, use_cpu: true}\n")
        explainer = Explainer(Predictor.load(tmp_path / name), rows_of([FIRST]))
        runs[name] = explainer.attributions(method, settings=Settings(samples=50))[0].scores
    assert np.abs(runs["near"]).max() > 0
    np.testing.assert_allclose(runs["far"], 2.0 * runs["near"], rtol=1e-2, atol=1e-5)


def test_few_different_scores_are_a_warning() -> None:
    labels = np.linspace(0, 10, 40)
    assert "only 2 different scores for 40 validation rows" in str(_constant(np.round(labels / 10), labels, SCORES))
    assert _constant(labels + 0.1, labels, SCORES) is None
    assert _constant(np.round(labels / 10), np.round(labels / 10), SCORES) is None  # there are no others


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14159265, "3.14159"), (0.000123456789, "0.000123457"), (1984.123456, "1984.1235"), (1000000.37, "1000000.37")],
)
def test_scores_are_written_with_four_digits_behind_the_point(value: float, text: str) -> None:
    assert SCORES.text_of(value) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("score_std", value) for value in (0.0, float("inf"))),
        ("score_mean", "5"),
        *(("thresholds", value) for value in ([0.2, 0.3], [1.5], 0.5, ["0.5"])),
        *(("calibration_temperature", value) for value in (0, "2", None)),
    ],
)
def test_a_scale_or_calibration_that_no_run_has_is_refused(tiny, tmp_path, name: str, value: object) -> None:
    save_model(*(_fresh(tiny("bert"), (1985.0, 20.0)) if name.startswith("score") else build(tiny("bert"))), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    (tmp_path / "config.yaml").write_text("training: {use_cpu: true}\n")
    with pytest.raises(AttentuneError, match=name):
        predict(tmp_path, ["a film"])
