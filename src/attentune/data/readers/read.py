"""Strict readers: a file comes back row for row and character for character, or an error says where it cannot.

Nothing is guessed from the content: "None", "NA", "nan" and "null" are texts, and numbers stay as they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from attentune.data.readers.csv import Dialect, parse_delimited
from attentune.data.readers.json import parse_json, parse_json_lines
from attentune.data.readers.parquet import parse_parquet
from attentune.data.readers.streams import MAX_BYTES, check_file, open_bytes, text_lines
from attentune.data.readers.table import CHUNK, WHOLE, ChunkLimit, Table
from attentune.errors import DataError

EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


def read_table(path: str | Path, *, keep: Collection[str] | None = None, max_bytes: int = MAX_BYTES) -> Table:
    """Read a file by its extension: .csv, .tsv, .json, .jsonl (.ndjson) or .parquet, each also with .gz.

    A .csv or .tsv has a header line; its fields may be in double quotes, and then hold separators, line ends and
    doubled quotes (in a .tsv too: for files without quoting, such as GLUE's, see `read_delimited`).

    Args:
        path: the file.
        keep: the columns to hold in memory; all of them if None.
        max_bytes: the most that is read, after unpacking.

    Raises:
        DataError: if the file is missing, empty, of an unknown kind or broken; with the line where there is one.
    """
    (table,) = read_chunks(path, keep=keep, max_bytes=max_bytes, limit=WHOLE)
    return table


def read_chunks(
    path: str | Path, *, keep: Collection[str] | None = None, max_bytes: int = MAX_BYTES, limit: ChunkLimit = CHUNK
) -> Iterator[Table]:
    """Read a file as `read_table` does, in parts of consecutive rows, of which one is held at a time.

    A .json file comes as one part, since it may be a list; a .parquet.gz file is unpacked as a whole. A part of a
    .jsonl file names only the columns that its own rows have.

    Raises:
        DataError: as `read_table`; where a later part is broken, after the earlier ones were given out.
    """
    path = check_file(path)
    kind = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if kind not in EXTENSIONS:
        raise DataError(
            f"the name ends in {kind or 'nothing known'!r}, expected one of {' '.join(EXTENSIONS)}, also with .gz."
            " Rename it to what it holds, or convert it.",
            path=path,
        )
    with open_bytes(path, max_bytes) as stream:
        if kind == ".parquet":
            yield from parse_parquet(stream, path, keep, max_bytes, limit)
        elif kind == ".json":
            yield parse_json("".join(text_lines(stream, path)), path, keep)
        elif kind in (".csv", ".tsv"):
            dialect = Dialect(delimiter="," if kind == ".csv" else "\t")
            yield from parse_delimited(text_lines(stream, path), path, dialect, keep, limit)
        else:
            yield from parse_json_lines(text_lines(stream, path), path, keep, limit)


def read_delimited(
    path: str | Path, dialect: Dialect, *, keep: Collection[str] | None = None, max_bytes: int = MAX_BYTES
) -> Table:
    """Read a delimited file of any name, written as the dialect says.

    Raises:
        DataError: as `read_table`.
    """
    path = check_file(path)
    with open_bytes(path, max_bytes) as stream:
        (table,) = parse_delimited(text_lines(stream, path), path, dialect, keep)
        return table
