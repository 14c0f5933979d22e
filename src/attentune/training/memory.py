"""What a run used."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held at once: on a GPU by PyTorch, on a CPU by the whole process since it began."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # The kernel's own mark: getrusage's also counts the process that this one was started from.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak_memory() -> None:
    """Start a GPU's peak anew, for the next run of the same process. A process's own cannot be: what the last run left
    in its heap would count, so on a CPU each run has a process of its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
