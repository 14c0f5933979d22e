"""`attentune report`: run folders together, texts of rows, and the names of data."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from attentune.cli.report import texts_of
from attentune.config import load_config
from attentune.data.load import load_data
from attentune.report.analysis import compare_methods
from attentune.report.contents import make_report
from attentune.report.load import collect
from attentune.report.writing import write_report
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
    words = ("report", *folders, "--output_file", tmp_path / "r.md", "--figures", tmp_path / "f")
    out, _ = attentune.done(*words, "--baseline", "sesame-weighted")
    assert out == ""
    cells = compare_methods(collect([str(folder) for folder in folders]).runs, "sesame-weighted").to_dict()["cells"]
    assert [(cell["method"], cell["n"]) for cell in cells] == [("bert", 2), ("sesame-weighted", 2)]
    scores = [json.loads((folder / "run.json").read_text())["scores"]["validation"]["accuracy"] for folder in folders]
    assert cells[0]["mean"] == pytest.approx(sum(scores[:2]) / 2)
    assert "The baseline is sesame-weighted." in (tmp_path / "r.md").read_text()
    assert (tmp_path / "f/seeds-train-csv.svg").is_file()
    facts = json.loads((folders[0] / "run.json").read_text())["train"]
    assert facts["parameters"] > facts["added_parameters"] > 0
    assert f"{facts['parameters']:,}" in (tmp_path / "r.md").read_text()


ROWS = [("a fine film", "yes"), ("a dull film", "no"), ("fine again", "yes"), ("dull again", "no")]


@pytest.fixture
def recorded(tmp_path):
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


def test_texts_are_read(recorded):
    found = texts_of(recorded)["train.csv"]
    assert [text for text, _ in found.texts.values()][:2] == ["a fine film dev", "a dull film dev"]
    assert found.problem == ""


def test_changed_missing_and_large_files_are_not_read(recorded, tmp_path, monkeypatch):
    (tmp_path / "dev.csv").write_text("sentence,label\nsecret,yes\n")
    found = texts_of(recorded)["train.csv"]
    assert found.texts == {}
    assert found.problem == (
        "The texts are not shown: the data files have other rows than those that the run was scored on."
    )
    monkeypatch.setattr("attentune.data.load.MOST_SHOWN_BYTES", 10)
    assert "a report does not read train.csv: it is larger than" in texts_of(recorded)["train.csv"].problem
    (tmp_path / "train.csv").unlink()
    (tmp_path / "dev.csv").unlink()
    assert "train.csv" in texts_of(recorded)["train.csv"].problem


def test_a_hub_data_set_is_not_loaded(recorded):
    record = recorded[0].record
    data = {**record.config["data"], "dataset_name": "some/set", "train_file": None, "validation_file": None}
    changed = dataclasses.replace(record, config={**record.config, "data": data})
    found = texts_of([dataclasses.replace(recorded[0], record=changed)])["train.csv"]
    assert found.problem == "The texts are not shown: a report does not load the data set some/set."


@pytest.mark.integration
def test_the_page_shows_texts_unless_told_not_to(recorded, tmp_path, attentune):
    words = ("report", tmp_path / "c", "--output_file")
    assert attentune(*words, tmp_path / "with.html")[:2] == (0, "")
    assert attentune(*words, tmp_path / "without.html", "--no_texts")[:2] == (0, "")
    assert "dull film dev" in (tmp_path / "with.html").read_text()
    assert "dull film dev" not in (tmp_path / "without.html").read_text()


# Custom data is named by its file in everything that is printed; "own" is only in names of folders


def write_run(folder: Path, file: str, method: str = "bert", *, fingerprint: str | None = None, **data: Any) -> None:
    rows = predictions(["no", "yes"] * 5, ["no", "yes"] * 4 + ["yes", "no"], ["no", "yes"])
    prints = {"train": f"train {fingerprint or file}", "validation": fingerprint or file}
    settings = {"data.train_file": file, **{f"data.{name}": value for name, value in data.items()}}
    run = Run("own", None, method, 1)
    write_record(folder, run, rows, score=0.8, settings=settings, data_fingerprint=prints)


def names_of(*folders: Path) -> list[str]:
    return [one.record.run.task for one in collect([str(folder) for folder in folders]).runs]


def test_the_name_is_that_of_the_file_or_data_set(tmp_path):
    write_run(tmp_path / "file", "/data/private/reviews.csv")
    write_run(tmp_path / "set", "", dataset_name="some/set")
    assert names_of(tmp_path / "file") == ["reviews.csv"]
    assert names_of(tmp_path / "set") == ["some/set"]


def test_files_of_one_name_are_told_apart_if_their_rows_differ(tmp_path):
    for name, file in {"1": "x/a/reviews.csv", "2": "/x/b/reviews.csv", "3": "c/tweets.csv"}.items():
        write_run(tmp_path / name, file)
    folders = [tmp_path / name for name in "123"]
    assert names_of(*folders) == ["a/reviews.csv", "b/reviews.csv", "tweets.csv"]
    # The same rows at another place are the same data.
    write_run(tmp_path / "4", "y/a/reviews.csv", "sesame", fingerprint="x/a/reviews.csv")
    assert names_of(tmp_path / "1", tmp_path / "4") == ["reviews.csv", "reviews.csv"]


@pytest.mark.parametrize("kind", ["html", "md", "tex"])
def test_reports_have_the_names(tmp_path, kind):
    for folder in ("a", "b"):
        for method in ("bert", "sesame"):
            write_run(tmp_path / folder, f"{folder}/reviews.csv", method)
    file = tmp_path / f"report.{kind}"
    write_report(make_report(collect([str(tmp_path / "a"), str(tmp_path / "b")])), file)
    text = file.read_text(encoding="utf-8")
    assert "a/reviews.csv" in text
    assert not re.search(r"\bown(:| data|,|\")", text)
