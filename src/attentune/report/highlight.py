"""A text cut into stretches with and without a score, safe to show, and the tones that stand for scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attentune.explain.words import Subword

# Black text can be read on all of them, and the colour-blind can tell blue from red.
AGAINST_RGB, FOR_RGB, MATTERS_RGB = (92, 158, 232), (240, 112, 100), (255, 166, 64)
WHITE_RGB = (255, 255, 255)

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
# Those that turn the direction of what follows could make a text look like another one.
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(
    (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
)


@dataclass(frozen=True)
class Stretch:
    """Some characters of a text.

    Attributes:
        text: the characters, safe to show.
        score: None where no token stands.
    """

    text: str
    score: float | None = None


def visible(text: str, *, one_line: bool = False) -> str:
    """The text with its control characters as signs that can be seen, so that no terminal obeys them.

    Args:
        text: any text.
        one_line: line breaks and tabs too.
    """
    shown = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    return shown.replace("\n", "\u240a").replace("\t", "\u2409") if one_line else shown


def stretches(text: str, tokens: Sequence[Subword], *, signed: bool) -> list[Stretch]:
    """The whole text in order, its tokens with their scores.

    Tokens that share characters (pieces of one sign) make one stretch: their sum if signed, else their highest.

    Args:
        text: the text.
        tokens: those of this text, in order.
        signed: whether scores may be below 0.
    """
    found: list[tuple[int, int, float]] = []
    for token in tokens:
        if token.start == token.end:
            continue
        if found and token.start < found[-1][1]:
            start, end, score = found[-1]
            joined = score + token.score if signed else max(score, token.score)
            found[-1] = (start, max(end, token.end), joined)
        else:
            found.append((token.start, token.end, token.score))
    parts: list[Stretch] = []
    place = 0
    for start, end, score in found:
        if start > place:
            parts.append(Stretch(visible(text[place:start])))
        parts.append(Stretch(visible(text[start:end]), score))
        place = end
    if place < len(text):
        parts.append(Stretch(visible(text[place:])))
    return parts


def highest(tokens: Sequence[Subword]) -> float:
    """The score that is furthest from 0, without its sign; 0 where there is none."""
    return max((abs(token.score) for token in tokens if math.isfinite(token.score)), default=0.0)


def share_of(score: float, most: float) -> float:
    """A score as a share of the highest, from -1 to 1."""
    return max(-1.0, min(1.0, score / most)) if most > 0 and math.isfinite(score) else 0.0


def tone(share: float, *, signed: bool) -> tuple[int, int, int]:
    """Red, green and blue from 0 to 255: white at 0, to blue at -1 and red at 1, or if not signed to orange at 1."""
    full = (FOR_RGB if share > 0 else AGAINST_RGB) if signed else MATTERS_RGB
    weight = abs(share) if signed else max(0.0, share)
    red, green, blue = (round(white + weight * (end - white)) for white, end in zip(WHITE_RGB, full, strict=True))
    return red, green, blue


def hex_tone(share: float, *, signed: bool) -> str:
    """The tone as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*tone(share, signed=signed))


def sides(text: str, pair: str | None, tokens: Sequence[Subword]) -> list[tuple[str, str, list[Subword]]]:
    """Of each text its name ("" where there is only one), itself and its tokens."""
    if pair is None:
        return [("", text, list(tokens))]
    own = {name: [token for token in tokens if token.within == name] for name in ("text", "pair")}
    return [("text", text, own["text"]), ("pair", pair, own["pair"])]


def score_text(score: float, *, signed: bool) -> str:
    """A score to three digits, with its sign where it has one."""
    return f"{score:+.3g}" if signed else f"{score:.3g}"
