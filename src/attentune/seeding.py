"""Random generators from keys.

Every random choice is a function of a key such as (seed, epoch, row), and not of the numbers drawn before. So it does
not depend on resuming, on the batch size or on the number of processes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_key(*parts: int | str) -> int:
    """Hash the parts of a key, in their order, to a 63-bit integer.

    The result is the same in all processes, machines and versions of Python (unlike `hash`).
    """
    # NumPy integers are treated as integers.
    text = "\x1f".join(f"{'str' if isinstance(part, str) else 'int'}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a NumPy generator for this key."""
    return np.random.Generator(np.random.PCG64(derive_key(*parts)))


def torch_generator(*parts: int | str) -> torch.Generator:
    """Return a PyTorch CPU generator for this key."""
    import torch

    return torch.Generator().manual_seed(derive_key(*parts))


def seed_global(*parts: int | str) -> None:
    """Seed PyTorch's global generators (CPU and accelerators), from which dropout draws, with this key.

    It is called before each forward pass in training, so that checkpoints need no generator state.
    """
    import torch

    key = derive_key(*parts)
    if torch.accelerator.is_available():
        torch.manual_seed(key)
    else:  # the same, but without the stack trace recorded for missing devices, which takes a millisecond
        torch.default_generator.manual_seed(key)
