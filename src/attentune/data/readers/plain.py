"""Reader of plain text, one text a line, and what the content of a stream without a name is."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from attentune.data.names import CONVENTIONAL
from attentune.data.readers.csv import Dialect
from attentune.data.readers.formats import FileOptions, find_dialect, find_encoding
from attentune.data.readers.streams import is_other_format
from attentune.data.readers.table import ChunkLimit, Table, in_chunks
from attentune.errors import DataError

PLAIN, PARQUET = ".txt", ".parquet"
_TEXT = "text"
_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[{\]])")
_CALLED = {".csv": "CSV", ".json": "JSON", ".jsonl": "JSON lines", PLAIN: "plain text, one text a line"}
# Lines that are compared.
_LINES = 50


def parse_plain_lines(
    lines: Iterable[str], path: str | Path, keep: Collection[str] | None, limit: ChunkLimit
) -> Iterator[Table]:
    """Read each line as a text, the column `text`. Empty lines are empty texts, but those at the end are left out.

    Args:
        lines: the lines of the file.
        path: the path of the file, for messages.
        keep: the columns to read; None reads all.
        limit: the maximum size of a chunk.

    Raises:
        DataError: all lines are empty.
    """
    done = 0

    def table(rows: list[str]) -> Table:
        nonlocal done
        numbers = tuple(range(done + 1, done + len(rows) + 1))
        columns = {_TEXT: tuple(rows)} if keep is None or _TEXT in keep else {}
        made = Table(str(path), (_TEXT,), columns, len(rows), numbers, first_row=done)
        done += len(rows)
        return made

    yield from in_chunks(((text, len(text)) for text in _without_end(lines)), limit, table)
    if not done:
        raise DataError("holds only empty lines, expected one text a line.", path=path)


def _without_end(lines: Iterable[str]) -> Iterator[str]:
    empty = 0
    for line in lines:
        text = line.removesuffix("\n").removesuffix("\r")
        if not text.strip():
            empty += 1
            continue
        yield from itertools.repeat("", empty)
        empty = 0
        yield text


def guess_format(head: bytes, path: str | Path, options: FileOptions) -> tuple[str, tuple[str, ...]]:
    """Tell what a stream without a name holds.

    Args:
        head: its first bytes.
        path: its name, for messages.
        options: what is given; with column names that a header may have.

    Returns:
        The ending that a file of this content has, and a note.

    Raises:
        DataError: it may be a table or lines of text, or it is no text.
    """
    if head.startswith(b"PAR1"):
        return PARQUET, ()
    if is_other_format(head) or head.startswith(b"SQLite format"):
        raise DataError(
            "holds no text, expected CSV, JSON, plain text or Parquet, also gzipped. Save it to a file, unpack it if it"
            " is compressed by another program, and give the file.",
            path=path,
        )
    encoding = find_encoding(head, options.encoding) or "utf-8"
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    if _JSON.match(text):
        kind = ".jsonl" if _is_object(text.lstrip().split("\n", 1)[0]) else ".json"
    else:
        kind = _table_or_lines(text, find_dialect(head, ".csv", options), path, options)
    return kind, (f"{path}: read as {_CALLED[kind]}. If that is wrong, give --file_format.",)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _table_or_lines(text: str, dialect: Dialect, path: str | Path, options: FileOptions) -> str:
    if options.delimiter is not None or not options.header:
        return ".csv"
    lines = [line for line in io.StringIO(text, newline="\n") if line.strip()][:_LINES]
    sizes = []
    for record in csv.reader(lines[:1], delimiter=dialect.delimiter):
        if any(name in options.columns or name.lower() in CONVENTIONAL for name in record):
            return ".csv"
    try:
        sizes = [len(record) for record in csv.reader(lines, delimiter=dialect.delimiter)]
    except csv.Error:
        return PLAIN
    if len(lines) > 1 and len(set(sizes[:-1])) == 1 and sizes[0] > 1:
        raise DataError(
            "cannot tell whether this is a table without known names of columns, or one text a line. Say it:"
            " --file_format csv (with --text_column NAME), or --file_format txt.",
            path=path,
        )
    return PLAIN
