"""What an explanation is: the tokens of a text, each with a score."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from attentune.explain.words import Subword, merge_subwords

UNITS = ("word", "token")

_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class Explanation:
    """How much each token of one text, or pair of texts, mattered to what a model says of it.

    Attributes:
        text: the (first) text.
        pair: the second one, or None.
        method: a key of `explain.methods.METHODS`.
        label: the class that is explained; for regression the predicted score.
        probability: that class's; None for regression.
        prediction: the predicted class, which is explained unless another one was asked for; for regression the score.
        signed: whether scores below 0 speak against the class (the score). If not, 0 is the least.
        passes: how many texts, changed copies included, were sent forward and back through the model: n copies in one
            batch count n, and a backward pass as much as a forward one.
        seconds: how long it took; of texts that were asked in one batch each has an equal share.
        unit: what `tokens` are: "word" or "token".
        pieces: the model's own tokens, special ones left out, those of the first text first.
    """

    text: str
    pair: str | None
    method: str
    label: str | float
    probability: float | None
    prediction: str | float
    signed: bool
    passes: int
    seconds: float
    unit: str
    pieces: tuple[Subword, ...]

    @property
    def tokens(self) -> tuple[Subword, ...]:
        """The pieces, or the words that they make: a word's score is the sum of its pieces' where scores are signed,
        else their highest."""
        if self.unit == "token":
            return self.pieces
        return self.words

    @property
    def words(self) -> tuple[Subword, ...]:
        """The words, whatever the unit."""
        return merge_subwords(self.pieces, self.text, self.pair, signed=self.signed)

    def to_dict(self) -> dict[str, Any]:
        """What one line of JSON holds: `text`, `pair`, `method`, `label`, `probability`, `prediction`, `signed`,
        `passes`, `seconds`, `unit`, `tokens`; each of these `text`, `start`, `end`, `score` and, of pairs, `in`."""
        return {
            "text": self.text,
            "pair": self.pair,
            "method": self.method,
            "label": self.label,
            "probability": None if self.probability is None else round(self.probability, 6),
            "prediction": self.prediction,
            "signed": self.signed,
            "passes": self.passes,
            "seconds": round(self.seconds, 6),
            "unit": self.unit,
            "tokens": token_dicts(self.tokens, is_pair=self.pair is not None),
        }


def token_dicts(tokens: tuple[Subword, ...], *, is_pair: bool) -> list[dict[str, Any]]:
    """Tokens as JSON has them, scores to six digits."""
    return [
        {"text": token.text, "start": token.start, "end": token.end, "score": float(f"{token.score:.6g}")}
        | ({"in": token.within} if is_pair else {})
        for token in tokens
    ]


def token_json(tokens: tuple[Subword, ...], *, is_pair: bool) -> str:
    """`token_dicts` as JSON text, put together by hand, which takes a third of the time; scores must be finite."""
    inner = [
        f'{{"text": {_quoted(token.text)}, "start": {token.start}, "end": {token.end},'
        f' "score": {float(f"{token.score:.6g}")!r}' + (f', "in": "{token.within}"}}' if is_pair else "}")
        for token in tokens
    ]
    return f"[{', '.join(inner)}]"


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
    tokens: tuple[Subword, ...]
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
