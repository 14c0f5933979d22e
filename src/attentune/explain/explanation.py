"""The explanation of one prediction: the words or tokens of a text, each with a score."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from attentune.explain.words import Subword, merge_subwords, word_spans

LEVELS = ("word", "token")

_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class Explanation:
    """Importance scores of the tokens of one text, or pair of texts, for a model's prediction.

    Attributes:
        text: the (first) text.
        pair: the second one, or None.
        method: a key of `attribution.registry.METHODS`.
        label: the explained class; for regression the predicted score.
        probability: of the explained class; None for regression.
        prediction: the predicted class, which is the explained one by default; for regression the score.
        signed: whether negative scores speak against the class (or a high score); otherwise 0 is the least importance.
        passes: forward plus backward passes of single texts, perturbed copies included: n copies in a batch count n.
        seconds: wall time; texts of one batch have equal shares.
        level: "word" or "token": what `tokens` are.
        unit: what a score is, such as "change of the log-odds of good when the word is left out"; see `score_unit`.
        pieces: the model's subwords without special tokens, those of the first text first.
        contrast: the class that the explained one is compared with; None for all other classes.
        word_scores: the scores of the words, where they are not those of their subwords put together.
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
    level: str
    unit: str
    pieces: tuple[Subword, ...]
    contrast: str | None = None
    word_scores: tuple[float, ...] | None = None

    @property
    def tokens(self) -> tuple[Subword, ...]:
        """The subwords, or the words they form: a word's score is the sum of its subwords' scores if signed, else their
        maximum; for leave-one-out that of masking the whole word."""
        if self.level == "token":
            return self.pieces
        return self.words

    @property
    def words(self) -> tuple[Subword, ...]:
        """The words, regardless of `level`."""
        words = merge_subwords(self.pieces, self.text, self.pair, signed=self.signed)
        if self.word_scores is None:
            return words
        return tuple(word._replace(score=score) for word, score in zip(words, self.word_scores, strict=True))

    @property
    def unread_words(self) -> int:
        """The number of words after the last one that the model read, where a text was too long for it."""
        words, count = self.words, 0
        for within, own_text in (("text", self.text), ("pair", self.pair or "")):
            read = [word for word in words if word.within == within]
            count += len(word_spans(own_text[read[-1].end :])) if read else 0
        return count

    def to_dict(self) -> dict[str, Any]:
        """Return the object of one JSON line: `text`, `pair`, `method`, `label`, `probability`, `prediction`, `signed`,
        `passes`, `seconds`, `level`, `unit`, `tokens`; each of these `text`, `start`, `end`, `score` and, of pairs,
        `in`. With a contrast, `contrast` follows `label`; where the text was cut, `unread_words` follows `unit`."""
        return {
            "text": self.text,
            "pair": self.pair,
            "method": self.method,
            "label": self.label,
            **({} if self.contrast is None else {"contrast": self.contrast}),
            "probability": None if self.probability is None else round(self.probability, 6),
            "prediction": self.prediction,
            "signed": self.signed,
            "passes": self.passes,
            "seconds": round(self.seconds, 6),
            "level": self.level,
            "unit": self.unit,
            **({"unread_words": unread} if (unread := self.unread_words) else {}),
            "tokens": token_dicts(self.tokens, is_pair=self.pair is not None),
        }


def token_dicts(tokens: tuple[Subword, ...], *, is_pair: bool) -> list[dict[str, Any]]:
    """Convert tokens to JSON objects, with scores rounded to six digits."""
    return [
        {"text": token.text, "start": token.start, "end": token.end, "score": float(f"{token.score:.6g}")}
        | ({"in": token.within} if is_pair else {})
        for token in tokens
    ]


def token_json(tokens: tuple[Subword, ...], *, is_pair: bool) -> str:
    """Return `token_dicts` as JSON text, formatted directly, three times as fast; scores must be finite."""
    inner = [
        f'{{"text": {_quoted(token.text)}, "start": {token.start}, "end": {token.end},'
        f' "score": {float(f"{token.score:.6g}")!r}' + (f', "in": "{token.within}"}}' if is_pair else "}")
        for token in tokens
    ]
    return f"[{', '.join(inner)}]"


@dataclass(frozen=True)
class HeadAttention:
    """Attention weights of each head of a layer from the first token ([CLS]), for one text or pair of texts."""

    text: str  # the (first) text
    pair: str | None  # the second one, or None
    label: str | float  # the predicted class, or score
    probability: float | None  # of that class; None for regression
    layer: int  # number of the layer, from 1
    heads: tuple[int, ...]  # numbers of the heads, from 1
    level: str  # "word" or "token": what `tokens` are
    tokens: tuple[Subword, ...]  # with the mean over these heads as scores
    attention: tuple[tuple[float, ...], ...]  # for each token one weight per head
    importance: tuple[float, ...] | None  # for each token the token gate's importance; None without a token gate

    @property
    def unit(self) -> str:
        """What an attention weight and an importance are."""
        highest = "; of a word the highest of its tokens" if self.level == "word" else ""
        importance = "" if self.importance is None else "; importance: predicted by the token head, from 0 to 1"
        return (
            f"share of the first token's attention in layer {self.layer}; with special tokens the shares of a head add"
            f" up to 1{highest}{importance}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the object of one JSON line: the attributes; each token has its span, `score` (the mean over heads),
        `attention` (one number per head) and `importance`."""
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
            "level": self.level,
            "unit": self.unit,
            "tokens": tokens,
        }
