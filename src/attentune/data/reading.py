"""Strict readers: a file comes back row for row and character for character, or an error says where it cannot.

Nothing is guessed from the content: "None", "NA", "nan" and "null" are texts, and numbers stay as they are written.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from attentune.data.delimited import Dialect, parse_delimited
from attentune.data.jsonfiles import parse_json, parse_json_lines
from attentune.data.parquetfiles import read_parquet
from attentune.data.streams import MAX_BYTES, check_file, open_bytes, text_lines
from attentune.data.table import Table
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
    path = check_file(path)
    kind = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if kind not in EXTENSIONS:
        raise DataError(
            f"the name ends in {kind or 'nothing known'!r}, expected one of {' '.join(EXTENSIONS)}, also with .gz."
            " Rename it to what it holds, or convert it.",
            path=path,
        )
    if kind in (".csv", ".tsv"):
        dialect = Dialect(delimiter="," if kind == ".csv" else "\t")
        return read_delimited(path, dialect, keep=keep, max_bytes=max_bytes)
    with open_bytes(path, max_bytes) as stream:
        if kind == ".parquet":
            return read_parquet(stream, path, keep, max_bytes)
        lines = text_lines(stream, path)
        return parse_json("".join(lines), path, keep) if kind == ".json" else parse_json_lines(lines, path, keep)


def read_delimited(
    path: str | Path, dialect: Dialect, *, keep: Collection[str] | None = None, max_bytes: int = MAX_BYTES
) -> Table:
    """Read a delimited file of any name, written as the dialect says.

    Raises:
        DataError: as `read_table`.
    """
    path = check_file(path)
    with open_bytes(path, max_bytes) as stream:
        return parse_delimited(text_lines(stream, path), path, dialect, keep)
