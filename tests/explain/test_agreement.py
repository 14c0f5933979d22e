"""The agreement of two explanations, against figures by hand."""

from __future__ import annotations

import pytest

from attentune.explain.explanation import Explanation, Subword
from attentune.explain.texts import rank_correlation


def explanation(*scores: float, signed: bool = True, text: str = "") -> Explanation:
    text = text or " ".join("abcdefgh"[: len(scores)])
    pieces = tuple(Subword(text[2 * n], 2 * n, 2 * n + 1, score) for n, score in enumerate(scores))
    return Explanation(text, None, "gradient", "good", 0.9, "good", signed, 1, 0.1, "word", "a unit", pieces)


def test_ranks_of_words() -> None:
    first, second = explanation(5, 4, 3, -9, 1, 2), explanation(0.9, 0.8, 0.1, 0.2, 0.3, 0.4, signed=False)
    # Ranks 6 5 4 1 2 3 and 6 5 1 2 3 4: 1 - 6 (9 + 1 + 1 + 1) / (6 * 35). The word against the class ranks last.
    assert rank_correlation([first], [second]) == pytest.approx(1 - 6 * 12 / 210)
    assert rank_correlation([first], [first]) == pytest.approx(1)
    assert rank_correlation([explanation(1, 2, 3)], [explanation(0, 0, 0)]) is None
