"""The only place that makes randomness.

Every random choice is a function of a key such as (seed, epoch, row), never of how many numbers were drawn before. So a
resumed run, another batch size or another number of processes makes the same choices.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_key(*parts: int | str) -> int:
    """A 63-bit number that depends on every part and on their order.

    Stable between processes, machines and versions of Python (unlike `hash`).
    """
    # NumPy's integers count as integers.
    text = "\x1f".join(f"{'str' if isinstance(part, str) else 'int'}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator for this key."""
    return np.random.Generator(np.random.PCG64(derive_key(*parts)))


def torch_generator(*parts: int | str) -> torch.Generator:
    """A PyTorch generator on the CPU for this key."""
    import torch

    return torch.Generator().manual_seed(derive_key(*parts))


def seed_global(*parts: int | str) -> None:
    """Set PyTorch's global generators (CPU and accelerators) from this key: dropout draws from them.

    Called before each forward pass in training, so that no generator state needs to be kept in a checkpoint.
    """
    import torch

    key = derive_key(*parts)
    if torch.accelerator.is_available():
        torch.manual_seed(key)
    else:  # the same, without the stack trace that it makes for devices that are not there: a millisecond
        torch.default_generator.manual_seed(key)
