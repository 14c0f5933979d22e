"""Strict readers: a file comes back row for row and character for character, or an error says where it cannot.

Nothing is guessed from the content: "None", "NA", "nan" and "null" are texts, and numbers stay as they are written.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import IO

from attentune.data.delimited import Dialect, parse_delimited
from attentune.data.jsonfiles import parse_json, parse_json_lines
from attentune.data.streams import MAX_BYTES, check_file, open_bytes, text_lines
from attentune.data.table import Table, as_cell
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
            return _read_parquet(stream, path, keep, max_bytes)
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


def _read_parquet(stream: IO[bytes], path: Path, keep: Collection[str] | None, max_bytes: int) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A path is mapped piece by piece; a gzipped file has to be unpacked first, since Parquet is read from its end.
        file = pq.ParquetFile(pa.BufferReader(stream.read()) if path.suffix.lower() == ".gz" else path)
        names = tuple(file.schema_arrow.names)
        unpacked = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        _check_parquet(path, names, file.metadata.num_rows, unpacked, max_bytes)
        kept = [name for name in names if keep is None or name in keep]
        table = file.read(columns=kept)
        columns = {name: [as_cell(value) for value in table.column(name).to_pylist()] for name in kept}
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"not a whole Parquet file ({error}). Write it again.", path=path) from error
    return Table(str(path), names, columns, file.metadata.num_rows)


def _check_parquet(path: Path, names: tuple[str, ...], num_rows: int, unpacked: int, max_bytes: int) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"names {', '.join(map(repr, repeated))} more than once. Give each column its own name.", path=path
        )
    if num_rows == 0:
        raise DataError("holds columns but no rows. Add rows.", path=path)
    if unpacked > max_bytes:
        raise DataError(
            f"holds {unpacked} bytes when unpacked, more than the {max_bytes} that are read. Split the file.", path=path
        )
