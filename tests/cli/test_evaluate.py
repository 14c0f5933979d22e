"""`attentune evaluate` and `attentune compare RUN RUN`: tables and files say what the records of the runs say."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from helpers.samples import train_reviews


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """Two runs with different seeds on the same rows."""
    folder = tmp_path_factory.mktemp("evaluated")
    flags = ("--num_train_epochs", 1, "--max_length", 16)
    seeds = (train_reviews(folder, tiny("bert"), *flags, "--seed", seed, name=f"seed-{seed}") for seed in (1, 2))
    return tuple(seeds)


def predictions_of(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "predictions_validation.csv").open()))


def texts_of(run: Path) -> set[str]:
    return {row["text"] for row in csv.DictReader((run.parent / "dev.csv").open())}


def test_scores_classes_and_worst_errors(runs, attentune, tmp_path):
    run, file = runs[0], tmp_path / "errors.csv"
    out, _ = attentune.done("evaluate", run, "--errors_file", file, "--show_errors", "2")
    recorded = json.loads((run / "run.json").read_text())["scores"]["validation"]
    predicted = predictions_of(run)
    assert f"accuracy  {recorded['accuracy']:.4f}  0." in out
    wrong = [row for row in predicted if row["label"] != row["prediction"]]
    assert wrong
    assert f"{len(wrong)} rows are wrong; the worst:" in out
    written = list(csv.DictReader(file.open()))
    assert sorted(row["id"] for row in written) == sorted(row["id"] for row in wrong)
    assert [float(row["error"]) for row in written] == sorted((float(row["error"]) for row in written), reverse=True)
    assert {row["text"] for row in written} <= texts_of(run)
    assert out.count(", not ") == min(2, len(wrong))
    for name in {row["label"] for row in predicted}:
        true = [row for row in predicted if row["label"] == name]
        counts = [sum(row["prediction"] == other for row in true) for other in sorted({r["label"] for r in predicted})]
        assert [name, *map(str, counts)] in [line.split() for line in out.splitlines()]


@pytest.mark.integration
def test_of_many_classes_the_worst_and_the_most_confused_pairs_are_listed(attentune, tmp_path):
    """The texts of "twin" are texts of "c00", too: the model predicts the larger class."""
    names = [f"c{number:02d}" for number in range(24)]
    rows = [(f"word{name} {part}", name) for name in names for part in "abcdefgh"]
    rows += [(f"wordc00 {part}", "twin") for part in "abc"]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(f"{text},{name}\n" for text, name in rows))
    files = ("--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.csv")
    assert attentune("train", *files, "--preset", "tfidf-linear", "--output_dir", tmp_path / "run")[0] == 0
    out, _ = attentune.done("evaluate", tmp_path / "run")
    lines = [line.split() for line in out.splitlines()]
    start = next(number for number, line in enumerate(lines) if line[:1] == ["class"])
    assert f"195 rows by class, the 12 worst of {len(names) + 1}" in out
    listed = lines[start + 2 : start + 14]
    assert {listed[0][0], listed[1][0]} == {"twin", "c00"}
    assert [float(line[3]) for line in listed] == sorted(float(line[3]) for line in listed)
    start = next(number for number, line in enumerate(lines) if line[:2] == ["true", "class"])
    assert lines[start + 2] == ["twin", "c00", "3"]


@pytest.mark.integration
def test_of_some_classes_that_are_told_apart_no_pair_is_listed(attentune, tmp_path):
    names = [f"c{number:02d}" for number in range(14)]
    lines = [f"word{name} {part},{name}\n" for name in names for part in "abcdefgh"]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(lines))
    files = ("--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.csv")
    attentune.done("train", *files, "--preset", "tfidf-linear", "--output_dir", tmp_path / "run")
    out, _ = attentune.done("evaluate", tmp_path / "run")
    assert "112 rows by class, the 12 worst of 14\n" in out
    assert "confused" not in out
    assert "calibration error" in out
    attentune.done("report", tmp_path / "run", "--output_file", tmp_path / "report.md")
    assert "most frequent confusions" not in (tmp_path / "report.md").read_text()


def test_json_has_the_scores_and_on_request_the_rest(runs, attentune):
    status, plain, _ = attentune("evaluate", runs[0], "--format", "json")
    assert (status, list(json.loads(plain))) == (0, ["validation"])
    status, out, _ = attentune("evaluate", runs[0], "--format", "json", "--details")
    content = json.loads(out)
    details = content.pop("details")["validation"]
    assert (status, content) == (0, json.loads(plain))
    assert details["rows"] == sum(map(sum, details["confusion"])) == 40
    low, high = details["intervals"]["accuracy"]
    assert low < content["validation"]["accuracy"] < high


def test_compared_scores_are_those_of_the_records_and_changed_rows_have_their_texts(runs, attentune, tmp_path):
    file = tmp_path / "changed.csv"
    out, _ = attentune.done("compare", *runs, "--output_file", file)
    recorded = [json.loads((run / "run.json").read_text())["scores"]["validation"]["accuracy"] for run in runs]
    assert f"accuracy  seed-1  {recorded[0]:.4f}" in out
    assert f"seed-2  {recorded[1]:.4f}" in out
    first, second = map(predictions_of, runs)
    changed = {
        row["id"]: other["prediction"]
        for row, other in zip(first, second, strict=True)
        if row["prediction"] != other["prediction"]
    }
    assert changed  # else the test shows nothing
    written = list(csv.DictReader(file.open()))
    assert {row["id"]: row["prediction of seed-2"] for row in written} == changed
    assert {row["text"] for row in written} <= texts_of(runs[0])
    assert "say nothing about other seeds" in out


def test_control_characters_are_shown_as_symbols(runs, attentune, tmp_path):
    rows, first, second = (tmp_path / f"{name}.csv" for name in ("rows", "first", "second"))
    rows.write_text("text,label\n" + "".join(f"so \x1b[31m fine\x07,{label}\n" for label in ("good", "bad")))
    out, _ = attentune.done("evaluate", runs[0], "--validation_file", rows)
    assert "so ␛[31m fine␇" in out
    first.write_text("id,label,prediction\n\x1b1,good,good\n2,bad,bad\n")
    second.write_text("id,label,prediction\n\x1b1,good,bad\n2,bad,bad\n")
    assert "␛1: good -> bad" in attentune.done("compare", first, second)[0]
    assert "\x1b" not in attentune.done("compare", first, Path(shutil.copy(second, tmp_path / "\x1b.csv")))[0]


def test_texts_of_changed_data_files_are_not_shown(runs, attentune, tmp_path):
    record = json.loads((runs[0] / "run.json").read_text())
    kept = {**record, "data_fingerprint": {"validation": "of other rows"}}
    run = Path(shutil.copytree(runs[0], tmp_path / "seed-1"))
    (run / "run.json").write_text(json.dumps(kept))
    out, err = attentune.done("compare", run, runs[1])
    assert "its texts cannot be shown (the data files have other rows than those that the run was scored on.)" in err
    assert "seed-2 against seed-1" in out


def test_a_comparison_as_json_has_every_number(runs, attentune):
    status, out, err = attentune("compare", *runs, "--format", "json")
    assert (status, err) == (0, "")
    content = json.loads(out)
    one = content["comparisons"][0]
    assert (content["rows"], one["metric"]) == (40, "accuracy")
    assert one["mcnemar"]["only_first"] == len(content["changed"][0]["worse"])
    assert one["low"] <= one["difference"] <= one["high"]
