"""The peak of a process's memory is its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import attentune.training.run as run_module
from attentune.config import load_config
from attentune.nn.compiled.memory import peak_memory_bytes
from attentune.training.run import train
from attentune.training.trainer import Trainer
from helpers.samples import settings

CPU = torch.device("cpu")
BYTES = 1 << 30
_PRINT_PEAK = """
import torch
from attentune.nn.compiled.memory import peak_memory_bytes
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


def test_after_the_last_step_gradients_and_moments_are_freed(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Trainer] = []
    build = run_module.build
    monkeypatch.setattr(run_module, "build", lambda inputs: built.append(build(inputs)) or built[0])
    train(load_config(overrides=settings(tmp_path, tiny("bert"), training__max_steps=2)))
    optimizer = built[0].bare_optimizer
    assert not optimizer.state
    assert all(each.grad is None for group in optimizer.param_groups for each in group["params"])
