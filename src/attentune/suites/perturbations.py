"""Changed copies of texts that should not change what a sound model says, or that take away what it should need."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.data.dataset import TextRows
from attentune.seeding import numpy_generator

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# One word in so many has a typo.
_TYPO_EVERY = 8
_SHORTEST_TYPO = 4


@dataclass(frozen=True)
class Perturbation:
    """One way to change rows.

    Attributes:
        name: what it is called.
        meaning: in a few words.
        change: from rows, a seed and the telling words to changed rows; labels and ids stay.
        needs_pairs: whether it is for pairs of texts only.
    """

    name: str
    meaning: str
    change: Callable[[TextRows, int, frozenset[str]], TextRows]
    needs_pairs: bool = False


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def telling_words(rows: TextRows, *, count: int = 20, least_share: float = 0.01) -> frozenset[str]:
    """The frequent words whose presence goes most with the label, over either text.

    For classes by the chi-square statistic of presence and class, for scores by the correlation of presence and score.

    Args:
        rows: labelled rows, those of training.
        count: how many words.
        least_share: a word must be in this share of the rows, and in five, to be considered.
    """
    if rows.labels is None or len(rows) == 0:
        return frozenset()
    present = [
        set(words_of(f"{text} {rows.pairs[place] if rows.pairs else ''}")) for place, text in enumerate(rows.texts)
    ]
    found = Counter(word for words in present for word in words)
    least = max(5, least_share * len(rows))
    scores = {}
    for word, times in found.items():
        if least <= times < len(rows):
            has_N = np.fromiter((word in words for words in present), dtype=bool, count=len(rows))
            scores[word] = _association(has_N, rows.labels)
    best = sorted(scores, key=lambda word: (-scores[word], word))
    return frozenset(best[:count])


def _association(has_N: np.ndarray, labels_N: np.ndarray) -> float:
    if labels_N.dtype.kind == "f":
        return float(abs(np.corrcoef(has_N, labels_N)[0, 1])) if np.ptp(labels_N) > 0 else 0.0
    share = has_N.mean()
    chi_square = 0.0
    for label in np.unique(labels_N):
        own = labels_N == label
        chi_square += own.sum() * (has_N[own].mean() - share) ** 2 / (share * (1 - share))
    return float(chi_square)


def _each_text(
    change: Callable[[str, np.random.Generator], str],
) -> Callable[[TextRows, int, frozenset[str]], TextRows]:
    def changed(rows: TextRows, seed: int, telling: frozenset[str]) -> TextRows:
        def all_of(texts: Sequence[str], where: str) -> tuple[str, ...]:
            return tuple(change(text, numpy_generator("perturb", where, seed, n)) for n, text in enumerate(texts))

        pairs = None if rows.pairs is None else all_of(rows.pairs, "pair")
        return replace(rows, texts=all_of(rows.texts, "text"), pairs=pairs)

    return changed


def _typos(text: str, generator: np.random.Generator) -> str:
    """Two neighbouring letters change places in one long word in eight, and in one at least."""
    places = [match for match in _WORD.finditer(text) if len(match.group()) >= _SHORTEST_TYPO]
    if not places:
        return text
    wanted = max(1, len(places) // _TYPO_EVERY)
    letters = list(text)
    for number in generator.choice(len(places), size=wanted, replace=False):
        first = places[int(number)].start() + 1 + int(generator.integers(len(places[int(number)].group()) - 2))
        letters[first], letters[first + 1] = letters[first + 1], letters[first]
    return "".join(letters)


def _without_punctuation(text: str, generator: np.random.Generator) -> str:
    kept = "".join(" " if sign in string.punctuation or unicodedata.category(sign)[0] == "P" else sign for sign in text)
    return " ".join(kept.split())


def _without_telling_words(rows: TextRows, seed: int, telling: frozenset[str]) -> TextRows:
    def cut(text: str) -> str:
        return " ".join(
            _WORD.sub(lambda match: "" if match.group().lower() in telling else match.group(), text).split()
        )

    pairs = None if rows.pairs is None else tuple(map(cut, rows.pairs))
    return replace(rows, texts=tuple(map(cut, rows.texts)), pairs=pairs)


def _swapped(rows: TextRows, seed: int, telling: frozenset[str]) -> TextRows:
    return rows if rows.pairs is None else replace(rows, texts=rows.pairs, pairs=rows.texts)


def _only_first(rows: TextRows, seed: int, telling: frozenset[str]) -> TextRows:
    return replace(rows, pairs=("",) * len(rows))


def _only_second(rows: TextRows, seed: int, telling: frozenset[str]) -> TextRows:
    return replace(rows, texts=("",) * len(rows))


PERTURBATIONS: tuple[Perturbation, ...] = (
    Perturbation("first text only", "the second text is empty", _only_first, needs_pairs=True),
    Perturbation("second text only", "the first text is empty", _only_second, needs_pairs=True),
    Perturbation("swapped", "the two texts change places", _swapped, needs_pairs=True),
    Perturbation("typos", "two letters change places in one word in eight", _each_text(_typos)),
    Perturbation("lower case", "all letters small", _each_text(lambda text, generator: text.lower())),
    Perturbation("upper case", "all letters capital", _each_text(lambda text, generator: text.upper())),
    Perturbation("no punctuation", "punctuation left out", _each_text(_without_punctuation)),
    Perturbation("telling words removed", "the words that go most with the label left out", _without_telling_words),
)


def overlap(text: str, pair: str) -> float:
    """The share of the second text's words that stand in the first, from 0 to 1; 0 where it has none."""
    second = words_of(pair)
    first = set(words_of(text))
    return sum(word in first for word in second) / len(second) if second else 0.0
