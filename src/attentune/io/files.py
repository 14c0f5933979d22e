"""Atomic writes, manifests, safe reading of untrusted files, and locks; errors state how to fix the cause."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError, StorageError


class FileLock:
    """An exclusive lock between all processes that can open its file."""

    def __init__(self, path: Path) -> None:
        import filelock  # 0.1 s, which --help does not need

        self.path = path
        self._lock = filelock.FileLock(path, thread_local=False)

    def take(self, *, wait: bool = True) -> bool:
        """Take the lock; return whether this object has it now."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_symlink():  # whose target would be emptied
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.path))
            try:
                self._lock.acquire(timeout=-1 if wait else 0)
            except TimeoutError:  # filelock's Timeout
                return False
        return True

    def free(self) -> None:
        self._lock.release(force=True)

    def is_held(self) -> bool:
        """Return whether any process, including this one, holds the lock."""
        if self._lock.is_locked:
            return True
        if not self.path.exists():
            return False
        if not self.take(wait=False):
            return True
        self.free()
        return False

    def __enter__(self) -> FileLock:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.free()


_CURES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than is allowed here; raise the limit (ulimit -f)",
    errno.EIO: "the disk reports an error; look after it, or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder or change its rights",
    errno.EPERM: "permission denied; choose another folder or change its rights",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EEXIST: "this path exists already; choose another",
    errno.EISDIR: "this is a folder; name a file",
    errno.ELOOP: "this is a link, which could lead out of the folder; put the file itself there",
    errno.ENOENT: "its folder does not exist; make it first, or choose another path",
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_CHUNK_BYTES = 1 << 22
_EMPTY_FIELD = '""'  # of a line of CSV with one field, which would be a blank line
# The file that lists the sizes and hashes of all other files in a folder.
MANIFEST = "manifest.json"
# Records of long runs have a few megabytes; a file with more was not written by this package.
_MAX_TEXT_BYTES = 1 << 28


@contextlib.contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Convert operating system errors raised while writing to `path` to a `StorageError` that states the fix."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, str(error))
        raise StorageError(f"{path}: could not be written: {cure}.") from error
    except Exception as error:
        # safetensors and tokenizers wrap the operating system's error in classes of their own and keep only the text.
        code = _OS_ERROR.search(str(error))
        if code is None:
            raise
        raise StorageError(f"{path}: could not be written: {_CURES.get(int(code[1]), str(error))}.") from error


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file atomically, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically: a reader sees either the old content or the new, never a mixture."""
    with atomic_write(path) as add:
        add(content)


def csv_text(lines: Iterable[Iterable[str]], delimiter: str = ",") -> str:
    """Format lines of CSV; the standard library's writer does not quote a carriage return before Python 3.13."""
    special = re.compile(f'["\\r\\n{delimiter}]')

    def quoted(cell: str) -> str:
        return '"{}"'.format(cell.replace('"', '""')) if special.search(cell) else cell

    return "".join(f"{delimiter.join(map(quoted, line)) or _EMPTY_FIELD}\n" for line in lines)


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Callable[[bytes], object]]:
    """Write a file atomically, chunk by chunk.

    The content goes to a temporary file, which replaces `path` when the block ends. If the block raises, the temporary
    file is removed and an existing file is left unchanged. Devices and pipes, such as /dev/null, are written into.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        with storage_errors(target), target.open("wb") as device:
            yield device.write
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with storage_errors(target):
        file = temporary.open("wb")

    def add(content: bytes) -> None:
        with storage_errors(target):
            file.write(content)

    try:
        yield add
        with storage_errors(target):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(target)
            sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # closing writes the buffered rest, which can fail too
            file.close()
        temporary.unlink(missing_ok=True)
        raise


def check_links(folder: Path) -> None:
    """Check that a folder has no symbolic links, since writing through one could change a file elsewhere."""
    with storage_errors(folder):
        links = sorted(entry.name for entry in folder.iterdir() if entry.is_symlink())
    if links:
        raise StorageError(
            f"{folder}: holds the link {links[0]}, so what is written could land elsewhere. Put the file itself there"
            " (cp -L), or name another folder."
        )


def is_plain_name(name: str) -> bool:
    """Return whether `name` is a bare file name, without a path that could lead out of a folder."""
    return name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0")


def read_text(path: str | Path, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """Read the text of a UTF-8 file from an untrusted source."""
    facts = Path(path).stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("this is a folder, a pipe or a device, expected a file")
    if facts.st_size > max_bytes:
        raise ValueError(f"it has {facts.st_size} bytes, expected at most {max_bytes}")
    with Path(path).open(encoding="utf-8", newline="") as file:
        return file.read()


def read_json(path: str | Path) -> Any:
    """Read a JSON file from an untrusted source."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """Parse a JSON text from an untrusted source."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync_folder(folder: Path) -> None:
    """Flush renames inside this folder to the disk, so that they survive a power cut."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders, and its file system journals renames
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Flush the content of this file to the disk and drop its cached pages, so that the next read is from the disk."""
    # Windows can only flush files that are open for writing.
    with path.open("rb" if hasattr(os, "O_DIRECTORY") else "r+b") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # elsewhere, the next read may be from the page cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    """Write `manifest.json`, with the size and SHA-256 of every other file in the folder."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    manifest = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def verify_manifest(folder: Path, needed: Iterable[str] = ()) -> str | None:
    """Check the files of a folder against its manifest."""
    try:
        manifest = read_json(folder / MANIFEST)
        for name, facts in manifest.items():
            path = folder / Path(name).name
            if not path.is_file() or path.is_symlink():
                return f"{name} is missing"
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, not {facts['bytes']}"
            if sha256_of(path) != facts["sha256"]:
                return f"the content of {name} has changed"
        unnamed = sorted(set(needed) - set(manifest))
        return f"{MANIFEST} does not name {' and '.join(unnamed)}" if unnamed else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"


def check_new_folder(folder: Path) -> None:
    """Check that a folder is missing or empty."""
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--output_dir: {folder} exists and is not empty; name another or remove it.")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder`, new or empty, once the block has filled it, or is removed."""
    temporary = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}.tmp")
    with storage_errors(folder):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with storage_errors(folder):
            temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def written_together(folder: Path, temporary: str, *, last: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder inside a folder; its files are moved there once all of them are on the disk."""
    place = folder / temporary
    with storage_errors(folder):
        try:
            place.mkdir()
            yield place
            files = sorted(place.iterdir(), key=lambda file: (file.name == last, file.name))
            for file in files:
                sync_file(file)
            for file in files:
                file.replace(folder / file.name)
            sync_folder(folder)
        finally:
            shutil.rmtree(place, ignore_errors=True)
