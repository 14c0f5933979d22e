"""From scores to an order of tokens, and how many of its first ones to take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attentune.seeding import numpy_generator

# ERASER's bins (DeYoung et al. 2020, section 4.2).
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


def ranked(scores_T: np.ndarray, ordinary: np.ndarray, *key: int | str) -> np.ndarray:
    """The places of a row's ordinary tokens, the highest score first.

    Equal scores come in an order drawn by lot: in the text's own order a method that says nothing would look as good
    as the first words are.

    Args:
        scores_T: of each token of the row.
        ordinary: the places to rank.
        key: what the lot is a function of, such as the seed and the row.
    """
    lot = numpy_generator("ties", *key).random(len(ordinary))
    return ordinary[np.lexsort((lot, -scores_T[ordinary]))]


def top_counts(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """How many of `count` tokens each share stands for: rounded up, so at least one."""
    # Rounded first: 0.1 x 30 is a little more than 3 in binary numbers.
    return [min(count, max(1, math.ceil(round(share * count, 9)))) for share in shares]
