"""Open plain or gzipped files, with size limits, and decode their lines."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attentune.config.parse import did_you_mean
from attentune.errors import DataError

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
def open_bytes(path: Path, max_bytes: float = MAX_BYTES) -> Iterator[IO[bytes]]:
    """Open a file for reading; it is unpacked if its name ends in .gz."""
    try:
        with path.open("rb") as file:
            packed_bytes = path.stat().st_size if path.suffix.lower() == ".gz" else None
            with unpacked(file, path, packed_bytes=packed_bytes, max_bytes=max_bytes) as reader:
                yield reader
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=path) from error


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
    """Refuse an HTML page, which is what a link often gives instead of a file."""
    if _PAGE.match(head[:SNIFFED_BYTES]):
        raise DataError(
            "this is an HTML page, whatever its name ends in. Links often give a page to sign in, or an error: open it"
            " in a browser. A table in the page can be saved as .csv or .xlsx by a spreadsheet program.",
            path=path,
            line=1,
        )


def is_gzipped(head: bytes) -> bool:
    """Return whether a file begins like one that gzip has packed."""
    return head.startswith(b"\x1f\x8b")


def is_other_format(head: bytes) -> bool:
    """Return whether a file begins like a format that is no text."""
    return head.startswith(tuple(_OTHERS))


def text_lines(stream: IO[bytes], path: str | Path, *, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file with their line ends, without a byte order mark.

    Only a line feed ends a line, so that U+2028, form feeds and the like stay part of a text.
    """
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
