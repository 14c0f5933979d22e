"""Encoding and separator of a delimited file, found from its beginning.

UTF-8 with the separator of the file's extension is read as such, whatever else might fit. Other files are read in the
format that was found, which the messages of a command name.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.readers.csv import Dialect
from attentune.data.readers.streams import is_other_format
from attentune.errors import ConfigError

# The separator that a file has by its extension.
DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Bytes and records that are looked at.
HEAD_BYTES, _RECORDS = 2**18, 50
_CANDIDATES = (";", "\t", "|", ",")
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_ENCODINGS = {"shift_jis": "Shift JIS", "cp932": "Shift JIS (CP932)", "cp949": "EUC-KR (CP949)"}
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Codecs that have all characters of another one where both are possible.
_WIDER = {"iso8859-1": "cp1252", "iso8859-15": "cp1252", "iso8859-9": "cp1254"}
# If more of the bytes above 127 are valid UTF-8, it is UTF-8 with damage. Texts in other encodings have at most 0.4.
_DAMAGED = 0.6
# Right answers of chardet for one sentence have 0.06 and more, those for random bytes less than 0.05.
_LEAST_CONFIDENCE = 0.05


@dataclass(frozen=True)
class FileOptions:
    """What is given about text files, beside what is found in them.

    Attributes:
        delimiter: the separator of fields, used where the header has it; None finds it.
        encoding: the encoding of files that are not UTF-8; None finds it.
        table: the table of a SQLite file, or the sheet of a spreadsheet; None takes the only table, or the first sheet
            that holds anything.
        header: whether the first row of a .csv, .tsv or spreadsheet has the column names.
        file_format: the format of files whose names do not say it, and of standard input.
        columns: names of columns, by which a header is known.
    """

    delimiter: str | None = None
    encoding: str | None = None
    table: str | None = None
    header: bool = True
    file_format: str | None = None
    columns: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: DataConfig) -> FileOptions:
        """Return what data settings give.

        Raises:
            ConfigError: the separator is not one character, or the encoding is unknown.
        """
        delimiter = {"\\t": "\t", "tab": "\t"}.get(config.delimiter or "", config.delimiter)
        problems = []
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            problems.append(
                f"--delimiter: got {delimiter!r}, expected one character, such as ';' or '\\t' for a tab, not a quote"
                " or line end."
            )
        try:
            codecs.lookup(config.encoding or "utf-8")
        except (LookupError, ValueError):
            problems.append(
                f"--encoding: got {config.encoding!r}, which Python does not know; expected for instance cp1252"
                " (Windows), latin-1, utf-16 or shift_jis."
            )
        if problems:
            raise ConfigError(problems)
        return cls(
            delimiter,
            config.encoding,
            config.table,
            config.header,
            config.file_format,
            frozenset(named_columns(config)),
        )


def named_columns(config: DataConfig) -> set[str]:
    """Return the columns that the settings name."""
    names = (config.text_column, config.text_pair_column, config.label_column, config.id_column)
    parts = (config.label_column or "").split(",")  # several columns
    return {name for name in (*names, *(part.strip(' []"') for part in parts)) if name}


# Nothing is given.
FOUND = FileOptions()


def find_dialect(head: bytes, kind: str, options: FileOptions = FOUND) -> Dialect:
    """Find the dialect of a file from its first bytes.

    Args:
        head: the first bytes, `HEAD_BYTES` are enough.
        kind: the extension, ".csv" or ".tsv".
        options: what is given.

    Returns:
        The dialect; UTF-8 and the separator of the extension if nothing else fits clearly, so that reading it tells
        what is wrong.
    """
    encoding = find_encoding(head, options.encoding)
    if encoding is None:
        return Dialect(DELIMITERS[kind], has_header=options.header)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head).removeprefix("\ufeff")
    delimiter = _find_delimiter(text, DELIMITERS[kind], options.delimiter)
    return Dialect(delimiter, encoding=encoding, has_header=options.header)


def find_encoding(head: bytes, given: str | None = None) -> str | None:
    """Find the encoding of a file from its first bytes.

    Args:
        head: the first bytes.
        given: the encoding to use if it is not UTF-8; None finds it.

    Returns:
        The name of a codec; None if it is none that can be told, for instance damaged UTF-8 or no text.
    """
    if is_other_format(head):
        return None
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    if b"\0" in head or head.isascii():
        return given if given is not None or b"\0" in head else "utf-8"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return "utf-8"
    except UnicodeDecodeError:
        pass
    if given is not None:
        return given
    if _valid_share(head) > _DAMAGED:
        return None
    from chardet import detect

    found = detect(head)
    if not found["encoding"] or found["confidence"] < _LEAST_CONFIDENCE:
        return None
    name = codecs.lookup(found["encoding"]).name
    wider = _WIDER.get(name, name)
    return wider if head.decode(wider, "replace") == head.decode(name, "replace") else name


def _valid_share(head: bytes) -> float:
    """Return the share of the bytes above 127 that are valid UTF-8."""
    characters = [sign for sign in head.decode("utf-8", "ignore") if sign > "\x7f"]
    return len("".join(characters).encode()) / sum(byte > 127 for byte in head)


def _find_delimiter(text: str, default: str, given: str | None) -> str:
    lines = list(io.StringIO(text, newline="\n")) or [""]  # ended by line feeds only
    if given is not None and given in lines[0]:
        return given
    if _fields(lines, default, most=1) > 1:
        return default
    counts = {mark: _fields(lines, mark) for mark in _CANDIDATES if mark != default and mark in lines[0]}
    best = max(counts.values(), default=0)
    marks = [mark for mark, count in counts.items() if count == best]
    return marks[0] if best > 1 and len(marks) == 1 else default


def _fields(lines: Sequence[str], delimiter: str, *, most: int = _RECORDS) -> int:
    """Return the number of fields of each of the first records; 0 if it differs or quotes do not pair up."""
    # The last line may be cut, and quotes may be open at the end.
    whole = lines if len(lines) == 1 or lines[-1].endswith("\n") else lines[:-1]
    reader: Any = csv.reader(iter(whole), delimiter=delimiter, strict=True)
    sizes = set()
    try:
        for record in itertools.islice(reader, most):
            sizes.add(len(record))
    except csv.Error as error:
        if "end of data" not in str(error):
            return 0
    return sizes.pop() if len(sizes) == 1 else 0


def describe(dialect: Dialect, kind: str, path: str | Path, options: FileOptions = FOUND) -> tuple[str, ...]:
    """Return a sentence on how a file is read, if not as UTF-8 with the given separator or that of its extension."""
    separated = f"{_NAMES.get(dialect.delimiter, repr(dialect.delimiter))}-separated"
    parts = [separated] if dialect.delimiter != DELIMITERS.get(kind, dialect.delimiter) else []
    if dialect.encoding != "utf-8":
        parts.append(_public_name(dialect.encoding))
    given = options.delimiter
    if given is not None and given != dialect.delimiter:
        read = ", ".join(parts) or separated
        return (f"{path}: read as {read}, since its first line has no {given!r}, which --delimiter gives.",)
    if not parts:
        return ()
    return (f"{path}: read as {', '.join(parts)}. If that is wrong, give --delimiter or --encoding.",)


def _public_name(encoding: str) -> str:
    """Return the name that users know: Windows-1252 for cp1252."""
    return _ENCODINGS.get(encoding) or re.sub(r"^CP(?=125\d$)", "Windows-", encoding.upper().replace("_", "-"))
