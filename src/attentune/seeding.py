"""Random generators seeded with keys.

Every random choice is a function of a key such as (seed, epoch, row), not of numbers drawn earlier, so it does not
depend on resuming, on the batch size or on the number of processes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_key(*parts: int | str) -> int:
    """Hash the parts of a key, in order, to a 63-bit integer.

    Unlike that of `hash`, the result is the same in all processes, on all machines and in all versions of Python.
    """
    # The type name distinguishes 1 from "1"; NumPy integers count as int.
    text = "\x1f".join(f"{'str' if isinstance(part, str) else 'int'}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(*parts: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_key(*parts)))


def torch_generator(*parts: int | str) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(derive_key(*parts))


def seed_global(*parts: int | str) -> None:
    """Seed PyTorch's global generators (CPU and accelerators), which dropout uses, with this key.

    Training calls this before each forward pass, so that checkpoints need not store generator states.
    """
    import torch

    key = derive_key(*parts)
    if torch.accelerator.is_available():
        torch.manual_seed(key)
    else:  # same effect, without the stack trace that manual_seed records for missing devices (1 ms)
        torch.default_generator.manual_seed(key)
