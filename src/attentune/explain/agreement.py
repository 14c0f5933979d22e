"""How far two explanations of one prediction agree on which words matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from attentune.explain.explanation import Explanation

STRONGEST = 3


@dataclass(frozen=True)
class Agreement:
    """The agreement of two explanations on the ranking of words by their scores."""

    strongest: int  # how many of the words with the highest scores are compared
    shared: int  # how many of these both explanations have
    rank_correlation: float | None  # that of all words (`rank_correlation`); None if there is none


def agreement_of(first: Explanation, second: Explanation) -> Agreement:
    """Compare two explanations of the same text by the same model.

    Words that speak against the class rank last, as those do that do not matter by a method without signs.
    """
    words = [(word.within, word.start, word.end) for word in first.words]
    if words != [(word.within, word.start, word.end) for word in second.words]:
        raise ValueError("the two explanations have other words")
    strongest = max(1, min(STRONGEST, len(words) // 2)) if words else 0
    orders = [np.argsort([-word.score for word in one.words], kind="stable") for one in (first, second)]
    top, other_top = (set(order_W[:strongest].tolist()) for order_W in orders)
    return Agreement(strongest, len(top & other_top), rank_correlation([first], [second]))


def rank_correlation(first: Sequence[Explanation], second: Sequence[Explanation]) -> float | None:
    """Compute how similarly two methods rank the words of the same texts: Spearman's rho, averaged over texts."""
    found = []
    for one, other in zip(first, second, strict=True):
        scores = [np.array([token.score for token in explanation.words]) for explanation in (one, other)]
        if len(scores[0]) == len(scores[1]) > 1 and all(np.ptp(part) > 0 for part in scores):
            found.append(spearmanr(*scores).statistic)
    return float(np.mean(found)) if found else None
