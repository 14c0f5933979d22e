"""`predictions_SPLIT.csv`: every row, whatever its id and labels are called."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.data.dataset import LabelSpace
from attentune.data.files import read_table
from attentune.inference.predictions import predictions_csv, values_of
from attentune.inference.streaming import row_writer
from helpers.tiny_models import TWO, rows_of

LOGITS = np.array([[0.0, np.log(3.0)], [2.0, -2.0]], dtype=np.float32)


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_the_file_as_it_is() -> None:
    rows = replace(rows_of(["x", "y"], labels=[1, 1]), ids=("a7", "12"))
    assert predictions_csv(rows, LOGITS, TWO) == (
        "id,label,prediction,p_bad,p_good\na7,good,good,0.250000,0.750000\n12,good,bad,0.982014,0.017986\n"
    )


def test_rows_without_labels_have_no_column_of_them() -> None:
    rows = read(predictions_csv(rows_of(["x", "y"]), LOGITS, TWO))
    assert [row[:2] for row in rows] == [["id", "prediction"], ["0", "good"], ["1", "bad"]]


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


def test_no_rows_leave_the_header() -> None:
    assert predictions_csv(rows_of([]), np.zeros((0, 2), dtype=np.float32), TWO) == "id,prediction,p_bad,p_good\n"


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
