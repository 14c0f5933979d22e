"""File locks that the operating system releases when their process ends, even after a crash."""

from __future__ import annotations

import errno
import importlib
import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from attentune.io.files import storage_errors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# On Windows, other processes cannot read a locked byte, so the locked byte is far beyond the content.
_LOCKED_BYTE = 1 << 30
_POLL_S = 0.05


def open_lock_file(path: Path) -> int:
    """Open a lock file, creating it if needed; symbolic links are not followed."""
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o644)


def lock_handle(handle: int, *, wait: bool) -> bool:
    """Lock an open file exclusively until it is closed."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
    while not _lock_byte(handle):
        if not wait:
            return False
        time.sleep(_POLL_S)
    return True


def close_lock(handle: int) -> None:
    """Release a lock and close its file."""
    if fcntl is None:  # Windows also releases the lock on closing, but not immediately
        try:
            msvcrt = _msvcrt()
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
        except OSError:  # it was not locked
            pass
    os.close(handle)


def _lock_byte(handle: int) -> bool:
    msvcrt = _msvcrt()
    os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _msvcrt() -> Any:
    return importlib.import_module("msvcrt")


class FileLock:
    """An exclusive lock between all processes that can open its file, which names the last holder.

    The file is never deleted: otherwise two processes could lock two different files with the same name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def take(self, *, wait: bool = True) -> bool:
        """Take the lock."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = open_lock_file(self.path)
        try:
            if not lock_handle(handle, wait=wait):
                os.close(handle)
                return False
            # Truncated after writing, not before, so that a reader always finds a holder.
            os.lseek(handle, 0, os.SEEK_SET)
            os.ftruncate(handle, os.write(handle, f"{os.getpid()} {platform.node()}\n".encode()))
        except BaseException:
            close_lock(handle)
            raise
        self._handle = handle
        return True

    def free(self) -> None:
        """Release the lock if this object holds it."""
        if self._handle is not None:
            close_lock(self._handle)
            self._handle = None

    def is_held(self) -> bool:
        """Return whether any process, including this one, holds the lock."""
        if self._handle is not None:
            return True
        if not self.path.exists():
            return False
        handle = open_lock_file(self.path)
        try:
            return not lock_handle(handle, wait=False)
        finally:
            close_lock(handle)

    def holder(self) -> int | None:
        """Return the id of the process that holds the lock, or held it last; None if there is none."""
        try:
            return int(self.path.read_text(encoding="utf-8").split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def holder_text(self) -> str:
        """Return the process and machine that hold the lock, or held it last; empty if there is none."""
        try:
            pid, host = self.path.read_text(encoding="utf-8").split()[:2]
        except (OSError, ValueError):
            return ""
        return f"process {pid} on {host}"

    def __enter__(self) -> FileLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
