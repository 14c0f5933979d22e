"""Regression on scores of any offset and scale: years, prices, a million and a little."""

import csv
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.explain.explainer import Explainer
from attentune.explain.scorer import Settings
from attentune.inference.predictor import Predictor, predict_rows
from attentune.integrations.transformers import stock_model
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import save_model
from attentune.training.baselines import _constant
from attentune.training.prepare import Prepared
from helpers import interrupted
from helpers.samples import BAD, FILLER, GOOD
from helpers.tiny_models import FIRST, LONG, SECOND, encoded, logits_of, rows_of

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
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`run("years")`: the folder of a run on these scores, trained once."""
    folder, made = tmp_path_factory.mktemp("scales"), {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = train_on(folder / name, tiny("bert"), *SCALES[name])
        return made[name]

    return get


@pytest.mark.parametrize("name", ["years", "tiny", "a million"])
def test_predictions_move_and_stretch_with_the_scores(run: Callable[[str], Path], name: str) -> None:
    offset, scale = SCALES[name]
    found_N, expected_N = predictions(run(name)), predictions(run("plain"))
    assert len(np.unique(expected_N)) == 24
    np.testing.assert_allclose((found_N - offset) / scale, expected_N, atol=2e-3)
    assert list(np.argsort(found_N)) == list(np.argsort(expected_N))
    written = [float(row["prediction"]) for row in csv.DictReader((run(name) / "predictions_validation.csv").open())]
    np.testing.assert_allclose(written, found_N, atol=1e-3 * max(scale, 0.001))


def test_years_are_not_rounded_in_lower_precision(run: Callable[[str], Path]) -> None:
    exact_N, lower_N = (predictions(run("years"), one) for one in ("fp32", "bf16"))
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


@pytest.mark.parametrize(("name", "value"), [("score_std", 0.0), ("score_std", float("inf")), ("score_mean", "5")])
def test_a_scale_that_no_run_has_is_refused(tiny: Tiny, tmp_path: Path, name: str, value: object) -> None:
    built = _fresh(tiny("bert"), (1985.0, 20.0))
    setattr(built[0].config, name, value)
    save_model(*built, tmp_path)
    (tmp_path / "config.yaml").write_text("training: {use_cpu: true}\n")
    with pytest.raises(CheckpointError, match=name):
        Predictor.load(tmp_path)
