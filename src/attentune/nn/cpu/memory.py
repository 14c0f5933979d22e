"""Keep freed memory in the process between batches, since the next batch needs as much again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator

# Names and numbers from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
# The highest values that glibc's own adjustment of the two reaches.
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


_library = _glibc()
_lock = threading.Lock()
_within = 0


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Tell glibc to return no freed memory to the system while the block runs, and to return it at the end.

    Otherwise each batch's tensors and each step's gradients are mapped again, page by page. Of nested blocks, or blocks
    in several threads, the last to end returns the memory. With another C library nothing happens.
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
