"""Files and folders by path or by URL: local ones, and those of object stores (s3://, gs://, ...) through fsspec."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from attentune.errors import ConfigError, DataError, StorageError
from attentune.io.files import atomic_write, parse_json, storage_errors

# What file systems call that which changes when a file is written again; the first one that is there is compared.
_MODIFIED = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "modified", "created")
_BUFFER_BYTES = 1 << 20
# They have no folders; to create one would create a bucket.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"})
# Packages of object stores that raise errors of their own.
_CLIENTS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "azure")


@dataclass(frozen=True)
class StoredFile:
    """A file to read."""

    path: str  # its absolute path, or its URL
    bytes: int  # its size
    modified: str  # what changes when it is written again: the time of the last change, or a hash of the object store

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file for reading bytes; the stream is buffered and can seek."""
        with _reading(self.path):
            if is_url(self.path):
                system, path = _file_system(self.path)
                # Files in memory are one object with one position for all who open them.
                is_memory = "memory" in _names(system.protocol)
                raw: Any = io.BytesIO(system.cat_file(path)) if is_memory else system.open(path, "rb")
            else:
                raw = io.FileIO(self.path)
            with raw, io.BufferedReader(raw, _BUFFER_BYTES) as stream:
                yield stream


def is_url(path: str) -> bool:
    """Return whether this is a URL such as `s3://bucket/rows.csv`, and not a path."""
    return "://" in path


def find_files(pattern: str, endings: Collection[str], leave_out: Collection[str] = ()) -> list[StoredFile]:
    """Find the files that a path, URL, pattern with `*`, `?`, `[...]` or `**`, or folder names, in order."""
    found = _urls(pattern) if is_url(pattern) else _paths(pattern)
    folder, files = found
    if folder:
        files = [
            file
            for file in files
            if file.path.lower().endswith(tuple(endings))
            and (name := file.path.rsplit("/", 1)[-1]) not in leave_out
            and not name.startswith((".", "_"))
        ]
    if not files:
        got = "is a folder without files that end in " + " ".join(endings) if folder else "names no file"
        raise DataError(f"{got}. Name a file, a folder, or several files by a pattern in quotes.", path=pattern)
    return sorted(files, key=lambda file: file.path)


def _paths(pattern: str) -> tuple[bool, list[StoredFile]]:
    """Return whether the path is a folder, and the files."""
    given = Path(pattern).expanduser()
    with _reading(pattern):
        if given.is_dir():
            names = [entry for entry in given.iterdir() if entry.is_file()]
        elif given.exists():
            names = [given]
        else:
            root = Path(given.anchor or ".")
            names = [path for path in root.glob(str(given.relative_to(given.anchor))) if path.is_file()]
            names = [path for path in names if not path.name.startswith(".")]
        stated = [(path.absolute(), path.stat()) for path in names]
    return given.is_dir(), [StoredFile(str(path), facts.st_size, str(facts.st_mtime_ns)) for path, facts in stated]


def _urls(pattern: str) -> tuple[bool, list[StoredFile]]:
    """Return whether the URL is a folder, and the files."""
    system, path = _file_system(pattern)
    with _reading(pattern):
        is_folder = not any(sign in path for sign in "*?[") and system.isdir(path)
        if is_folder:
            entries = [entry for entry in system.ls(path, detail=True) if entry["type"] == "file"]
        else:
            entries = [entry for entry in system.glob(path, detail=True).values() if entry["type"] == "file"]
        return is_folder, [
            StoredFile(
                system.unstrip_protocol(entry["name"]),
                int(entry["size"]),
                _modified(entry),
            )
            for entry in entries
        ]


def _modified(entry: dict[str, Any]) -> str:
    """Return what changes when a file is written again."""
    value = next((entry[key] for key in _MODIFIED if entry.get(key) is not None), "")
    return str(value.timestamp() if isinstance(value, datetime) else value)


class OutputFolder:
    """A folder to write files to, each whole or not at all.

    An object store shows an object only when all of it was sent, so the files are first written to a temporary file of
    this machine and then sent.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.is_local = not is_url(path)
        self._system: Any = None
        self._root = self.path
        if not self.is_local:
            self._system, self._root = _file_system(self.path)

    def create(self) -> None:
        """Create the folder if it does not exist."""
        with self._writing(self.path):
            if self._system is None:
                Path(self.path).mkdir(parents=True, exist_ok=True)
            elif not _OBJECT_STORES.intersection(_names(self._system.protocol)):
                self._system.makedirs(self._root, exist_ok=True)

    def place(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self.path}/{name}"

    def names(self) -> set[str]:
        """Return the names of the files in the folder; none if it does not exist."""
        with _reading(self.path):
            if self._system is None:
                folder = Path(self.path)
                return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
            self._system.invalidate_cache(self._root)
            if not self._system.exists(self._root):
                return set()
            return {entry.rsplit("/", 1)[-1] for entry in self._system.ls(self._root, detail=False)}

    def read_json(self, name: str) -> Any:
        """Read a JSON file."""
        return parse_json(self.read(name).decode("utf-8"))

    def read(self, name: str) -> bytes:
        """Read a file."""
        with _reading(self.place(name)):
            path = f"{self._root}/{name}"
            return Path(path).read_bytes() if self._system is None else self._system.cat_file(path)

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a stream of bytes that becomes this file when the block ends; an error writes nothing."""
        if self._system is None:
            path = Path(self.path) / name
            with atomic_write(path) as add:
                yield _Sink(add)  # type: ignore[misc]
            # Of processes that were killed while they wrote this file.
            for leftover in path.parent.glob(f".{glob.escape(name)}.*.tmp"):
                leftover.unlink(missing_ok=True)
            return
        handle, temporary = tempfile.mkstemp(prefix="attentune-")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
            with self._writing(self.place(name)):
                self._system.put_file(temporary, f"{self._root}/{name}")
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _writing(self, path: str) -> contextlib.AbstractContextManager[None]:
        return storage_errors(path) if self.is_local else _sending(path)


def _names(protocol: str | tuple[str, ...]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class _Sink(io.RawIOBase):
    """A stream whose bytes go to a function."""

    def __init__(self, add: Any) -> None:
        self._add = add
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any) -> int:
        data = bytes(content)
        self._add(data)
        self._size += len(data)
        return len(data)


def _file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise ConfigError(f"{url}: needs a package that is not installed: {error}.") from error
    except ValueError as error:
        raise ConfigError(f"{url}: is no URL that fsspec reads: {error}. Give a path, or s3://BUCKET/NAME.") from error
    return system, str(path)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Convert errors of file systems, which are of many kinds, to a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=path) from error
    except Exception as error:
        if not is_url(path) or type(error).__module__.split(".")[0] not in (
            "botocore",
            "aiobotocore",
            "aiohttp",
            "gcsfs",
        ):
            raise
        raise DataError(f"cannot be read: {error}.", path=path) from error


@contextlib.contextmanager
def _sending(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise StorageError(f"{path}: could not be written: {error}.") from error
