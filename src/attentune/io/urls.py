"""Files by path or URL, both through fsspec: local files and object stores (s3://, gs://, ...)."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from attentune.errors import AttentuneError, ConfigError, DataError, StorageError
from attentune.io.files import storage_errors, sync_folder

# What file systems call that which changes when a file is written again; the first one found is compared.
_MODIFIED = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "modified", "created")
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    path: str  # its absolute path, or its URL
    bytes: int
    modified: str  # changes when the file is written again: a time, or a hash of the object store

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file for reading bytes; the stream is buffered and can seek."""
        system, path = _file_system(self.path)
        with _reading(self.path), system.open(path, "rb", block_size=_BUFFER_BYTES) as stream:
            yield stream


def is_url(path: str) -> bool:
    """Return whether this is a URL such as `s3://bucket/rows.csv`, and not a path."""
    return "://" in path


def find_files(pattern: str, endings: Collection[str]) -> list[StoredFile]:
    """Return the files that a path, URL, folder, or pattern with `*`, `?`, `[...]` or `**` names, in order."""
    system, path = _file_system(pattern)
    with _reading(pattern):
        is_folder = system.isdir(path)
        if is_folder:
            found = system.ls(path, detail=True)
        else:
            found = [system.info(path)] if system.exists(path) else system.glob(path, detail=True).values()
    hidden = (".", "_") if is_folder else (".",)
    is_one = len(found) == 1 and not is_folder
    files = []
    for entry in found:
        name = entry["name"].rsplit("/", 1)[-1]
        is_wanted = is_one or not (name.startswith(hidden) or (is_folder and not name.lower().endswith(tuple(endings))))
        if entry["type"] == "file" and is_wanted:
            place = system.unstrip_protocol(entry["name"]) if is_url(pattern) else entry["name"]
            changed: Any = next((entry[key] for key in _MODIFIED if entry.get(key) is not None), "")
            changed = changed.timestamp() if isinstance(changed, datetime) else changed
            files.append(StoredFile(place, int(entry["size"]), str(changed)))
    if not files:
        got = "is a folder without files that end in " + " ".join(endings) if is_folder else "names no file"
        raise DataError(f"{got}. Name a file, a folder, or several files by a pattern in quotes.", path=pattern)
    return sorted(files, key=lambda file: file.path)


def is_there(path: str) -> bool:
    system, place = _file_system(path)
    with _reading(path):
        system.invalidate_cache(system._parent(place))
        return bool(system.exists(place))


def read_if_there(path: str) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    system, place = _file_system(path)
    with _reading(path):
        return system.cat_file(place) if is_there(path) else None


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[IO[bytes]]:
    """Yield a stream that becomes this file when the block ends, in one piece also in an object store."""
    system, place = _file_system(path)
    is_local = "file" in system.protocol
    folder, name = Path(place).parent if is_local else Path(tempfile.gettempdir()), place.rsplit("/", 1)[-1]
    temporary = folder / f".{name}.{os.getpid()}.tmp"
    try:
        with storage_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
        if not is_local:
            try:
                system.put_file(str(temporary), place)
            except Exception as error:
                raise StorageError(f"{path}: could not be written: {error}.") from error
            return
        with storage_errors(path):
            temporary.replace(place)
            sync_folder(folder)
        for leftover in folder.glob(f".{glob.escape(name)}.*.tmp"):  # of processes that were killed
            leftover.unlink(missing_ok=True)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url if is_url(url) else str(Path(url).expanduser().absolute()))
    except ImportError as error:
        raise ConfigError(f"{url}: needs a package that is not installed: {error}.") from error
    except ValueError as error:
        raise ConfigError(f"{url}: is no URL that fsspec reads: {error}. Give a path, or s3://BUCKET/NAME.") from error
    return system, str(path)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Convert errors of file systems, which are of many kinds for URLs, to a `DataError`."""
    try:
        yield
    except AttentuneError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=path) from error
    except Exception as error:
        if not is_url(path) or type(error).__module__.split(".")[0] in ("builtins", "pyarrow"):
            raise
        raise DataError(f"cannot be read: {error}.", path=path) from error
