"""`attentune report` on run folders, and what it refuses."""

from __future__ import annotations

import csv
import json

import pytest

from attentune.config import load_config
from attentune.training.train import train
from helpers.samples import settings


def test_run_folders_together_are_a_comparison(attentune, tiny, tmp_path):
    folders = []
    for preset in ("bert", "sesame"):
        for seed in (1, 2):
            folder = tmp_path / f"{preset}-{seed}"
            changes = {"training__output_dir": str(folder), "training__seed": seed, "training__num_train_epochs": 1}
            train(load_config(preset=preset, overrides=settings(tmp_path, tiny("bert"), **changes)))
            folders.append(folder)
    weights = folders[-1] / "layers.json"
    assert attentune("layers", folders[-1], "--output_file", weights)[0] == 0
    assert [line["layer"] for line in json.loads(weights.read_text())["validation"]] == [1, 2, 3]
    status, out, err = attentune(
        "report", *folders, "--output_file", tmp_path / "r.csv", "--figures", tmp_path / "f", "--baseline", "sesame"
    )
    assert (status, out) == (0, ""), err
    lines = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [(line["method"], line["baseline"], line["seeds"]) for line in lines] == [
        ("bert", "sesame", "2"),
        ("sesame", "sesame", "2"),
    ]
    scores = [json.loads((folder / "run.json").read_text())["scores"]["validation"]["accuracy"] for folder in folders]
    assert float(lines[0]["mean"]) == pytest.approx(sum(scores[:2]) / 2)
    assert (tmp_path / "f/layers-sesame-2.svg").is_file()
    assert attentune("report", *folders, "--output_file", tmp_path / "r.md")[0] == 0
    facts = json.loads((folders[0] / "run.json").read_text())["train"]
    assert facts["parameters"] > facts["added_parameters"] > 0
    assert f"{facts['parameters']:,}" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ((".", "--output_file", "r.docx"), ["r.docx: expected a name that ends in .html, .md, .csv, .tex"]),
        ((".",), ["--output_file: is missing; name the report: --output_file report.html"]),
        ((".", "--output_file", "."), ["--output_file: . is a folder, expected a file"]),
        ((".", "--figures", "here.txt"), ["--figures: here.txt is a file, expected a folder"]),
        ((".", "--output_fle", "r.md"), ["--output_fle: unknown flag. Did you mean '--output_file'"]),
        (("nowhere", "--output_file", "r.md"), ["nowhere: there is no such folder"]),
        ((".", "--output_file", "r.md"), [".: holds no finished run"]),
        ((), ["the following arguments are required: DIR"]),
    ],
)
def test_mistakes(attentune, tmp_path, monkeypatch, words, messages):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").write_text("")
    status, out, err = attentune("report", *words)
    assert (status, out) == (2, "")
    for message in messages:
        assert message in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["here.txt"]
