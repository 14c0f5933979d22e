"""Text files as bytes: opened and unpacked with limits, and their encoding, separator and quoting found.

UTF-8 with the separator of the file's extension is read as such, whatever else might fit. Other files are read in the
format that was found, which the messages of a command name.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.tables import CONVENTIONAL
from attentune.errors import ConfigError, DataError

MAX_BYTES = 8 * 2**30
# Real texts do not compress by more than 200; larger ratios, above a minimum size, are decompression bombs.
MAX_RATIO, BOMB_BYTES = 200, 64 * 2**20
_BOM = b"\xef\xbb\xbf"
# The first bytes of formats that are often given by mistake, and how to mend it.
_OTHERS = {
    b"PK\x03\x04": " The file looks like a zip archive. Unpack it; the name of a spreadsheet has to end in .xlsx.",
    b"\x1f\x8b": " The file looks gzipped: let its name end in .gz.",
    b"PAR1": " The file looks like Parquet: let its name end in .parquet.",
    b"\xff\xfe\x00\x00": " It may be UTF-32: save it as UTF-8 (iconv -f UTF-32 -t UTF-8 OLD > NEW).",
    b"SQLite format 3\0": " It is a SQLite database: export a table (sqlite3 FILE -header -csv 'SELECT * FROM TABLE').",
    b"\x80": " It may be a pickle, which is not read, as it could run code. Export its rows as .csv or .jsonl.",
}

# The first bytes that are looked at, and the beginning of a page: perhaps a declaration and comments, then a tag.
SNIFFED_BYTES = 4096
_PAGE = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body|table)[\s>]", re.I | re.S
)


class _Bounded(io.RawIOBase):
    """A stream with a maximum size, since a small gzip file can unpack to terabytes."""

    def __init__(self, stream: IO[bytes], path: str | Path, max_bytes: float, packed_bytes: int | None = None) -> None:
        self._stream = stream
        self._path = path
        self._max_bytes = max_bytes
        self._packed_bytes = packed_bytes
        self._num_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        self._num_read += len(data)
        if self._num_read > self._max_bytes:
            raise DataError(
                f"holds more than the {self._max_bytes} bytes that are read (when unpacked). Split the file.",
                path=self._path,
            )
        if self._packed_bytes is not None:
            check_ratio(self._num_read, self._packed_bytes, self._path)
        buffer[: len(data)] = data
        return len(data)


def check_ratio(unpacked: int, packed: int, path: str | Path) -> None:
    """Refuse a decompression bomb."""
    if unpacked > max(BOMB_BYTES, MAX_RATIO * packed):
        raise DataError(
            f"unpacks to more than {MAX_RATIO} times its size, as files do that are made to fill a memory. Unpack it"
            " yourself if you trust it, and give the unpacked file.",
            path=path,
        )


def check_file(path: str | Path) -> Path:
    """Return the path if it is a file."""
    address = re.match(r"\w{2,}:/{1,2}(?=\w)", str(path))
    if address is not None and not Path(path).exists():
        raise DataError(
            "this is an address, expected a file. Download it first; a data set of the Hugging Face hub is given with"
            " --dataset_name NAME.",
            path=path,
        )
    path = Path(path).expanduser()
    if path.is_dir():
        raise DataError("this is a folder, expected a file. Name the file in it.", path=path)
    if path.exists() and not path.is_file():
        raise DataError("this is a pipe or a device, expected a file. Copy what it gives into one.", path=path)
    if not path.exists():
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        where = "" if path.parent.is_dir() else f" Its folder {path.parent} does not exist either."
        is_name = not path.suffix and not path.is_absolute() and len(path.parts) <= 2
        hub = f" A data set of the Hugging Face hub is given with --dataset_name {path}." if is_name else ""
        raise DataError(f"there is no such file.{where}{did_you_mean(path.name, names)}{hub}", path=path)
    return path


@contextmanager
def open_bytes(
    path: Path, name: str | Path | None = None, *, is_packed: bool = False, max_bytes: float = MAX_BYTES
) -> Iterator[Any]:
    """Open a file for reading, unpacked; `name` is what messages call it."""
    name = path if name is None else name
    try:
        with path.open("rb") as file:
            packed_bytes = path.stat().st_size if is_packed else None
            with unpacked(file, name, packed_bytes=packed_bytes, max_bytes=max_bytes) as reader:
                yield reader
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=name) from error


@contextmanager
def unpacked(
    file: IO[bytes], path: str | Path, *, packed_bytes: int | None, max_bytes: float = MAX_BYTES
) -> Iterator[IO[bytes]]:
    """Read an open file, unpacked and with limits."""
    try:
        stream: Any = file if packed_bytes is None else gzip.GzipFile(fileobj=file)
        bounded: Any = _Bounded(stream, path, max_bytes, packed_bytes)
        reader = io.BufferedReader(bounded, 2**24)
        if not reader.peek(1):
            raise DataError("the file is empty, expected rows.", path=path)
        check_no_page(reader.peek(SNIFFED_BYTES), path)
        yield reader
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot be unpacked ({error}), expected a whole gzip file. Fetch or pack it again.", path=path
        ) from error


def check_no_page(head: bytes, path: str | Path) -> None:
    """Refuse an HTML page, which a link often gives instead of a file."""
    if _PAGE.match(head[:SNIFFED_BYTES]):
        raise DataError(
            "this is an HTML page, whatever its name ends in. Links often give a page to sign in, or an error: open it"
            " in a browser. A table in the page can be saved as .csv or .xlsx by a spreadsheet program.",
            path=path,
            line=1,
        )


def is_other_format(head: bytes) -> bool:
    """Return whether a file begins like a format that is no text."""
    return head.startswith(tuple(_OTHERS))


def text_lines(stream: IO[bytes], path: str | Path, *, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file, ended by line feeds only (U+2028 is part of a text), without a byte order mark."""
    if encoding.startswith("utf-16"):
        stream = _as_utf8(stream, path, encoding)
        encoding = "utf-8"
    for number, line in enumerate(stream, start=1):
        start = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
        if b"\0" in line:
            byte = line.index(b"\0") + 1
            hint = _encoding_hint(line, is_first=number == 1)
            raise DataError(f"byte {byte} is NUL, expected UTF-8 text.{hint}", path=path, line=number)
        if start and line.startswith(_BOM, start):
            raise DataError("begins with a second byte order mark (EF BB BF). Take it out.", path=path, line=number)
        try:
            yield line[start:].decode(encoding)
        except UnicodeDecodeError as error:
            byte = start + error.start
            hint = _encoding_hint(line, is_first=number == 1)
            name = "UTF-8" if encoding == "utf-8" else encoding
            raise DataError(
                f"byte {byte + 1} of the line is 0x{line[byte]:02x}, which is not {name}.{hint}", path=path, line=number
            ) from error


def _as_utf8(stream: IO[bytes], path: str | Path, encoding: str) -> Any:
    """Yield the lines of a file in UTF-8."""
    done = 0
    try:
        for line in io.TextIOWrapper(stream, encoding, newline="\n"):
            yield line.encode("utf-8")
            done += 1
    except UnicodeError as error:
        raise DataError(f"not {encoding.upper()} ({error}). Save it as UTF-8.", path=path, line=done + 1) from error


def _encoding_hint(line: bytes, *, is_first: bool) -> str:
    if is_first:
        for begin, hint in _OTHERS.items():
            if line.startswith(begin):
                return hint
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line:
        return " It may be UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8 OLD > NEW)."
    return (
        " Save the file as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW, if it came from Windows); for a .csv or"
        " .tsv, --encoding can name the encoding."
    )


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
# Bytes in the order of UTF-8, valid or not: damaged UTF-8, or halves of surrogate pairs.
_UTF8_SHAPE = re.compile(rb"[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xff][\x80-\xbf]{3}|[\x00-\x7f]+")
# If more of the bytes above 127 are valid UTF-8, it is UTF-8 with damage. Texts in other encodings have at most 0.4.
_DAMAGED = 0.6
# Right answers of chardet for one sentence have 0.06 and more, those for random bytes less than 0.05.
_LEAST_CONFIDENCE = 0.05


SPREADSHEETS = (".xlsx", ".xls", ".xlsb", ".ods")


def holds_sheets(path: str | Path) -> bool:
    return Path(path).suffix.lower() in SPREADSHEETS


# The name of a column of a file without names.
_NUMBERED = re.compile(r"column_[0-9]+")
# A number or an id: no spaces, and a digit.
_ID = re.compile(r"\S*\d\S*")


@dataclass(frozen=True)
class Dialect:
    delimiter: str = ","  # the separator of fields
    # "csv" (fields may be quoted, with doubled quotes inside) or "none" (quotes are plain characters, as in the files
    # of GLUE).
    quoting: str = "csv"
    header: tuple[str, ...] | None = None  # the column names, if the file has no header line
    skip_broken: bool = False  # leave rows with too few or too many fields out; `Table.left_out` has them
    encoding: str = "utf-8"  # the name of a codec
    has_header: bool = True  # whether the first row has the column names; without it they are column_1, column_2,
    has_sep_line: bool = False  # whether the first line names the separator (`sep=;`), as Excel writes it
    skips_spaces: bool = False  # whether spaces after separators are left out
    words: tuple[str, ...] = ()  # examples of words that the encoding changes


class RowShapes:
    """What the cells of single-line rows look like, to know rows inside of a quoted field."""

    _ROWS, _MOST_CLASSES = 2000, 64

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._num_rows = 0
        self._values: list[set[str]] = []

    def add(self, fields: Sequence[str]) -> None:
        """Add a row; the first one is the header."""
        if not self._values:
            self._values = [set() for _ in fields]
        elif self._num_rows < self._ROWS and len(fields) == len(self._values):
            self._num_rows += 1
            for seen, cell in zip(self._values, fields, strict=True):
                if len(seen) <= self._MOST_CLASSES:
                    seen.add(cell)

    def are_rows(self, lines: Sequence[str]) -> bool:
        """Whether lines have as many fields as the header, and in one column classes, numbers or ids as other rows."""
        # In the first and the last line other fields may be quoted.
        inner = lines[1:-1] if len(lines) > 3 else lines
        rows = [line.rstrip("\r\n").split(self._delimiter) for line in inner]
        if len(self._values) < 2 or any(len(row) != len(self._values) for row in rows):
            return False
        for seen, cells in zip(self._values, zip(*rows, strict=True), strict=True):
            is_class = len(seen) <= self._MOST_CLASSES and 2 * len(seen) <= self._num_rows
            if is_class and "" not in cells and seen.issuperset(cells):
                return True
            if seen and all(map(_ID.fullmatch, (*seen, *cells))):
                return True
        return False


def has_header(first: Iterable[str], config: DataConfig) -> bool:
    """Whether the first row has the names: not if the columns to read are numbered, as those of files without."""
    named = named_columns(config)
    are_names = any(name in named or name.lower() in CONVENTIONAL for name in first)
    return config.header and (are_names or not any(map(_NUMBERED.fullmatch, named)))


def _given_delimiter(config: DataConfig) -> str | None:
    return {"\\t": "\t", "tab": "\t"}.get(config.delimiter or "", config.delimiter)


def _is_text_encoding(name: str) -> bool:
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return False
    # Python has codecs from texts to texts (rot13) and from bytes to bytes (hex), and some for names of hosts.
    return codec._is_text_encoding and codec.name not in ("idna", "punycode", "undefined")


def named_columns(config: DataConfig) -> set[str]:
    names = (config.text_column, config.text_pair_column, config.label_column, config.id_column)
    parts = f"{config.label_column or ''},{config.text_column or ''}".split(",")  # several columns
    return {name for name in (*names, *(part.strip(' []"') for part in parts)) if name}


def check_file_settings(config: DataConfig) -> None:
    """Check the separator and the encoding, also for files that need none."""
    delimiter, problems = _given_delimiter(config), list[str]()
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        problems.append(
            f"--delimiter: got {delimiter!r}, expected one character, such as ';' or '\\t' for a tab, not a quote or"
            " line end."
        )
    if config.encoding is not None and not _is_text_encoding(config.encoding):
        problems.append(
            f"--encoding: got {config.encoding!r}, which is no encoding of texts that Python knows; expected for"
            " instance cp1252 (Windows), latin-1, utf-16 or shift_jis."
        )
    if problems:
        raise ConfigError(problems)


def find_dialect(head: bytes, kind: str, config: DataConfig) -> Dialect:
    given = _given_delimiter(config)
    encoding = find_encoding(head[:_FORMAT_BYTES], config.encoding)
    text = codecs.getincrementaldecoder(encoding or "latin-1")("replace").decode(head).removeprefix("\ufeff")
    sep_line = _SEP_LINE.match(text)
    if sep_line is not None:
        text = text[sep_line.end() :]
    given = given or (sep_line[1] if sep_line is not None else None)
    lines = list(io.StringIO(text[:_FORMAT_BYTES], newline="\n")) or [""]  # ended by line feeds only
    delimiter = _find_delimiter(lines, DELIMITERS[kind], given)
    dialect = Dialect(
        delimiter,
        skip_broken=config.skip_broken_rows,
        encoding=encoding or "utf-8",
        has_header=has_header((cell.strip(' "') for cell in lines[0].strip().split(delimiter)), config),
        has_sep_line=sep_line is not None,
    )
    if dialect.encoding != "utf-8":
        words = dict.fromkeys(re.findall(r"[\w’]*[^\x00-\x7f][\w’]*", text[:_FORMAT_BYTES]))
        dialect = replace(dialect, words=tuple(word for word in words if len(word) <= 30)[:3])
    if encoding is None or '"' not in text:
        rows = [line.split(delimiter)[1:] for line in lines[:_RECORDS] if line.strip()]
        all_spaced = len(rows) > 1 and all(row and all(field[:1] == " " for field in row) for row in rows)
        return replace(dialect, skips_spaces=encoding is not None and all_spaced)
    if _are_quotes_spaced(lines, delimiter):
        return replace(dialect, skips_spaces=True)
    whole = text if len(head) < HEAD_BYTES else text[: text.rfind("\n") + 1]
    return replace(dialect, quoting="none") if _are_quotes_plain(whole, delimiter) else dialect


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
    """Whether quotes fail, and as plain characters all lines have as many fields, of which few are quoted whole."""
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
    shapes, spans = RowShapes(delimiter), list[tuple[int, int]]()
    try:
        for begin, end, record in csv_records(lines, delimiter):
            if end - begin == 1:
                shapes.add(record)
            else:
                spans.append((begin, end))
    except csv.Error:
        # Files with commas are quoted by rule, those with tabs often are not.
        return delimiter == "\t"
    return any(shapes.are_rows(lines[begin:end]) for begin, end in spans)


def csv_records(
    lines: Iterable[str], delimiter: str, *, skips_spaces: bool = False
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the fields of each record, none of a blank line, behind its first line and the one after its last."""
    reader, begin = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skips_spaces), 0
    while True:
        # The limit is global to the process, so it is lifted for each record and restored; a text may be a whole book.
        limit = csv.field_size_limit(sys.maxsize)
        try:
            fields = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(limit)
        yield begin, reader.line_num, fields
        begin = reader.line_num


def _records(lines: Sequence[str], delimiter: str, *, skips_spaces: bool = False) -> list[list[str]]:
    """Return the first records; none if quotes do not pair up."""
    # The last line may be cut, and quotes may be open at the end.
    whole = lines if len(lines) == 1 or lines[-1].endswith("\n") else lines[:-1]
    found: list[list[str]] = []
    try:
        for _, _, record in itertools.islice(csv_records(whole, delimiter, skips_spaces=skips_spaces), _RECORDS):
            found.append(record)
    except csv.Error as error:
        return found if "end of data" in str(error) else []
    return found


def find_encoding(head: bytes, given: str | None = None) -> str | None:
    """Find the encoding of a file from its first bytes; ASCII and UTF-8 are read as such, whatever is given."""
    if is_other_format(head):
        return None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" not in head:
        if head.isascii():  # further rows may have other characters, in the given encoding if that extends ASCII
            return given if given is not None and _decoded(b"text\n", given) == "text\n" else "utf-8"
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head)
            return "utf-8"
        except UnicodeDecodeError:
            pass
    if given is not None and _decoded(head, given) is not None:
        return given
    valid, high = (sum(byte > 127 for byte in data) for data in (head.decode("utf-8", "ignore").encode(), head))
    if valid > _DAMAGED * high:
        return None
    from chardet import EncodingEra, detect

    found = detect(head, encoding_era=EncodingEra.MODERN_WEB, prefer_superset=True, compat_names=False)
    if found["confidence"] >= _LEAST_CONFIDENCE:
        return found["encoding"]
    # Too little to tell, such as one word with an accent: the most frequent encoding, if all of it is text.
    text = head.decode("cp1252", "replace")
    is_text = "\ufffd" not in text and all(sign.isprintable() or sign.isspace() for sign in text)
    return "cp1252" if is_text and _UTF8_SHAPE.sub(b"", head) else None


def _decoded(head: bytes, encoding: str) -> str | None:
    """Decode the first bytes of a file; None if the codec refuses them, as UTF-16 does without its mark."""
    try:
        return codecs.getincrementaldecoder(encoding)("replace").decode(head)
    except UnicodeError:
        return None


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


def describe(dialect: Dialect, kind: str, path: str | Path, config: DataConfig) -> tuple[str, ...]:
    """Return a sentence on how a file is read, if not as UTF-8 with the given separator or that of its extension."""
    separated = f"{_NAMES.get(dialect.delimiter, repr(dialect.delimiter))}-separated"
    parts = [separated] if dialect.delimiter != DELIMITERS.get(kind, dialect.delimiter) or dialect.has_sep_line else []
    if dialect.encoding != "utf-8":
        words = f" ({', '.join(map(repr, dialect.words))})" if dialect.words else ""
        public = re.sub(r"^CP(?=125\d$)", "Windows-", dialect.encoding.upper().replace("_", "-"))
        parts.append(_ENCODINGS.get(dialect.encoding, public) + words)
    notes = list[str]()
    given = _given_delimiter(config)
    if given not in (None, dialect.delimiter):
        read = ", ".join(parts) or separated
        notes.append(f"{path}: read as {read}, since its first line has no {given!r}, which --delimiter gives.")
    elif parts:
        notes.append(f"{path}: read as {', '.join(parts)}. If that is wrong, give --delimiter or --encoding.")
    if dialect.quoting == "none":
        notes.append(f"{path}: quotes are read as plain characters, since as quotes they do not pair up.")
    if dialect.skips_spaces:
        notes.append(f"{path}: spaces after separators are left out.")
    if config.header and not dialect.has_header:
        notes.append(f"{path}: read without a header line, as the columns to read have no names.")
    return tuple(notes)
