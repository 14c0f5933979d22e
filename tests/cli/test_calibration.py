"""Calibration and thresholds through the command line: fitted on rows kept out, saved, and obeyed by every way in."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import pipeline

from attentune.config import load_config
from attentune.inference.predictor import Predictor, predict
from attentune.integrations.sklearn import AttentuneClassifier
from attentune.stats.calibration import best_threshold, calibration_error, fit_temperature
from helpers.samples import write_reviews

QUICK = (
    "--num_train_epochs",
    "3",
    "--per_device_train_batch_size",
    "8",
    "--learning_rate",
    "2e-3",
    "--max_length",
    "24",
)
ALIKE = ("--use_cpu", "--precision", "fp32", "--quiet")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "train.csv", 120, seed=1)
    write_reviews(folder / "dev.csv", 60, seed=2)
    write_reviews(folder / "more.csv", 50, seed=3)
    return folder


def flags(files: Path, tiny) -> tuple[object, ...]:
    own = ("--train_file", files / "train.csv", "--validation_file", files / "dev.csv")
    return (*own, "--model_name_or_path", tiny("bert"), *QUICK, *ALIKE)


@pytest.fixture(scope="module")
def trained(files: Path, tiny) -> Path:
    from attentune.cli.main import main

    more = ("--calibrate", "temperature", "--thresholds", "f1", "--calibration_share", "0.3")
    words = ("train", *flags(files, tiny), *more, "--preset", "ssa-co", "--output_dir", files / "run")
    assert main([str(word) for word in words]) == 0
    return files / "run"


def columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, predictions and the probability of "good"."""
    rows = list(csv.DictReader(path.open()))
    labels, said = (np.array([row[name] == "good" for row in rows]) for name in ("label", "prediction"))
    return labels, said, np.array([float(row["p_good"]) for row in rows])


@pytest.mark.integration
def test_what_was_fitted_is_what_the_kept_rows_say(files: Path, trained: Path) -> None:
    facts = json.loads((trained / "metrics.json").read_text())["train"]["calibration"]
    assert facts["rows"] == 36
    run = Predictor.load(trained)
    assert run.model.config.calibration_temperature == pytest.approx(facts["temperature"])
    assert run.label_space.thresholds == (pytest.approx(facts["thresholds"]["good"]),)
    data = run.data(None, ("train",))
    assert list(data.splits) == ["train"]
    assert len(data.splits["train"]) == 84

    # From outside: the rows that are not in train, the logits without temperature.
    from attentune.data.load import load_data

    rows = load_data(run.config.data, seed=run.config.training.seed).splits["calibration"]
    assert not set(rows.ids) & set(data.splits["train"].ids)
    run.model.config.calibration_temperature = 1.0
    logits = np.array([list(one["probabilities"].values()) for one in predict(run, list(rows.texts))])
    logits = np.log(logits)
    temperature = fit_temperature(logits, rows.labels)
    assert facts["temperature"] == pytest.approx(temperature, rel=1e-2)
    shares = 1 / (1 + np.exp((logits[:, 0] - logits[:, 1]) / facts["temperature"]))
    assert facts["thresholds"]["good"] == pytest.approx(best_threshold(shares, rows.labels == 1), abs=1e-3)


@pytest.mark.integration
def test_the_errors_are_of_the_validation_rows(files: Path, trained: Path) -> None:
    facts = json.loads((trained / "metrics.json").read_text())["train"]["calibration"]
    labels, said, shares = columns(trained / "predictions_validation.csv")
    told = np.abs(shares - facts["thresholds"]["good"]) > 1e-5  # the file has six digits
    assert said[told].tolist() == (shares[told] >= facts["thresholds"]["good"]).tolist()
    likeliest = shares >= 0.5
    after = calibration_error(np.where(likeliest, shares, 1 - shares), likeliest == labels)
    errors = facts["expected_calibration_error"]
    assert list(errors) == ["validation"]
    assert errors["validation"]["after"] == pytest.approx(after, abs=1e-3)
    logit = np.log(shares / (1 - shares)) * facts["temperature"]
    plain = 1 / (1 + np.exp(-logit))
    before = calibration_error(np.where(likeliest, plain, 1 - plain), likeliest == labels)
    assert errors["validation"]["before"] == pytest.approx(before, abs=1e-2)
    note = json.loads((trained / "run.json").read_text())["notes"][-1]
    assert note.startswith("Calibrated on 36 rows: logits are divided by ")
    assert "expected calibration error on validation" in note
    assert "Calibrated on 36 rows" in (trained / "README.md").read_text()


@pytest.mark.integration
def test_every_way_in_says_what_a_threshold_turns(attentune, files: Path, trained: Path, tmp_path: Path) -> None:
    """With the threshold at the middle of what the rows have, whatever the fit was: the likeliest class is another."""

    from attentune.data.dataset import TextRows
    from attentune.explain.explainer import answer
    from attentune.serving.backend import RunBackend

    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoint-*"))
    texts = [row["text"] for row in csv.DictReader((files / "dev.csv").open())]
    shares = columns(trained / "predictions_validation.csv")[2]
    threshold = float(np.median(shares) + 1e-4)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"thresholds": [threshold]}))
    expected = np.where(shares >= threshold, "good", "bad").tolist()
    turned = [number for number, share in enumerate(shares) if (share >= 0.5) != (share >= threshold)]
    assert turned, "the rows lie on one side of a half"
    status, out, _ = attentune("predict", run, "--input_file", files / "dev.csv")
    assert [row["prediction"] for row in csv.DictReader(io.StringIO(out))] == expected
    assert [one["prediction"] for one in predict(run, texts)] == expected
    classify = pipeline("text-classification", model=str(run))
    assert [one["label"] for one in classify(texts)] == expected
    saved = Predictor.load(run)
    backend = RunBackend(saved, name="run")
    for number in turned[:2]:
        said = answer(saved, TextRows(("0",), (texts[number],), None, None, "text"))
        assert said.prediction == expected[number] != max(said.probabilities, key=said.probabilities.get)
        assert backend.predict([(texts[number], None)])[0]["prediction"] == expected[number]
        assert backend.mask((texts[number], None), [])["after"]["prediction"] == expected[number]
    status, out, err = attentune("explain", run, "--text", texts[turned[0]], "--method", "ssa", "--format", "json")
    assert status == 0, err
    assert json.loads(out)["label"] == expected[turned[0]]


@pytest.mark.integration
def test_a_file_to_calibrate_on(attentune, tiny, files: Path, tmp_path: Path) -> None:
    more = ("--calibrate", "temperature", "--calibration_file", files / "more.csv", "--output_dir", tmp_path / "run")
    status, out, err = attentune("train", *flags(files, tiny), *more, "--format", "json")
    assert status == 0, err
    facts = json.loads(out)["train"]
    assert facts["rows"] == 120
    assert facts["calibration"]["rows"] == 50
    assert facts["calibration"]["thresholds"] is None
    prints = json.loads((tmp_path / "run" / "run.json").read_text())["data_fingerprint"]
    assert list(prints) == ["train", "calibration", "validation"]
    config = load_config(tmp_path / "run" / "config.yaml")
    assert config.training.calibrate == "temperature"
    # A run that starts from this one begins without its temperature.
    again = ("--model_name_or_path", tmp_path / "run", "--output_dir", tmp_path / "second", "--max_steps", "1")
    words = list(flags(files, tiny))
    words[words.index("--model_name_or_path") + 1] = tmp_path / "run"
    status, _, err = attentune("train", *words, *again[2:])
    assert status == 0, err
    assert json.loads((tmp_path / "second" / "config.json").read_text()).get("calibration_temperature", 1.0) == 1.0


def test_without_calibration_nothing_is_different(attentune, tiny, files: Path, tmp_path: Path) -> None:
    """The last weights of a run that calibrates on a file are those of the run that does not."""
    for name, more in (
        ("plain", ()),
        ("true", ("--calibrate", "temperature", "--calibration_file", files / "more.csv")),
    ):
        assert (
            attentune("train", *flags(files, tiny), "--output_dir", tmp_path / name, "--max_steps", "4", *more)[0] == 0
        )
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "true"))
    assert one == other


def test_the_estimator_calibrates_too(tiny, files: Path) -> None:
    rows = list(csv.DictReader((files / "train.csv").open()))
    own = {"training.thresholds": "f1", "data.calibration_share": 0.3, "training.use_cpu": True}
    made = AttentuneClassifier(
        model_name_or_path=str(tiny("bert")), num_train_epochs=1, max_length=24, settings=own, random_state=1
    ).fit([row["text"] for row in rows], [row["label"] for row in rows])
    (threshold,) = made.run_.label_space.thresholds
    texts = [row["text"] for row in rows[:20]]
    expected = np.where(made.predict_proba(texts)[:, 1] >= threshold, "good", "bad")
    assert made.predict(texts).tolist() == expected.tolist()
