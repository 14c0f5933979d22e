"""What attention heads look at in a text, as a table: a line a token, a column a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attentune.explain.explanation import token_dicts
from attentune.explain.words import Piece


@dataclass(frozen=True)
class HeadAttention:
    """What the first token ([CLS]) of a layer attends to in one text, or pair of texts.

    Attributes:
        text: the (first) text.
        pair: the second one, or None.
        label: the predicted class, or score.
        probability: the class's; None for regression.
        layer: its number, from 1.
        heads: the heads' numbers, from 1.
        unit: what the tokens are: "word" or "token".
        tokens: with the mean over these heads as their scores.
        attention: of each token one share a head. A word has its pieces' highest.
        importance: of each token what the token gate gives; None without one.
    """

    text: str
    pair: str | None
    label: str | float
    probability: float | None
    layer: int
    heads: tuple[int, ...]
    unit: str
    tokens: tuple[Piece, ...]
    attention: tuple[tuple[float, ...], ...]
    importance: tuple[float, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """What one line of JSON holds: the attributes; of each token, besides its place, `score` (the mean over the
        heads), `attention` (one number a head) and `importance`."""
        tokens = token_dicts(self.tokens, is_pair=self.pair is not None)
        for number, token in enumerate(tokens):
            token["attention"] = [round(share, 6) for share in self.attention[number]]
            token["importance"] = None if self.importance is None else round(self.importance[number], 6)
        return {
            "text": self.text,
            "pair": self.pair,
            "label": self.label,
            "probability": None if self.probability is None else round(self.probability, 6),
            "layer": self.layer,
            "heads": list(self.heads),
            "unit": self.unit,
            "tokens": tokens,
        }
