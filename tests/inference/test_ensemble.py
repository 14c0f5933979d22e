"""Ensembles predict the fusion of their members' predictions, and load whole folders only."""

import dataclasses
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attentune import Predictor, evaluate, predict
from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace, TaskData
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference import ensemble as ensembles
from attentune.inference.ensemble import EnsemblePredictor, save_ensemble
from attentune.inference.fusion import Fusion
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.metrics.metrics import probabilities_of
from helpers.samples import write_reviews
from helpers.tiny_runs import SPACES, TEXTS, rows_for, saved_ensemble, saved_model

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


@pytest.mark.parametrize("kind", ["classification", "pair", "regression", "ordinal", "multi_label"])
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


def test_an_ensemble_is_evaluated_like_any_run(folder):
    saved = Predictor.load(folder)
    scores = evaluate(folder)["validation"]
    assert evaluate(saved) == {"validation": scores}
    rows = saved.data(None, ("validation",)).splits["validation"]
    predictions = [line["prediction"] for line in predict(saved, rows.texts)]
    right = [name == saved.label_space.names[label] for name, label in zip(predictions, rows.labels, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert predict(folder, []) == []


def test_precisions_reach_the_members(folder):
    rows = rows_for("classification")
    fp32, bf16 = (predict_rows(folder, rows, precision=name) for name in ("fp32", "bf16"))
    np.testing.assert_allclose(bf16, fp32, atol=0.05)
    assert (bf16 != fp32).any()
    with pytest.raises(ConfigError, match=r"training\.precision: got 'fp8'"):
        predict_rows(folder, rows, precision="fp8")


def test_progress_counts_each_row_once(folder):
    counts: list[int] = []
    rows = rows_for("classification")
    predict_rows(folder, rows, progress=counts.append)
    assert sum(counts) == len(rows)
    assert min(counts) > 0


def test_an_ensemble_may_be_moved(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    assert predict(tmp_path / "moved", TEXTS) == predict(folder, TEXTS)


def test_members_that_do_not_fit_in_memory_are_loaded_for_each_prediction(folder, monkeypatch):
    kept = Predictor.load(folder)
    rows = rows_for("classification")
    expected = predict_rows(kept, rows)
    monkeypatch.setattr(ensembles, "KEPT_BYTES", 1000)
    loads: list[Path] = []
    original = Predictor.load
    monkeypatch.setattr(Predictor, "load", lambda path, task=None: loads.append(path) or original(path, task))
    dropped = original(folder)
    for _ in range(2):
        np.testing.assert_array_equal(predict_rows(dropped, rows), expected)
    assert len(loads) == 6
    loads.clear()
    predict_rows(kept, rows)
    assert not loads


def test_members_are_saved_relative_and_only_those_of_the_fusion(folder, tmp_path):
    folder = Path(shutil.copytree(folder, tmp_path / "run"))
    runs, space = {"bert": member_runs(folder, "bert"), "unused": [tmp_path / "nowhere"]}, SPACES["classification"]
    save_ensemble(folder, runs, Fusion.weighted("single", {"bert": 1}, "classification"), space, False)
    content = json.loads((folder / "ensemble.json").read_text())
    assert content["members"] == [{"name": "bert", "folders": ["members/bert/fold-1", "members/bert/fold-2"]}]
    save_ensemble(
        folder,
        {"bert": ["members/bert/fold-1"], "roberta": ["members/roberta/fold-1"]},
        Fusion.weighted("greedy", {"bert": 3, "roberta": 1}, "classification"),
        SPACES["classification"],
        False,
    )
    assert len(predict(folder, TEXTS)) == len(TEXTS)


def test_what_cannot_be_saved_is_refused(folder, tmp_path):
    space, fusion = SPACES["classification"], Fusion.weighted("single", {"bert": 1}, "classification")
    with pytest.raises(ValueError, match="expected also bert"):
        save_ensemble(folder, {"roberta": ["members/roberta/fold-1"]}, fusion, space, False)
    with pytest.raises(ValueError, match="got one of classification logits, expected regression"):
        save_ensemble(folder, {"bert": ["members/bert/fold-1"]}, fusion, LabelSpace("regression"), False)
    with pytest.raises(CheckpointError, match="lies outside"):
        save_ensemble(folder, {"bert": [tmp_path]}, fusion, space, False)
    with pytest.raises(CheckpointError, match=r"fold-9: there is no such folder"):
        save_ensemble(folder, {"bert": ["members/bert/fold-9"]}, fusion, space, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "its format is 2, expected 1"),
        ({"members": []}, "are not those of its fusion"),
        ({"members": [{"name": "bert", "folders": ["../elsewhere"]}]}, "expected one inside the ensemble's folder"),
        ({"members": [{"name": "bert", "folders": ["/etc"]}]}, "expected one inside the ensemble's folder"),
        ({"members": [{"name": "bert", "folders": []}]}, "has no folders"),
        ({"members": [{"name": "bert", "folders": [3]}]}, "does not describe an ensemble"),
        ({"fusion": {}}, "does not describe a fusion"),
        ({"fusion": None}, "does not describe a fusion"),
        ({"label_space": {"task_type": "poetry"}}, "does not describe an ensemble"),
        ({"label_space": []}, "does not describe an ensemble"),
        ({"label_space": {**SPACE, "thresholds": [0.5, 0.5]}}, "which do not fit its 2 labels"),
        ({"label_space": {**SPACE, "thresholds": [math.nan]}}, "which do not fit its 2 labels"),
        ({"label_space": {**SPACE, "names": ["bad", 1]}}, "expected a task type of"),
        ({"is_pair": "no"}, "is_pair: got 'no', expected true or false"),
    ],
)
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


def test_pairs_given_to_an_ensemble_of_single_texts_are_refused(folder):
    with pytest.raises(DataError, match="got pairs of texts, but .* was trained on single texts"):
        predict(folder, ["a"], ["b"])


def test_an_ensemble_is_no_single_model(folder):
    saved = Predictor.load(folder)
    with pytest.raises(ConfigError, match=r"export: got .*, an ensemble of 2, .*--deliver single"):
        saved.single_model("export")
    model = Predictor.load(member_runs(folder, "bert")[0])
    assert isinstance(model, ModelPredictor)
    assert model.single_model("export") is model
    assert isinstance(saved, EnsemblePredictor)
    assert replace(saved, label_space=replace(saved.label_space, thresholds=(0.5, 0.5))).label_space.thresholds
    data = TaskData("input", saved.label_space, ("accuracy",), {"input": rows_for("classification")})
    assert saved.evaluator(data).predict("input").shape == (len(TEXTS), 2)
