"""Likely label errors, and their list."""

import csv
import json
import re

import numpy as np
import pytest

from attentune.automl.folds import CERTAIN_SHARE, disagreement, label_note
from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace
from attentune.data.load import load_data
from attentune.errors import DataError
from attentune.labels.label_check import (
    Disagreement,
    LabelCheck,
    SuspectLabel,
    find_label_errors,
    write_errors,
)
from attentune.seeding import numpy_generator
from attentune.stats.estimate import wilson_interval
from helpers.samples import write_reviews


def some_rows(count: int = 200, classes: int = 3, wrong: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities of a good model, and the rows whose labels were changed."""
    generator = numpy_generator("label errors")
    true = np.arange(count) % classes
    logits_NC = generator.normal(size=(count, classes)) + 4.0 * np.eye(classes)[true]
    shares_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    rows = generator.choice(count, wrong, replace=False)
    labels = true.copy()
    labels[rows] = (labels[rows] + 1) % classes
    return labels, shares_NC, np.sort(rows)


def test_changed_labels_are_found_least_probable_first():
    labels, shares_NC, wrong = some_rows()
    places, suggested = find_label_errors(labels, shares_NC)
    assert len(set(places) & set(wrong)) >= 18
    assert len(places) <= 30
    assert (np.diff(shares_NC[places, labels[places]]) >= 0).all()
    others = [max((p, c) for c, p in enumerate(shares_NC[row]) if c != labels[row])[1] for row in places]
    assert suggested.tolist() == others


def test_the_share_of_other_labels_is_counted_where_the_model_is_most_certain():
    labels, shares_NC, _ = some_rows(wrong=40)
    expected, count = 0, 0
    for name in range(3):
        own = [row for row in range(len(labels)) if shares_NC[row].argmax() == name]
        own.sort(key=lambda row: -shares_NC[row].max())
        for row in own[: round(CERTAIN_SHARE * len(own))]:
            expected, count = expected + (labels[row] != name), count + 1
    share = disagreement(labels, shares_NC)
    assert (share.value, share.rows) == (expected / count, count)
    assert (share.low, share.high) == wilson_interval(expected, count)
    assert share.low < 0.2 < share.high  # 40 of 200 labels are wrong


def test_a_class_without_rows_may_be_suggested():
    labels, shares_NC, _ = some_rows(classes=3, wrong=0)
    labels = np.where(labels == 1, 2, labels)  # class 1 is there, but never given
    places, suggested = find_label_errors(labels, shares_NC)
    assert 1 in suggested.tolist() or len(places) == 0
    assert set(labels[places].tolist()) <= {0, 2}


def test_rows_of_one_class_are_refused():
    with pytest.raises(DataError, match="got 4 rows of 1 class, expected rows of at least two classes"):
        find_label_errors(np.zeros(4, np.int64), np.full((4, 2), 0.5))


def test_auto_notes_contradicted_labels_only_if_there_are_many(tmp_path):
    space = LabelSpace("classification", ("a", "b", "c"))
    labels, shares_NC, _ = some_rows(wrong=50)
    note = label_note(tmp_path, labels, np.log(shares_NC), space)
    assert re.fullmatch(
        r"Where out-of-fold predictions are most certain \(4\d rows\), \d\d\.\d % have another label"
        r" \(95 % interval \S+ to \S+ %\): wrong labels, or texts that the model gets wrong."
        r" To see which: attentune doctor --labels --run " + re.escape(str(tmp_path)),
        note,
    )
    clean, shares_NC, _ = some_rows(wrong=0)
    assert label_note(tmp_path, clean, np.log(shares_NC), space) is None
    assert label_note(tmp_path, labels, np.zeros_like(shares_NC), space) is None  # the model knows nothing
    scores = LabelSpace("regression")
    assert label_note(tmp_path, labels.astype(float), np.ones((len(labels), 1)), scores) is None


def test_the_list_names_the_file_and_line_of_each_row(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('note,mood\n"a ""dull"", old\nfilm",good\nfine,bad\n', encoding="utf-8")
    config = DataConfig(train_file=str(path), text_column="note", label_column="mood", validation_share=0.0)
    rows = load_data(config, seed=1).splits["train"]
    suspects = tuple(
        SuspectLabel(row, rows.ids[row], rows.where(row), rows.texts[row], None, *names, 0.1, 0.9, ("dull", "old"))
        for row, names in ((1, ("bad", "good")), (0, ("good", "bad")))
    )
    check = LabelCheck(len(rows), "a test", Disagreement(0.1, 0.0, 0.2, 3), 0.7, 0.6, suspects)
    write_errors(str(tmp_path / "errors.csv"), check)
    with (tmp_path / "errors.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["row"], first["where"], first["suggested"]) == ("1", f"{path}:4", "good")
    assert (second["row"], second["where"], second["text"]) == ("0", f"{path}:2", 'a "dull", old\nfilm')
    assert (second["p_label"], second["p_suggested"], second["words"]) == ("0.1000", "0.9000", "dull, old")


# `attentune doctor --labels` on planted label errors


WRONG = (3, 20, 41, 62, 77, 90)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Reviews whose words decide the label, with six wrong labels."""
    path = tmp_path_factory.mktemp("labels") / "reviews.csv"
    write_reviews(path, 120, seed=4)
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    other = {"good": "bad", "bad": "good"}
    for row in WRONG:
        lines[row + 1][2] = other[lines[row + 1][2]]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return path


@pytest.mark.integration
def test_wrong_labels_are_listed(attentune, reviews, tmp_path):
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
    with errors.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["row"]) for line in lines] == [suspect["row"] for suspect in labels["suspects"]]
    assert lines[0]["where"] == f"{reviews}:{int(lines[0]['row']) + 2}"


def test_the_text_output_has_the_rows_and_how_many_may_be_wrong(attentune, tiny, reviews, tmp_path):
    out, _ = attentune.done(
        "doctor", reviews, "--labels", "--count", 3, "--max_length", 24, "--model_name_or_path", tiny("bert", hidden=64)
    )
    assert "Labels, by a linear model on the frozen encoder, in 5 folds\n" in out
    assert re.search(
        r"Where out-of-fold predictions are most certain \(2[45] rows\), \d+\.\d % have another label", out
    )
    assert " of 120 rows to check, the least probable label first:\n" in out
    assert "more; --output_file errors.csv writes all of them" in out
    errors = tmp_path / "errors.csv"
    flags = ("--count", 3, "--max_length", 24, "--model_name_or_path", tiny("bert", hidden=64))
    status, out, _ = attentune("doctor", reviews, "--labels", *flags, "--output_file", errors)
    assert (status, "writes all of them" in out) == (0, False)
    assert f"more; all are in {errors}.\n" in out
