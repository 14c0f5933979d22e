"""Merges an encoder's subwords into words, by their character spans.

A word is a run of letters, digits and combining marks, with apostrophes and hyphens between letters and points, commas,
colons and slashes between digits. Any other character is a word of its own, or a run of the same one ("..."). Chinese
and Japanese, which are written without spaces, are split into characters. A subword that crosses a word boundary merges
the words that it touches.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

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
    """Merge subwords into words."""
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
    """Group subwords by word."""
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
