"""The layer mix slot: from the outputs of all encoder layers to one token matrix.

Source: SESAME (Su and Cheng 2019), section 3.1 and table 3: the plain selections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From the outputs of layers 1..L, each (B, T, D), to one (B, T, D).
LAYER_MIXES: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "first": lambda layers: layers[0],
    "second": lambda layers: layers[1],
    "second-to-last": lambda layers: layers[-2],
    "last": lambda layers: layers[-1],
    "sum-last-4": lambda layers: torch.stack(tuple(layers[-4:])).sum(dim=0),
    "sum-all": lambda layers: torch.stack(tuple(layers)).sum(dim=0),
    "mean-all": lambda layers: torch.stack(tuple(layers)).mean(dim=0),
}

# How many layers an encoder needs for the selection to mean what it says.
MINIMUM_LAYERS: dict[str, int] = {"second": 2, "second-to-last": 2, "sum-last-4": 4}


def mix_layers(kind: str, layers: Sequence[Tensor]) -> Tensor:
    """Select or combine layers.

    Args:
        kind: a key of `LAYER_MIXES`.
        layers: the outputs of encoder layers 1 to L, each (B, T, D); the embeddings are not one of them.

    Returns:
        The token matrix, (B, T, D).
    """
    return LAYER_MIXES[kind](layers)
