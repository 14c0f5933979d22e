"""`attentune calibrate`: a finished run gets what a run that calibrates at its end has, and gives it back."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from attentune.inference.predictor import Predictor, predict
from attentune.training.run_folder import locked_folder
from helpers.samples import write_reviews

QUICK = ("--num_train_epochs", "2", "--per_device_train_batch_size", "8", "--learning_rate", "2e-3")
ALIKE = ("--max_length", "24", "--use_cpu", "--precision", "fp32", "--quiet")


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows; the run `plain`; and `fitted`, which calibrates at its end on more.csv."""
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("calibrate")
    for seed, (name, rows) in enumerate((("train", 80), ("dev", 40), ("more", 50)), start=1):
        write_reviews(folder / f"{name}.csv", rows, seed=seed)
    own = ("--train_file", folder / "train.csv", "--validation_file", folder / "dev.csv")
    fit = ("--calibrate", "temperature", "--thresholds", "f1", "--calibration_file", folder / "more.csv")
    for name, more in (("plain", ()), ("fitted", fit)):
        words = ("train", *own, "--model_name_or_path", tiny("bert"), *QUICK, *ALIKE, *more)
        assert main([str(word) for word in (*words, "--output_dir", folder / name)]) == 0
    return folder


@pytest.fixture
def run(files: Path, tmp_path: Path) -> Path:
    """A copy of the run that is not calibrated."""
    shutil.copytree(files / "plain", tmp_path / "run")
    return tmp_path / "run"


def settings_of(run: Path) -> dict[str, object]:
    return json.loads((run / "config.json").read_text())


def kept(run: Path) -> dict[str, bytes]:
    """What calibrating leaves as it is."""
    changed = ("config.json", "README.md", "calibration.json", ".lock")
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name not in changed}


def test_a_finished_run_gets_what_training_would_have_given_it(attentune, files: Path, run: Path) -> None:
    before = kept(run)
    words = ("calibrate", run, "--validation_file", files / "more.csv", "--thresholds", "f1", "--format", "json")
    status, out, err = attentune(*words)
    assert status == 0, err
    facts = json.loads(out)
    wanted = json.loads((files / "fitted" / "metrics.json").read_text())["train"]["calibration"]
    assert facts["rows"] == wanted["rows"] == 50
    assert facts["temperature"] == pytest.approx(wanted["temperature"], rel=1e-6)
    assert facts["thresholds"] == pytest.approx(wanted["thresholds"], rel=1e-6)
    assert facts["before"] == {"temperature": 1.0, "thresholds": None}
    assert json.loads((run / "calibration.json").read_text()) == facts
    assert list(facts["expected_calibration_error"]["these rows"]) == ["before", "after"]
    prints = json.loads((files / "fitted" / "run.json").read_text())["data_fingerprint"]
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


def test_it_is_fitted_anew_and_taken_back(attentune, files: Path, run: Path) -> None:
    first, card = settings_of(run), (run / "README.md").read_text()
    status, out, _ = attentune("predict", run, "--input_file", files / "dev.csv")
    said = list(csv.DictReader(io.StringIO(out)))
    more = ("--validation_file", files / "more.csv")
    assert attentune("calibrate", run, *more, "--thresholds", "f1")[0] == 0
    once = json.loads((run / "calibration.json").read_text())
    # Fitted to the model's own logits, whatever temperature it had.
    assert attentune("calibrate", run, *more)[0] == 0
    twice = json.loads((run / "calibration.json").read_text())
    assert twice["temperature"] == pytest.approx(once["temperature"], rel=1e-6)
    assert twice["thresholds"] is None
    assert twice["before"] == {"temperature": once["temperature"], "thresholds": [once["thresholds"]["good"]]}
    errors = twice["expected_calibration_error"]["these rows"]
    assert errors["before"] == pytest.approx(errors["after"])
    assert (run / "README.md").read_text().count("Calibrated on ") == 1
    status, out, err = attentune("calibrate", run, "--calibrate", "none")
    assert status == 0, err
    assert out == f"{run}: Probabilities are those of the model, not calibrated.\n"
    assert settings_of(run) == first | {"calibration_temperature": 1.0, "thresholds": None}
    assert (run / "README.md").read_text() == card
    status, out, _ = attentune("predict", run, "--input_file", files / "dev.csv")
    assert list(csv.DictReader(io.StringIO(out))) == said


def test_its_own_validation_rows_and_thresholds_alone(attentune, run: Path) -> None:
    status, out, err = attentune("calibrate", run, "--calibrate", "none", "--thresholds", "f1")
    assert status == 0, err
    assert out.startswith(f"{run}: Calibrated on 40 rows: logits are divided by 1; thresholds 0.")
    assert Predictor.load(run).label_space.thresholds is not None


def test_what_cannot_be_is_refused(attentune, tiny, files: Path, run: Path, tmp_path: Path) -> None:
    before = settings_of(run)
    (tmp_path / "unlabelled.csv").write_text("text,label\na,\nb,\n")
    (tmp_path / "odd.csv").write_text("text,label\na,fine\n")
    checkpoint = next(run.glob("checkpoint-*"))
    for words, message in (
        (("calibrate", run, "--split", "train"), "--split: got 'train', expected validation or test"),
        (("calibrate", checkpoint), "is a checkpoint, which stays as it was written"),
        (("calibrate", tmp_path / "nowhere"), "nowhere"),
        (("calibrate", run, "--validation_file", tmp_path / "odd.csv"), "unknown labels: 'fine'"),
        (("calibrate", run, "--test_file", tmp_path / "unlabelled.csv", "--split", "test"), "has no labelled rows"),
    ):
        status, _, err = attentune(*words)
        assert (status, message in err) == (2, True), err
    with locked_folder(run):
        status, _, err = attentune("calibrate", run)
    assert (status, "another process is training in this folder" in err) == (2, True)
    assert settings_of(run) == before
    assert not (run / "calibration.json").exists()
