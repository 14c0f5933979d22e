"""`attentune evaluate`: its tables say what its files and the run's record say."""

from __future__ import annotations

import csv
import json

import pytest

from helpers.samples import write_reviews


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    import contextlib
    import io

    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("evaluated")
    write_reviews(folder / "train.csv", 60)
    write_reviews(folder / "dev.csv", 40)
    words = ["--train_file", folder / "train.csv", "--validation_file", folder / "dev.csv", "--use_cpu", "--quiet"]
    words += ["--model_name_or_path", tiny("bert"), "--num_train_epochs", "1", "--output_dir", folder / "run"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", *map(str, words)]) == 0
    return folder / "run"


def test_scores_classes_and_worst_errors(run, attentune, tmp_path):
    file = tmp_path / "errors.csv"
    status, out, err = attentune("evaluate", run, "--errors_file", file, "--show_errors", "2")
    assert status == 0, err
    recorded = json.loads((run / "run.json").read_text())["scores"]["validation"]
    predicted = list(csv.DictReader((run / "predictions_validation.csv").open()))
    assert f"accuracy  {recorded['accuracy']:.4f}  0." in out
    wrong = [row for row in predicted if row["label"] != row["prediction"]]
    assert wrong
    assert f"{len(wrong)} rows are wrong; the worst:" in out
    written = list(csv.DictReader(file.open()))
    assert sorted(row["id"] for row in written) == sorted(row["id"] for row in wrong)
    assert [float(row["error"]) for row in written] == sorted((float(row["error"]) for row in written), reverse=True)
    texts = [row["text"] for row in csv.DictReader((run.parent / "dev.csv").open())]
    assert {row["text"] for row in written} <= set(texts)
    assert out.count(", not ") == min(2, len(wrong))
    for name in {row["label"] for row in predicted}:
        true = [row for row in predicted if row["label"] == name]
        counts = [sum(row["prediction"] == other for row in true) for other in sorted({r["label"] for r in predicted})]
        assert [name, *map(str, counts)] in [line.split() for line in out.splitlines()]


def test_json_has_the_scores_and_on_request_the_rest(run, attentune):
    status, plain, _ = attentune("evaluate", run, "--format", "json")
    assert status == 0
    assert list(json.loads(plain)) == ["validation"]
    status, out, _ = attentune("evaluate", run, "--format", "json", "--details")
    assert status == 0
    content = json.loads(out)
    details = content.pop("details")["validation"]
    assert content == json.loads(plain)
    assert details["rows"] == 40
    assert sum(map(sum, details["confusion"])) == 40
    low, high = details["intervals"]["accuracy"]
    assert low < content["validation"]["accuracy"] < high
