"""What a run used."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held at once: on a GPU by PyTorch, on a CPU by the whole process since it began, or since
    `forget_peak_memory`."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # The kernel's own mark: getrusage's also counts the process that this one was started from.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak_memory() -> None:
    """Give back what is free and start the peak anew, for the next run of the same process (on a CPU: under Linux)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
