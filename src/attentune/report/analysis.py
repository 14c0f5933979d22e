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

# Predicted scores are saved with six digits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Cell:
    """One method on one task and training set size.

    Attributes:
        task: the task's name.
        size: the number of training rows, or "all".
        method: the method's name.
        recorded: its runs by seed, including failed ones.
        runs: the scores that statistics use; None without a score.
    """

    task: str
    size: str
    method: str
    recorded: tuple[RecordedRun, ...]
    runs: Runs | None

    @property
    def size_text(self) -> str:
        """Return the size as text: "250", "1,000" or "all"."""
        return self.size if self.size == "all" else f"{int(self.size):,}"


@dataclass(frozen=True)
class Verdicts:
    """The comparisons of all methods with the baseline.

    Attributes:
        baseline: the method that the others are compared with.
        methods: all methods, in order.
        cells: by task, size and method.
        comparisons: one per task, size and method other than the baseline, corrected together for multiple testing.
        notes: remarks that concern several comparisons.
    """

    baseline: str
    methods: tuple[str, ...]
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def comparison(self, cell: Cell) -> Comparison | None:
        """Return the cell's comparison with the baseline, if there is one."""
        if cell.runs is None:
            return None
        key = (cell.runs.task, cell.runs.metric, cell.method)
        return next((one for one in self.comparisons if (one.task, one.metric, one.method) == key), None)

    def title(self, cell: Cell) -> str:
        """Return the cell's task, with the training set size if there are several."""
        several_sizes = len({other.size for other in self.cells}) > 1
        return f"{cell.task}, {cell.size_text} rows" if several_sizes else cell.task

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and sentences, ready for JSON."""
        comparisons = [{**asdict(one), "shown": one.shown, "sentence": one.sentence} for one in self.comparisons]
        return {"baseline": self.baseline, "comparisons": comparisons, "notes": list(self.notes)}

    def text(self) -> str:
        """Return the sentences with their notes, for standard output; empty without a comparison."""
        lines = []
        for comparison in self.comparisons:
            lines.append(f"{comparison.sentence}.")
            lines += [f"  {note}" for note in comparison.notes]
        return "".join(f"{line}\n" for line in (*lines, *self.notes))


def compare_methods(recorded: Sequence[RecordedRun], baseline: str | None = None) -> Verdicts:
    """Compare every method with the baseline on every task and training set size.

    Args:
        recorded: the runs; methods and tasks keep the order of their first run.
        baseline: a method's name; None for the first method.

    Raises:
        ConfigError: no method has this name.
        CheckpointError: a predictions file cannot be read or does not belong to its record.
    """
    methods = tuple(dict.fromkeys(run.record.run.method for run in recorded))
    if not methods:
        raise ConfigError("baseline: there are no runs to compare.")
    if baseline is not None and baseline not in methods:
        hint = did_you_mean(baseline, methods)
        raise ConfigError(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")
    baseline = methods[0] if baseline is None else baseline
    name_sizes = len({run.record.run.size for run in recorded}) > 1
    cells: list[Cell] = []
    notes: list[str] = []
    for task in dict.fromkeys(run.record.run.task for run in recorded):
        cells += _cells([run for run in recorded if run.record.run.task == task], methods, name_sizes, notes)
    comparable = _comparable(cells, baseline, notes)
    return Verdicts(baseline, methods, tuple(cells), tuple(compare_all(comparable, baseline)), tuple(notes))


def _comparable(cells: Sequence[Cell], baseline: str, notes: list[str]) -> list[Runs]:
    """Return the runs on tasks and sizes for which the baseline has a score; note the others."""
    scored = [cell.runs for cell in cells if cell.runs is not None and cell.runs.seeds()]
    baseline_tasks = {runs.task for runs in scored if runs.method == baseline}
    notes += [
        f"{task}: {baseline} has no score on this task, so no method is compared with it."
        for task in dict.fromkeys(runs.task for runs in scored)
        if task not in baseline_tasks
    ]
    return [runs for runs in scored if runs.task in baseline_tasks]


def _cells(recorded: Sequence[RecordedRun], methods: Sequence[str], name_sizes: bool, notes: list[str]) -> list[Cell]:
    """Return the cells of one task."""
    task = recorded[0].record.run.task
    metric = next((run.record.metric for run in recorded if run.record.metric), None)
    builder = _RunsBuilder(task, metric)
    sizes = sorted({(run.record.run.train_size is None, run.record.run.train_size or 0) for run in recorded})
    cells = []
    for is_all, rows in sizes:
        size = "all" if is_all else str(rows)
        for method in methods:
            cell_runs = [run for run in recorded if (run.record.run.size, run.record.run.method) == (size, method)]
            cell_runs.sort(key=lambda run: run.record.run.seed)
            if cell_runs:
                name = f"{task} ({size if is_all else f'{rows:,}'} rows)" if name_sizes else task
                cells.append(Cell(task, size, method, tuple(cell_runs), builder.build(name, method, cell_runs)))
    notes += builder.notes
    return [_without_examples(cell) for cell in cells] if builder.examples_differ else cells


def _without_examples(cell: Cell) -> Cell:
    return cell if cell.runs is None else replace(cell, runs=replace(cell.runs, examples=None))


class _RunsBuilder:
    """Builds `Runs` from one task's records, and checks whether all were scored on the same examples."""

    def __init__(self, task: str, metric: str | None) -> None:
        self.task = task
        self.metric = metric
        self.examples_differ = False
        self.notes: list[str] = []
        self._first: Predictions | None = None

    def build(self, name: str, method: str, recorded: Sequence[RecordedRun]) -> Runs | None:
        if self.metric is None or self.metric not in METRICS:
            return None
        scores: dict[int, float | None] = {}
        examples: dict[int, np.ndarray] = {}
        guess, overlap, fold_guesses = None, 0.0, []
        for run in recorded:
            if not run.record.is_done or run.split is None:
                continue
            seed, score = run.record.run.seed, run.record.scores[run.split].get(self.metric)
            scores[seed] = score
            predictions = run.predictions()
            if predictions is not None and len(predictions.ids) < 2:
                predictions = None
            folds = run.record.config.get("data", {}).get("folds")
            if folds:
                # Each fold has its own examples, so methods cannot be paired by example.
                overlap = 1.0 / (folds - 1)
                if predictions is not None:
                    fold_guesses.append(self._guess(predictions))
                    guess = float(np.mean(fold_guesses))
            elif predictions is not None:
                self._check_examples(predictions)
                guess = self._guess(predictions)
                examples[seed] = self._example_values(run, predictions, score)
        if not scores:
            return None
        greater_is_better = METRICS[self.metric].greater_is_better
        return Runs(method, name, self.metric, scores, examples or None, greater_is_better, guess, overlap)

    def _guess(self, predictions: Predictions) -> float:
        """Return the score of the majority class, or of the mean for regression."""
        return baseline_score(str(self.metric), predictions.labels_N, is_regression=not predictions.names)

    def _check_examples(self, predictions: Predictions) -> None:
        if self._first is None:
            self._first = predictions
            return
        same = predictions.ids == self._first.ids and np.array_equal(predictions.labels_N, self._first.labels_N)
        if not same and not self.examples_differ:
            self.examples_differ = True
            self.notes.append(
                f"{self.task}: the runs were not all scored on the same examples, so the verdict covers the variation"
                " over seeds only."
            )

    def _example_values(self, run: RecordedRun, predictions: Predictions, score: float | None) -> np.ndarray:
        values_N = example_values(str(self.metric), predictions.labels_N, predictions.predictions_N)
        if score is None or not np.isfinite(values_N).all():
            return np.full(len(values_N), math.nan)
        mean = float(values_N.mean())
        if not math.isclose(mean, score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise CheckpointError(
                f"{run.files[str(run.split)]}: its predictions score {self.metric} {mean:.4f}, but its record says"
                f" {score:.4f}; they are not from the same run. Delete both and repeat the command to run it again."
            )
        return values_N + (score - mean)
