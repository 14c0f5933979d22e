"""Split a text into segments with and without a score, and map scores to colours. The segments are safe to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attentune.explain.explanation import Subword

# Black text is readable on all of them, and colour-blind readers can tell blue from red.
AGAINST_RGB, FOR_RGB, UNSIGNED_RGB = (92, 158, 232), (240, 112, 100), (255, 166, 64)
WHITE_RGB = (255, 255, 255)

_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
# Among them the characters that reverse the writing direction and could make a text look like another one.
_CONTROL_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(
    (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
)


@dataclass(frozen=True)
class Segment:
    """A run of characters of a text."""

    text: str  # the characters, safe to show
    score: float | None = None  # None between tokens
    # start, end: the span of the characters in the original text.
    start: int = 0
    end: int = 0


def visible(text: str, *, one_line: bool = False) -> str:
    """Replace control characters by visible symbols, so that a terminal does not execute them."""
    shown = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL_PICTURES)
    return shown.replace("\n", "\u240a").replace("\t", "\u2409") if one_line else shown


def segments(text: str, tokens: Sequence[Subword], *, signed: bool) -> list[Segment]:
    """Split the whole text into segments, in order, the tokens with their scores.

    Tokens that share characters (subwords of one character) become one segment, with the sum of their scores if
    `signed`, else with the highest.
    """
    spans: list[tuple[int, int, float]] = []
    for token in tokens:
        if token.start == token.end:
            continue
        if spans and token.start < spans[-1][1]:
            start, end, score = spans[-1]
            merged = score + token.score if signed else max(score, token.score)
            spans[-1] = (start, max(end, token.end), merged)
        else:
            spans.append((token.start, token.end, token.score))
    parts: list[Segment] = []
    position = 0
    for start, end, score in spans:
        if start > position:
            parts.append(Segment(visible(text[position:start]), None, position, start))
        parts.append(Segment(visible(text[start:end]), score, start, end))
        position = end
    if position < len(text):
        parts.append(Segment(visible(text[position:]), None, position, len(text)))
    return parts


def highest(tokens: Sequence[Subword]) -> float:
    """Return the largest absolute score; 0 without a finite one."""
    return max((abs(token.score) for token in tokens if math.isfinite(token.score)), default=0.0)


def share_of(score: float, most: float) -> float:
    """Return a score as a share of the highest, from -1 to 1."""
    return max(-1.0, min(1.0, score / most)) if most > 0 and math.isfinite(score) else 0.0


def tone(share: float, *, signed: bool) -> tuple[int, int, int]:
    """Return red, green and blue from 0 to 255: white at 0, blue at -1 and red at 1; without a sign orange at 1."""
    full = (FOR_RGB if share > 0 else AGAINST_RGB) if signed else UNSIGNED_RGB
    weight = abs(share) if signed else max(0.0, share)
    red, green, blue = (round(white + weight * (end - white)) for white, end in zip(WHITE_RGB, full, strict=True))
    return red, green, blue


def hex_tone(share: float, *, signed: bool) -> str:
    """Return the tone as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*tone(share, signed=signed))


def sides(text: str, pair: str | None, tokens: Sequence[Subword]) -> list[tuple[str, str, list[Subword]]]:
    """Return for the text, and the second text of a pair, its name ("" for a single text), itself and its tokens."""
    if pair is None:
        return [("", text, list(tokens))]
    by_side = {name: [token for token in tokens if token.within == name] for name in ("text", "pair")}
    return [("text", text, by_side["text"]), ("pair", pair, by_side["pair"])]


def score_text(score: float, *, signed: bool) -> str:
    """Format a score with three digits, and with its sign if `signed`."""
    return f"{score:+.3g}" if signed else f"{score:.3g}"
