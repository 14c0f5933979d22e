"""SQLite databases: a table is read as a file of rows would be, and each mistake has an answer."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from attentune.data.readers.formats import FileOptions
from attentune.data.readers.read import read_chunks, read_table
from attentune.data.readers.table import ChunkLimit
from attentune.errors import DataError

_TABLE = "CREATE TABLE {} (review TEXT, stars, price REAL)"
_ROW = "INSERT INTO {} VALUES (?, ?, ?)"


def write(path: Path, *statements: str, rows: tuple[tuple, ...] = (), table: str = "reviews") -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.executemany(_ROW.format(table), rows)
        database.commit()
    return path


def test_the_only_table_is_read(tmp_path: Path) -> None:
    rows = (('so fine, and "so" on\nand on', 5, 2.5), ("null", None, 3.0))
    path = write(tmp_path / "my reviews.db", _TABLE.format("reviews"), rows=rows)
    before = path.read_bytes()
    table = read_table(path)
    assert table.names == ("review", "stars", "price")
    assert table.columns["review"] == ('so fine, and "so" on\nand on', "null")
    assert table.columns["stars"] == ("5", None)
    assert table.columns["price"] == ("2.5", "3.0")
    assert set(read_table(path, keep=["stars"]).columns) == {"stars"}
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["my reviews.db"]


@pytest.mark.parametrize("name", ["users", "odd \"name'; DROP TABLE users; --"])
def test_a_table_or_view_by_name(tmp_path: Path, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    view = "CREATE VIEW good AS SELECT review FROM reviews WHERE stars > 3"
    statements = (_TABLE.format("reviews"), view, f"CREATE TABLE {quoted} (who)", f"INSERT INTO {quoted} VALUES ('a')")
    path = write(tmp_path / "reviews.sqlite3", *statements, rows=(("fine", 5, 1.0), ("dull", 1, 1.0)))
    assert read_table(path, options=FileOptions(table=name)).columns == {"who": ("a",)}
    assert read_table(path, options=FileOptions(table="good")).columns == {"review": ("fine",)}
    with pytest.raises(DataError, match=r"holds 3 tables: .*'reviews'.* Name the one to read with --table"):
        read_table(path)
    with pytest.raises(DataError, match=r"no table 'review'\. Did you mean 'reviews'\? Tables here: .* --table"):
        read_table(path, options=FileOptions(table="review"))


def test_bad_files(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.db", _TABLE.format("reviews"))
    with pytest.raises(DataError, match="the table 'reviews' has no rows"):
        read_table(path)
    path = write(tmp_path / "binary.db", _TABLE.format("reviews"), rows=(("a", 1, 1.0), ("b", b"\x80\x81", 1.0)))
    with pytest.raises(DataError, match=r"row 2: column 'stars' holds binary data.* Leave the column out"):
        read_table(path)
    assert read_table(path, keep=["review"]).columns == {"review": ("a", "b")}
    rows = tuple((f"text {number}" * 50, 1, 1.0) for number in range(500))
    path = write(tmp_path / "torn.db", _TABLE.format("reviews"), rows=rows)
    path.write_bytes(path.read_bytes()[: 4096 * 3])
    with pytest.raises(DataError, match="cannot be read as a SQLite database .* Use another copy"):
        read_table(path)
    (tmp_path / "text.db").write_text("text,label\n")
    with pytest.raises(DataError, match="not a SQLite database, expected one by the name's ending"):
        read_table(tmp_path / "text.db")
    (tmp_path / "empty.db").write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read_table(tmp_path / "empty.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "none.db")) as database:
        database.execute("CREATE TABLE a (b)")
        database.execute("DROP TABLE a")
        database.commit()
    with pytest.raises(DataError, match="holds no table"):
        read_table(tmp_path / "none.db")


def test_an_index_does_not_change_the_order_of_rows(tmp_path: Path) -> None:
    rows = (("so", 3, 1.0), ("a", 1, 2.0), ("fine", 2, 3.0))
    path = write(
        tmp_path / "reviews.db", _TABLE.format("reviews"), "CREATE INDEX by_text ON reviews (review)", rows=rows
    )
    assert read_table(path, keep=["review"]).columns == {"review": ("so", "a", "fine")}
    chunks = list(read_chunks(path, keep=["review"], limit=ChunkLimit(2, 1000)))
    assert [(table.first_row, table.columns["review"]) for table in chunks] == [(0, ("so", "a")), (2, ("fine",))]
