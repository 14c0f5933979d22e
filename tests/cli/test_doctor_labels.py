"""`attentune doctor --labels` and `--fix`: from planted label errors to a corrected copy."""

import csv
import json
import re
from pathlib import Path

import pytest

from helpers.samples import write_reviews

WRONG = (3, 20, 41, 62, 77, 90)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews whose words decide the label, with six wrong labels and one text in two spellings."""
    path = tmp_path_factory.mktemp("labels") / "reviews.csv"
    write_reviews(path, 120, seed=4)
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    other = {"good": "bad", "bad": "good"}
    for row in WRONG:
        lines[row + 1][2] = other[lines[row + 1][2]]
    lines.append(["r120", lines[6][1].upper() + "!", other[lines[6][2]]])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return path


@pytest.mark.integration
def test_wrong_labels_are_listed_marked_and_corrected(attentune, reviews: Path, tmp_path: Path) -> None:
    common = (reviews, "--max_length", "24")
    errors = tmp_path / "errors.csv"
    status, out, err = attentune(
        "doctor", *common, "--labels", "--format", "json", "--count", 2, "--output_file", errors
    )
    assert (status, err) == (0, f"{len(json.loads(out)['labels']['suspects'])} rows to check written to {errors}\n")
    report = json.loads(out)
    assert list(report["splits"]) == ["train"]  # none is split off: numbers of rows are those of the file
    labels = report["labels"]
    assert len({suspect["row"] for suspect in labels["suspects"]} & set(WRONG)) >= 5
    assert [suspect["words"] is not None for suspect in labels["suspects"]][:3] == [True, True, False]
    assert labels["share"]["low"] <= labels["share"]["value"] <= labels["share"]["high"]
    (alike,) = [one for one in labels["alike"] if one["similarity"] == 1]
    assert (alike["rows"], alike["differences"]) == ([5, 120], [[], []])
    with errors.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["mark"] = "fix" if int(line["row"]) in WRONG else ""
    with errors.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    before, fixed = reviews.read_bytes(), tmp_path / "corrected.csv"
    status, out, err = attentune("doctor", reviews, "--fix", errors, "--output_file", fixed)
    count = sum(line["mark"] == "fix" for line in lines)
    assert (status, out) == (0, "")
    assert err == f"{count} label{'s' * (count != 1)} changed, 0 rows removed; 121 rows written to {fixed}\n"
    assert reviews.read_bytes() == before
    with reviews.open(newline="", encoding="utf-8") as old, fixed.open(newline="", encoding="utf-8") as new:
        pairs = list(zip(csv.reader(old), csv.reader(new), strict=True))
    changed = [row for row, (first, second) in enumerate(pairs) if first != second]
    assert changed == sorted(int(line["row"]) + 1 for line in lines if line["mark"])


def test_the_text_output_has_the_rows_and_how_many_may_be_wrong(attentune, tiny, reviews: Path, tmp_path: Path) -> None:
    status, out, _ = attentune(
        "doctor", reviews, "--labels", "--count", 3, "--max_length", 24, "--model_name_or_path", tiny("bert", hidden=64)
    )
    assert status == 0
    assert "Labels, by a linear model on the frozen encoder, in 5 folds\n" in out
    assert re.search(
        r"Where out-of-fold predictions are most certain \(2[45] rows\), \d+\.\d % have another label", out
    )
    assert " of 121 rows to check, the least probable label first:\n" in out
    assert "more; --output_file errors.csv writes all of them" in out
    assert "1 pair of nearly equal texts with other labels" in out
    errors = tmp_path / "errors.csv"
    flags = ("--count", 3, "--max_length", 24, "--model_name_or_path", tiny("bert", hidden=64))
    status, out, _ = attentune("doctor", reviews, "--labels", *flags, "--output_file", errors)
    assert (status, "writes all of them" in out) == (0, False)
    assert f"more; all are in {errors}.\n  Fill in the column mark of {errors} (fix, remove or keep)" in out
