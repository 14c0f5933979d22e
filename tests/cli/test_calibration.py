"""Calibration and thresholds: fitted at the end of a run or later, saved, obeyed by every way in, and taken back."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import pipeline

from attentune.data.dataset import TextRows
from attentune.data.load import load_data
from attentune.explain.explainer import answer_masked
from attentune.inference.predictor import Predictor, predict
from attentune.integrations.sklearn import AttentuneClassifier
from attentune.metrics.calibration import best_threshold, calibration_error, fit_temperature
from attentune.serving.backend import RunBackend
from attentune.training.run_folder import locked_folder
from helpers.samples import train_reviews, write_reviews

QUICK = ["--per_device_train_batch_size", "8", "--learning_rate", "2e-3", "--max_length", "24", "--precision", "fp32"]
FIT = ("--calibrate", "temperature", "--thresholds", "f1")


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory):
    """Rows; the run `plain`; `fitted`, which calibrates on more.csv; `cut`, on a part of its training rows."""
    folder = tmp_path_factory.mktemp("calibrated")
    write_reviews(folder / "more.csv", 50, seed=3)
    quick = (*QUICK, "--num_train_epochs", 3)
    train_reviews(folder, tiny("bert"), *quick, name="plain")
    train_reviews(folder, tiny("bert"), *quick, *FIT, "--calibration_file", folder / "more.csv", name="fitted")
    train_reviews(folder, tiny("bert"), *quick, *FIT, "--calibration_share", 0.3, "--preset", "ssa-co", name="cut")
    return folder


@pytest.fixture
def run(files, tmp_path):
    """A copy of the run that is not calibrated."""
    return Path(shutil.copytree(files / "plain", tmp_path / "run"))


def settings_of(run: Path) -> dict[str, object]:
    return json.loads((run / "config.json").read_text())


def kept(run: Path) -> dict[str, bytes]:
    """What calibrating leaves as it is."""
    changed = ("config.json", "README.md", "calibration.json", ".lock")
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name not in changed}


def columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, predictions and the probability of "good"."""
    rows = list(csv.DictReader(path.open()))
    labels, said = (np.array([row[name] == "good" for row in rows]) for name in ("label", "prediction"))
    return labels, said, np.array([float(row["p_good"]) for row in rows])


@pytest.mark.integration
def test_what_was_fitted_is_what_the_kept_rows_say(files):
    facts = json.loads((files / "cut/metrics.json").read_text())["train"]["calibration"]
    assert facts["rows"] == 18
    run = Predictor.load(files / "cut")
    assert run.model.config.calibration_temperature == pytest.approx(facts["temperature"])
    assert run.label_space.thresholds == (pytest.approx(facts["thresholds"]["good"]),)
    data = run.data(None, ("train",))
    assert (list(data.splits), len(data.splits["train"])) == (["train"], 42)
    # From outside: the rows that are not in train, the logits without temperature.
    rows = load_data(run.config.data, seed=run.config.training.seed).splits["calibration"]
    assert not set(rows.ids) & set(data.splits["train"].ids)
    run.model.config.calibration_temperature = 1.0
    logits = np.log([list(one["probabilities"].values()) for one in predict(run, list(rows.texts))])
    assert facts["temperature"] == pytest.approx(fit_temperature(logits, rows.labels), rel=1e-2)
    shares = 1 / (1 + np.exp((logits[:, 0] - logits[:, 1]) / facts["temperature"]))
    assert facts["thresholds"]["good"] == pytest.approx(best_threshold(shares, rows.labels == 1), abs=1e-3)


@pytest.mark.integration
def test_the_errors_are_of_the_validation_rows(files):
    run = files / "cut"
    facts = json.loads((run / "metrics.json").read_text())["train"]["calibration"]
    labels, said, shares = columns(run / "predictions_validation.csv")
    told = np.abs(shares - facts["thresholds"]["good"]) > 1e-5  # the file has six digits
    assert said[told].tolist() == (shares[told] >= facts["thresholds"]["good"]).tolist()
    likeliest = shares >= 0.5
    after = calibration_error(np.where(likeliest, shares, 1 - shares), likeliest == labels)
    errors = facts["expected_calibration_error"]
    assert list(errors) == ["validation"]
    assert errors["validation"]["after"] == pytest.approx(after, abs=1e-3)
    plain = 1 / (1 + np.exp(-np.log(shares / (1 - shares)) * facts["temperature"]))
    before = calibration_error(np.where(likeliest, plain, 1 - plain), likeliest == labels)
    assert errors["validation"]["before"] == pytest.approx(before, abs=1e-2)
    note = json.loads((run / "run.json").read_text())["notes"][-1]
    assert note.startswith("Calibrated on 18 rows: logits are divided by ")
    assert "expected calibration error on validation" in note
    assert "Calibrated on 18 rows" in (run / "README.md").read_text()


@pytest.mark.integration
def test_every_way_in_says_what_a_threshold_turns(attentune, files, tmp_path):
    """With the threshold at the middle of what the rows have, whatever the fit was: the likeliest class is another."""
    run = tmp_path / "run"
    shutil.copytree(files / "cut", run, ignore=shutil.ignore_patterns("checkpoint-*"))
    texts = [row["text"] for row in csv.DictReader((files / "dev.csv").open())]
    shares = columns(run / "predictions_validation.csv")[2]
    threshold = float(np.median(shares) + 1e-4)
    (run / "config.json").write_text(json.dumps(settings_of(run) | {"thresholds": [threshold]}))
    expected = np.where(shares >= threshold, "good", "bad").tolist()
    turned = [number for number, share in enumerate(shares) if (share >= 0.5) != (share >= threshold)]
    assert turned, "the rows lie on one side of a half"
    out, _ = attentune.done("predict", run, "--input_file", files / "dev.csv")
    assert [row["prediction"] for row in csv.DictReader(io.StringIO(out))] == expected
    assert [one["prediction"] for one in predict(run, texts)] == expected
    classify = pipeline("text-classification", model=str(run))
    assert [one["label"] for one in classify(texts, truncation=True)] == expected
    saved = Predictor.load(run)
    backend = RunBackend(saved, name="run")
    for number in turned[:2]:
        said, _, _ = answer_masked(saved, TextRows(("0",), (texts[number],), None, None, "text"), [])
        shares_by_name = said["probabilities"]
        assert said["prediction"] == expected[number] != max(shares_by_name, key=shares_by_name.get)
        assert backend.predict([(texts[number], None)])[0]["prediction"] == expected[number]
        assert backend.mask((texts[number], None), [])["after"]["prediction"] == expected[number]
    out, _ = attentune.done("explain", run, "--text", texts[turned[0]], "--method", "ssa", "--format", "json")
    assert json.loads(out)["label"] == expected[turned[0]]


@pytest.mark.integration
def test_a_run_that_starts_from_a_calibrated_one_begins_without_its_temperature(files, tmp_path):
    assert settings_of(files / "fitted")["calibration_temperature"] != 1
    second = train_reviews(tmp_path, files / "fitted", *QUICK, "--max_steps", 1)
    assert settings_of(second).get("calibration_temperature", 1.0) == 1.0


def test_calibrating_on_a_file_changes_no_weight(files):
    prints = json.loads((files / "fitted/run.json").read_text())["data_fingerprint"]
    assert list(prints) == ["train", "calibration", "validation"]
    one, other = ((files / name / "model.safetensors").read_bytes() for name in ("plain", "fitted"))
    assert one == other


def test_the_estimator_calibrates_too(tiny, files):
    rows = list(csv.DictReader((files / "train.csv").open()))
    own = {"training.thresholds": "f1", "data.calibration_share": 0.3, "training.use_cpu": True}
    made = AttentuneClassifier(
        model_name_or_path=str(tiny("bert")), num_train_epochs=1, max_length=24, settings=own, random_state=1
    ).fit([row["text"] for row in rows], [row["label"] for row in rows])
    (threshold,) = made.run_.label_space.thresholds
    texts = [row["text"] for row in rows[:20]]
    expected = np.where(made.predict_proba(texts)[:, 1] >= threshold, "good", "bad")
    assert made.predict(texts).tolist() == expected.tolist()


def test_a_finished_run_gets_what_training_would_have_given_it(attentune, files, run):
    before = kept(run)
    words = ("calibrate", run, "--validation_file", files / "more.csv", "--thresholds", "f1", "--format", "json")
    out, _ = attentune.done(*words)
    facts = json.loads(out)
    wanted = json.loads((files / "fitted/metrics.json").read_text())["train"]["calibration"]
    assert facts["rows"] == wanted["rows"] == 50
    for name in ("temperature", "thresholds"):
        assert facts[name] == pytest.approx(wanted[name], rel=1e-6)
    assert facts["before"] == {"temperature": 1.0, "thresholds": None}
    assert json.loads((run / "calibration.json").read_text()) == facts
    assert list(facts["expected_calibration_error"]["these rows"]) == ["before", "after"]
    prints = json.loads((files / "fitted/run.json").read_text())["data_fingerprint"]
    assert facts["data_fingerprint"] == {"validation": prints["calibration"]}
    assert kept(run) == before
    card = (run / "README.md").read_text()
    assert "not calibrated" not in card
    assert "- Calibrated on 50 rows: logits are divided by" in card
    assert "This was fitted after the run: the scores above are of before" in card
    texts = [row["text"] for row in csv.DictReader((files / "dev.csv").open())]
    for ours, theirs in zip(predict(run, texts), predict(files / "fitted", texts), strict=True):
        assert ours["prediction"] == theirs["prediction"]
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)


def test_it_is_fitted_anew_and_taken_back(attentune, files, run):
    first, card = settings_of(run), (run / "README.md").read_text()
    said = attentune("predict", run, "--input_file", files / "dev.csv")[1]
    more = ("--validation_file", files / "more.csv")
    assert attentune("calibrate", run, *more, "--thresholds", "f1")[0] == 0
    once = json.loads((run / "calibration.json").read_text())
    # Fitted to the model's own logits, whatever temperature it had.
    assert attentune("calibrate", run, *more)[0] == 0
    twice = json.loads((run / "calibration.json").read_text())
    assert (twice["temperature"], twice["thresholds"]) == (pytest.approx(once["temperature"], rel=1e-6), None)
    assert twice["before"] == {"temperature": once["temperature"], "thresholds": [once["thresholds"]["good"]]}
    errors = twice["expected_calibration_error"]["these rows"]
    assert errors["before"] == pytest.approx(errors["after"])
    assert (run / "README.md").read_text().count("Calibrated on ") == 1
    out, _ = attentune.done("calibrate", run, "--calibrate", "none")
    assert out == f"{run}: Probabilities are those of the model, not calibrated.\n"
    assert settings_of(run) == first | {"calibration_temperature": 1.0, "thresholds": None}
    assert (run / "README.md").read_text() == card
    assert attentune("predict", run, "--input_file", files / "dev.csv")[1] == said


def test_what_cannot_be_calibrated_is_refused(attentune, files, run, tmp_path):
    before = settings_of(run)
    (tmp_path / "unlabelled.csv").write_text("text,label\na,\nb,\n")
    (tmp_path / "odd.csv").write_text("text,label\na,fine\n")
    for words, message in (
        ((run, "--split", "train"), "--split: got 'train', expected validation or test"),
        ((next(run.glob("checkpoint-*")),), "is a checkpoint, which stays as it was written"),
        ((run, "--validation_file", tmp_path / "odd.csv"), "unknown labels: 'fine'"),
        ((run, "--test_file", tmp_path / "unlabelled.csv", "--split", "test"), "has no labelled rows"),
    ):
        status, _, err = attentune("calibrate", *words)
        assert (status, message in err) == (2, True), err
    with locked_folder(run):
        status, _, err = attentune("calibrate", run)
    assert (status, "another process is training in this folder" in err) == (2, True)
    assert settings_of(run) == before
    assert not (run / "calibration.json").exists()
