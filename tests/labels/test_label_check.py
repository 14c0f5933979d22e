"""Likely label errors, a person's marks in their list, and the corrected copy."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attentune.automl.folds import CERTAIN_SHARE, disagreement, label_note
from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.load import load_data
from attentune.errors import AttentuneError, ConfigError, DataError
from attentune.labels.label_check import (
    Disagreement,
    LabelCheck,
    Mark,
    SuspectLabel,
    count_marks,
    find_label_errors,
    read_marks,
    write_corrected,
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


# The list of likely label errors, a person's marks in it, and the corrected copy


SPACE = LabelSpace("classification", ("bad", "good"))
LINES = 'when,note,mood\n2024,"a ""dull"", old\nfilm",good\n2025,fine,bad\n,so so,good\n'


@pytest.fixture
def config(tmp_path):
    (tmp_path / "mine.csv").write_text(LINES, encoding="utf-8")
    return DataConfig(train_file=str(tmp_path / "mine.csv"), text_column="note", label_column="mood")


def rows_of(config: DataConfig) -> TextRows:
    return load_data(config, seed=1, cut_validation=False).splits["train"]


def listed(rows: TextRows, places: list[int]) -> LabelCheck:
    suspects = []
    for row in places:
        label = int(rows.labels[row])
        names = SPACE.names[label], SPACE.names[1 - label]
        suspects.append(
            SuspectLabel(row, rows.ids[row], rows.where(row), rows.texts[row], None, *names, 0.1, 0.9, ("dull",))
        )
    return LabelCheck(len(rows), "a test", Disagreement(0.1, 0.0, 0.2, 3), 0.7, 0.6, tuple(suspects), ())


def marked(path: Path, change: Callable[[list[dict[str, str]]], None]) -> Path:
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    change(lines)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), delimiter=";")  # as a German spreadsheet saves it
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_only_marked_labels_and_rows_change(config, tmp_path):
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [2, 0, 1]))

    def mark(lines: list[dict[str, str]]) -> None:
        assert [line["mark"] for line in lines] == ["", "", ""]
        assert lines[1]["words"] == "dull"
        lines[0]["mark"], lines[1]["mark"], lines[2]["mark"] = "remove", " Fix ", "keep"

    marks = read_marks(str(marked(tmp_path / "errors.csv", mark)), rows, SPACE)
    assert marks == [Mark(2, "remove"), Mark(0, "fix", "bad")]
    assert count_marks(marks) == "1 label changed, 1 row removed"
    assert write_corrected(str(tmp_path / "new.csv"), marks, rows, SPACE, config) == 2
    with (tmp_path / "new.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["when", "note", "mood"],
            ["2024", 'a "dull", old\nfilm', "bad"],
            ["2025", "fine", "bad"],
        ]
    assert Path(str(config.train_file)).read_text(encoding="utf-8") == LINES


def test_lines_that_are_no_labelled_rows_stay_as_they_are(tmp_path):
    lines = LINES.replace("2025,fine,bad\n", "2025,fine,bad\n2026,odd,unsure\n")
    (tmp_path / "mine.csv").write_text(lines, encoding="utf-8")
    config = DataConfig(
        train_file=str(tmp_path / "mine.csv"), text_column="note", label_column="mood", ignore_labels=("unsure",)
    )
    rows = rows_of(config)
    assert len(rows) == 3
    made = tmp_path / "corrected.csv"
    assert write_corrected(str(made), [Mark(2, "fix", "bad"), Mark(1, "remove")], rows, SPACE, config) == 3
    wanted = lines.replace("2025,fine,bad\n", "").replace("so so,good", "so so,bad")
    assert list(csv.reader(made.open(newline=""))) == list(csv.reader(wanted.splitlines(keepends=True)))


def test_a_person_may_write_another_label(config, tmp_path):
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines[0].update(mark="fix", suggested="bad"))
    assert read_marks(str(path), rows, SPACE) == [Mark(1, "fix", "bad")]


def test_the_corrected_copy_of_json_lines_keeps_other_values(tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [{"text": "fine", "label": 0, "tags": ["a", 1], "n": None}, {"text": "no", "label": 1}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    config = DataConfig(train_file=str(file))
    data = load_data(config, seed=1, cut_validation=False)
    marks = [Mark(0, "fix", "1")]
    write_corrected(str(tmp_path / "new.jsonl"), marks, data.splits["train"], data.label_space, config)
    written = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert written == [{**lines[0], "label": 1}, lines[1]]


MISTAKES = {
    "nothing": ({}, "no row is marked. Write fix in the column 'mark'"),
    "unknown mark": ({"mark": "yes"}, "mark: got 'yes', expected keep, fix, remove or nothing."),
    "unknown label": ({"mark": "fix", "suggested": "goood"}, "got 'goood', expected one of the labels: bad, good."),
    "no such row": ({"mark": "fix", "row": "7"}, "row: got '7', expected a number from 0 to 2."),
    "another text": ({"mark": "fix", "text": "Fine"}, "row 1 has the text 'Fine' and the label 'bad' here, but 'fine'"),
    "another label": ({"mark": "fix", "label": "good"}, "Give the file that this list was made from"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_the_marks_are_refused(config, tmp_path, case):
    rows, (changes, message) = rows_of(config), MISTAKES[case]
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines[0].update(changes))
    with pytest.raises(DataError) as error:
        read_marks(str(path), rows, SPACE)
    assert message in str(error.value)


def test_a_row_that_is_there_twice_and_a_file_without_marks_are_refused(config, tmp_path):
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines.append({**lines[0], "mark": "fix"}))
    with pytest.raises(DataError, match="row 1 is there twice; expected each row once"):
        read_marks(str(path), rows, SPACE)
    with pytest.raises(DataError, match="there is no column 'mark'"):
        read_marks(str(config.train_file), rows, SPACE)


def test_the_rows_own_file_is_never_written_to(config, tmp_path):
    rows, marks = rows_of(config), [Mark(0, "remove")]
    cases = {
        str(config.train_file): "the file of the rows itself, which is never changed",
        str(tmp_path / "new.xlsx"): "expected a name that ends in .csv, .tsv, .jsonl",
    }
    for path, message in cases.items():
        with pytest.raises(ConfigError) as error:
            write_corrected(path, marks, rows, SPACE, config)
        assert isinstance(error.value, AttentuneError)
        assert message in str(error.value)
    assert Path(str(config.train_file)).read_text(encoding="utf-8") == LINES


# `attentune doctor --labels` and `--fix`: from planted label errors to a corrected copy


WRONG = (3, 20, 41, 62, 77, 90)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
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
def test_wrong_labels_are_listed_marked_and_corrected(attentune, reviews, tmp_path):
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


def test_the_text_output_has_the_rows_and_how_many_may_be_wrong(attentune, tiny, reviews, tmp_path):
    out, _ = attentune.done(
        "doctor", reviews, "--labels", "--count", 3, "--max_length", 24, "--model_name_or_path", tiny("bert", hidden=64)
    )
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
