"""Robustness: scores on perturbed inputs, and on subsets of the rows by length and word overlap."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attentune.data.dataset import TaskData, TextRows
from attentune.errors import DataError
from attentune.inference.predictor import Predictor
from attentune.metrics.metrics import METRICS, predictions_of, weighted_score
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_interval
from attentune_lab.interval import Interval

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# One typo for this many words.
_TYPO_EVERY = 8
_SHORTEST_TYPO = 4


# Maps rows, a seed and the label-indicative words to perturbed rows with the same ids and labels.
Change = Callable[[TextRows, int, frozenset[str]], TextRows]


def words_of(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]


def label_indicative_words(rows: TextRows, *, count: int = 20, least_share: float = 0.01) -> frozenset[str]:
    """Return the frequent words whose presence in a row is most strongly associated with its label.

    The association is the chi-square statistic of presence and class; for several labels a row, the largest one over
    the labels; for scores, the absolute correlation of presence and score. Both texts of a pair are searched.
    """
    if rows.labels is None or len(rows) == 0:
        return frozenset()
    present = [
        set(words_of(f"{text} {rows.pairs[place] if rows.pairs else ''}")) for place, text in enumerate(rows.texts)
    ]
    document_frequencies = Counter(word for words in present for word in words)
    least = max(5, least_share * len(rows))
    scores = {}
    for word, times in document_frequencies.items():
        if least <= times < len(rows):
            has_N = np.fromiter((word in words for words in present), dtype=bool, count=len(rows))
            scores[word] = _association(has_N, rows.labels)
    best = sorted(scores, key=lambda word: (-scores[word], word))
    return frozenset(best[:count])


def _association(has_N: np.ndarray, labels_N: np.ndarray) -> float:
    if labels_N.ndim == 2:  # multi-label
        return max(_association(has_N, labels_N[:, k] > 0) for k in range(labels_N.shape[1]))
    if labels_N.dtype.kind == "f":
        return float(abs(np.corrcoef(has_N, labels_N)[0, 1])) if np.ptp(labels_N) > 0 else 0.0
    share = has_N.mean()
    chi_square = 0.0
    for label in np.unique(labels_N):
        of_label_N = labels_N == label
        chi_square += of_label_N.sum() * (has_N[of_label_N].mean() - share) ** 2 / (share * (1 - share))
    return float(chi_square)


def _each_text(change: Callable[[str, np.random.Generator], str]) -> Change:
    def changed(rows: TextRows, seed: int, indicative_words: frozenset[str]) -> TextRows:
        def all_of(texts: Sequence[str], where: str) -> tuple[str, ...]:
            return tuple(change(text, numpy_generator("perturb", where, seed, n)) for n, text in enumerate(texts))

        pairs = None if rows.pairs is None else all_of(rows.pairs, "pair")
        return replace(rows, texts=all_of(rows.texts, "text"), pairs=pairs)

    return changed


def _typos(text: str, generator: np.random.Generator) -> str:
    """Swap two adjacent letters in one of every eight words of four letters or more, and in at least one word."""
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
    def is_mark(sign: str) -> bool:
        return sign in string.punctuation or unicodedata.category(sign)[0] == "P"

    return " ".join("".join(" " if is_mark(sign) else sign for sign in text).split())


def _without_indicative_words(rows: TextRows, seed: int, indicative_words: frozenset[str]) -> TextRows:
    def cut(text: str) -> str:
        return " ".join(
            _WORD.sub(lambda match: "" if match.group().lower() in indicative_words else match.group(), text).split()
        )

    pairs = None if rows.pairs is None else tuple(map(cut, rows.pairs))
    return replace(rows, texts=tuple(map(cut, rows.texts)), pairs=pairs)


_OF_PAIRS: dict[str, Change] = {
    "first text only": lambda rows, seed, words: replace(rows, pairs=("",) * len(rows)),
    "second text only": lambda rows, seed, words: replace(rows, texts=("",) * len(rows)),
    "swapped": lambda rows, seed, words: replace(rows, texts=rows.pairs or (), pairs=rows.texts),
}
_OF_TEXTS: dict[str, Change] = {
    "typos": _each_text(_typos),
    "lower case": _each_text(lambda text, generator: text.lower()),
    "upper case": _each_text(lambda text, generator: text.upper()),
    "no punctuation": _each_text(_without_punctuation),
    "label-indicative words removed": _without_indicative_words,
}


def perturbations(rows: TextRows) -> dict[str, Change]:
    """Return the perturbations that these rows can have, by their names in reports."""
    return _OF_TEXTS if rows.pairs is None else _OF_PAIRS | _OF_TEXTS


def overlap(text: str, pair: str) -> float:
    """Return the share of the second text's words that occur in the first, 0 to 1; 0 if the second has none."""
    second = words_of(pair)
    first = set(words_of(text))
    return sum(word in first for word in second) / len(second) if second else 0.0


@dataclass(frozen=True)
class StressLine:
    """The scores on perturbed rows, or on a subset of the rows."""

    name: str  # the name of the perturbation or subset
    rows: int  # the number of scored rows
    scores: list[Interval]  # the score of each run
    falls: list[Interval] | None  # each run's score on the original rows minus its score on the perturbed ones
    difference: Interval | None  # the second run's fall (for a subset: its score) minus the first run's


@dataclass(frozen=True)
class StressReport:
    metric: str  # the name of the metric; `METRICS` states whether greater is better
    runs: list[str]  # the run folders
    original: list[Interval]  # each run's score on the original rows
    changes: list[StressLine]  # the scores for each perturbation
    parts: list[StressLine]  # the scores on thirds of the rows, by length and, for pairs, by word overlap
    label_indicative_words: list[str]  # the words that one of the perturbations removes, sorted


Score = Callable[[np.ndarray], float]


class _Scorer:
    """Computes scores with bootstrap intervals; equal numbers of rows are resampled with the same seed."""

    def __init__(self, metric: str, labels: np.ndarray, *, resamples: int, seed: int) -> None:
        self._metric, self._labels, self._resamples, self._seed = METRICS[metric], labels, resamples, seed

    def score(self, predictions: np.ndarray) -> Score:
        """Return a function from row indices, which may repeat, to the score of these rows."""
        rows, weighted = len(self._labels), weighted_score(self._metric.name, self._labels, predictions)
        if weighted is not None:  # 50 times as fast for label sets
            return lambda places: weighted(np.bincount(places, minlength=rows).astype(np.float64))
        return lambda places: self._metric.score(self._labels[places], predictions[places])

    def interval(self, statistic: Score, among: np.ndarray) -> Interval:
        """Return a statistic of the rows `among`, with a bootstrap interval over resamples of these rows."""
        generator = numpy_generator("stress", self._seed, len(among))
        low, high = bootstrap_interval(
            lambda places: statistic(among[places]), len(among), generator=generator, resamples=self._resamples
        )
        return Interval(statistic(among), low, high)

    def line(
        self, name: str, places: np.ndarray, after: list[np.ndarray], before: list[np.ndarray] | None = None
    ) -> StressLine:
        """Return the scores on the rows with these indices, and with predictions `before` how far they fall."""
        scores = [self.score(one) for one in after]
        values = scores
        if before is not None:
            values = [partial(_fall, self.score(old), new) for old, new in zip(before, scores, strict=True)]
        return StressLine(
            name,
            len(places),
            [self.interval(score, places) for score in scores],
            None if before is None else [self.interval(fall, places) for fall in values],
            self.interval(lambda p: values[1](p) - values[0](p), places) if len(values) == 2 else None,
        )


def _fall(old: Score, new: Score, places: np.ndarray) -> float:
    return old(places) - new(places)


def stress(
    saved: Sequence[Predictor],
    data: TaskData,
    *,
    training_rows: TextRows | None = None,
    precision: str | None = None,
    resamples: int = 1000,
    seed: int = 42,
    progress: Callable[[str], None] | None = None,
) -> StressReport:
    """Score one or two runs on perturbed copies of a split, and on subsets of it."""
    split, rows = next(iter(data.splits.items()))
    if rows.labels is None or len(rows) == 0:
        raise DataError(f"{rows.source}: has no labels, expected some: stress tells how far a score falls.")
    indicative_words = label_indicative_words(training_rows or rows)
    scorer = _Scorer(data.metrics[0], rows.labels, resamples=resamples, seed=seed)

    def predicted(changed: TextRows, what: str) -> list[np.ndarray]:
        if progress is not None:
            progress(what)
        changed_data = TaskData(data.name, data.label_space, data.metrics, {split: changed})
        return [
            predictions_of(run.evaluator(changed_data, precision=precision).predict(split), run.label_space)
            for run in saved
        ]

    before, every = predicted(rows, "as they are"), np.arange(len(rows))
    changes = [
        scorer.line(name, every, predicted(change(rows, seed, indicative_words), name), before)
        for name, change in perturbations(rows).items()
    ]
    return StressReport(
        metric=data.metrics[0],
        runs=[str(run.folder) for run in saved],
        original=[scorer.interval(scorer.score(predictions), every) for predictions in before],
        changes=changes,
        parts=[scorer.line(name, places, before) for name, places in _parts(rows).items()],
        label_indicative_words=sorted(indicative_words),
    )


def _parts(rows: TextRows) -> dict[str, np.ndarray]:
    """Return the row indices of each non-empty third of the rows, by length and, for pairs, by word overlap."""
    pairs = rows.pairs or ("",) * len(rows)
    lengths = np.array(
        [len(words_of(text)) + len(words_of(pair)) for text, pair in zip(rows.texts, pairs, strict=True)]
    )
    parts = _thirds("length", "words", lengths)
    if rows.pairs is not None:
        shares = np.array([overlap(text, pair) for text, pair in zip(rows.texts, rows.pairs, strict=True)])
        parts |= _thirds("overlap", "", shares)
    return parts


def _thirds(name: str, unit: str, values: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.quantile(values, (1 / 3, 2 / 3))
    numbers = np.searchsorted(edges, values, side="left")
    parts: dict[str, Any] = {}
    for third, word in enumerate(("low", "middle", "high")):
        places = np.flatnonzero(numbers == third)
        if len(places):
            low, high = values[places].min(), values[places].max()
            parts[f"{name} {word} ({low:.3g} to {high:.3g}{' ' + unit if unit else ''})"] = places
    return parts
