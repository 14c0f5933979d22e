"""The peak of a process's memory is its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from attentune.training.memory import peak_memory_bytes

CPU = torch.device("cpu")
BYTES = 1 << 30
_PRINT_PEAK = """
import torch
from attentune.training.memory import peak_memory_bytes
print(peak_memory_bytes(torch.device("cpu")))
"""


def test_the_peak_counts_what_is_held():
    before = peak_memory_bytes(CPU)
    held = np.ones(BYTES // 8)
    assert peak_memory_bytes(CPU) >= max(before, held.nbytes)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own mark is read under Linux only")
def test_the_peak_is_not_that_of_the_process_that_started_this_one():
    held = np.ones(BYTES // 8)
    found = subprocess.run([sys.executable, "-c", _PRINT_PEAK], check=True, capture_output=True, text=True)
    assert 1 << 26 < int(found.stdout) < held.nbytes
