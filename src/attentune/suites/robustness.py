"""How far a run's score falls when its texts are changed, and where among the rows it is low."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import TaskData, TextRows
from attentune.errors import DataError
from attentune.inference.predictor import SavedRun
from attentune.metrics.metrics import METRICS, predictions_of
from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import bootstrap_interval
from attentune.suites.perturbations import PERTURBATIONS, overlap, telling_words, words_of

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval over resamples of the rows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class StressLine:
    """One change, or one part of the rows.

    Attributes:
        name: of the change or part.
        rows: how many rows were scored.
        scores: each run's score.
        falls: changes only: each run's score on the rows as they are minus this one.
        difference: with two runs: the second's fall (for parts: score) minus the first's.
    """

    name: str
    rows: int
    scores: list[Interval]
    falls: list[Interval] | None
    difference: Interval | None


@dataclass(frozen=True)
class StressReport:
    """What `stress` found.

    Attributes:
        metric: what is scored; greater is better or not as `METRICS` says.
        runs: the runs' folders.
        original: each run's score on the rows as they are.
        changes: by perturbation.
        parts: by word overlap (pairs) and length, in thirds of the rows.
        telling_words: what was left out as such, sorted.
    """

    metric: str
    runs: list[str]
    original: list[Interval]
    changes: list[StressLine]
    parts: list[StressLine]
    telling_words: list[str]


class _Scorer:
    """Scores predictions of several runs with intervals; every interval sees the same resamples of the rows."""

    def __init__(self, metric: str, labels: np.ndarray, *, resamples: int, seed: int) -> None:
        self._metric, self._labels, self._resamples, self._seed = METRICS[metric], labels, resamples, seed

    def score(self, predictions: np.ndarray, places: np.ndarray) -> float:
        return self._metric.score(self._labels[places], predictions[places])

    def interval(self, statistic: Callable[[np.ndarray], float], among: np.ndarray) -> Interval:
        """Of a statistic of rows, over resamples of the rows among which it is asked."""
        generator = numpy_generator("stress", self._seed, len(among))
        low, high = bootstrap_interval(
            lambda places: statistic(among[places]), len(among), generator=generator, resamples=self._resamples
        )
        return Interval(statistic(among), low, high)

    def change(self, name: str, before: list[np.ndarray], after: list[np.ndarray]) -> StressLine:
        """A line for changed rows."""
        every = np.arange(len(self._labels))

        def fall(run: int, places: np.ndarray) -> float:
            return self.score(before[run], places) - self.score(after[run], places)

        return StressLine(
            name,
            len(every),
            [self.interval(partial(self.score, own), every) for own in after],
            [self.interval(partial(fall, run), every) for run in range(len(after))],
            self.interval(lambda p: fall(1, p) - fall(0, p), every) if len(after) == 2 else None,
        )

    def part(self, name: str, predictions: list[np.ndarray], places: np.ndarray) -> StressLine:
        """A line for some of the rows."""
        return StressLine(
            name,
            len(places),
            [self.interval(partial(self.score, own), places) for own in predictions],
            None,
            self.interval(lambda p: self.score(predictions[1], p) - self.score(predictions[0], p), places)
            if len(predictions) == 2
            else None,
        )


def stress(
    runs: Sequence[str | Path | SavedRun],
    data: TaskData,
    *,
    training_rows: TextRows | None = None,
    precision: str | None = None,
    resamples: int = 1000,
    seed: int = 42,
    progress: Progress | None = None,
) -> StressReport:
    """Score one or two runs on changed copies of a split, and on parts of it.

    Args:
        runs: run folders; of the same task.
        data: one split with labels, the metric first; as from `SavedRun.data`.
        training_rows: where the telling words are looked for; the split itself if not given.
        precision: another one than the runs'.
        resamples: of the rows, for the intervals.
        seed: of typos and resamples.
        progress: told what is scored.

    Raises:
        DataError: the split has no labels.
    """
    split, rows = next(iter(data.splits.items()))
    if rows.labels is None or len(rows) == 0:
        raise DataError(f"{rows.source}: has no labels, expected some: stress tells how far a score falls.")
    saved = [run if isinstance(run, SavedRun) else SavedRun.load(run) for run in runs]
    telling = telling_words(training_rows or rows)
    scorer = _Scorer(data.metrics[0], rows.labels, resamples=resamples, seed=seed)

    def predicted(changed: TextRows, what: str) -> list[np.ndarray]:
        if progress is not None:
            progress(what)
        own = TaskData(data.name, data.label_space, data.metrics, {split: changed})
        return [
            predictions_of(run.evaluator(own, precision=precision).predict(split), run.label_space) for run in saved
        ]

    before = predicted(rows, "as they are")
    changes = [
        scorer.change(kind.name, before, predicted(kind.change(rows, seed, telling), kind.name))
        for kind in PERTURBATIONS
        if rows.pairs is not None or not kind.needs_pairs
    ]
    every = np.arange(len(rows))
    return StressReport(
        metric=data.metrics[0],
        runs=[str(run.folder) for run in saved],
        original=[scorer.interval(partial(scorer.score, own), every) for own in before],
        changes=changes,
        parts=[scorer.part(name, before, places) for name, places in _parts(rows).items()],
        telling_words=sorted(telling),
    )


def _parts(rows: TextRows) -> dict[str, np.ndarray]:
    """Thirds of the rows by length and, for pairs, by word overlap; thirds that would be empty are left out."""
    pairs = rows.pairs or ("",) * len(rows)
    lengths = np.array(
        [len(words_of(text)) + len(words_of(pair)) for text, pair in zip(rows.texts, pairs, strict=True)]
    )
    found = _thirds("length", "words", lengths)
    if rows.pairs is not None:
        shares = np.array([overlap(text, pair) for text, pair in zip(rows.texts, rows.pairs, strict=True)])
        found |= _thirds("overlap", "", shares)
    return found


def _thirds(name: str, unit: str, values: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.quantile(values, (1 / 3, 2 / 3))
    numbers = np.searchsorted(edges, values, side="left")
    found: dict[str, Any] = {}
    for third, word in enumerate(("low", "middle", "high")):
        places = np.flatnonzero(numbers == third)
        if len(places):
            low, high = values[places].min(), values[places].max()
            found[f"{name} {word} ({low:.3g} to {high:.3g}{' ' + unit if unit else ''})"] = places
    return found
