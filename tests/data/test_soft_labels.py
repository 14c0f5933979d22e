"""Several label columns: probabilities of classes, votes of annotators, or labels of 0 and 1."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.config.schema import DataConfig
from attentune.data.load import load_data
from attentune.errors import AttentuneError
from helpers.samples import write_reviews

VOTES = [("bad", "bad", "good"), ("good", "", "fair"), ("fair", "fair", "fair"), ("good", "bad", "good")] * 3
SHARES = [("0.7", "0.2", "0.1"), ("0", "0.5", "0.5"), ("0.34", "0.33", "0.34"), ("", "1", "")] * 3
BITS = [("1", "0"), ("0", "1"), ("1", "1"), ("0", "0")] * 3
ONES = [("1", "0"), ("0", "1"), ("1", "0")] * 4


def write(path: Path, names: tuple[str, ...], rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="") as file:
        lines = [(f"text {number}", *row) for number, row in enumerate(rows)]
        csv.writer(file).writerows([("text", *names), *lines])
    return path


def load(tmp_path: Path, names: tuple[str, ...], rows: list[tuple[str, ...]], **settings: Any) -> Any:
    path = str(write(tmp_path / "rows.csv", names, rows))
    config = DataConfig(train_file=path, validation_file=path, label_column=",".join(names), **settings)
    return load_data(config, seed=0)


def test_the_training_rows_say_what_the_columns_hold_in_all_files(tmp_path: Path) -> None:
    """Cells of 0 and 1 alone could be votes for the classes 0 and 1."""
    train = write(tmp_path / "train.csv", ("p_0", "p_1"), [("0.75", "0.25"), ("0", "1"), ("1", "0")] * 4)
    only_ones = write(tmp_path / "dev.csv", ("p_0", "p_1"), [("1", "0"), ("0", "1"), ("0", "1")])
    config = {"train_file": str(train), "label_column": "p_0,p_1", "task_type": "classification"}
    data = load_data(DataConfig(validation_file=str(only_ones), **config), seed=0)
    assert data.label_space.names == ("0", "1")
    assert data.splits["validation"].targets.tolist() == [[1, 0], [0, 1], [0, 1]]
    classes = write(tmp_path / "classes.csv", ("p_0", "p_1"), [("a", "b")])
    with pytest.raises(AttentuneError, match=r"classes\.csv.*hold classes here, but probabilities in the training"):
        load_data(DataConfig(validation_file=str(classes), **config), seed=0)


@pytest.mark.parametrize("label_names", [None, ("good", "fair", "bad")])
def test_votes_are_a_distribution_and_its_mode(tmp_path: Path, label_names: tuple[str, ...] | None) -> None:
    data = load(tmp_path, ("ann1", "ann2", "ann3"), VOTES, label_names=label_names)
    names, rows = label_names or ("bad", "fair", "good"), data.splits["train"]
    assert (data.label_space.task_type, data.label_space.names) == ("classification", names)
    ties = 0
    for row, votes in enumerate(VOTES):
        given = [vote for vote in votes if vote]
        expected = [given.count(name) / len(given) for name in names]
        assert rows.targets[row] == pytest.approx(expected)
        assert rows.labels[row] == expected.index(max(expected))
        ties += expected.count(max(expected)) > 1
    assert any(f"in {ties} of 12 rows classes tie" in note and "rows.csv:3" in note for note in data.notes)
    assert any("the classes that annotators chose" in note for note in data.notes)


def test_probabilities_are_scaled_to_one_and_name_their_classes(tmp_path: Path) -> None:
    data = load(tmp_path, ("p_neg", "p_neu", "p_pos"), SHARES)
    assert data.label_space.names == ("neg", "neu", "pos")
    for row, cells in enumerate(SHARES):
        values = [float(cell or 0) for cell in cells]
        assert data.splits["train"].targets[row] == pytest.approx([value / sum(values) for value in values])
    assert any("the probabilities of the classes" in note for note in data.notes)
    named = load(tmp_path, ("p_neg", "p_neu", "p_pos"), SHARES, label_names=("a", "b", "c"))
    assert np.array_equal(named.splits["train"].targets, data.splits["train"].targets)


@pytest.mark.parametrize(
    ("rows", "task_type", "expected", "first"),
    [
        (BITS, None, "multi_label", None),
        (BITS, "multi_label", "multi_label", None),
        (BITS, "classification", "classification", {"0": 0.5, "1": 0.5}),
        (ONES, None, "multi_label", None),
        (ONES, "classification", "classification", {"x": 1.0, "y": 0.0}),
        ([("1", "3"), ("2", "2"), ("3", "3")] * 4, "ordinal", "ordinal", {"1": 0.5, "2": 0.0, "3": 0.5}),
    ],
)
def test_which_reading_is_taken(
    tmp_path: Path, rows: list[tuple[str, ...]], task_type: str | None, expected: str, first: dict[str, float] | None
) -> None:
    data = load(tmp_path, ("x", "y"), rows, task_type=task_type)
    assert data.label_space.task_type == expected
    targets = data.splits["train"].targets
    assert (targets is None) == (first is None)
    if first is not None:
        assert dict(zip(data.label_space.names, targets[0], strict=True)) == first


@pytest.mark.parametrize(
    ("rows", "settings", "says"),
    [
        ([("0.9", "0.6"), ("0.5", "0.5")] * 6, {}, r"rows.csv:2: .*sum to 1.5"),
        ([("0.5", "0.5"), ("1.2", "-0.2")] * 6, {}, r"rows.csv:3: .*hold -0.2, .*which are not negative"),
        ([("70", "30"), ("45", "55")] * 6, {}, r"rows.csv:2: .*sum to 100 in every row.*divide them by 100"),
        ([("70.5", "29.5"), ("100", "0")] * 6, {"task_type": "classification"}, "If they are percentages, divide them"),
        ([("100", "0"), ("0", "100")] * 6, {}, "If they are percentages, divide them"),
        ([("0.5", "0.5")] * 6, {"task_type": "regression"}, "got regression and 2 label columns"),
        ([("0.9", "0.1"), ("NA", "NA"), ("0.2", "0.8")] * 6, {}, r"rows.csv:3: .*probabilities, and here NA. Leave"),
        ([("a", "b"), ("", "")] * 6, {}, r"rows.csv:3: .*no label here"),
        ([("0", "1"), ("1", "1"), ("0", "0")] * 6 + [("2", "0")], {}, "use --task_type classification"),
    ],
)
def test_what_is_neither_is_refused(
    tmp_path: Path, rows: list[tuple[str, ...]], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(AttentuneError, match=says):
        load(tmp_path, ("x", "y"), rows, **settings)


def test_training_learns_the_distribution_and_evaluate_reports_both(tmp_path: Path, attentune, tiny) -> None:
    reviews = list(csv.DictReader(write_reviews(tmp_path / "r.csv", 40, seed=1).read_text().splitlines()))
    votes = [(row["label"], row["label"], "bad" if number % 2 else "good") for number, row in enumerate(reviews)]
    path = tmp_path / "votes.csv"
    with path.open("w", newline="") as file:
        texts = [row["text"] for row in reviews]
        csv.writer(file).writerows([("text", "a", "b", "c"), *((t, *v) for t, v in zip(texts, votes, strict=True))])
    words = [
        "--model_name_or_path",
        tiny("bert"),
        "--preset",
        "bert-mean",
        "--max_steps",
        "3",
        "--label_column",
        "a,b,c",
    ]
    run = tmp_path / "run"
    status, out, err = attentune("train", path, *words, "--validation_file", path, "--output_dir", run, "--quiet")
    assert status == 0, err
    assert "Cross-entropy with the soft labels: validation" in json.loads((run / "run.json").read_text())["notes"][-1]
    status, out, err = attentune("predict", run, "--input_file", path)
    assert status == 0, err
    expected = 0.0
    for row, own in zip(csv.DictReader(out.splitlines()), votes, strict=True):
        assert row["label"] == max(own, key=own.count)
        expected -= sum(math.log(float(row[f"p_{vote}"])) / 3 for vote in own) / len(votes)
    status, out, err = attentune("evaluate", run, "--validation_file", path, "--format", "json")
    scores = json.loads(out)["validation"]
    assert (status, scores["soft_cross_entropy"]) == (0, pytest.approx(expected, abs=1e-5)), err
    assert "accuracy" in scores
