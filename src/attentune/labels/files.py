"""Rows for people to read and fill in, as .csv, .tsv or .jsonl."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.io.files import write_text

ENDINGS = (".csv", ".tsv", ".jsonl")


def check_ending(path: str, flag: str = "--output_file") -> None:
    """Check that a file's name ends in .csv, .tsv or .jsonl."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"{flag}: got {path}, expected a name that ends in {', '.join(ENDINGS)}.")


def write_rows(path: str, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; see `rows_text`."""
    check_ending(path)
    write_text(path, rows_text(names, lines, Path(path).suffix.lower()))


def rows_text(names: Sequence[str], lines: Sequence[Mapping[str, Any]], ending: str) -> str:
    """Format rows."""
    if ending == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    buffer = io.StringIO()
    # Older versions of Python do not quote a carriage return by themselves, so that all texts are quoted.
    separator = "\t" if ending == ".tsv" else ","
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    writer.writerows([_field(line.get(name)) for name in names] for line in lines)
    return buffer.getvalue()


def _field(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return json.dumps(cell, ensure_ascii=False, default=str)
