"""Memory of the process: reuse of freed memory between batches, with glibc only, and the peak of a run."""

import contextlib
import ctypes
import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")

# Names and numbers from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
# The highest values that glibc's dynamic adjustment sets.
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}


def load_glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


_library = load_glibc()
_lock = threading.Lock()
_within = 0


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory in the process while the block runs, and return it to the system at the end.

    Otherwise the pages of each batch's tensors and each step's gradients would be mapped again. If blocks are nested or
    run in several threads, the memory is returned when the last one ends. With other C libraries this has no effect.
    """
    if _library is None:
        yield
        return
    _enter(_library, 1)
    try:
        yield
    finally:
        _enter(_library, -1)


def return_freed_memory() -> None:
    """Return freed memory to the system at once, within `kept_memory` too: before work of quite other sizes."""
    if _library is not None:
        _library.malloc_trim(0)


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


def peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Not getrusage, which includes the peak of the parent process.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if resource is None:
        used = importlib.import_module("psutil").Process().memory_info()
        return int(getattr(used, "peak_wset", used.rss))  # on Windows, the peak of the resident memory
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak_memory() -> None:
    """Reset the GPU's peak memory before the next run in the same process; that of a process cannot be reset."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
