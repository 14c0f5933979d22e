"""How far two explanations of one prediction agree on which words matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attentune.explain.explanation import Explanation
from attentune.metrics.metrics import METRICS

STRONGEST = 3


@dataclass(frozen=True)
class Agreement:
    """The agreement of two explanations on the strength of words: their scores without the sign.

    Attributes:
        strongest: how many of the strongest words are compared: 3, or half of the words if that is less.
        shared: how many of these both explanations have.
        rank_correlation: Spearman's correlation over all words, -1 to 1; NaN for fewer than three words, or if one of
            them gives all words the same strength.
    """

    strongest: int
    shared: int
    rank_correlation: float


def agreement_of(first: Explanation, second: Explanation) -> Agreement:
    """Compare two explanations of the same text by the same model.

    Signs are left out, since unsigned methods tell only how much a word matters, not for which class.

    Raises:
        ValueError: they have other words.
    """
    words = [(word.within, word.start, word.end) for word in first.words]
    if words != [(word.within, word.start, word.end) for word in second.words]:
        raise ValueError("the two explanations have other words")
    strengths = [np.abs([word.score for word in one.words]) for one in (first, second)]
    strongest = max(1, min(STRONGEST, len(words) // 2)) if words else 0
    top, other_top = (set(np.argsort(-strength_W, kind="stable")[:strongest].tolist()) for strength_W in strengths)
    constant = any(len(set(strength_W.tolist())) < 2 for strength_W in strengths)
    correlation = float("nan") if len(words) < 3 or constant else float(METRICS["spearmanr"].score(*strengths))
    return Agreement(strongest, len(top & other_top), correlation)
