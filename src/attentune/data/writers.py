"""Write rows as Parquet, JSON lines or CSV, chunk by chunk."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from attentune.data.dataset import SEPARATOR, LabelSpace
from attentune.data.tables import as_cell, has_return

FORMATS = ("parquet", "jsonl", "csv")
# Names of the column of labels in the output.
LABELS = ("label", "labels")
# The digits of probabilities and scores in text formats; Parquet has all.
_DIGITS = 6


@dataclass(frozen=True)
class OutputColumn:
    """A column of the output."""

    name: str
    kind: str  # "text", "texts" (a list), "number" or "share" (a probability)

    def type(self) -> Any:
        """Return the type for pyarrow."""
        import pyarrow as pa

        kinds = {"text": pa.string(), "number": pa.float64(), "share": pa.float32(), "texts": pa.list_(pa.string())}
        return kinds[self.kind]


class RowWriter:
    """Writes rows to a stream of bytes."""

    def __init__(self, stream: IO[bytes], file_format: str, columns: Sequence[OutputColumn], kept: Any) -> None:
        import pyarrow as pa

        self._stream, self._format, self._columns = stream, file_format, tuple(columns)
        fields = [pa.field(column.name, column.type()) for column in columns]
        labels = [field for field in kept if field.name in LABELS]  # behind the id, as in `predictions_csv`
        rest = [field for field in kept if field.name not in LABELS]
        self._schema = pa.schema([*fields[:1], *labels, *fields[1:], *rest])
        self._writer: Any = None
        if file_format == "parquet":
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(stream, self._schema, compression="zstd")
        elif file_format == "csv":
            self._write_lines([self._schema.names])

    def add(self, values: Mapping[str, Sequence[Any]], kept: Any) -> None:
        """Write rows."""
        import pyarrow as pa

        arrays = {column.name: pa.array(values[column.name], column.type()) for column in self._columns}
        arrays |= {name: kept.column(name) for name in kept.column_names}
        table = pa.table([arrays[name] for name in self._schema.names], schema=self._schema)
        if self._format == "parquet":
            self._writer.write_table(table, row_group_size=max(len(table), 1))
            return
        kinds = {column.name: column.kind for column in self._columns}
        # Numbers as they are, not rounded to float32 before they are rounded to the digits of a text.
        columns = [
            values[name] if kinds.get(name) in ("share", "number") else table[name].to_pylist()
            for name in table.column_names
        ]
        if self._format == "csv":
            cells = [
                [_field_text(cell, kinds.get(name)) for cell in column]
                for name, column in zip(table.column_names, columns, strict=True)
            ]
            self._write_lines(list(zip(*cells, strict=True)))
            return
        for row in zip(*columns, strict=True):
            named = zip(table.column_names, row, strict=True)
            record = {name: _json_value(value, kinds.get(name)) for name, value in named}
            self._stream.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())

    def _write_lines(self, lines: Sequence[Sequence[str]]) -> None:
        self._stream.write(csv_text(lines, quotes_all=has_return(cell for line in lines for cell in line)).encode())

    def close(self) -> None:
        """Write what ends the file."""
        if self._writer is not None:
            self._writer.close()


@contextlib.contextmanager
def row_writer(stream: IO[bytes], file_format: str, columns: Sequence[OutputColumn], kept: Any) -> Iterator[RowWriter]:
    """Yield a `RowWriter`, which is closed if the block ends without an exception."""
    writer = RowWriter(stream, file_format, columns, kept)
    try:
        yield writer
    except BaseException:
        with contextlib.suppress(Exception):  # else it is closed when it is collected, when the stream is gone
            writer.close()
        raise
    writer.close()


def csv_text(lines: Iterable[Iterable[str]], *, quotes_all: bool) -> str:
    """Format lines of CSV; fields are quoted where that is needed, or all of them."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL)
    writer.writerows(lines)
    return buffer.getvalue()


def _field_text(value: Any, kind: str | None) -> str:
    """Format a value of a column of a kind, or of one that is kept, as a field of a CSV file."""
    if kind == "share" and value is not None:
        return f"{value:.{_DIGITS}f}"
    if kind == "number" and value is not None:
        return LabelSpace("regression").text_of(value)
    value = as_cell(value)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return SEPARATOR.join(value)
    return json.dumps(_json_value(value), ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)


def _json_value(value: Any, kind: str | None = None) -> Any:
    """Return a value as JSON has it: NaN as null, times and the like as texts."""
    if kind in ("share", "number"):
        value = round(float(value), _DIGITS) if kind == "share" else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _json_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_json_value(part) for part in value]
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
