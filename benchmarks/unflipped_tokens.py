"""SSA's labels turned round, a contender of `benchmarks.shortcuts`: words that change no prediction get no weight.

    alpha * task loss + (1 - alpha) * mean over labelled tokens i of (1 - y_i) n w_i

y_i is SSA's label of token i, 0 if masking it, with others, left the prediction as it was. w_i is its weight in the
sentence vector of `ssa-hybrid`, n the number of tokens with a weight, so that n w_i is 1 where all weights are equal.
The term replaces SSA's cross-entropy of the token head (Kou et al. 2020, sections 3.2 and 3.3).
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from attentune.nn import heads
from attentune.training.objective import Objective


@contextlib.contextmanager
def without_weight() -> Iterator[None]:
    """Train with this loss of tokens while the block runs."""
    sums, importance_weights = Objective.sums, heads.importance_weights
    latest: list[Tensor] = []

    def recorded(*args: Any, **given: Any) -> Tensor:
        latest[:] = [importance_weights(*args, **given)]
        return latest[0]

    def with_weights(
        self: Objective, output: Any, labels_B: Tensor, token_labels_BT: Tensor | None, *args: Any, **given: Any
    ) -> Tensor:
        sums_3 = sums(self, output, labels_B, token_labels_BT, *args, **given)
        if token_labels_BT is None:
            return sums_3
        return torch.stack([sums_3[0], weight_of_unflipped(latest[0], token_labels_BT), sums_3[2]])

    with patch.object(Objective, "sums", with_weights), patch.object(heads, "importance_weights", recorded):
        yield


def weight_of_unflipped(weights_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the sum of (1 - y_i) n w_i over labelled tokens; a label below 0 is none."""
    relative_BT = weights_BT * (weights_BT > 0).sum(dim=1, keepdim=True)
    return ((1.0 - labels_BT) * relative_BT).masked_fill(labels_BT < 0, 0.0).sum()
