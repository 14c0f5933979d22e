"""Opening files: plain or gzipped, bounded in size, as lines of UTF-8."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attentune.config.parsing import did_you_mean
from attentune.errors import DataError

MAX_BYTES = 8 * 2**30
_BOM = b"\xef\xbb\xbf"


class _Bounded(io.RawIOBase):
    """A stream that stops with an error after so many bytes: a small gzip file can unpack to terabytes."""

    def __init__(self, stream: IO[bytes], path: Path, max_bytes: int) -> None:
        self._stream = stream
        self._path = path
        self._max_bytes = max_bytes
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
        buffer[: len(data)] = data
        return len(data)


def check_file(path: str | Path) -> Path:
    """The path, if a file is there.

    Raises:
        DataError: if nothing is there, or a folder.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise DataError("this is a folder, expected a file. Name the file in it.", path=path)
    if not path.exists():
        known = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        where = "" if path.parent.is_dir() else f" Its folder {path.parent} does not exist either."
        raise DataError(f"there is no such file.{where}{did_you_mean(path.name, known)}", path=path)
    return path


@contextmanager
def open_bytes(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacking it if its name ends in .gz.

    Raises:
        DataError: if it cannot be opened or unpacked, is empty, or holds more than `max_bytes` when unpacked.
    """
    try:
        with path.open("rb") as file:
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file  # type: ignore[assignment]
            bounded: Any = _Bounded(stream, path, max_bytes)
            reader = io.BufferedReader(bounded, 2**20)
            if not reader.peek(1):
                raise DataError("the file is empty, expected rows.", path=path)
            yield reader
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot be unpacked ({error}), expected a whole gzip file. Fetch or pack it again.", path=path
        ) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=path) from error


def text_lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends; a byte order mark is left out.

    Only a line feed ends a line, so that odd characters in a text (U+2028, form feeds) stay in it.

    Raises:
        DataError: for bytes that are not UTF-8, and for NUL bytes, with the line and the byte in it.
    """
    for number, line in enumerate(stream, start=1):
        start = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
        if b"\0" in line:
            byte = line.index(b"\0") + 1
            raise DataError(f"byte {byte} is NUL, expected UTF-8 text.{_encoding_hint(line)}", path=path, line=number)
        try:
            yield line[start:].decode("utf-8")
        except UnicodeDecodeError as error:
            byte = start + error.start
            raise DataError(
                f"byte {byte + 1} of the line is 0x{line[byte]:02x}, which is not UTF-8.{_encoding_hint(line)}",
                path=path,
                line=number,
            ) from error


def _encoding_hint(line: bytes) -> str:
    if line.startswith(b"\x1f\x8b"):
        return " The file looks gzipped: let its name end in .gz."
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line:
        return " It may be UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8 OLD > NEW)."
    return " Save the file as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW, if it came from Windows)."
