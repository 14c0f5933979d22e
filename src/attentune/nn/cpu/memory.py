"""Memory that a batch frees stays with the process while more batches come, as they want as much again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator

# Names and numbers from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
# Where glibc's own adjustment of the two ends up at most.
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


_library = _glibc()
_lock = threading.Lock()
_within = 0


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """While the block runs, glibc gives no freed memory back to the system; at its end it gives back what it can.

    Without it each batch's tables and each step's gradients are mapped anew, page by page. Of blocks within each other,
    or at the same time in several threads, the last to end gives back. Where the C library is another one, nothing
    happens.
    """
    if _library is None:
        yield
        return
    _enter(_library, 1)
    try:
        yield
    finally:
        _enter(_library, -1)


def _enter(library: ctypes.CDLL, change: int) -> None:
    global _within
    with _lock:
        before, _within = _within, _within + change
        if before == 0:
            for name in _USUAL:
                library.mallopt(name, _NEVER)
        elif _within == 0:
            for name, value in _USUAL.items():
                library.mallopt(name, value)
            library.malloc_trim(0)
