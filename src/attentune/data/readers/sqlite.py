"""Reader of SQLite databases: one table or view, as a whole."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

from attentune.config.parse import did_you_mean
from attentune.data.readers.csv import check_header
from attentune.data.readers.table import Table, as_cell
from attentune.errors import DataError

SQLITE = (".db", ".sqlite", ".sqlite3")
_HEADER = b"SQLite format 3\0"


def parse_sqlite(path: Path, keep: Collection[str] | None = None, table: str | None = None) -> Table:
    """Parse a table or view of a SQLite database, which is opened for reading only.

    Numbers are texts as Python writes them, and NULL is a missing value, as in Parquet.

    Args:
        path: the file.
        keep: the columns to read; None reads all.
        table: the name of the table or view; None takes the only one.

    Raises:
        DataError: the file is no database, or damaged; there is no such table, or several and none is named; it has no
            rows, or a cell holds binary data.
    """
    with path.open("rb") as file:
        head = file.read(len(_HEADER))
    if head != _HEADER:
        what = "the file is empty" if not head else "not a SQLite database"
        raise DataError(f"{what}, expected one by the name's ending. Let the name end in what it holds.", path=path)
    with _reading(path) as database:
        name = _table_name(database, path, table)
        cursor = database.execute(f"SELECT * FROM {_quoted(name)}")
        header = check_header([(1, [column[0] for column in cursor.description])], path)
        rows = cursor.fetchall()
    if not rows:
        raise DataError(f"the table {name!r} has no rows. Add rows.", path=path)
    chosen = {column: place for place, column in enumerate(header) if keep is None or column in keep}
    for column, place in chosen.items():
        number = next((n for n, row in enumerate(rows, start=1) if isinstance(row[place], bytes)), None)
        if number is not None:
            raise DataError(
                f"the table {name!r}, row {number}: column {column!r} holds binary data, expected a text or number."
                " Leave the column out, by a view without it.",
                path=path,
            )
    columns = {column: tuple(_text(row[place]) for row in rows) for column, place in chosen.items()}
    return Table(str(path), tuple(header), columns, len(rows))


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
    database = None
    try:
        # Extensions are not loaded, and nothing is written, not even a journal.
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        yield database
    except sqlite3.Error as error:
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
