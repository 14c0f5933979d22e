"""The words that speak for each class over all rows of a file, by the explanations of the single rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.explain.explanation import Explanation
from attentune.explain.methods import METHODS
from attentune.seeding import numpy_generator

HIGHER, LOWER = "a higher score", "a lower score"
# Counts of resampled rows that are held in memory at once.
_VALUES_PER_BATCH = 4_000_000


@dataclass(frozen=True)
class ClassWord:
    """How much a word speaks for a class."""

    word: str  # the word, in lower case
    within: str  # "text", or "pair" for the second texts of pairs
    rows: int  # the number of rows that have the word and for which the class was explained
    score: float  # its mean score in these rows
    low: float  # the lower bound of the 95 % bootstrap interval of that mean, over rows
    high: float  # the upper bound


def check_signed(methods: Sequence[str]) -> None:
    """Check that a method says what speaks for a class and what against it."""
    if len(methods) != 1:
        raise ConfigError(f"--by_class: got the methods {', '.join(methods) or 'none'}, expected one.")
    if methods[0] in METHODS and not METHODS[methods[0]].signed:
        others = ", ".join(name for name, method in METHODS.items() if method.signed)
        raise ConfigError(
            f"--by_class: got the method {methods[0]}, whose scores do not say whether a word speaks for or against a"
            f" class; expected one of {others}."
        )


def words_by_class(
    explanations: Iterable[Explanation],
    label_space: LabelSpace,
    *,
    least_rows: int = 3,
    top: int = 15,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, list[ClassWord]]:
    """Rank the words of each class by how much they speak for it over all rows.

    A row's scores count for the class that was explained there. With two classes, and for scores, what speaks for the
    one speaks as much against the other, so that every row counts for both. A word that occurs several times in a row
    has the sum of its scores.

    Words are ranked by the lower bound of their mean score, times the number of their rows: by how much they certainly
    move the predictions of all rows together. Words without a positive lower bound are left out.
    """
    names = (HIGHER, LOWER) if label_space.task_type == "regression" else label_space.names
    groups: dict[str, list[dict[tuple[str, str], float]]] = {name: [] for name in names}
    for explanation in explanations:
        words = _words(explanation)
        for name, sign in _meanings(explanation, label_space):
            groups[name].append({word: sign * score for word, score in words.items()})
    return {
        name: _ranked(rows, least_rows, resamples, numpy_generator("words by class", seed, name))[:top]
        for name, rows in groups.items()
    }


def class_units(explanations: Sequence[Explanation], label_space: LabelSpace) -> dict[str, str]:
    """Return the unit of the scores of each class that `words_by_class` has words for; see `Explanation.unit`."""
    units: dict[str, str] = {}
    for explanation in explanations:
        for name, sign in _meanings(explanation, label_space):
            if sign > 0:
                units[name] = explanation.unit
            else:
                units.setdefault(name, f"minus the {explanation.unit}")
    return units


def _meanings(explanation: Explanation, space: LabelSpace) -> list[tuple[str, int]]:
    """The classes that a row's scores speak for, with their sign."""
    if space.task_type == "regression":
        return [(HIGHER, 1), (LOWER, -1)]
    label = str(explanation.label)
    if space.num_labels == 2 and not space.is_multilabel:
        other = next(name for name in space.names if name != label)
        return [(label, 1), (other, -1)]
    return [(label, 1)] + ([(explanation.contrast, -1)] if explanation.contrast is not None else [])


def _words(explanation: Explanation) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for word in explanation.words:
        if any(sign.isalnum() for sign in word.text):
            key = (word.text.casefold(), word.within)
            found[key] = found.get(key, 0.0) + word.score
    return found


def _ranked(
    rows: Sequence[dict[tuple[str, str], float]], least_rows: int, resamples: int, generator: np.random.Generator
) -> list[ClassWord]:
    counts = Counter(word for row in rows for word in row)
    names = [word for word, count in counts.items() if count >= least_rows]
    if not names:
        return []
    number = {word: place for place, word in enumerate(names)}
    entries = [
        (place, number[word], score) for place, row in enumerate(rows) for word, score in row.items() if word in number
    ]
    at_N, at_W, values = (np.array(column) for column in zip(*entries, strict=True))
    shape = (len(names), len(rows))
    scores_WN = sparse.csr_array((values.astype(np.float64), (at_W, at_N)), shape=shape)
    there_WN = sparse.csr_array((np.ones(len(values)), (at_W, at_N)), shape=shape)
    means_W = scores_WN.sum(axis=1) / there_WN.sum(axis=1)
    key, part = int(generator.integers(1 << 62)), max(1, _VALUES_PER_BATCH // resamples)
    # Words are divided so that all means of some fit in memory; all have the same resamples of rows.
    low_W, high_W = np.concatenate(
        [
            _intervals(scores_WN[first : first + part], there_WN[first : first + part], resamples, key)
            for first in range(0, len(names), part)
        ],
        axis=1,
    )
    found = [
        ClassWord(word, within, counts[word, within], float(means_W[w]), float(low_W[w]), float(high_W[w]))
        for w, (word, within) in enumerate(names)
        if low_W[w] > 0
    ]
    return sorted(found, key=lambda one: (-one.low * one.rows, one.word, one.within))


def _intervals(scores_WN: Any, there_WN: Any, resamples: int, key: int) -> np.ndarray:
    """The 95 % bootstrap percentiles, (2, W), over rows, of the mean score of each word in its rows."""
    rows = scores_WN.shape[1]
    again = np.random.Generator(np.random.PCG64(key))
    draws = max(1, _VALUES_PER_BATCH // max(rows, 1))
    means_RW = []
    # The means of all words in a resample share its rows.
    for done in range(0, resamples, draws):
        counts_RN = again.multinomial(rows, np.full(rows, 1.0 / rows), size=min(draws, resamples - done))
        drawn_NR = counts_RN.T.astype(np.float64)
        with np.errstate(invalid="ignore"):
            means_RW.append(((scores_WN @ drawn_NR) / (there_WN @ drawn_NR)).T)
    # A resample without the word has no mean.
    return np.nanquantile(np.concatenate(means_RW), (0.025, 0.975), axis=0)
