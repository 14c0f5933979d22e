"""Ensembles fuse their members' predictions, and load whole folders only; fusions in plain loops."""

import dataclasses
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from attentune import Predictor, evaluate, predict
from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace, TaskData
from attentune.errors import CheckpointError, ConfigError
from attentune.inference import ensemble as ensembles
from attentune.inference.ensemble import EnsemblePredictor, save_ensemble
from attentune.inference.fusion import Fusion, fusion_features, mean_logits
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.metrics.metrics import probabilities_of
from helpers.samples import write_reviews
from helpers.tiers import leading
from helpers.tiny_runs import SPACES, TEXTS, rows_for, saved_ensemble, saved_model

DAMAGED = yaml.safe_load(Path(__file__).with_name("damaged.yaml").read_text("utf-8"))

SPACE = dataclasses.asdict(SPACES["classification"])
TOPICS = LabelSpace("multi_label", ("a", "b", "c"), thresholds=(0.4, 0.5, 0.6))


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("ensemble")
    write_reviews(home / "validation.csv", 12)
    data = DataConfig(validation_file=str(home / "validation.csv"), text_column="text", label_column="label")
    return saved_ensemble(home / "run", tiny, data=data)


def member_runs(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "members" / name).iterdir())


@leading("kind", ["pair", "multi_label", "classification", "regression", "ordinal"], fast=2)
def test_an_ensemble_averages_what_its_members_predict(tiny, tmp_path, kind):
    space = SPACES.get(kind, TOPICS)
    run = saved_ensemble(tmp_path / "run", tiny, kind, space=space)
    rows = rows_for(kind)
    saved = Predictor.load(run)
    assert (saved.label_space, saved.is_pair, saved.kind) == (space, kind == "pair", "ensemble of 2")
    logits_NC = predict_rows(saved, rows)

    def outputs(place: Path) -> np.ndarray:
        raw = predict_rows(place, rows).astype(np.float64)
        return raw if kind == "regression" else probabilities_of(raw, space)

    bags = [np.mean([outputs(place) for place in member_runs(run, name)], axis=0) for name in ("bert", "roberta")]
    expected = 0.75 * bags[0] + 0.25 * bags[1]
    got = logits_NC if kind == "regression" else probabilities_of(logits_NC, space)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert np.ptp(got) > 0


def test_a_linear_fusion_of_an_ensemble(tiny, tmp_path):
    run = saved_ensemble(tmp_path / "run", tiny, "regression")
    linear = Fusion.linear(("bert", "roberta"), "regression", np.array([[2.0], [-1.0]]), np.array([3.0]))
    members = {name: member_runs(run, name) for name in ("roberta", "bert")}
    save_ensemble(run, members, linear, SPACES["regression"], False)
    rows = rows_for("regression")
    bert = np.mean([predict_rows(place, rows).astype(float) for place in members["bert"]], axis=0)
    roberta = predict_rows(members["roberta"][0], rows)
    np.testing.assert_allclose(predict_rows(run, rows), 2 * bert - roberta + 3, rtol=1e-6)


def test_an_ensemble_is_evaluated_moved_and_rounded_like_any_run(folder, tmp_path):
    saved = Predictor.load(folder)
    scores = evaluate(folder)["validation"]
    assert evaluate(saved) == {"validation": scores}
    rows = saved.data(None, ("validation",)).splits["validation"]
    predictions = [line["prediction"] for line in predict(saved, rows.texts)]
    right = [name == saved.label_space.names[label] for name, label in zip(predictions, rows.labels, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert predict(folder, []) == []
    # Progress counts each row once.
    counts: list[int] = []
    rows = rows_for("classification")
    predict_rows(folder, rows, progress=counts.append)
    assert sum(counts) == len(rows)
    assert min(counts) > 0
    # Precisions reach the members.
    fp32, bf16 = (predict_rows(folder, rows, precision=name) for name in ("fp32", "bf16"))
    np.testing.assert_allclose(bf16, fp32, atol=0.05)
    assert (bf16 != fp32).any()
    with pytest.raises(ConfigError, match=r"training\.precision: got 'fp8'"):
        predict_rows(folder, rows, precision="fp8")
    # An ensemble may be moved.
    shutil.copytree(folder, tmp_path / "moved")
    assert predict(tmp_path / "moved", TEXTS) == predict(folder, TEXTS)


def test_members_that_do_not_fit_in_memory_are_loaded_for_each_prediction(folder, monkeypatch):
    kept = Predictor.load(folder)
    rows = rows_for("classification")
    expected = predict_rows(kept, rows)
    monkeypatch.setattr(ensembles, "KEPT_BYTES", 1000)
    loads: list[Path] = []
    original = Predictor.load
    monkeypatch.setattr(Predictor, "load", lambda path: loads.append(path) or original(path))
    dropped = original(folder)
    for _ in range(2):
        np.testing.assert_array_equal(predict_rows(dropped, rows), expected)
    assert len(loads) == 6
    loads.clear()
    predict_rows(kept, rows)
    assert not loads


def test_members_are_saved_relative(folder, tmp_path):
    folder = Path(shutil.copytree(folder, tmp_path / "run"))
    runs, space = {"bert": member_runs(folder, "bert"), "unused": [tmp_path / "nowhere"]}, SPACES["classification"]
    save_ensemble(folder, runs, Fusion.weighted("single", {"bert": 1}, "classification"), space, False)
    content = json.loads((folder / "ensemble.json").read_text())
    assert content["members"] == [{"name": "bert", "folders": ["members/bert/fold-1", "members/bert/fold-2"]}]
    save_ensemble(
        folder,
        {"bert": ["members/bert/fold-1"], "roberta": ["members/roberta/fold-1"]},
        Fusion.weighted("weights", {"bert": 3, "roberta": 1}, "classification"),
        SPACES["classification"],
        False,
    )
    assert len(predict(folder, TEXTS)) == len(TEXTS)


@pytest.mark.parametrize(("changes", "said"), DAMAGED["ensembles"])
def test_a_damaged_ensemble_is_refused(folder, tmp_path, changes, said):
    content = json.loads((folder / "ensemble.json").read_text()) | changes
    (tmp_path / "ensemble.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="does not describe an ensemble") as caught:
        Predictor.load(tmp_path)
    assert said in str(caught.value)
    (tmp_path / "ensemble.json").write_text("{")
    with pytest.raises(CheckpointError, match="does not describe an ensemble"):
        Predictor.load(tmp_path)


def test_missing_and_foreign_members_are_refused(tiny, tmp_path):
    run = saved_ensemble(tmp_path / "run", tiny, members={"bert": 1})
    place = member_runs(run, "bert")[0]
    shutil.rmtree(place)
    with pytest.raises(CheckpointError, match=r"member members/bert/fold-1 is missing; use a whole copy"):
        Predictor.load(run)
    saved_model(place, tiny("bert"), LabelSpace("classification", ("yes", "no")))
    with pytest.raises(CheckpointError, match="but predicts other labels"):
        predict(run, TEXTS)
    (place / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"fold-1: "):
        predict(run, TEXTS)


def test_an_ensemble_is_no_single_model(folder):
    saved = Predictor.load(folder)
    with pytest.raises(ConfigError, match=r"export: got .* \(ensemble of 2\), .*--deliver single"):
        saved.single_model("export")
    model = Predictor.load(member_runs(folder, "bert")[0])
    assert isinstance(model, ModelPredictor)
    assert model.single_model("export") is model
    assert isinstance(saved, EnsemblePredictor)
    assert replace(saved, label_space=replace(saved.label_space, thresholds=(0.5, 0.5))).label_space.thresholds
    data = TaskData("input", saved.label_space, ("accuracy",), {"input": rows_for("classification")})
    assert saved.evaluator(data).predict("input").shape == (len(TEXTS), 2)


# Fusions against plain loops over rows, and what they refuse.


NAMES = ("a", "b", "c")
GENERATOR = np.random.default_rng(0)
LOGITS = {name: GENERATOR.normal(size=(7, 3)) * 3 for name in NAMES}
SCORES = {name: GENERATOR.normal(size=(7, 1)) for name in NAMES}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(
    ("task_type", "logits", "shares_of", "share_of"),
    [
        ("classification", LOGITS, softmax, np.exp),
        ("ordinal", LOGITS, softmax, np.exp),
        ("multi_label", LOGITS, lambda values: [sigmoid(value) for value in values], np.vectorize(sigmoid)),
        ("regression", SCORES, list, np.array),
    ],
)
def test_the_weighted_mean_of_probabilities_or_scores(task_type, logits, shares_of, share_of):
    for weights in (WEIGHTS, {"a": 1.0, "b": 0.0}):
        fusion = Fusion.weighted("weights", weights, task_type)
        assert Fusion.from_json(json.loads(json.dumps(dataclasses.asdict(fusion)))) == fusion
        for row, fused_C in enumerate(fusion.apply(logits)):
            shares = {name: shares_of(logits[name][row]) for name in weights}
            mean = [sum(weights[name] * shares[name][k] for name in weights) for k in range(len(fused_C))]
            np.testing.assert_allclose(share_of(fused_C), mean, rtol=1e-12)


def test_a_linear_fusion():
    coefficients, bias = GENERATOR.normal(size=(6, 3)), GENERATOR.normal(size=3)
    fusion = Fusion.linear(("b", "a"), "classification", coefficients, bias)
    assert Fusion.from_json(json.loads(json.dumps(dataclasses.asdict(fusion)))) == fusion
    fused_NC = fusion.apply(LOGITS)
    for row in range(7):
        inputs = [math.log(share) for name in ("b", "a") for share in softmax(LOGITS[name][row])]
        sums = [sum(x * coefficients[i, k] for i, x in enumerate(inputs)) + bias[k] for k in range(3)]
        np.testing.assert_allclose(np.exp(fused_NC[row]), softmax(sums), rtol=1e-10)
    raw_NC = Fusion.linear(("b",), "multi_label", coefficients[:3], bias).apply(LOGITS)
    np.testing.assert_allclose(raw_NC, LOGITS["b"] @ coefficients[:3] + bias)
    score = Fusion.linear(("a",), "regression", np.array([[2.0]]), np.array([1.0])).apply(SCORES)
    np.testing.assert_allclose(score, 2 * SCORES["a"] + 1)


def test_certain_members_leave_finite_logits_and_inputs_of_a_linear_fusion_are_clipped():
    certain = [np.array([[900.0, -900.0, 0.0]]), np.array([[-900.0, 900.0, 0.0]])]
    assert all(np.isfinite(mean_logits(certain, task)).all() for task in ("classification", "multi_label"))
    logits = {"a": np.array([[0.0, 800.0]])}
    assert fusion_features(logits, ("a",), "classification").tolist() == [[-14.0, 0.0]]
    assert fusion_features(logits, ("a",), "multi_label").tolist() == [[0.0, 14.0]]
    assert fusion_features(logits, ("a",), "regression").tolist() == [[0.0, 800.0]]
    # Weights of members.
    assert Fusion.weighted("weights", {"a": 3, "b": 1, "c": 0}, "ordinal").member_weights() == {"a": 0.75, "b": 0.25}
    linear = Fusion.linear(("a", "b"), "regression", np.array([[-3.0], [1.0]]), np.array([0.0]))
    assert linear.member_weights() == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(("changes", "said"), DAMAGED["fusions"])
def test_a_damaged_fusion_is_refused(changes, said):
    whole = Fusion.weighted("weights", {"a": 1, "b": 1}, "regression")
    with pytest.raises(ValueError, match=said):
        Fusion.from_json(dataclasses.asdict(whole) | changes)
