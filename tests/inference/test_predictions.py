"""`predictions_SPLIT.csv` with whatever ids and labels, and the evaluation of a split as counted by hand."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_table
from attentune.errors import DataError
from attentune.inference.evaluation import evaluate_split
from attentune.inference.predictions import predictions_csv, values_of
from attentune.inference.streaming import row_writer
from attentune.stats.estimate import wilson_interval
from helpers.tiny_models import TWO, rows_of

LOGITS = np.array([[0.0, np.log(3.0)], [2.0, -2.0]], dtype=np.float32)


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_the_file_as_it_is() -> None:
    rows = replace(rows_of(["x", "y"], labels=[1, 1]), ids=("a7", "12"))
    assert predictions_csv(rows, LOGITS, TWO) == (
        "id,label,prediction,p_bad,p_good\na7,good,good,0.250000,0.750000\n12,good,bad,0.982014,0.017986\n"
    )
    rows = read(predictions_csv(rows_of(["x", "y"]), LOGITS, TWO))
    assert [row[:2] for row in rows] == [["id", "prediction"], ["0", "good"], ["1", "bad"]]
    assert predictions_csv(rows_of([]), np.zeros((0, 2), dtype=np.float32), TWO) == "id,prediction,p_bad,p_good\n"


def test_regression_has_one_prediction_and_no_probabilities() -> None:
    rows = rows_of(["x", "y", "z"], labels=[0.0, 3.75, 5.0])
    logits_NC = np.array([[0.123456789], [3.0], [-1e-9]], dtype=np.float32)
    assert predictions_csv(rows, logits_NC, LabelSpace("regression")) == (
        "id,label,prediction\n0,0,0.123457\n1,3.75,3\n2,5,-1e-09\n"
    )


def test_odd_ids_and_labels_are_quoted_and_come_back() -> None:
    names = ('a "b", c', "line\nbreak", "", "naïve 😀", "None", "car\rriage")
    ids = ("x,y", 'say "so"', "two\nlines", "", "=1+1", " spaced ")
    rows = replace(rows_of(["t"] * 6, labels=[5, 4, 3, 2, 1, 0]), ids=ids)
    found = read(predictions_csv(rows, 9 * np.eye(6, dtype=np.float32), LabelSpace("classification", names)))
    assert found[0] == ["id", "label", "prediction", *(f"p_{name}" for name in names)]
    assert [tuple(row[:3]) for row in found[1:]] == list(zip(ids, names[::-1], names, strict=True))
    shares = np.array([[float(value) for value in row[3:]] for row in found[1:]])
    assert shares.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    assert (shares.argmax(axis=1) == np.arange(6)).all()


def test_several_labels_stand_beside_each_other_and_come_back() -> None:
    space = LabelSpace("multi_label", ("a, b", "c", "d"))
    labels = np.array([[1, 0, 1], [0, 0, 0]])
    rows = replace(rows_of(["x", "y"]), labels=labels)
    logits_NC = np.array([[0.0, 1.0, -1.0], [-1.0, -1.0, -1.0]], dtype=np.float32)
    header, *found = read(predictions_csv(rows, logits_NC, space))
    assert header == ["id", "labels", "predictions", "p_a, b", "p_c", "p_d"]
    assert [row[:3] for row in found] == [["0", "a, b|d", "a, b|c"], ["1", "", ""]]
    assert found[0][3:] == ["0.500000", "0.731059", "0.268941"]
    assert np.array_equal(values_of([row[1] for row in found], space.names, several=True), labels)
    assert values_of([row[2] for row in found], space.names, several=True).tolist() == [[1, 1, 0], [0, 0, 0]]


def test_columns_of_classes_and_scores_come_back() -> None:
    assert values_of(["good", "bad"], TWO.names).tolist() == [1, 0]
    assert values_of(["1.5", "-2"], ()).tolist() == [1.5, -2.0]
    with pytest.raises(KeyError):
        values_of(["fine"], TWO.names)


KINDS = {"id": "text", "prediction": "number", "p_good": "share", "topics": "texts"}
WRITTEN: dict[str, Any] = {
    "id": ["a", 'say "hi"\r\n, so', ""],
    "prediction": [0.5, 12345.6789, -1.0],
    "p_good": [0.1234567, 1e-9, 1.0],
    "topics": [["a", "b"], [], ["c"]],
}


@pytest.mark.parametrize("file_format", ["parquet", "jsonl", "csv"])
def test_rows_are_read_as_they_were_written(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / f"rows.{file_format}"
    with path.open("wb") as stream, row_writer(stream, file_format, KINDS) as write:
        write(WRITTEN)
        write(WRITTEN)
    table = read_table(path)
    assert table.texts("id") == (*WRITTEN["id"], *WRITTEN["id"])
    assert [float(cell or "") for cell in table.columns["prediction"][:3]] == WRITTEN["prediction"]
    shares = [0.1234567, 1e-9, 1.0] if file_format == "parquet" else [0.123457, 0.0, 1.0]
    assert [float(cell or "") for cell in table.columns["p_good"][:3]] == pytest.approx(shares, rel=1e-6)
    topics = table.columns["topics"][:3]
    assert list(topics) == (["a|b", "", "c"] if file_format == "csv" else WRITTEN["topics"])
    if file_format == "parquet":
        assert pq.ParquetFile(path).num_row_groups == 2
        assert pq.read_schema(path).field("p_good").type == pa.float32()
    with pytest.raises(KeyError), row_writer(io.BytesIO(), file_format, KINDS):
        raise KeyError  # leaves no open writer


# The evaluation of a split: classes, confusions and errors as counted by hand, for each kind of labels.


THREE = LabelSpace("classification", ("a", "b", "c"))


def numbered_rows(labels):
    count = len(labels)
    return TextRows(tuple(f"r{n}" for n in range(count)), tuple(f"text {n}" for n in range(count)), None, labels, "x")


def drawn(count=60, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=count)
    return labels, 1.5 * np.eye(classes)[labels] + generator.normal(size=(count, classes))


def test_classes_and_confusions_are_counts():
    labels, logits = drawn()
    given = logits.argmax(axis=1)
    found = evaluate_split("validation", numbered_rows(labels), logits, THREE, ("accuracy", "f1_macro"))
    for true in range(3):
        one = found.classes[true]
        both = sum(1 for x, y in zip(labels, given, strict=True) if x == y == true)
        assert one.rows == sum(labels == true)
        assert one.predicted == sum(given == true)
        assert one.precision == pytest.approx(both / one.predicted)
        assert one.recall == pytest.approx(both / one.rows)
        for other in range(3):
            assert found.confusion[true, other] == sum((labels == true) & (given == other))
    accuracy, macro = found.metrics
    hits = int((labels == given).sum())
    assert (accuracy.value, accuracy.low, accuracy.high) == (hits / 60, *wilson_interval(hits, 60))
    assert macro.value == pytest.approx(np.mean([one.f1 for one in found.classes]))
    assert macro.low < macro.value < macro.high
    assert 0 < found.calibration_error < 0.5


def test_errors_are_the_wrong_rows_with_the_most_certain_first():
    labels, logits = drawn()
    found = evaluate_split("validation", numbered_rows(labels), logits, THREE, ("accuracy",))
    wrong = np.flatnonzero(logits.argmax(axis=1) != labels)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    sizes = {int(n): shares[n].max() - shares[n, labels[n]] for n in wrong}
    assert [one.row for one in found.errors] == sorted(sizes, key=lambda n: -sizes[n])
    first = found.errors[0]
    assert first.size == pytest.approx(sizes[first.row])
    assert (first.id, first.label) == (f"r{first.row}", THREE.names[labels[first.row]])
    assert first.prediction == THREE.names[logits[first.row].argmax()]


def test_thresholds_several_labels_and_scores():
    labels, logits = drawn(classes=2)
    space = LabelSpace("classification", ("no", "yes"), thresholds=(0.9,))
    found = evaluate_split("validation", numbered_rows(labels), logits, space, ("accuracy",))
    shares = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    assert found.classes[1].predicted == int((shares >= 0.9).sum())
    # Several labels.
    generator = np.random.default_rng(1)
    labels = generator.integers(2, size=(40, 3))
    logits = 2.0 * (2 * labels - 1) + 2 * generator.normal(size=(40, 3))
    space = LabelSpace("multi_label", ("x", "y", "z"))
    found = evaluate_split("test", numbered_rows(labels), logits, space, ("f1_micro",))
    given = (logits >= 0).astype(int)
    assert found.confusion is None
    for place, one in enumerate(found.classes):
        assert one.rows == labels[:, place].sum()
        assert one.predicted == given[:, place].sum()
    assert {one.row for one in found.errors} == set(np.flatnonzero((labels != given).any(axis=1)))
    # Scores list the largest distances.
    labels = np.linspace(0, 5, 30)
    logits = (labels + np.random.default_rng(2).normal(size=30))[:, None]
    found = evaluate_split("test", numbered_rows(labels), logits, LabelSpace("regression"), ("pearson",))
    assert (found.classes, found.confusion, found.calibration_error) == ((), None, None)
    assert len(found.errors) == 30
    assert found.errors[0].row == int(np.abs(labels - logits[:, 0]).argmax())
    assert found.to_dict()["wrong_rows"] is None
    # Rows without labels are refused.
    rows = TextRows(("1",), ("a",), None, None, "x")
    with pytest.raises(DataError, match="test: has no labels to score against"):
        evaluate_split("test", rows, np.zeros((1, 3)), THREE, ("accuracy",))
