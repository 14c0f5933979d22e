"""Labels as people's files have them: told where they are read, asked for where they are doubtful."""

import csv
import json
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from attentune.config import DataConfig, load_config
from attentune.data.dataset import LabelSpace, TaskData
from attentune.data.doctor import examine, full_lines
from attentune.data.load import load_data
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import ConfigError, DataError, LabelError

WORDS = ["warm", "cold", "kind", "slow", "calm", "quick", "dull", "loud"]


def write(path: Path, **columns: Sequence[Any]) -> str:
    """Write columns, with one of texts before them, as .csv, .jsonl or .parquet."""
    count = len(next(iter(columns.values())))
    texts = [f"{WORDS[row % 8]} visit {row} was {WORDS[row // 8 % 8]}" for row in range(count)]
    columns = {"text": texts, **columns} if "text" not in columns else columns
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table({name: list(cells) for name, cells in columns.items()}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def load(train: str, space: LabelSpace | None = None, **settings: Any) -> TaskData:
    overrides = {f"data.{name}": value for name, value in {"train_file": train, **settings}.items()}
    return load_data(load_config(overrides=overrides).data, seed=1, label_space=space)


def labels_of(data: TaskData, split: str = "train") -> list[Any]:
    labels = data.splits[split].labels
    if data.label_space.is_multilabel:
        return ["+".join(data.label_space.names_of(row)) for row in labels]
    return [data.label_space.text_of(label) for label in labels]


def whole(train: str, **settings: Any) -> TaskData:
    """Load a file whole, with itself as the validation rows."""
    return load(train, validation_file=train, **settings)


CASES = yaml.safe_load(Path(__file__).with_name("label_forms.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("about", CASES)
def test_a_form_of_labels(tmp_path, about):
    case = CASES[about]
    times, forms = case.get("times", 1), case.get("with", {})
    for kind, settings in product(case.get("as", "csv").split(), forms if isinstance(forms, list) else [forms]):
        path = write(tmp_path / f"t.{kind}", **{name: cells * times for name, cells in case["columns"].items()})
        if "error" in case:
            with pytest.raises(DataError) as caught:
                whole(path, **settings)
            expected = case["error"][1:] if case["error"][0] == "DataError" else case["error"]
            assert isinstance(caught.value, LabelError) == (expected is case["error"])
            assert all(part in str(caught.value) for part in expected), str(caught.value)
            continue
        data = whole(path, **settings)
        labels = labels_of(data)
        assert data.label_space.names == tuple(case.get("names", data.label_space.names))
        assert data.metrics == tuple(case.get("metrics", data.metrics))
        assert labels[: len(case.get("labels", ()))] == case.get("labels", [])
        assert len(labels) == case.get("rows", len(labels))
        assert all(any(part in note for note in data.notes) for part in case.get("notes", ())), data.notes
        assert not any(part in note for part in case.get("silent", ()) for note in data.notes), data.notes
        findings = {finding.kind: finding.message for finding in examine(data).findings}
        for finding, part in case.get("told", {}).items():
            assert part in findings[finding] if part else finding not in findings, findings
        # Labels of a model are matched alike, and nothing that is printed breaks a line.
        assert labels_of(load(path, data.label_space, validation_file=path, **settings), "validation") == labels
        assert all("\n" not in line for line in (*full_lines(examine(data)), *data.notes))


# --- 1 and 1.0


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_whole_numbers_with_and_without_decimals_are_one_class(tmp_path, suffix):
    train = write(tmp_path / f"train{suffix}", label=[1, 0] * 10)
    test = write(tmp_path / f"test{suffix}", label=[1.0, 0.0, 1.0])
    data = load(train, test_file=test)
    assert data.label_space.names == ("0", "1")
    assert labels_of(data, "test") == ["1", "0", "1"]
    (note,) = [note for note in data.notes if "is read as" in note]
    assert "'1.0' is read as '1' (2 rows), '0.0' is read as '0' (1 row)" in note
    again = load(train, LabelSpace("classification", ("0.0", "1.0")), validation_file=train)
    assert labels_of(again)[:2] == ["1.0", "0.0"]


# --- labels that mean none


def test_a_class_as_frequent_as_the_others_is_a_class(tmp_path):
    train = write(tmp_path / "t.csv", label=[*(f"c{n}" for n in range(19)), "None"] * 9)
    assert not any(finding.kind == "no-label" for finding in examine(whole(train)).findings)


def test_rows_to_predict_are_never_left_out(tmp_path):
    space = LabelSpace("classification", ("contradiction", "entailment", "neutral"))
    path = write(tmp_path / "t.csv", label=["entailment", "-", "neutral"])
    assert len(read_unlabelled(path, label_space=space, is_pair=False, config=DataConfig())) == 3


@pytest.mark.parametrize("label", ["-", "?", "n/a", "N/A", "none", "NaN", "null", "unknown", "-1"])
def test_a_rare_label_that_may_mean_none_is_found_and_can_be_left_out(tmp_path, label):
    rest = ["0", "1", "2"] if label == "-1" else ["bad", "good"]
    train = write(tmp_path / "t.csv", label=[*(rest * 20), label, label])
    data = whole(train)
    (finding,) = [finding for finding in examine(data).findings if finding.kind == "no-label"]
    assert repr(label) in finding.message
    assert f"--ignore_labels={label}" in finding.cure
    assert whole(train, ignore_labels=label).label_space.names == tuple(rest)
    assert not any(f.kind == "no-label" for f in examine(whole(train, ignore_labels=[label])).findings)


# --- columns that are no labels


@pytest.mark.parametrize("text", ["3f2a77c0-{}-4bd1", "https://example.org/a/very/long/address/{}", "2024-01-02 10:{}"])
def test_ids_addresses_and_dates_are_not_guessed_as_texts(tmp_path, text):
    cells = [text.format(10 + row) for row in range(40)]
    words = [f"a visit that was {row} times as warm" for row in range(40)]
    train = write(tmp_path / "t.csv", text=cells, anmerkung=words, label=["a", "b"] * 20)
    renamed = Path(train).read_text().replace("text,", "spalte,", 1)
    Path(train).write_text(renamed)
    assert whole(train).splits["train"].texts[3] == words[3]


def test_a_score_column_is_asked_for_and_other_columns_are_named(tmp_path):
    votes = [str(row * row % 97) for row in range(90)]
    train = write(tmp_path / "t.csv", score=votes, flair=["rant", "praise", "other"] * 30, post_id=range(7, 97))
    with pytest.raises(LabelError, match=r"'score' holds \d+ different numbers.*--task_type.*--label_column flair"):
        whole(train)
    assert whole(train, task_type="regression").label_space.task_type == "regression"
    assert len(whole(train, label_column="flair").label_space.names) == 3
    settled = whole(train, task_type="classification")
    assert settled.doubt is None
    assert len(settled.label_space.names) > 20
    data = load_data(DataConfig(train_file=train), seed=1, allow_doubt=True)
    (finding,) = [finding for finding in examine(data).findings if finding.kind == "task-type"]
    assert (finding.level, "--task_type" in finding.cure) == ("warning", True)


# --- lists


def test_lists_of_labels_get_one_hint(tmp_path):
    genres = ["Crime", "Drama", "History", "Sport", "War", "Music"]
    cells = [", ".join(some) for size in (1, 2, 3) for some in combinations(genres, size)] * 2
    train = write(tmp_path / "t.csv", genres=cells)
    with pytest.raises(
        LabelError, match=r"35 of the 41 classes are lists .* multi_label --label_separator ',' .* or class"
    ):
        whole(train, label_column="genres")
    data = load_data(DataConfig(train_file=train, label_column="genres"), seed=0, allow_doubt=True)
    report = examine(data)
    hints = [finding for finding in report.findings if "multi_label" in finding.cure]
    assert [(hint.kind, "--label_separator ','" in hint.cure) for hint in hints] == [("task-type", True)]
    assert not any(finding.kind == "alike-classes" for finding in report.findings)
    found = whole(train, label_column="genres", task_type="multi_label")
    assert found.label_space.names == tuple(sorted(genres))
    assert any("are separated by ','" in note for note in found.notes)


def test_many_absent_labels_are_one_finding(tmp_path):
    train = write(tmp_path / "t.jsonl", labels=[[f"n{row}", "all"] for row in range(60)])
    few = write(tmp_path / "v.jsonl", labels=[["n1"], ["n2", "all"]])
    report = examine(load(train, validation_file=few, task_type="multi_label"))
    found = [finding.message for finding in report.findings if finding.kind == "missing-class"]
    assert found == [
        "train: all rows have the label 'all'.",
        "validation: no row has 58 of the 61 labels ('n0', 'n10', 'n11', and 55 more).",
    ]
    assert max(map(len, full_lines(report))) < 300
    assert "61 labels, any number per row (all, n0, n1, ...)" in full_lines(report)[0]


# --- vectors and columns of zeros and ones


def test_several_columns_in_test_files(tmp_path):
    train = write(tmp_path / "t.csv", late=["0", "1"] * 10, rude=["1", "0"] * 10)
    for cells in (["", ""], ["-1", "-1"]):
        data = load(train, label_column="late,rude", test_file=write(tmp_path / "n.csv", late=cells, rude=cells))
        assert data.splits["test"].labels is None
    none = write(tmp_path / "u.csv", other=["1", "2"])
    assert load(train, label_column="late,rude", test_file=none).splits["test"].labels is None
    config, space = (
        load_config(overrides={"data.label_column": "late, rude"}).data,
        LabelSpace("multi_label", ("late", "rude")),
    )
    rows = read_unlabelled(train, label_space=space, is_pair=False, config=config)
    assert rows.labels[:2].tolist() == [[0, 1], [1, 0]]


# --- columns that do not exist


def test_a_wrong_column_is_answered_with_the_usual_one(tmp_path):
    usual = write(tmp_path / "u.csv", label=["a", "b"] * 10)
    with pytest.raises(DataError, match=r"no column 'mood'. Did you mean 'label'\?"):
        whole(usual, label_column="mood")


def test_many_classes_do_not_flood_the_first_lines(tmp_path):
    labels = [f"intent {number:02}" for number in range(77) for _ in range(number + 2)]
    data = whole(write(tmp_path / "t.csv", label=labels))
    (note,) = [note for note in data.notes if "in the order of their ids" in note]
    assert note == "77 classes in the order of their ids: intent 00, intent 01, intent 02, ...."
    first = full_lines(examine(data))[0]
    assert "77 classes (intent 00, intent 01, intent 02, ...)" in first


# --- sets of labels

SETS = [["joy", "love"], ["anger"], [], ["love"], ["anger", "joy", "anger"], ["joy"]] * 4


def test_a_separator_of_train_counts_in_a_test_file(tmp_path):
    train = write(tmp_path / "t.csv", labels=["a;b", "b", "a", "b;a", "c", ""] * 3)
    data = load(train, test_file=write(tmp_path / "test.csv", labels=["c;b"]), task_type="multi_label")
    assert data.splits["test"].labels.tolist() == [[0, 1, 1]]


def test_a_test_file_without_sets_of_labels_has_none(tmp_path):
    train = write(tmp_path / "t.jsonl", labels=SETS)
    for name, cells in (("empty", [""] * 3), ("lists", [[]] * 3), ("nulls", [None] * 3), ("unknown", [-1] * 3)):
        data = load(train, test_file=write(tmp_path / f"{name}.jsonl", labels=cells), task_type="multi_label")
        assert data.splits["test"].labels is None, name


def test_the_doctor_counts_labels_and_finds_those_that_teach_nothing(tmp_path):
    train = write(tmp_path / "t.jsonl", labels=[*SETS, ["joy"]])
    report = examine(whole(train, task_type="multi_label", label_names=["anger", "joy", "love", "fear"]))
    lines = "\n".join(full_lines(report))
    assert "multi_label into 4 labels, any number per row" in lines
    assert "labels: anger 8 (32.0 %), joy 13 (52.0 %), love 8 (32.0 %), fear 0 (0.0 %), no label 4 (16.0 %)" in lines
    missing = [one.message for one in report.findings if one.kind == "missing-class" and one.split == "train"]
    assert missing == ["train: no row has the label 'fear'."]


def test_known_tasks_have_one_label_a_row(data_dir):
    with pytest.raises(ConfigError, match="the rows of rte have one label each"):
        load_data(DataConfig(task="rte", data_dir=str(data_dir), task_type="multi_label"), seed=1)
    with pytest.raises(ConfigError, match="data.label_separator: is for custom data"):
        load_data(DataConfig(task="rte", data_dir=str(data_dir), label_separator=";"), seed=1)
