"""File locks between processes, by filelock; the system releases them when their process ends, even after a crash."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

from attentune.io.files import storage_errors


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
        """Release the lock if this object holds it."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
