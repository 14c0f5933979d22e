"""Locks that end with their process: whatever kills it, the kernel frees them."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path
from types import TracebackType

from attentune.io.files import storage_errors


class FileLock:
    """One holder at a time among the processes that reach this file. It says who holds, or last held, it.

    The file stays: were it removed, two processes could each hold a file of that name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def take(self, *, wait: bool = True) -> bool:
        """Take it; whether it was free. With `wait` it is waited for.

        Raises:
            StorageError: the file cannot be made.
        """
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # In this order, so that a reader finds a holder at any moment.
            os.ftruncate(handle, os.pwrite(handle, f"{os.getpid()} {platform.node()}\n".encode(), 0))
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def free(self) -> None:
        """Let go of it, if it is held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def is_held(self) -> bool:
        """Whether some process, this one included, holds it now."""
        if self._handle is not None:
            return True
        if not self.path.exists():
            return False
        handle = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def holder(self) -> int | None:
        """The process that holds it, or did last; None if there was none."""
        try:
            return int(self.path.read_text(encoding="utf-8").split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def __enter__(self) -> FileLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
