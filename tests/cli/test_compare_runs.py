"""`attentune compare` on runs of the command line: recorded scores, texts of changed rows, other splits."""

from __future__ import annotations

import csv
import json

import pytest

from helpers.samples import write_reviews


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """Two runs with different seeds on the same rows."""
    import contextlib
    import io

    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("pairs")
    write_reviews(folder / "train.csv", 60)
    write_reviews(folder / "dev.csv", 40)
    for seed in ("1", "2"):
        words = ["--train_file", folder / "train.csv", "--validation_file", folder / "dev.csv", "--seed", seed]
        words += ["--model_name_or_path", tiny("bert"), "--num_train_epochs", "1", "--use_cpu", "--max_length", "16"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(["train", *map(str, words), "--output_dir", str(folder / f"seed-{seed}"), "--quiet"]) == 0
    return folder


def test_scores_are_those_of_the_records_and_changed_rows_have_their_texts(runs, attentune, tmp_path):
    folders, file = (runs / "seed-1", runs / "seed-2"), tmp_path / "changed.csv"
    status, out, err = attentune("compare", *folders, "--output_file", file)
    assert status == 0, err
    recorded = [json.loads((folder / "run.json").read_text())["scores"]["validation"]["accuracy"] for folder in folders]
    assert f"accuracy  seed-1  {recorded[0]:.4f}" in out
    assert f"seed-2  {recorded[1]:.4f}" in out
    given = [list(csv.DictReader((folder / "predictions_validation.csv").open())) for folder in folders]
    changed = [row["id"] for row, other in zip(*given, strict=True) if row["prediction"] != other["prediction"]]
    assert changed  # else the test shows nothing
    written = list(csv.DictReader(file.open()))
    assert [row["id"] for row in written] == changed
    texts = [row["text"] for row in csv.DictReader((runs / "dev.csv").open())]
    assert {row["text"] for row in written} <= set(texts)
    assert [row["prediction of seed-2"] for row in written] == [
        row["prediction"] for row in given[1] if row["id"] in changed
    ]
    assert "say nothing about other seeds" in out


def test_json_has_every_number(runs, attentune):
    status, out, err = attentune("compare", runs / "seed-1", runs / "seed-2", "--format", "json")
    assert (status, err) == (0, "")
    content = json.loads(out)
    assert content["rows"] == 40
    one = content["comparisons"][0]
    assert one["metric"] == "accuracy"
    assert one["mcnemar"]["only_first"] == len(content["changed"][0]["worse"])
    assert one["low"] <= one["difference"] <= one["high"]


def test_mistakes_are_refused(runs, attentune):
    status, out, err = attentune("compare", runs / "seed-1", runs / "seed-3")
    assert (status, out) == (2, "")
    assert "there is no such file or folder" in err
    status, _, err = attentune("compare", runs / "seed-1", runs / "seed-2", "--split", "test", "--show", "x")
    assert status == 2
    assert "--show: got 'x'" in err
    status, _, err = attentune("compare", runs / "seed-1", runs / "seed-2", "--split", "test")
    assert status == 2
    assert "has no predictions of the test rows" in err
