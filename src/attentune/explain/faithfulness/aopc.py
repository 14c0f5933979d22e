"""How far a class's probability falls when the first tokens of an order are erased, or all but these.

Source: ERASER (DeYoung et al. 2020, section 4.2): comprehensiveness and sufficiency, each the mean over its bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attentune.explain.faithfulness.erasure import Eraser
from attentune.explain.faithfulness.ranking import SHARES, top_counts


@dataclass(frozen=True)
class Falls:
    """What erasing does to each of N rows, at each of K bins.

    Attributes:
        whole_NC: the classes' probabilities of the rows as they are.
        without_NKC: those without the first tokens of the order.
        only_NKC: those of the first tokens alone.
        target_N: the class that was explained.
    """

    whole_NC: np.ndarray
    without_NKC: np.ndarray
    only_NKC: np.ndarray
    target_N: np.ndarray

    @property
    def comprehensiveness(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | text without the tokens); high is good."""
        return self._fall(self.without_NKC)

    @property
    def sufficiency(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | the tokens alone); low is good."""
        return self._fall(self.only_NKC)

    def _fall(self, erased_NKC: np.ndarray) -> np.ndarray:
        rows = np.arange(len(self.target_N))
        return self.whole_NC[rows, self.target_N][:, None] - erased_NKC[rows, :, self.target_N]


def falls(
    eraser: Eraser,
    rows: np.ndarray,
    orders: Sequence[np.ndarray],
    target_N: np.ndarray,
    shares: Sequence[float] = SHARES,
) -> Falls:
    """What erasing in these orders does.

    Args:
        eraser: asks the model.
        rows: (N,) the rows' numbers.
        orders: of each row its ordinary tokens' places, the most important first; none empty.
        target_N: the classes explained.
        shares: the bins.
    """
    counts = [top_counts(len(order), shares) for order in orders]
    first = [order[:count] for order, own in zip(orders, counts, strict=True) for count in own]
    rest = [order[count:] for order, own in zip(orders, counts, strict=True) for count in own]
    nothing = [np.zeros(0, dtype=np.int64)] * len(rows)
    spread = np.repeat(rows, len(shares))
    found = eraser.probabilities(np.concatenate([rows, spread, spread]), [*nothing, *first, *rest])
    whole_NC, without, only = np.split(found, [len(rows), len(rows) + len(spread)])
    shape = (len(rows), len(shares), -1)
    return Falls(whole_NC, without.reshape(shape), only.reshape(shape), target_N)
