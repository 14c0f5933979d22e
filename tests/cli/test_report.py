"""`attentune report`: run folders together, and the texts of rows, read from unchanged data files."""

import csv
import dataclasses
import json
from pathlib import Path

import pytest

import attentune.cli.report as module
from attentune.cli.report import texts_of
from attentune.config import load_config
from attentune.data.load import load_data
from attentune.report.load import RecordedRun, collect
from attentune.training.run import train
from helpers.made_records import Run, predictions, write_record
from helpers.samples import settings


@pytest.mark.integration
def test_run_folders_together_are_a_comparison(attentune, tiny, tmp_path):
    folders = []
    for preset in ("bert", "sesame-weighted"):
        for seed in (1, 2):
            folder = tmp_path / f"{preset}-{seed}"
            changes = {"training__output_dir": str(folder), "training__seed": seed, "training__num_train_epochs": 1}
            train(load_config(preset=preset, overrides=settings(tmp_path, tiny("bert"), **changes)))
            folders.append(folder)
    status, out, err = attentune(
        "report",
        *folders,
        "--output_file",
        tmp_path / "r.csv",
        "--figures",
        tmp_path / "f",
        "--baseline",
        "sesame-weighted",
    )
    assert (status, out) == (0, ""), err
    lines = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [(line["method"], line["baseline"], line["seeds"]) for line in lines] == [
        ("bert", "sesame-weighted", "2"),
        ("sesame-weighted", "sesame-weighted", "2"),
    ]
    scores = [json.loads((folder / "run.json").read_text())["scores"]["validation"]["accuracy"] for folder in folders]
    assert float(lines[0]["mean"]) == pytest.approx(sum(scores[:2]) / 2)
    assert (tmp_path / "f/seeds-train-csv.svg").is_file()
    assert attentune("report", *folders, "--output_file", tmp_path / "r.md")[0] == 0
    facts = json.loads((folders[0] / "run.json").read_text())["train"]
    assert facts["parameters"] > facts["added_parameters"] > 0
    assert f"{facts['parameters']:,}" in (tmp_path / "r.md").read_text()


ROWS = [("a fine film", "yes"), ("a dull film", "no"), ("fine again", "yes"), ("dull again", "no")]


@pytest.fixture
def recorded(tmp_path: Path) -> list[RecordedRun]:
    """A run on files of our own, whose fingerprint is that of the files."""
    for name in ("train", "dev"):
        lines = "".join(f"{text} {name},{label}\n" for text, label in ROWS)
        (tmp_path / f"{name}.csv").write_text(f"sentence,label\n{lines}")
    files = {"data.train_file": str(tmp_path / "train.csv"), "data.validation_file": str(tmp_path / "dev.csv")}
    data = load_data(load_config(overrides=files).data, seed=1)
    labels = [label for _, label in ROWS]
    rows = predictions(labels, ["yes"] * 4, ["no", "yes"])
    for number, identifier in enumerate(data.splits["validation"].ids, start=1):
        rows[number][0] = identifier
    facts = {"settings": files, "data_fingerprint": data.fingerprint()}
    write_record(tmp_path / "c", Run("own", None, "bert", 1), rows, score=0.5, **facts)
    return list(collect([str(tmp_path / "c")]).runs)


def test_texts_are_read(recorded: list[RecordedRun]) -> None:
    found = texts_of(recorded)["train.csv"]
    assert [text for text, _ in found.texts.values()][:2] == ["a fine film dev", "a dull film dev"]
    assert found.problem == ""


def test_changed_missing_and_large_files_are_not_read(recorded, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dev.csv").write_text("sentence,label\nsecret,yes\n")
    found = texts_of(recorded)["train.csv"]
    assert found.texts == {}
    assert found.problem == (
        "The texts are not shown: the data files have other rows than those that the runs were scored on."
    )
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert "train.csv is larger than" in texts_of(recorded)["train.csv"].problem
    (tmp_path / "train.csv").unlink()
    (tmp_path / "dev.csv").unlink()
    assert "train.csv" in texts_of(recorded)["train.csv"].problem


def test_a_hub_data_set_is_not_loaded(recorded: list[RecordedRun]) -> None:
    record = recorded[0].record
    data = {**record.config["data"], "dataset_name": "some/set", "train_file": None, "validation_file": None}
    changed = dataclasses.replace(record, config={**record.config, "data": data})
    found = texts_of([dataclasses.replace(recorded[0], record=changed)])["train.csv"]
    assert found.problem == "The texts are not shown: a report does not load the data set some/set."


@pytest.mark.integration
def test_the_page_shows_texts_unless_told_not_to(recorded: list[RecordedRun], tmp_path: Path, attentune) -> None:
    words = ("report", tmp_path / "c", "--output_file")
    assert attentune(*words, tmp_path / "with.html")[:2] == (0, "")
    assert attentune(*words, tmp_path / "without.html", "--no_texts")[:2] == (0, "")
    assert "dull film dev" in (tmp_path / "with.html").read_text()
    assert "dull film dev" not in (tmp_path / "without.html").read_text()
