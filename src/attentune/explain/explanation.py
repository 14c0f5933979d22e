"""The explanation of one prediction: the words or tokens of a text, each with a score."""

import html
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError
from attentune.results import html_block, html_table

# In the order of `registry.METHODS`.
METHOD_NAMES = (
    "fast-shap",
    "ssa",
    "gradient",
    "integrated-gradients",
    "leave-one-out",
    "lime",
    "shap",
    "attention",
    "attention-gradient",
    "random",
)


def check_method_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in METHOD_NAMES:
            near = did_you_mean(name, METHOD_NAMES)
            raise ConfigError(f"method: got {name!r}, expected one of {', '.join(METHOD_NAMES)}.{near}")


_WORD, _ALONE = "word", "alone"
_JOINER = "\u200d"
_JOIN_LETTERS = frozenset("'-\u2019\u2010\u2011")
_JOIN_DIGITS = frozenset(".,:/")
# The same rules as one expression for ASCII texts, several times as fast.
_ASCII_WORD = re.compile(
    r"[A-Za-z0-9_]+(?:(?:(?<=[A-Za-z0-9])['-](?=[A-Za-z0-9])|(?<=[0-9])[.,:/](?=[0-9]))[A-Za-z0-9_]+)*"
    r"|([^A-Za-z0-9_\s])\1*"
)
# Han, Hiragana and Katakana.
_WITHOUT_SPACES = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


class Subword(NamedTuple):
    """A subword or word of a text with a score."""

    text: str  # its characters in the original text
    start: int  # index of its first character
    end: int  # index after its last character
    score: float  # its importance
    within: str = "text"  # "text", or "pair" for the second text


def merge_subwords(pieces: Sequence[Subword], text: str, pair: str | None, *, signed: bool) -> tuple[Subword, ...]:
    words = []
    for within, own_text in (("text", text), ("pair", pair)):
        if own_text is None:
            continue
        side_pieces = list(pieces) if pair is None else [piece for piece in pieces if piece.within == within]
        for group in _groups(side_pieces, own_text):
            if len(group) == 1:
                words.append(group[0])
                continue
            scores = [piece.score for piece in group]
            # A subword may be a space or empty; the word begins at its first other character.
            seen = [piece for piece in group if piece.text.strip()] or group
            start, end = min(piece.start for piece in seen), max(piece.end for piece in seen)
            words.append(Subword(own_text[start:end], start, end, sum(scores) if signed else max(scores), within))
        if side_pieces:
            words[-1] = _whole(words[-1], own_text)
    return tuple(words)


def overlap(piece: Subword, word: Subword) -> bool:
    """Whether two spans share characters of the same text."""
    return piece.within == word.within and piece.start < word.end and word.start < piece.end


def _whole(word: Subword, text: str) -> Subword:
    """Return the last word that was read with the rest of its characters, if the text was cut within it."""
    rest = next((end for start, end in word_spans(text[word.start :]) if start < word.end - word.start < end), 0)
    if not rest:
        return word
    return word._replace(text=text[word.start : word.start + rest], end=word.start + rest)


def _groups(pieces: list[Subword], text: str) -> list[list[Subword]]:
    ends = [piece.end for piece in pieces]
    spans = word_spans(text[: max(ends, default=0)])
    begins = [start for start, _ in spans]
    groups: list[list[Subword]] = []
    last_word, word = -1, 0
    for piece in pieces:
        while word + 1 < len(spans) and spans[word][1] <= piece.start:
            word += 1
        # Nearly all subwords lie within the next word; the others are looked up.
        if spans and spans[word][0] <= piece.start < piece.end <= spans[word][1]:
            first = last = word
        else:
            first, last = _words_under(piece, spans, begins)
        if groups and first <= last_word:
            groups[-1].append(piece)
        else:
            groups.append([piece])
        last_word = max(last_word, last)
    return groups


def _words_under(piece: Subword, spans: list[tuple[int, int]], begins: list[int]) -> tuple[int, int]:
    """Return the indices of the first and last word that a subword touches; for a space those of the next word."""
    if not piece.text or piece.text.isspace():
        word = min(bisect_right(begins, piece.start - 1), len(spans) - 1)
        return word, word
    first = max(0, bisect_right(begins, piece.start) - 1)
    if spans[first][1] <= piece.start:
        first += 1
    if piece.end <= spans[first][1]:
        return first, first
    return first, bisect_right(begins, piece.end - 1) - 1


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text's words, which together cover every character but white space."""
    if text.isascii():
        return [match.span() for match in _ASCII_WORD.finditer(text)]
    return word_spans_by_character(text)


def word_spans_by_character(text: str) -> list[tuple[int, int]]:
    """Return the same spans as `word_spans`, for any text: character by character, which is slower."""
    spans: list[tuple[int, int]] = []
    before = ""
    for place in range(len(text)):
        is_next = bool(spans) and spans[-1][1] == place
        if is_next and _attaches(text, place):
            spans[-1] = (spans[-1][0], place + 1)
            continue
        kind = _kind(text, place, before if is_next else "")
        if is_next and kind == before != _ALONE:
            spans[-1] = (spans[-1][0], place + 1)
        elif kind:
            spans.append((place, place + 1))
        before = kind
    return spans


def _attaches(text: str, place: int) -> bool:
    """Whether a character belongs to the one before it: combining marks, joiners, joined characters, skin tones."""
    sign = text[place]
    return not sign.isspace() and (
        unicodedata.category(sign) in ("Mn", "Mc", "Me", "Cf")
        or text[place - 1] == _JOINER
        or "\U0001f3fb" <= sign <= "\U0001f3ff"
    )


def _kind(text: str, place: int, before: str) -> str:
    """Classify a character: "" (white space), alone, part of a word, or itself; `before` is the previous one's kind.

    Consecutive characters of one kind form a word, unless they are alone.
    """
    sign = text[place]
    if sign.isspace():
        return ""
    if any(first <= ord(sign) <= last for first, last in _WITHOUT_SPACES):
        return _ALONE
    if unicodedata.category(sign)[0] in "LNM" or sign == "_":
        return _WORD
    left, right = text[place - 1 : place], text[place + 1 : place + 2]
    joins_letters = sign in _JOIN_LETTERS and left.isalnum() and right.isalnum()
    joins_digits = sign in _JOIN_DIGITS and left.isdigit() and right.isdigit()
    return _WORD if before == _WORD and (joins_letters or joins_digits) else sign


LEVELS = ("word", "token")


@dataclass(frozen=True)
class Explanation:
    """Importance scores of the tokens of one text, or pair of texts, for a model's prediction.

    Attributes:
        text: the (first) text.
        pair: the second one, or None.
        method: a key of `explain.methods.METHODS`.
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
        without: for each word the probability of `label` (for regression the score) that was predicted without it; None
            for words that were not left out, and for methods whose scores are not about leaving words out.
        ignored: the words of the user's text that the run never reads (`data.ignore_words`); `text` and `pair` lack
            them.
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
    without: tuple[float | None, ...] | None = None
    ignored: tuple[str, ...] = ()

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

    def in_words(self) -> str:
        """Say what the highest score means: "“dull” +2.4: leaving it out lowers the log-odds of bad by 2.4."; "" for
        scores without a sign, whose unit says it."""
        word = max(self.tokens, key=lambda token: abs(token.score), default=None)
        if not self.signed or word is None or not math.isfinite(word.score):
            return ""
        size, is_more = f"{abs(word.score):.3g}", word.score > 0
        is_change = r"change of (.+) when the \w+ is left out \(\w+(?:, (.+))?\); .+"
        is_part = r"the \w+'s part, (.+?), of the change of (.+) when all .+"
        if found := re.fullmatch(is_change, self.unit, re.DOTALL):
            effect = f"leaving it out {'lowers' if is_more else 'raises'} {found[1]} by {size}"
            how = found[2]
        elif found := re.fullmatch(is_part, self.unit, re.DOTALL):
            effect = f"it adds {size} to {found[2]}" if is_more else f"it takes {size} from {found[2]}"
            how = found[1]
        else:
            return ""
        return f"\u201c{word.text}\u201d {word.score:+.3g}: {effect}{f' ({how})' if how else ''}."

    @property
    def unread_words(self) -> int:
        """The number of words after the last one that the model read, where a text was too long for it."""
        words, count = self.words, 0
        for within, own_text in (("text", self.text), ("pair", self.pair or "")):
            read = [word for word in words if word.within == within]
            count += len(word_spans(own_text[read[-1].end :])) if read else 0
        return count

    def _repr_html_(self) -> str:
        """Show the text in a notebook, with a colour behind each word that is as strong as its score."""
        tokens, largest = self.tokens, max((abs(token.score) for token in self.tokens), default=0.0) or 1.0
        parts = []
        for within, text in (("text", self.text), ("pair", self.pair or "")):
            pieces, done = list[str](), 0
            for token in (token for token in tokens if token.within == within and token.text):
                pieces += [html.escape(text[done : token.start]), _marked(token, largest)]
                done = max(done, token.end)
            parts.append(f"<p>{''.join(pieces)}{html.escape(text[done:])}</p>" if text else "")
        label = self.label if isinstance(self.label, str) else f"{self.label:.4g}"
        share = "" if self.probability is None else f" ({self.probability:.3f})"
        strongest = sorted(tokens, key=lambda token: -abs(token.score))[:5]
        parts.append(html_table((self.level, "score"), [(token.text, f"{token.score:+.3g}") for token in strongest]))
        sentences = (f"{self.method}: {self.unit}", *filter(None, [self.in_words(), ignored_text(self.ignored)]))
        return html_block(f"{label}{share}", parts, sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of one JSON line, as `attentune explain --format json` prints it."""
        tokens = token_dicts(self.tokens, is_pair=self.pair is not None)
        if self.level == "word":
            for token, value in zip(tokens, self.without or [None] * len(tokens), strict=True):
                token.update({} if value is None else {"without": round(value, 6)})
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
            **({"ignored": list(self.ignored)} if self.ignored else {}),
            "tokens": tokens,
        }


def ignored_text(words: Sequence[str]) -> str:
    """Say which words of a text the run never reads; "" if there are none."""
    return f"Ignored words, which the model never sees: {', '.join(words)}." if words else ""


def _marked(token: Subword, largest: float) -> str:
    """Return a word on a background as strong as its score: red speaks for the class, blue against it.

    The background is translucent and the text has the notebook's colour, so that both suit light and dark themes.
    """
    colour, line = ("38, 112, 214", "dashed") if token.score < 0 else ("226, 60, 48", "solid")
    share = abs(token.score) / largest
    style = (
        f"background: rgba({colour}, {0.55 * share:.2f}); border-bottom: {3 * share:.1f}px {line}; border-radius: 2px"
    )
    return f'<span style="{style}" title="{token.score:+.4g}">{html.escape(token.text)}</span>'


def token_dicts(tokens: Sequence[Subword], *, is_pair: bool) -> list[dict[str, Any]]:
    """Convert tokens to JSON objects, with scores rounded to six digits."""
    return [
        {"text": token.text, "start": token.start, "end": token.end, "score": float(f"{token.score:.6g}")}
        | ({"in": token.within} if is_pair else {})
        for token in tokens
    ]
