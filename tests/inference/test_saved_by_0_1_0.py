"""Run folders and comparison folders that Attentune 0.1.0 wrote: they load, predict, and are scored and reported."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import attentune as package
from attentune.inference.predictor import Predictor

SAMPLES = Path(__file__).parents[1] / "data_samples" / "run-0.1.0"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the samples, which is the working directory: their settings have relative paths."""
    copy = tmp_path / "saved"
    shutil.copytree(SAMPLES, copy)
    monkeypatch.chdir(copy)
    return copy


def table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_probabilities_are_those_that_were_saved(folder: Path) -> None:
    saved = table(folder / "run" / "predictions_validation.csv")
    answers = package.predict(folder / "run", [row["text"] for row in table(folder / "dev.csv")])
    assert len(answers) == len(saved) == 12
    for answer, row in zip(answers, saved, strict=True):
        assert answer["prediction"] == row["prediction"]
        expected = {name: float(row[f"p_{name}"]) for name in ("bad", "good")}
        assert answer["probabilities"] == pytest.approx(expected, abs=2e-6)  # files have six decimals


def test_a_run_is_evaluated_predicted_and_reported(folder: Path, attentune: Command) -> None:
    status, out, err = attentune("evaluate", "run", "--format", "json")
    assert status == 0, err
    expected = json.loads((folder / "run" / "run.json").read_text())["scores"]
    assert json.loads(out) == {split: pytest.approx(scores, abs=1e-12) for split, scores in expected.items()}
    status, _, err = attentune("predict", "run", "--input_file", "dev.csv", "--output_file", "again.csv")
    assert status == 0, err
    before = table(folder / "run" / "predictions_validation.csv")
    assert [row["prediction"] for row in table(folder / "again.csv")] == [row["prediction"] for row in before]
    status, _, err = attentune("report", "run", "--output_file", "report.md")
    assert status == 0, err
    assert "ssa-hybrid" in (folder / "report.md").read_text()


@pytest.mark.integration
def test_a_comparison_opens_and_goes_on(folder: Path, attentune: Command) -> None:
    manifest = folder / "comparison" / "compare.json"
    fingerprints = json.loads(manifest.read_text())["made_from"]
    assert len(fingerprints) == 3
    records = {file: file.read_bytes() for file in (folder / "comparison" / "records").rglob("*.json")}
    flags = "--model_name_or_path encoder --train_file train.csv --validation_file dev.csv --output_dir comparison"
    flags += " --num_train_epochs 2 --learning_rate 0.01 --per_device_train_batch_size 4 --precision fp32 --use_cpu"
    words = ("compare", "--presets", "bert,ssa-hybrid", *flags.split(), "--max_length", "32", "--seeds")
    status, _, err = attentune(*words, "1,2")
    assert (status, "ssa-hybrid on own: labels.reuse_predictions: was True, now False" in err) == (2, True)
    defaults = ("labels.reuse_predictions=true", "model.head.combine=dot")  # of 0.1.0
    command = (*words[:-1], *(word for one in defaults for word in ("--set", one)), "--seeds")
    status, out, err = attentune(*command, "1,2")
    assert status == 0, err
    assert "ssa-hybrid" in out
    assert {file: file.read_bytes() for file in records} == records
    content = json.loads(manifest.read_text())
    assert content["data_fingerprints"] == fingerprints
    assert "made_from" not in content
    status, _, err = attentune("report", "comparison", "--output_file", "comparison.md")
    assert status == 0, err
    assert "ssa-hybrid" in (folder / "comparison.md").read_text()
    rows = (folder / "train.csv").read_text()
    (folder / "train.csv").write_text(rows + "t40,the film is very warm,good\n")
    status, _, err = attentune(*command, "1,2,3")
    assert status == 2
    assert "the train rows of own changed" in err


def test_the_old_name_of_the_predictor_warns_and_works(folder: Path) -> None:
    with pytest.warns(FutureWarning, match="Predictor"):
        old = package.SavedRun
    assert old is Predictor
    assert old.load(folder / "run").label_space.names == ("bad", "good")
