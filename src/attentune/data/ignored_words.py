"""Leaves the words of `data.ignore_words` out of texts before tokenisation, so that a model cannot depend on them.

A text is cut into units: runs of letters, digits and combining marks, and single other characters. A word or phrase
matches whole units, whatever their case: "art" is not in "start", "!!" is in "good!!". Scripts that are written without
spaces (Chinese, Japanese, Thai, ...) have no boundaries of words, so that each of their characters is a unit.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from attentune.data.dataset import TaskData, TextRows

# Thai and Lao, Burmese, Khmer, Hiragana and Katakana, Han.
_WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# The units of a phrase after its first one, each with whether white space precedes it.
_Rest = tuple[tuple[str, bool], ...]


class Shortened(NamedTuple):
    """A text without ignored words."""

    text: str
    origins: Sequence[int]  # the index of each of its characters in the original text; -1 for an added space
    ignored: tuple[str, ...]  # the words and phrases that were left out, as written, without repetitions


def without_words(rows: TextRows, words: Sequence[str] | None) -> TextRows:
    """Return rows whose texts lack these words and phrases; the same object if there are none."""
    if not words:
        return rows
    texts, pairs = (
        None if side is None else tuple(shortened(text, tuple(words)).text for text in side)
        for side in (rows.texts, rows.pairs)
    )
    return replace(rows, texts=texts or (), pairs=pairs)


def rows_with(rows: TextRows, word: str) -> Iterator[int]:
    """Find the indices of the rows that have a word or phrase, in order."""
    sides = zip(*filter(None, (rows.texts, rows.pairs)), strict=True)
    return (row for row, texts in enumerate(sides) if any(shortened(text, (word,)).ignored for text in texts))


def data_without_words(data: TaskData, words: Sequence[str] | None) -> TaskData:
    """Return data whose texts lack these words and phrases, see `without_words`."""
    if not words:
        return data
    return replace(data, splits={name: without_words(rows, words) for name, rows in data.splits.items()})


def shortened(text: str, words: tuple[str, ...]) -> Shortened:
    """Leave words and phrases out of a text, until none is left: of two that overlap the first, else the longest.

    Of the white space on both sides one remains; words that would meet get a space between them.
    """
    phrases = _phrases(words)
    origins: Sequence[int] = range(len(text))
    if phrases.keys().isdisjoint(_units().findall(text.casefold())):
        return Shortened(text, origins, ())
    ignored: dict[str, str] = {}
    while spans := _spans(text, phrases):
        for start, end in spans:
            ignored.setdefault(text[start:end].casefold(), text[start:end])
        kept = _kept(text, spans)
        text = "".join(" " if place < 0 else text[place] for place in kept)
        origins = [-1 if place < 0 else origins[place] for place in kept]
    return Shortened(text, origins, tuple(ignored.values()))


def _spans(text: str, phrases: Mapping[str, Sequence[_Rest]]) -> list[tuple[int, int]]:
    """Find the phrases in a text, from left to right, without overlaps."""
    units = _units_of(text)
    spans, place = [], 0
    while place < len(units):
        for rest in phrases.get(units[place].text, ()):
            end = place + len(rest)
            if rest == _rest(units[place : end + 1]):
                spans.append((units[place].start, units[end].end))
                place = end
                break
        place += 1
    return spans


def _kept(text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the indices of the characters that remain, -1 for a space between words that would meet."""
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and not text[merged[-1][1] : start].strip():
            merged[-1][1] = end
        else:
            merged.append([start, end])
    kept: list[int] = []
    done = 0
    for start, end in merged:
        before, after = text[done:start].rstrip(), text[end:].lstrip()
        left, right = range(done + len(before), start), range(end, len(text) - len(after))
        kept += range(done, done + len(before))
        is_inside = bool(kept) and bool(after)
        if is_inside and (left or right):
            has_break = "\n" in text[right.start : right.stop] and "\n" not in text[left.start : left.stop]
            kept += right if has_break or not left else left
        elif is_inside and _units().fullmatch(f"{text[start - 1]}{after[0]}"):
            kept.append(-1)
        done = right.stop
    return [*kept, *range(done, len(text))]


@functools.lru_cache(maxsize=16)
def _phrases(words: tuple[str, ...]) -> dict[str, list[_Rest]]:
    """Return the phrases by their first unit, the longest first."""
    found: dict[str, list[_Rest]] = {}
    for word in words:
        if units := _units_of(word):
            found.setdefault(units[0].text, []).append(_rest(units))
    return {first: sorted(rests, key=len, reverse=True) for first, rests in found.items()}


class _Unit(NamedTuple):
    text: str  # for comparisons: without case
    start: int
    end: int


def _units_of(text: str) -> list[_Unit]:
    return [_Unit(found[0].casefold(), *found.span()) for found in _units().finditer(text)]


def _rest(units: Sequence[_Unit]) -> _Rest:
    return tuple((unit.text, unit.start > before.end) for before, unit in itertools.pairwise(units))


@functools.cache
def _units() -> re.Pattern[str]:
    signs = (chr(code) for code in range(0x0300, 0x10000) if not 0xFE00 <= code <= 0xFE0F)  # no variants of emoji
    marks = "".join(sign for sign in signs if unicodedata.category(sign) in ("Mn", "Mc"))
    return re.compile(rf"(?:[^\W{_WITHOUT_SPACES}]+|[{marks}])+|\S")
