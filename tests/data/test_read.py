"""The readers give back every row, character for character, or say where they cannot."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.data.files import read_delimited, read_table
from attentune.data.text_files import Dialect
from attentune.errors import DataError

TRICKY = [
    "None",
    "NA",
    "nan",
    "null",
    "",
    " leading",
    'a "quote"',
    "tab\there",
    "a,b",
    "two\nlines",
    "x\u2028y",
    "7",
    "1.0",
]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def as_csv(rows: list[list[str]], delimiter: str = ",", lineterminator: str = "\r\n") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator=lineterminator).writerows(rows)
    return buffer.getvalue()


def as_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def encoded(kind: str, texts: list[str], labels: list[str]) -> bytes:
    """A file of the kind with the columns text and label."""
    records = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    if kind in ("csv", "tsv"):
        rows = [["text", "label"], *map(list, zip(texts, labels, strict=True))]
        return as_csv(rows, "," if kind == "csv" else "\t").encode()
    if kind == "jsonl":
        return "\n".join(json.dumps(record, ensure_ascii=False) for record in records).encode()
    if kind == "parquet":
        return as_parquet(pa.table({"text": texts, "label": labels}))
    return json.dumps({"list": records, "data": {"version": 1, "data": records}}[kind]).encode()


KINDS = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "list": "json", "data": "json", "parquet": "parquet"}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str, packed: bool) -> None:
    labels = [str(number) for number in range(len(TRICKY))]
    content = encoded(kind, TRICKY, labels)
    path = tmp_path / f"rows.{KINDS[kind]}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content) if packed else content)
    table = read_table(path)
    assert table.texts("text") == tuple(TRICKY)
    assert table.texts("label") == tuple(labels)
    assert table.names == ("text", "label")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_bom_and_blank_lines_at_the_end_do_not_count(tmp_path: Path, end: str) -> None:
    path = write(tmp_path, "rows.csv", "\ufeff" + end.join(["text,label", "good,1", "bad,0", "", ""]))
    table = read_table(path)
    assert table.names == ("text", "label")
    assert table.texts("label") == ("1", "0")


def test_lines_are_those_that_records_begin_at(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "rows.csv", 'text,label\n"one\ntwo\nthree",1\nfour,0\n'))
    assert table.lines == (2, 5)
    table = read_table(write(tmp_path, "rows.jsonl", '{"text": "a"}\n\n{"text": "b"}\n'))
    assert table.lines == (1, 3)
    table = read_table(write(tmp_path, "rows.json", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'))
    assert table.texts("text") == ("a", "b")
    table = read_table(write(tmp_path, "rows.json", '{"v": [1],\n"data": [\n{"text": "a"},\n\n{"text":\n"b"}]}'))
    assert table.lines == (3, 5)
    assert table.texts("text") == ("a", "b")


def test_values_that_are_no_texts_keep_their_spelling(tmp_path: Path) -> None:
    line = '{"a": 1, "b": 1.50, "c": 12345678901234567890123, "d": true, "e": null, "f": NaN}'
    table = read_table(write(tmp_path, "rows.jsonl", line))
    values = [table.values(name)[0] for name in "abcdef"]
    assert values == ["1", "1.50", "12345678901234567890123", "true", None, None]
    columns = pa.table(
        {"a": [1], "b": [1.5], "c": [True], "d": pa.array([float("nan")]), "e": pa.array([None], pa.string())}
    )
    table = read_table(write(tmp_path, "rows.parquet", as_parquet(columns)))
    assert [table.values(name)[0] for name in "abcde"] == ["1", "1.5", "true", None, None]


def test_only_asked_columns_are_kept_but_all_are_named(tmp_path: Path) -> None:
    columns = as_parquet(pa.table({"a": [1], "b": [2], "c": [3]}))
    for kind, content in (("csv", b"a,b,c\n1,2,3\n"), ("jsonl", b'{"a": 1, "b": 2, "c": 3}'), ("parquet", columns)):
        table = read_table(write(tmp_path, f"rows.{kind}", content), keep={"c", "a"})
        assert (set(table.columns), table.names, table.texts("c")) == ({"a", "c"}, ("a", "b", "c"), ("3",))


def test_a_huge_field_is_read_and_the_csv_limit_is_put_back(tmp_path: Path) -> None:
    csv.field_size_limit(131072)  # the standard library's own
    table = read_table(write(tmp_path, "rows.csv", f'text,label\n"{"x" * 300_000}",1\n'))
    assert len(table.texts("text")[0]) == 300_000
    assert csv.field_size_limit() == 131072


def test_missing_files_and_folders(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text\na\n")
    with pytest.raises(DataError, match=r"no such file. Did you mean 'train.csv'\?"):
        read_table(tmp_path / "trian.csv")
    with pytest.raises(DataError, match="does not exist either"):
        read_table(tmp_path / "nowhere" / "train.csv")
    with pytest.raises(DataError, match="is a folder, expected a file"):
        read_table(tmp_path)


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.jsonl.gz", "rows.parquet.gz", "rows.parquet"])
def test_unpacked_size_is_bounded(tmp_path: Path, name: str) -> None:
    text = "x" * 200_000
    content = {"csv": f"text\n{text}\n".encode(), "jsonl": json.dumps({"text": text}).encode()}.get(name.split(".")[1])
    content = content or as_parquet(pa.table({"text": [text, text]}))
    path = write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    if "parquet" not in name:
        assert len(read_table(path, max_bytes=300_000)) == 1
    with pytest.raises(DataError, match="more than the .* bytes that are read"):
        read_table(path, max_bytes=100 if name.endswith("parquet.gz") else 100_000)


def test_without_quoting_a_quote_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.txt", 'a\tb\n"x\ty\n""\t"z" and\r\n')
    table = read_delimited(path, Dialect("\t", "none"))
    assert table.texts("a") == ('"x', '""')
    assert table.texts("b") == ("y", '"z" and')


@pytest.mark.parametrize("name", ["rows.db", "rows.csv"])
def test_a_database_is_refused_with_the_command_that_exports_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"SQLite format 3\0" + b"text,label\n" * 20)
    with pytest.raises(DataError, match=rf"{name}.* sqlite3 FILE -header -csv|{name}.*\(sqlite3 FILE"):
        read_table(tmp_path / name)
