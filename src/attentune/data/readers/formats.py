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
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.readers.csv import Dialect, RowShapes
from attentune.data.readers.streams import is_other_format
from attentune.errors import ConfigError

# The separator that a file has by its extension.
DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Bytes that are looked at: for the encoding and separator, and for the quoting; and records.
_FORMAT_BYTES, HEAD_BYTES, _RECORDS = 2**18, 2**24, 50
# The separator of a file whose texts also have it: so many of the first records have as many fields as the header.
_MOST = 0.8
# The line that Excel writes to name the separator.
_SEP_LINE = re.compile(r'"?sep=([^\r\n"])"?[;,\t]*\r?\n', re.I)
_CANDIDATES = (";", "\t", "|", ",")
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_ENCODINGS = {"shift_jis": "Shift JIS", "cp932": "Shift JIS (CP932)", "cp949": "EUC-KR (CP949)"}
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Codecs that have all characters of another one where both are possible.
_WIDER = {"iso8859-1": "cp1252", "iso8859-15": "cp1252", "iso8859-9": "cp1254"}
# Guesses that are rare: files that are also whole Windows-1252 are read as that.
_RARE = re.compile(
    r"mac|cp(437|7\d\d|8[0-6]\d|1006|1026|1125|1140|037|273|500|154)|hp|iso8859-(3|4|10|13|14|16)$|ptcp|kz"
)
# Bytes in the order of UTF-8, valid or not: damaged UTF-8.
_UTF8_SHAPE = re.compile(rb"[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xff][\x80-\xbf]{3}|[\x00-\x7f]+")
# Marks of Windows-1252 that texts have, beside letters.
_TYPOGRAPHIC = frozenset("€‚„…†‡‰‹‘’“”•–—™›\xa0¡¢£¤¥§©«\xad®°±²³´·¹º»¼½¾¿×÷")
# If more of the bytes above 127 are valid UTF-8, it is UTF-8 with damage. Texts in other encodings have at most 0.4.
_DAMAGED = 0.6
# Right answers of chardet for one sentence have 0.06 and more, those for random bytes less than 0.05.
_LEAST_CONFIDENCE = 0.05


@dataclass(frozen=True)
class FileOptions:
    """What is given about text files, beside what is found in them."""

    delimiter: str | None = None  # the separator of fields, used where the header has it; None finds it
    encoding: str | None = None  # the encoding of files that are not UTF-8; None finds it
    table: str | None = None  # the table of a SQLite file, or the sheet of a spreadsheet
    header: bool = True  # whether the first row of a .csv, .tsv or spreadsheet has the column names
    file_format: str | None = None  # the format of files whose names do not say it, and of standard input
    columns: frozenset[str] = frozenset()  # names of columns, by which a header is known
    skip_broken: bool = False  # whether rows that cannot be read are left out

    @classmethod
    def of(cls, config: DataConfig) -> FileOptions:
        """Return what data settings give."""
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
            config.skip_broken_rows,
        )


def named_columns(config: DataConfig) -> set[str]:
    """Return the columns that the settings name."""
    names = (config.text_column, config.text_pair_column, config.label_column, config.id_column)
    parts = (config.label_column or "").split(",")  # several columns
    return {name for name in (*names, *(part.strip(' []"') for part in parts)) if name}


# Nothing is given.
FOUND = FileOptions()


def find_dialect(head: bytes, kind: str, options: FileOptions = FOUND) -> Dialect:
    """Find the dialect of a file from its first bytes."""
    encoding = find_encoding(head[:_FORMAT_BYTES], options.encoding)
    text = codecs.getincrementaldecoder(encoding or "latin-1")("replace").decode(head).removeprefix("\ufeff")
    sep_line = _SEP_LINE.match(text)
    if sep_line is not None:
        text = text[sep_line.end() :]
    given = options.delimiter or (sep_line[1] if sep_line is not None else None)
    lines = list(io.StringIO(text[:_FORMAT_BYTES], newline="\n")) or [""]  # ended by line feeds only
    delimiter = _find_delimiter(lines, DELIMITERS[kind], given)
    dialect = Dialect(
        delimiter,
        skip_broken=options.skip_broken,
        encoding=encoding or "utf-8",
        has_header=options.header,
        has_sep_line=sep_line is not None,
    )
    if dialect.encoding != "utf-8":
        words = dict.fromkeys(re.findall(r"[\w’]*[^\x00-\x7f][\w’]*", text[:_FORMAT_BYTES]))
        dialect = replace(dialect, words=tuple(word for word in words if len(word) <= 30)[:3])
    if encoding is None or '"' not in text:
        return replace(dialect, skips_spaces=encoding is not None and _all_spaced(lines, delimiter))
    if _are_quotes_spaced(lines, delimiter):
        return replace(dialect, skips_spaces=True)
    whole = text if len(head) < HEAD_BYTES else text[: text.rfind("\n") + 1]
    return replace(dialect, quoting="none") if _are_quotes_plain(whole, delimiter) else dialect


def _all_spaced(lines: Sequence[str], delimiter: str) -> bool:
    """Whether a space follows each separator."""
    rows = [line.split(delimiter)[1:] for line in lines[:_RECORDS] if line.strip()]
    return len(rows) > 1 and all(row and all(field[:1] == " " for field in row) for row in rows)


def _are_quotes_spaced(lines: Sequence[str], delimiter: str) -> bool:
    """Whether quoted fields begin with a space, and all rows have as many fields where it is skipped."""
    if not any(f'{delimiter} "' in line for line in lines[:_RECORDS]):
        return False
    plain, skipped = _records(lines, delimiter), _records(lines, delimiter, skips_spaces=True)
    if not skipped or len(set(map(len, skipped))) != 1:
        return False
    spaced = [record for record in plain if any(re.fullmatch(r' +".*"', field, re.S) for field in record)]
    return len(set(map(len, plain))) != 1 or 2 * len(spaced) > len(plain)


def _are_quotes_plain(text: str, delimiter: str) -> bool:
    """Whether quotes are plain characters: they do not pair up, or a pair of them holds whole rows, and read as
    plain characters all lines have as many fields, of which few are quoted whole.
    """
    lines = list(io.StringIO(text, newline="\n"))
    if not _fails(lines, delimiter):
        return False
    rows = [line.rstrip("\r\n").split(delimiter) for line in lines if line.rstrip("\r\n")]
    if len({len(row) for row in rows}) != 1:
        return False
    begun = [field for row in rows for field in row if field.startswith('"')]
    quoted = [field for field in begun if len(field) > 1 and field.endswith('"')]
    if any('""' in field[1:-1] for field in quoted):
        return False
    return 2 * len(quoted) <= len(rows) and (len(rows[0]) > 1 or len(quoted) < len(begun))


def _fails(lines: Sequence[str], delimiter: str) -> bool:
    """Whether quoted reading fails, or a quoted field holds whole rows."""
    shapes, start, spans = RowShapes(delimiter), 0, list[tuple[int, int]]()
    reader: Any = csv.reader(lines, delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(sys.maxsize)
    try:
        for record in reader:
            if reader.line_num - start == 1:
                shapes.add(record)
            else:
                spans.append((start, reader.line_num))
            start = reader.line_num
    except csv.Error:
        # Files with commas are quoted by rule, those with tabs often are not.
        return delimiter == "\t"
    finally:
        csv.field_size_limit(limit)
    return any(shapes.are_rows(lines[first:end]) for first, end in spans)


def _records(lines: Sequence[str], delimiter: str, *, skips_spaces: bool = False) -> list[list[str]]:
    """Return the first records; none if quotes do not pair up."""
    # The last line may be cut, and quotes may be open at the end.
    whole = lines if len(lines) == 1 or lines[-1].endswith("\n") else lines[:-1]
    found: list[list[str]] = []
    try:
        reader = csv.reader(iter(whole), delimiter=delimiter, strict=True, skipinitialspace=skips_spaces)
        for record in itertools.islice(reader, _RECORDS):
            found.append(record)
    except csv.Error as error:
        if "end of data" not in str(error):
            return []
    return found


def find_encoding(head: bytes, given: str | None = None) -> str | None:
    """Find the encoding of a file from its first bytes."""
    if is_other_format(head):
        return None
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    if b"\0" in head:
        return given or _utf16(head)
    if head.isascii():
        return given or "utf-8"
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
    name = codecs.lookup(found["encoding"]).name if found["encoding"] else "ascii"
    if found["confidence"] < _LEAST_CONFIDENCE or _RARE.match(name):
        return "cp1252" if _is_cp1252(head) else name if found["confidence"] >= _LEAST_CONFIDENCE else None
    wider = _WIDER.get(name, name)
    return wider if head.decode(wider, "replace") == head.decode(name, "replace") else name


def _utf16(head: bytes) -> str | None:
    """Return the codec of UTF-16 without a mark: all zero bytes are the high bytes of characters."""
    for name, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        if 0 in head[1 - place :: 2]:
            continue
        text = codecs.getincrementaldecoder(name)("replace").decode(head)
        if "\n" in text and "\ufffd" not in text and all(sign.isprintable() or sign.isspace() for sign in text):
            return name
    return None


def _is_cp1252(head: bytes) -> bool:
    """Whether the bytes read as Windows-1252 are text: letters and typographic marks, no control characters."""
    try:
        text = head.decode("cp1252")
    except UnicodeDecodeError:
        return False
    if not all(sign.isprintable() or sign.isspace() or sign == "\xad" for sign in text):
        return False
    if not _UTF8_SHAPE.sub(b"", head):
        return False
    high = [sign for sign in text if sign > "\x7f"]
    return sum((sign.isalpha() and sign != "ÿ") or sign in _TYPOGRAPHIC for sign in high) >= 0.9 * len(high)


def _valid_share(head: bytes) -> float:
    """Return the share of the bytes above 127 that are valid UTF-8."""
    characters = [sign for sign in head.decode("utf-8", "ignore") if sign > "\x7f"]
    return len("".join(characters).encode()) / sum(byte > 127 for byte in head)


def _find_delimiter(lines: Sequence[str], default: str, given: str | None) -> str:
    if given is not None and given in lines[0]:
        return given
    if _fields(lines, default, most=1) > 1:
        return default
    marks = [mark for mark in _CANDIDATES if mark != default and mark in lines[0]]
    for least in (1.0, _MOST):
        counts = {mark: _fields(lines, mark, least=least) for mark in marks}
        best = max(counts.values(), default=0)
        fitting = [mark for mark, count in counts.items() if count == best]
        if best > 1:
            return fitting[0] if len(fitting) == 1 else default
    return default


def _fields(lines: Sequence[str], delimiter: str, *, most: int = _RECORDS, least: float = 1.0) -> int:
    """Return the number of fields of the first record; 0 if too few of the others have it, or quotes do not pair up."""
    records = _records(lines, delimiter)[:most]
    if not records:
        # Quotes that do not pair up may be plain characters.
        records = [line.rstrip("\r\n").split(delimiter) for line in lines[:most] if line.endswith("\n")]
        least = 1.0
    if not records or (least < 1 and len(records) < 5):
        return 0
    count = len(records[0])
    return count if sum(len(record) == count for record in records) >= least * len(records) else 0


def describe(dialect: Dialect, kind: str, path: str | Path, options: FileOptions = FOUND) -> tuple[str, ...]:
    """Return a sentence on how a file is read, if not as UTF-8 with the given separator or that of its extension."""
    separated = f"{_NAMES.get(dialect.delimiter, repr(dialect.delimiter))}-separated"
    parts = [separated] if dialect.delimiter != DELIMITERS.get(kind, dialect.delimiter) or dialect.has_sep_line else []
    if dialect.encoding != "utf-8":
        words = f" ({', '.join(map(repr, dialect.words))})" if dialect.words else ""
        parts.append(_public_name(dialect.encoding) + words)
    more: tuple[str, ...] = ()
    if dialect.quoting == "none":
        more = (f"{path}: quotes are read as plain characters, since as quotes they do not pair up.",)
    if dialect.skips_spaces:
        more = (f"{path}: spaces after separators are left out.",)
    given = options.delimiter
    if given is not None and given != dialect.delimiter:
        read = ", ".join(parts) or separated
        return (f"{path}: read as {read}, since its first line has no {given!r}, which --delimiter gives.", *more)
    if not parts:
        return more
    return (f"{path}: read as {', '.join(parts)}. If that is wrong, give --delimiter or --encoding.", *more)


def _public_name(encoding: str) -> str:
    """Return the name that users know: Windows-1252 for cp1252."""
    return _ENCODINGS.get(encoding) or re.sub(r"^CP(?=125\d$)", "Windows-", encoding.upper().replace("_", "-"))
