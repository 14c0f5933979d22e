"""The peak of a process's memory can be started anew."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from attentune.training.usage import forget_peak_memory, peak_memory_bytes

CPU = torch.device("cpu")
BYTES = 300 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's mark can be set back under Linux only")
def test_a_run_s_peak_is_not_that_of_the_run_before():
    forget_peak_memory()
    before = peak_memory_bytes(CPU)
    held = np.ones(BYTES // 8)
    assert peak_memory_bytes(CPU) - before > 0.9 * BYTES
    del held
    forget_peak_memory()
    assert peak_memory_bytes(CPU) - before < 0.3 * BYTES
