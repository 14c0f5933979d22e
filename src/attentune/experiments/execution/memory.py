"""The memory of this machine and of its processes, as the operating system reports it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path


def available_memory_bytes() -> int | None:
    """Return the memory that new processes may use, as far as the system says; None if it does not.

    On Linux what the kernel counts as available, limited by the process's control group; elsewhere psutil's figure, or
    half of the physical memory.
    """
    known = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        known.append(int(line.split()[1]) * 1024)
    for limit, used in (("memory.max", "memory.current"),):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            group = Path("/sys/fs/cgroup")
            known.append(int((group / limit).read_text()) - int((group / used).read_text()))
    if known:
        return max(0, min(known))
    if importlib.util.find_spec("psutil") is not None:
        return int(importlib.import_module("psutil").virtual_memory().available)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use now; 0 if the system does not say or the process is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
