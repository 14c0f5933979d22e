"""Reader of SQLite databases: one table or view."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

from attentune.config.parse import did_you_mean
from attentune.data.readers.csv import check_header
from attentune.data.readers.table import WHOLE, ChunkLimit, Table, as_cell, in_chunks
from attentune.errors import DataError

SQLITE = (".db", ".sqlite", ".sqlite3")
_HEADER = b"SQLite format 3\0"


def parse_sqlite(
    path: Path,
    keep: Collection[str] | None = None,
    table: str | None = None,
    limit: ChunkLimit = WHOLE,
    *,
    first_row: int = 0,
    num_rows: int | None = None,
) -> Iterator[Table]:
    """Parse a table or view of a SQLite database, which is opened for reading only; yields one table per chunk.

    Numbers are texts as Python writes them, and NULL is a missing value, as in Parquet.
    """
    with _reading(path) as database:
        name = _table_name(database, path, table)
        # All columns, whatever is kept: an index that has some of them may give rows in another order.
        cursor = database.execute(f"SELECT * FROM {_quoted(name)} LIMIT ? OFFSET ?", (num_rows or -1, first_row))
        header = _header(cursor, path)
        chosen = {column: place for place, column in enumerate(header) if keep is None or column in keep}
        done = first_row

        def made(rows: list[tuple[object, ...]]) -> Table:
            nonlocal done
            for column, place in chosen.items():
                number = next((n for n, row in enumerate(rows, start=done + 1) if isinstance(row[place], bytes)), None)
                if number is not None:
                    raise DataError(
                        f"the table {name!r}, row {number}: column {column!r} holds binary data, expected a text or"
                        " number. Leave the column out, by a view without it.",
                        path=path,
                    )
            columns = {column: tuple(_text(row[place]) for row in rows) for column, place in chosen.items()}
            part = Table(str(path), header, columns, len(rows), first_row=done)
            done += len(rows)
            return part

        yield from in_chunks(((row, _size(row)) for row in cursor), limit, made)
        if done == first_row:
            raise DataError(f"the table {name!r} has no rows. Add rows.", path=path)


def scan_sqlite(path: Path, table: str | None = None) -> tuple[tuple[str, ...], int]:
    """Return the names of the columns of a table or view, and the number of its rows."""
    with _reading(path) as database:
        name = _table_name(database, path, table)
        header = _header(database.execute(f"SELECT * FROM {_quoted(name)} LIMIT 0"), path)
        ((count,),) = database.execute(f"SELECT count(*) FROM {_quoted(name)}")
    if not count:
        raise DataError(f"the table {name!r} has no rows. Add rows.", path=path)
    return header, count


def _header(cursor: sqlite3.Cursor, path: Path) -> tuple[str, ...]:
    return check_header([(1, [column[0] for column in cursor.description])], path)


def _size(row: tuple[object, ...]) -> int:
    return sum(len(cell) for cell in row if isinstance(cell, str))


def _table_name(database: sqlite3.Connection, path: Path, given: str | None) -> str:
    found = database.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    names = sorted(name for (name,) in found)
    listed = ", ".join(map(repr, names[:30]))
    if not names:
        raise DataError("holds no table. Add one.", path=path)
    if given is None and len(names) > 1:
        raise DataError(f"holds {len(names)} tables: {listed}. Name the one to read with --table.", path=path)
    if given is not None and given not in names:
        raise DataError(
            f"there is no table {given!r}.{did_you_mean(given, names)} Tables here: {listed}. Name one with --table.",
            path=path,
        )
    return names[0] if given is None else given


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with path.open("rb") as file:
        head = file.read(len(_HEADER))
    if head != _HEADER:
        what = "the file is empty" if not head else "not a SQLite database"
        raise DataError(f"{what}, expected one by the name's ending. Let the name end in what it holds.", path=path)
    database = None
    try:
        # Extensions are not loaded, and nothing is written, not even a journal.
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        yield database
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise DataError(
            f"cannot be read as a SQLite database ({str(error)[:200]}). Use another copy, or close the program that"
            " writes to it.",
            path=path,
        ) from error
    finally:
        if database is not None:
            database.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(cell: object) -> str | None:
    value = as_cell(cell)
    return None if value is None else str(value)
