"""Texts that share nearly all of their words, found without comparing each with every other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attentune.data.dataset import TextRows

# Two texts are nearly equal if they share this many of the words of both (Jaccard).
ALIKE = 0.8
# Texts with fewer words must have the same ones: one word may turn them into another text.
_FEWEST_WORDS = 5
# Of the earlier rows with a word, so many are compared, the latest: texts from templates have many.
_MOST_ROWS = 100
_WORD = re.compile(r"\w+")
# What a retweet or a copy adds or changes: links, names of users, "RT".
_ADDED = re.compile(r"https?://\S+|www\.\S+|@\w+|\brt\b")
# Groups of long texts are formed by their first words.
_MOST_WORDS = 100

Words = frozenset[tuple[int, str, int]]


class NearDuplicate(NamedTuple):
    """Two rows with nearly equal texts and other labels."""

    first: int  # index of the earlier row
    second: int  # index of the later row
    similarity: float  # the share of common words in the words of both


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


def near_groups(texts: Sequence[str], *, numbers: bool = False) -> list[int]:
    """Number texts so that nearly equal ones, and what a chain of these connects, have the same number.

    Case, punctuation, spaces and the order of words are ignored, and so is what retweets and filled templates add or
    change: links, names of users ("@name"), "RT", and numbers. Of long texts the first 100 words count. 100,000 texts
    take 2 to 20 seconds.
    """
    vocabulary: dict[str, int] = {}
    places: dict[Hashable, int] = {}
    place_N = [places.setdefault(_content(text, vocabulary, numbers), len(places)) for text in texts]
    kept = [own if isinstance(own, frozenset) else frozenset() for own in places]
    counts = np.bincount([word for own in kept for word in own], minlength=len(vocabulary))
    rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable").tolist()
    words = [frozenset([rank[word] for word in own]) for own in kept]
    parents = list(range(len(words)))

    def root(place: int) -> int:
        while parents[place] != place:
            parents[place] = place = parents[parents[place]]
        return place

    with_word: dict[int, list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        if len(own) < _FEWEST_WORDS:
            continue
        rarest = sorted(own)[: _rare(len(own))]
        seen: set[int] = set()
        for word in rarest:
            others = with_word[word]
            for other in others[-_MOST_ROWS:]:
                if other not in seen and len(seen) < _MOST_ROWS:
                    seen.add(other)
                    mine, theirs = root(place), root(other)
                    if mine != theirs and _similarity(own, words[other]) >= ALIKE:
                        parents[max(mine, theirs)] = min(mine, theirs)
            others.append(place)
    return [root(place) for place in place_N]


def _content(text: str, vocabulary: dict[str, int], numbers: bool) -> Hashable:
    """Return the numbers of the words of a text, without what a copy adds; or the text itself if it has no words."""
    plain = text.casefold()
    found = _WORD.findall(_ADDED.sub(" ", plain))[:_MOST_WORDS]
    words = found if numbers else [word for word in found if not word.isdigit()]
    if len(words) < _FEWEST_WORDS:
        words = found
    if len(set(words)) < len(words):
        seen: Counter[str] = Counter()
        for place, word in enumerate(words):
            words[place] = f"{word} {seen[word]}" if seen[word] else word
            seen[word] += 1
    return frozenset([vocabulary.setdefault(word, len(vocabulary)) for word in words]) or " ".join(plain.split())


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
    return sorted(own, key=lambda word: (counts[word], word))[: _rare(len(own))]


def _rare(words: int) -> int:
    """Return how many of its rarest words are looked up."""
    return words - math.ceil(ALIKE * words) + 1


def _similarity(first: frozenset[Any], second: frozenset[Any]) -> float:
    common = len(first & second)
    return common / (len(first) + len(second) - common)
