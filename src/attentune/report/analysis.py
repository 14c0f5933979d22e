"""From the records of a comparison to verdicts: which method is better than the baseline, on which task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.errors import CheckpointError, ConfigError
from attentune.experiments.comparison.records import Predictions
from attentune.metrics.metrics import METRICS
from attentune.metrics.per_example import baseline_score, example_values
from attentune.report.load import RecordedRun
from attentune.stats.compare import compare_all
from attentune.stats.runs import Runs
from attentune.stats.verdict import Comparison

# Predictions of scores are kept to six digits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Cell:
    """One method on one task and size of the training part.

    Attributes:
        task: its name.
        size: rows to train on, or "all".
        method: its name.
        kept: its runs, failed ones included, by seed.
        runs: what statistics go by; None without a score.
    """

    task: str
    size: str
    method: str
    kept: tuple[RecordedRun, ...]
    runs: Runs | None


@dataclass(frozen=True)
class Verdicts:
    """What was compared and what came out.

    Attributes:
        baseline: the method that the others are compared with.
        methods: all, in their order.
        cells: by task, size and method.
        comparisons: corrected together.
        notes: what a reader must know of all of it.
    """

    baseline: str
    methods: tuple[str, ...]
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def of(self, cell: Cell) -> Comparison | None:
        """The cell's comparison with the baseline."""
        if cell.runs is None:
            return None
        wanted = (cell.runs.task, cell.runs.metric, cell.method)
        return next((one for one in self.comparisons if (one.task, one.metric, one.method) == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """All numbers and sentences, ready for JSON."""
        lines = [{**asdict(one), "shown": one.shown, "sentence": one.sentence} for one in self.comparisons]
        return {"baseline": self.baseline, "comparisons": lines, "notes": list(self.notes)}

    def text(self) -> str:
        """The sentences with their notes, for standard output; empty without a comparison."""
        lines = []
        for one in self.comparisons:
            lines.append(f"{one.sentence}.")
            lines += [f"  {note}" for note in one.notes]
        return "".join(f"{line}\n" for line in (*lines, *self.notes))


def compare_methods(kept: Sequence[RecordedRun], baseline: str | None = None) -> Verdicts:
    """Compare every method with the baseline on every task and size.

    Args:
        kept: the runs; methods, tasks and sizes come in the order in which they are first met.
        baseline: a method's name; the first one if not given.

    Raises:
        ConfigError: there is no such method.
        CheckpointError: a file of predictions cannot be read, or does not belong to its record.
    """
    methods = tuple(dict.fromkeys(one.record.run.method for one in kept))
    if not methods:
        raise ConfigError("baseline: there are no runs to compare.")
    if baseline is not None and baseline not in methods:
        hint = did_you_mean(baseline, methods)
        raise ConfigError(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")
    chosen = methods[0] if baseline is None else baseline
    several = len({one.record.run.size for one in kept}) > 1
    cells: list[Cell] = []
    notes: list[str] = []
    for task in dict.fromkeys(one.record.run.task for one in kept):
        cells += _cells([one for one in kept if one.record.run.task == task], methods, several, notes)
    compared = _comparable(cells, chosen, notes)
    return Verdicts(chosen, methods, tuple(cells), tuple(compare_all(compared, chosen)), tuple(notes))


def _comparable(cells: Sequence[Cell], baseline: str, notes: list[str]) -> list[Runs]:
    """The runs of tasks and sizes that the baseline has scores for too."""
    usable = [cell.runs for cell in cells if cell.runs is not None and cell.runs.seeds()]
    known = {runs.task for runs in usable if runs.method == baseline}
    notes += [
        f"{task}: {baseline} has no score there, so nothing is compared with it."
        for task in dict.fromkeys(runs.task for runs in usable)
        if task not in known
    ]
    return [runs for runs in usable if runs.task in known]


def _cells(kept: Sequence[RecordedRun], methods: Sequence[str], several: bool, notes: list[str]) -> list[Cell]:
    """The cells of one task."""
    task = kept[0].record.run.task
    metric = next((one.record.metric for one in kept if one.record.metric), None)
    examples = _Examples(task, metric)
    sizes = sorted({(one.record.run.train_size is None, one.record.run.train_size or 0) for one in kept})
    cells = []
    for is_all, number in sizes:
        size = "all" if is_all else str(number)
        for method in methods:
            own = [one for one in kept if (one.record.run.size, one.record.run.method) == (size, method)]
            own.sort(key=lambda one: one.record.run.seed)
            if own:
                name = f"{task} ({size if is_all else f'{number:,}'} rows)" if several else task
                cells.append(Cell(task, size, method, tuple(own), examples.runs(name, method, own)))
    notes += examples.notes
    return [_without_examples(cell) for cell in cells] if examples.differ else cells


def _without_examples(cell: Cell) -> Cell:
    return cell if cell.runs is None else replace(cell, runs=replace(cell.runs, examples=None))


class _Examples:
    """Makes `Runs` of one task's records, and finds out whether all were scored on the same examples."""

    def __init__(self, task: str, metric: str | None) -> None:
        self.task = task
        self.metric = metric
        self.differ = False
        self.notes: list[str] = []
        self._first: Predictions | None = None

    def runs(self, name: str, method: str, kept: Sequence[RecordedRun]) -> Runs | None:
        if self.metric is None or self.metric not in METRICS:
            return None
        scores: dict[int, float | None] = {}
        values: dict[int, np.ndarray] = {}
        guess, overlap, guesses = None, 0.0, []
        for one in kept:
            if not one.record.is_done or one.split is None:
                continue
            score = one.record.scores[one.split].get(self.metric)
            scores[one.record.run.seed] = score
            found = one.predictions()
            folds = one.record.config.get("data", {}).get("folds")
            if folds:
                # Each fold has examples of its own, so there are none to compare the methods' runs by.
                overlap = 1.0 / (folds - 1)
                if found is not None and len(found.ids) > 1:
                    guesses.append(baseline_score(self.metric, found.labels_N, is_regression=not found.names))
                    guess = float(np.mean(guesses))
                continue
            if found is not None and len(found.ids) > 1:
                self._see(found)
                guess = baseline_score(self.metric, found.labels_N, is_regression=not found.names)
                values[one.record.run.seed] = self._values(one, found, score)
        if not scores:
            return None
        better = METRICS[self.metric].greater_is_better
        return Runs(method, name, self.metric, scores, values or None, better, guess, overlap)

    def _see(self, found: Predictions) -> None:
        if self._first is None:
            self._first = found
            return
        same = found.ids == self._first.ids and np.array_equal(found.labels_N, self._first.labels_N)
        if not same and not self.differ:
            self.differ = True
            self.notes.append(
                f"{self.task}: not all runs were scored on the same examples, so the verdict is over seeds only."
            )

    def _values(self, one: RecordedRun, found: Predictions, score: float | None) -> np.ndarray:
        values_N = example_values(str(self.metric), found.labels_N, found.predictions_N)
        if score is None or not np.isfinite(values_N).all():
            return np.full(len(values_N), math.nan)
        mean = float(values_N.mean())
        if not math.isclose(mean, score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise CheckpointError(
                f"{one.files[str(one.split)]}: gives {self.metric} {mean:.4f}, but its record says {score:.4f}; they"
                " are not of one run. Delete both; the same command makes them again."
            )
        return values_N + (score - mean)
