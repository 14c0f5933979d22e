"""Measurement of a run's peak memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes."""
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
    """Reset the GPU's peak memory before the next run in the same process.

    The peak of a process cannot be reset, so on a CPU each run of a comparison has a process of its own.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
