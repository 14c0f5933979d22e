"""Rows written as Parquet, JSON lines or CSV are read as they were; nothing is written if the block raises."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.data.files import read_table
from attentune.data.writers import FORMATS, OutputColumn, row_writer

COLUMNS = [
    OutputColumn("id", "text"),
    OutputColumn("prediction", "text"),
    OutputColumn("p_good", "share"),
    OutputColumn("topics", "texts"),
]
VALUES: dict[str, Any] = {
    "id": ["a", 'say "hi"\r\n, so', ""],
    "prediction": ["None", "日本語", "nan"],
    "p_good": [0.1234567, 1e-9, 1.0],
    "topics": [["a", "b"], [], ["c"]],
}
KEPT = pa.table(
    {
        "stars": pa.array([1, None, 2**60]),
        "when": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5)] * 3),
        "share": pa.array([0.123456789, float("nan"), None]),
        "more": pa.array([{"a": [1, 2]}, None, {"a": []}]),
    }
)


def written(file_format: str, folder: Path, *, chunks: int = 2) -> Path:
    path = folder / f"rows.{file_format}"
    with path.open("wb") as stream, row_writer(stream, file_format, COLUMNS, KEPT.schema) as to:
        for _ in range(chunks):
            to.add(VALUES, KEPT)
    return path


def test_parquet_keeps_all_values_and_types(tmp_path: Path) -> None:
    path = written("parquet", tmp_path)
    table = pq.read_table(path)
    assert table.select(KEPT.column_names).schema == KEPT.schema
    assert pq.ParquetFile(path).num_row_groups == 2
    assert table.num_rows == 6
    rows = table.to_pylist()
    assert [row["p_good"] for row in rows[:3]] == pytest.approx(VALUES["p_good"], rel=1e-7)
    assert [row["topics"] for row in rows[:3]] == VALUES["topics"]
    assert path.read_bytes() == written("parquet", tmp_path).read_bytes()


def test_json_lines_round_probabilities_and_have_no_nan(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in written("jsonl", tmp_path, chunks=1).read_text().splitlines()]
    assert [row["p_good"] for row in rows] == [0.123457, 0.0, 1.0]
    assert [row["share"] for row in rows] == [0.123456789, None, None]
    assert rows[0]["when"] == "2024-01-02 03:04:05"
    assert [row["stars"] for row in rows] == [1, None, 2**60]


@pytest.mark.parametrize("file_format", FORMATS)
def test_our_readers_read_the_same_texts(tmp_path: Path, file_format: str) -> None:
    table = read_table(written(file_format, tmp_path))
    assert len(table) == 6
    for name in ("id", "prediction"):
        assert table.texts(name) == (*VALUES[name], *VALUES[name])


def test_a_csv_field_holds_lists_and_objects(tmp_path: Path) -> None:
    table = read_table(written("csv", tmp_path, chunks=1))
    assert table.texts("topics") == ("a|b", "", "c")
    assert json.loads(table.texts("more")[0]) == {"a": [1, 2]}
    assert table.texts("p_good") == ("0.123457", "0.000000", "1.000000")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_block_that_raises_leaves_no_open_writer(file_format: str) -> None:
    stream = io.BytesIO()
    with pytest.raises(KeyError), row_writer(stream, file_format, COLUMNS, KEPT.schema) as to:
        to.add(VALUES, KEPT)
        raise KeyError
    assert not stream.closed


@pytest.mark.parametrize("file_format", FORMATS)
def test_no_rows(tmp_path: Path, file_format: str) -> None:
    content = written(file_format, tmp_path, chunks=0).read_bytes()
    if file_format == "parquet":
        assert pq.read_table(tmp_path / "rows.parquet").column_names[:2] == ["id", "prediction"]
    else:
        assert content.decode().splitlines()[:1] == ([] if file_format == "jsonl" else [_header()])


def _header() -> str:
    return ",".join([column.name for column in COLUMNS] + KEPT.column_names)
