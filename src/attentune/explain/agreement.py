"""How far two explanations of one prediction agree on which words matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.explain.explanation import Explanation, rank_correlation

STRONGEST = 3


@dataclass(frozen=True)
class Agreement:
    """The agreement of two explanations on the ranking of words by their scores.

    Attributes:
        strongest: how many of the words with the highest scores are compared: 3, or half of the words if that is less.
        shared: how many of these both explanations have.
        rank_correlation: that of all words (`explain.explanation.rank_correlation`); None if there is none.
    """

    strongest: int
    shared: int
    rank_correlation: float | None


def agreement_of(first: Explanation, second: Explanation) -> Agreement:
    """Compare two explanations of the same text by the same model.

    Words that speak against the class rank last, as those do that do not matter by a method without signs.

    Raises:
        ValueError: they have other words.
    """
    words = [(word.within, word.start, word.end) for word in first.words]
    if words != [(word.within, word.start, word.end) for word in second.words]:
        raise ValueError("the two explanations have other words")
    strongest = max(1, min(STRONGEST, len(words) // 2)) if words else 0
    orders = [np.argsort([-word.score for word in one.words], kind="stable") for one in (first, second)]
    top, other_top = (set(order_W[:strongest].tolist()) for order_W in orders)
    return Agreement(strongest, len(top & other_top), rank_correlation([first], [second]))
