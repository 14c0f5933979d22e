"""Texts that share nearly all of their words but have other labels, found without comparing each with every other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from attentune.data.dataset import TextRows

# Two texts are nearly equal if they share this many of the words of both (Jaccard).
ALIKE = 0.8
# Texts with fewer words must have the same ones: one word may turn them into another text.
_FEWEST_WORDS = 5
# Of the earlier rows with a word, so many are compared, the latest: texts from templates have many.
_MOST_ROWS = 100
_WORD = re.compile(r"\w+")

Words = frozenset[tuple[int, str, int]]


class NearDuplicate(NamedTuple):
    """Two rows with nearly equal texts and other labels.

    Attributes:
        first: index of the earlier row.
        second: index of the later row.
        similarity: the share of common words in the words of both; 1 if the texts differ only in case, punctuation,
            spaces or the order of words.
    """

    first: int
    second: int
    similarity: float


def near_duplicates(rows: TextRows) -> list[NearDuplicate]:
    """Find the pairs of labelled rows whose texts differ, but share nearly all words, and whose labels differ.

    Case, punctuation, spaces and the order of words are ignored, and second texts are compared with second texts only.
    A row is the later one of at most one pair: with the most similar earlier row.

    Source:
        Prefix filtering: Chaudhuri, Ganti and Kaushik, "A primitive operator for similarity joins in data cleaning",
        ICDE 2006. Two sets that share enough share one of their rarest words.
    """
    labels = np.zeros(len(rows), np.int64) if rows.labels is None else rows.labels
    # Equal rows of numbers get equal names, also for several labels per row.
    names = [str(label.tolist()) for label in labels]
    words = [_words(rows, row) for row in range(len(rows))]
    counts = Counter(word for own in words for word in own)
    with_word: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    with_all: dict[Words, dict[tuple[str, ...], int]] = defaultdict(dict)
    found = []
    for row, own in enumerate(words):
        if not own:
            continue
        rare = _rare_words(own, counts)
        candidates = {other for word in rare for other in with_word[word][-_MOST_ROWS:]} | {*with_all[own].values()}
        pairs = [
            NearDuplicate(other, row, _similarity(own, words[other]))
            for other in candidates
            if names[other] != names[row] and _texts(rows, other) != _texts(rows, row)
        ]
        best = max(pairs, key=lambda pair: (pair.similarity, -pair.first), default=None)
        if best is not None and best.similarity >= ALIKE:
            found.append(best)
        with_all[own].setdefault((names[row], *_texts(rows, row)), row)
        for word in rare:
            with_word[word].append(row)
    return found


def differing_words(rows: TextRows, pair: NearDuplicate) -> tuple[list[str], list[str]]:
    """Return the words, in lower case, that only the first and that only the second row of a pair has."""
    first, second = _words(rows, pair.first), _words(rows, pair.second)
    return sorted(word for _, word, _ in first - second), sorted(word for _, word, _ in second - first)


def _texts(rows: TextRows, row: int) -> tuple[str, str]:
    return rows.texts[row], "" if rows.pairs is None else rows.pairs[row]


def _words(rows: TextRows, row: int) -> Words:
    """The words of a row, each with the number of its text, and how often it occurred before."""
    found = set()
    for number, text in enumerate(_texts(rows, row)):
        seen: Counter[str] = Counter()
        for word in _WORD.findall(text.casefold()):
            found.add((number, word, seen[word]))
            seen[word] += 1
    return frozenset(found)


def _rare_words(own: Words, counts: Counter[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
    """The rarest words of a text: any text that is similar enough has one of them."""
    if len(own) < _FEWEST_WORDS:
        return []
    return sorted(own, key=lambda word: (counts[word], word))[: len(own) - math.ceil(ALIKE * len(own)) + 1]


def _similarity(first: Words, second: Words) -> float:
    common = len(first & second)
    return common / (len(first) + len(second) - common)
