"""Writing files whole or not at all, and saying plainly what the disk refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attentune.errors import StorageError

_CURES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than is allowed here; raise the limit (ulimit -f)",
    errno.EIO: "the disk reports an error; look after it, or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder or change its rights",
    errno.EPERM: "permission denied; choose another folder or change its rights",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EEXIST: "something else bears this name; choose another",
    errno.EISDIR: "this is a folder; name a file",
    errno.ELOOP: "this is a link, which could lead out of the folder; put the file itself there",
    errno.ENOENT: "its folder does not exist; make it first, or choose another path",
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_CHUNK_BYTES = 1 << 22
# In a folder of files that belong together: their sizes and hashes.
MANIFEST = "manifest.json"
# Records of long runs have some megabytes; what has more is none of ours.
_MAX_TEXT_BYTES = 1 << 28


@contextlib.contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Turn what the operating system says while writing to `path` into a `StorageError`."""
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
    """Write a UTF-8 file as `write_bytes` does.

    Raises:
        StorageError: it could not be written; the old content stands.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises:
        StorageError: it could not be written; the old content stands.
    """
    with atomic_write(path) as add:
        add(content)


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Callable[[bytes], None]]:
    """A file that is written piece by piece, by calling what is given, and takes its place when the block has ended.

    Where the block ends with an error nothing is left of it, and the old content stands.

    Raises:
        StorageError: it could not be written.
    """
    target = Path(path)
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
        with contextlib.suppress(OSError):  # what is still to be written may not fit either
            file.close()
        temporary.unlink(missing_ok=True)
        raise


def check_links(folder: Path) -> None:
    """What is written to must lie in its folder: a link in a folder from elsewhere may lead to any file of yours.

    Raises:
        StorageError: the folder holds a link.
    """
    with storage_errors(folder):
        links = sorted(entry.name for entry in folder.iterdir() if entry.is_symlink())
    if links:
        raise StorageError(
            f"{folder}: holds the link {links[0]}, so what is written could land elsewhere. Put the file itself there"
            " (cp -L), or name another folder."
        )


def is_plain_name(name: str) -> bool:
    """Whether it names a file in the folder where it is said, and nothing above or elsewhere."""
    return name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0")


def read_text(path: str | Path, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file that anyone may have made.

    Raises:
        OSError: it cannot be read.
        ValueError: it is a pipe or a device, is too large, or not UTF-8.
    """
    facts = Path(path).stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("this is a folder, a pipe or a device, expected a file")
    if facts.st_size > max_bytes:
        raise ValueError(f"it has {facts.st_size} bytes, expected at most {max_bytes}")
    with Path(path).open(encoding="utf-8", newline="") as file:
        return file.read()


def read_json(path: str | Path, max_bytes: int = _MAX_TEXT_BYTES) -> Any:
    """The value in a JSON file that anyone may have made.

    Raises:
        OSError, ValueError: as `read_text`; or it is not JSON, or nested too deeply.
    """
    return parse_json(read_text(path, max_bytes))


def parse_json(text: str) -> Any:
    """The value of a JSON text that anyone may have made.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync_folder(folder: Path) -> None:
    """Make renames inside this folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make the content of this file last through a power cut. Whoever reads it next reads what the disk has."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # where there is none, the memory's copy is read
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    """Add `manifest.json` with the size and SHA-256 of every file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    manifest = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def verify_manifest(folder: Path, needed: Iterable[str] = ()) -> str | None:
    """What is wrong with a folder that has a manifest, in a few words; None if every file is as it was written.

    Args:
        folder: what `write_manifest` was called for.
        needed: files that must be among those in the manifest.
    """
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
