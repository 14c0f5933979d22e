"""The texts of a report's rows come from the data files, only while these are as the runs have read them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import attentune.cli.report as module
from attentune.cli.main import main
from attentune.cli.report import texts_of
from attentune.config import Config
from attentune.data.load import load_data
from attentune.report.load import RecordedRun, collect
from helpers.made_records import Run, predictions, write_record

ROWS = [("a fine film", "yes"), ("a dull film", "no"), ("fine again", "yes"), ("dull again", "no")]


@pytest.fixture
def recorded(tmp_path: Path) -> list[RecordedRun]:
    """A run on files of our own, whose fingerprint is that of the files."""
    for name in ("train", "dev"):
        lines = "".join(f"{text} {name},{label}\n" for text, label in ROWS)
        (tmp_path / f"{name}.csv").write_text(f"sentence,label\n{lines}")
    files = {"data.train_file": str(tmp_path / "train.csv"), "data.validation_file": str(tmp_path / "dev.csv")}
    data = load_data(
        dataclasses.replace(
            Config().data, train_file=files["data.train_file"], validation_file=files["data.validation_file"]
        ),
        seed=1,
    )
    labels = [label for _, label in ROWS]
    rows = predictions(labels, ["yes"] * 4, ["no", "yes"])
    for number, identifier in enumerate(data.splits["validation"].ids, start=1):
        rows[number][0] = identifier
    write_record(
        tmp_path / "c",
        Run("own", None, "bert", 1),
        rows,
        score=0.5,
        settings=files,
        data_fingerprint=data.fingerprint(),
    )
    return list(collect([str(tmp_path / "c")]).runs)


def test_texts_and_findings_are_read(recorded: list[RecordedRun]) -> None:
    found = texts_of(recorded)["train.csv"]
    assert [text for text, _ in found.texts.values()][:2] == ["a fine film dev", "a dull film dev"]
    assert found.problem == ""
    assert found.findings is not None
    assert any("rows" in finding.message for finding in found.findings)


def test_changed_missing_and_large_files_are_not_read(recorded, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dev.csv").write_text("sentence,label\nsecret,yes\n")
    found = texts_of(recorded)["train.csv"]
    assert (dict(found.texts), found.findings) == ({}, None)
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
def test_the_page_shows_texts_unless_told_not_to(recorded: list[RecordedRun], tmp_path: Path, capsys) -> None:
    folder = str(tmp_path / "c")
    assert main(["report", folder, "--output_file", str(tmp_path / "with.html")]) == 0
    assert main(["report", folder, "--output_file", str(tmp_path / "without.html"), "--no_texts"]) == 0
    assert "What the doctor says of the data" in (tmp_path / "with.html").read_text()
    assert "dull film dev" not in (tmp_path / "without.html").read_text()
    assert capsys.readouterr().out == ""
