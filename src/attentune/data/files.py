"""Strict readers: a file is read row by row and character by character, or an error names the line.

No types are inferred: "None", "NA", "nan" and "null" are texts, and numbers stay as they are written.
"""

import atexit
import csv
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.binary_files import parse_parquet, parse_spreadsheet
from attentune.data.tables import CHUNK, CONVENTIONAL, WHOLE, ChunkLimit, Table
from attentune.data.text_files import parse_delimited, parse_json, parse_json_lines, parse_plain_lines
from attentune.data.text_formats import (
    DELIMITERS,
    HEAD_BYTES,
    MAX_BYTES,
    SPREADSHEETS,
    Dialect,
    check_file,
    check_file_settings,
    describe,
    find_dialect,
    find_encoding,
    is_other_format,
    named_columns,
    open_bytes,
    text_lines,
)
from attentune.errors import DataError

PLAIN, PARQUET = ".txt", ".parquet"
# Text files, which may be gzipped, and Parquet; further kinds are spreadsheets.
_TEXT_FILES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EXTENSIONS = (*_TEXT_FILES, PARQUET)
ENDINGS = (*EXTENSIONS, *(f"{ending}.gz" for ending in _TEXT_FILES))
_EXPORT = {
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "sqlite3 FILE -header -csv 'SELECT * FROM TABLE' > rows.csv"),
    **dict.fromkeys((".feather", ".arrow"), "in Python: pandas.read_feather('FILE').to_parquet('rows.parquet')"),
}
# The path of standard input, and what messages call it.
STANDARD_INPUT, NAME = "-", "standard input"
_CALLED = {".csv": "CSV", ".json": "JSON", ".jsonl": "JSON lines", PLAIN: "plain text, one text a line"}
# Lines that distinguish a table from plain text.
_LINES = 50
# Everything is found.
_FOUND = DataConfig()
_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[{\]])")


def read_table(path: str | Path, *, config: DataConfig = _FOUND) -> Table:
    """Read a file, "-" (standard input, whose format is found), or a folder of folders with .txt files, as a whole."""
    (table,) = read_chunks(path, limit=WHOLE, config=config)
    return table


def read_chunks(
    path: str | Path,
    *,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = CHUNK,
    config: DataConfig = _FOUND,
) -> Iterator[Table]:
    """Read a file as `read_table` does, in chunks of consecutive rows, with one in memory at a time.

    Files that are not read row by row are one chunk. A chunk of a .jsonl file has only the columns of its rows. Of
    delimited files and Parquet only the columns in `keep` are read.
    """
    check_file_settings(config)
    name: str | Path = NAME
    if str(path) == STANDARD_INPUT:
        path = copied_input()
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        kind = None if config.file_format is None else f".{config.file_format}"
    elif is_class_folder(Path(path).expanduser()):
        yield parse_class_folder(Path(path).expanduser())
        return
    else:
        path = name = check_file(path)
        is_packed = path.suffix.lower() == ".gz"
        kind = kind_of(path, config)
        if kind in SPREADSHEETS:
            yield parse_spreadsheet(path, config)
            return
    most = MAX_BYTES if limit == WHOLE or kind in (None, ".json") else math.inf
    with open_bytes(path, name, is_packed=is_packed, max_bytes=most) as stream:
        notes: tuple[str, ...] = ()
        if kind is None:
            kind, notes = guess_format(stream.peek(HEAD_BYTES), name, config)
        if kind == PARQUET:
            if is_packed:
                raise DataError("gzipped Parquet is not read. Unpack it.", path=name)
            tables = parse_parquet(path, name, keep, limit, file_bytes=path.stat().st_size, max_bytes=most)
        else:
            tables = read_stream(stream, name, kind, keep, limit, config)
        for table in tables:
            yield replace(table, notes=(*notes, *table.notes)) if notes else table


def kind_of(path: str | Path, config: DataConfig) -> str:
    """Return the ending of a file's name without .gz, or the given format."""
    name = Path(str(path).lower())
    kind = name.with_suffix("").suffix if name.suffix == ".gz" else name.suffix
    if name.suffix not in SPREADSHEETS and kind not in EXTENSIONS:
        if config.file_format is None:
            export = f" ({_EXPORT[kind]})" if kind in _EXPORT else ""
            raise DataError(
                f"the name ends in {kind or 'nothing known'!r}, expected one of {' '.join(_TEXT_FILES)}, also with .gz,"
                f" or {PARQUET} {' '.join(SPREADSHEETS)}. Rename it to what it holds, give --file_format, or convert"
                f" it{export}.",
                path=path,
            )
        kind = f".{config.file_format}"
    return kind


def read_stream(
    stream: Any, path: str | Path, kind: str, keep: Collection[str] | None, limit: ChunkLimit, config: DataConfig
) -> Iterator[Table]:
    """Read an open text file, unpacked, of a format given by its ending."""
    if kind == ".json":
        yield parse_json("".join(text_lines(stream, path)), path)
    elif kind in DELIMITERS:
        dialect = find_dialect(stream.peek(HEAD_BYTES), kind, config)
        lines = text_lines(stream, path, encoding=dialect.encoding)
        for table in parse_delimited(lines, path, dialect, keep, limit):
            yield replace(table, notes=(*describe(dialect, kind, path, config), *table.notes))
    elif kind == PLAIN:
        encoding = find_encoding(stream.peek(HEAD_BYTES), config.encoding) or "utf-8"
        yield from parse_plain_lines(text_lines(stream, path, encoding=encoding), path, limit)
    else:
        yield from parse_json_lines(text_lines(stream, path), path, limit)


def read_delimited(path: str | Path, dialect: Dialect, *, keep: Collection[str] | None = None) -> Table:
    """Read a delimited file of any name, in the given dialect."""
    path = check_file(path)
    with open_bytes(path, is_packed=path.suffix.lower() == ".gz") as stream:
        (table,) = parse_delimited(text_lines(stream, path), path, dialect, keep)
        return table


# The copy, and the stream that it is of.
_copied: list[tuple[Any, Path]] = []


def copied_input() -> Path:
    """Read standard input to its end, once in a process; return the file with its bytes, removed at exit."""
    stream, cure = sys.stdin, "For example: attentune predict RUN --input_file - < reviews.csv"
    if _copied and _copied[-1][0] is stream:
        return _copied[-1][1]
    if stream is None or stream.closed:
        raise DataError(f"is closed, expected rows. {cure}", path=NAME)
    if stream.isatty():
        raise DataError(f"is a terminal, expected rows from a file or another program. {cure}", path=NAME)
    handle, name = tempfile.mkstemp(prefix="attentune-")
    atexit.register(Path(name).unlink, missing_ok=True)
    try:
        with os.fdopen(handle, "wb") as copy:
            shutil.copyfileobj(stream.buffer, copy, 2**20)
    except OSError as error:
        raise DataError(f"cannot be copied to {name}: {error.strerror or error}.", path=NAME) from error
    if not Path(name).stat().st_size:
        raise DataError(f"is empty, expected rows. Does the program before the pipe write any? {cure}", path=NAME)
    _copied[:] = [(stream, Path(name))]
    return Path(name)


def guess_format(head: bytes, path: str | Path, config: DataConfig) -> tuple[str, tuple[str, ...]]:
    """Detect the format of a stream without a name."""
    if head.startswith(b"PAR1"):
        return PARQUET, ()
    if is_other_format(head):
        raise DataError(
            "holds no text, expected CSV, JSON, plain text or Parquet, also gzipped. Save it to a file, unpack it if it"
            " is compressed by another program, and give the file.",
            path=path,
        )
    encoding = find_encoding(head, config.encoding) or "utf-8"
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    if _JSON.match(text):
        try:
            is_object = isinstance(json.loads(text.lstrip().split("\n", 1)[0]), dict)
        except (ValueError, RecursionError):
            is_object = False
        kind = ".jsonl" if is_object else ".json"
    else:
        kind = _table_or_lines(text, find_dialect(head, ".csv", config), path, config)
    return kind, (f"{path}: read as {_CALLED[kind]}. If that is wrong, give --file_format.",)


def _table_or_lines(text: str, dialect: Dialect, path: str | Path, config: DataConfig) -> str:
    if config.delimiter is not None or not config.header:
        return ".csv"
    lines = [line for line in io.StringIO(text, newline="\n") if line.strip()][:_LINES]
    try:
        records = list(csv.reader(lines, delimiter=dialect.delimiter))
    except csv.Error:
        return PLAIN
    if records and any(name in named_columns(config) or name.lower() in CONVENTIONAL for name in records[0]):
        return ".csv"
    if len(records) > 1 and len({len(record) for record in records[:-1]}) == 1 and len(records[0]) > 1:
        raise DataError(
            "cannot tell whether this is a table without known names of columns, or one text a line. Say it:"
            " --file_format csv (with --text_column NAME), or --file_format txt.",
            path=path,
        )
    return PLAIN


def is_class_folder(path: Path) -> bool:
    """Return whether the folder has folders with text files."""
    return path.is_dir() and any(path.glob("*/*.txt"))


def parse_class_folder(path: Path) -> Table:
    """Read the .txt files of each folder in a folder, in the order of their names."""
    files = sorted(path.glob("*/*.txt"))
    texts, size, encodings = [], 0, set[str]()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}.", path=file) from error
        size += len(content)
        if size > MAX_BYTES:
            raise DataError(f"its files hold more than the {MAX_BYTES} bytes that are read. Divide it.", path=path)
        encoding = find_encoding(content) or "utf-8"
        lines = text_lines(io.BytesIO(content), file, encoding=encoding)
        texts.append("".join(lines).replace("\r\n", "\n").strip())
        encodings.add(encoding)
    other = sorted(encodings - {"utf-8"})
    notes = (f"{path}: {len(files):,} text files are read, some of them as {', '.join(other)}.",) if other else ()
    columns = {
        "file": tuple(str(file.relative_to(path)) for file in files),
        "text": tuple(texts),
        "label": tuple(file.parent.name for file in files),
    }
    return Table(str(path), tuple(columns), columns, len(files), notes=notes)
