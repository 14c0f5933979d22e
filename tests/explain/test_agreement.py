"""The agreement of two explanations, against figures by hand."""

from __future__ import annotations

import pytest

from attentune.explain.agreement import Agreement, agreement_of
from attentune.explain.explanation import Explanation
from attentune.explain.words import Subword


def explanation(*scores: float, signed: bool = True, text: str = "") -> Explanation:
    text = text or " ".join("abcdefgh"[: len(scores)])
    pieces = tuple(Subword(text[2 * n], 2 * n, 2 * n + 1, score) for n, score in enumerate(scores))
    return Explanation(text, None, "gradient", "good", 0.9, "good", signed, 1, 0.1, "word", "a unit", pieces)


def test_the_strongest_words_and_the_ranks() -> None:
    first, second = explanation(5, 4, 3, -9, 1, 2), explanation(0.9, 0.8, 0.1, 0.2, 0.3, 0.4, signed=False)
    found = agreement_of(first, second)
    assert (found.strongest, found.shared) == (3, 2)
    # Ranks 6 5 4 1 2 3 and 6 5 1 2 3 4: 1 - 6 (9 + 1 + 1 + 1) / (6 * 35). The word against the class ranks last.
    assert found.rank_correlation == pytest.approx(1 - 6 * 12 / 210)
    assert agreement_of(first, first).rank_correlation == pytest.approx(1)


def test_few_words_and_equal_scores() -> None:
    assert agreement_of(explanation(1, 2), explanation(2, 1)).strongest == 1
    assert agreement_of(explanation(1, 2, 3), explanation(0, 0, 0)).rank_correlation is None
    assert agreement_of(explanation(), explanation()) == Agreement(0, 0, None)
    with pytest.raises(ValueError, match="the two explanations have other words"):
        agreement_of(explanation(1, 2), explanation(1, 2, 3))
