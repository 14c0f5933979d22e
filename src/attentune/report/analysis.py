"""From the records of a comparison to verdicts: which method is better than the baseline, on which task."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.errors import CheckpointError, ConfigError
from attentune.metrics.intervals import baseline_score, example_values
from attentune.metrics.metrics import GLUE_TASKS, METRICS, glue_average
from attentune.report.load import RecordedRun
from attentune.runs.records import Predictions
from attentune.stats.compare import Runs, compare_all, compare_pairs
from attentune.stats.verdict import Comparison

# Predicted scores are saved with six digits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Cell:
    """One method on one task and training set size."""

    task: str  # the task's name
    size: str  # the number of training rows, or "all"
    method: str  # the method's name
    recorded: tuple[RecordedRun, ...]  # its runs by seed, including failed ones
    runs: Runs | None  # the scores that statistics use; None without a score

    @property
    def is_constant(self) -> bool:
        """Whether the method is the baseline that gives one answer for all rows."""
        return any(run.record.config.get("baseline") == "majority" for run in self.recorded)

    @property
    def size_text(self) -> str:
        """Return the size as text: "250", "1,000" or "all"."""
        return self.size if self.size == "all" else f"{int(self.size):,}"


@dataclass(frozen=True)
class Lead:
    """The best model on one task and training set size, by its mean score."""

    best: Runs  # its scores
    others: tuple[Comparison, ...]  # the other models compared with it, by their means, best first

    @property
    def is_shown(self) -> bool:
        """Whether all other models are shown to be worse."""
        return bool(self.others) and all(one.shown and one.difference < 0 for one in self.others)


@dataclass(frozen=True)
class OtherComparison:
    """A comparison on another metric or another validation split than the task's first ones."""

    task: str  # the task's name
    size: str  # the number of training rows, or "all"
    split: str  # the split that is scored
    result: Comparison  # the comparison; its task names size, split and metric too, such as "mrpc (f1)"


@dataclass(frozen=True)
class AverageCell:
    """One method's mean score over GLUE tasks, by the rule of `metrics.metrics.glue_average`."""

    name: str  # "GLUE average", or what is averaged if tasks are missing
    tasks: tuple[str, ...]  # the averaged tasks
    size: str  # the number of training rows, or "all"
    method: str  # the method's name
    scores: dict[int, float]  # by seed, between 0 and 1; NaN if a score is undefined

    @property
    def text(self) -> str:
        """Return the mean over seeds in points, with the standard deviation if there are several."""
        values = [100 * value for value in self.scores.values()]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.1f}{spread}"


@dataclass(frozen=True)
class Verdicts:
    """The comparisons of all methods with the baseline."""

    baseline: str  # the method that the others are compared with
    methods: tuple[str, ...]  # all methods, in order
    models: tuple[str, ...]  # the methods without the constant answer
    cells: tuple[Cell, ...]  # by task, size and method
    # One per task, size and method other than the baseline, on the task's first metric and validation split, corrected
    # together for multiple testing.
    comparisons: tuple[Comparison, ...]
    leads: tuple[Lead, ...]  # the best model of each task and size, with its comparisons corrected together
    others: tuple[OtherComparison, ...]  # the same on each further metric and split of a task, corrected together
    averages: tuple[AverageCell, ...]  # by training size and method
    notes: tuple[str, ...]  # remarks that concern several comparisons

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
        others = [
            {**_comparison_dict(one.result), "task": one.task, "train_size": one.size, "split": one.split}
            for one in self.others
        ]
        return {
            "baseline": self.baseline,
            "comparisons": [_comparison_dict(one) for one in self.comparisons],
            "other_comparisons": others,
            "glue_averages": [asdict(one) for one in self.averages],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return the sentences with their notes, for standard output; empty without a comparison."""
        lines = []
        for comparison in self.comparisons:
            lines.append(f"{comparison.sentence}.")
            lines += [f"  {note}" for note in comparison.notes]
        lines += [*self.other_lines(), *self.average_lines()]
        return "".join(f"{line}\n" for line in (*lines, *self.notes))

    def other_lines(self) -> list[str]:
        """Return the sentences on further metrics and splits, below a line that names their family."""
        if not self.others:
            return []
        head = f"Further metrics and validation splits ({len(self.others)} comparisons, corrected among themselves):"
        return [head, *(f"  {one.result.sentence}." for one in self.others)]

    def average_lines(self) -> list[str]:
        """Return the mean over GLUE tasks of each method, a line for each training size."""
        lines = []
        for size in dict.fromkeys(one.size for one in self.averages):
            of_size = [one for one in self.averages if one.size == size]
            methods = ", ".join(f"{one.method} {one.text}" for one in of_size)
            rows = "" if size == "all" else f", {int(size):,} rows"
            lines.append(f"{of_size[0].name} ({', '.join(of_size[0].tasks)}{rows}): {methods}.")
        return lines


def _comparison_dict(comparison: Comparison) -> dict[str, Any]:
    return {**asdict(comparison), "shown": comparison.shown, "sentence": comparison.sentence}


def compare_methods(recorded: Sequence[RecordedRun], baseline: str | None = None) -> Verdicts:
    """Compare every method with the baseline on every task and training set size."""
    methods = tuple(dict.fromkeys(run.record.run.method for run in recorded))
    if not methods:
        raise ConfigError("baseline: there are no runs to compare.")
    if baseline is not None and baseline not in methods:
        hint = did_you_mean(baseline, methods)
        raise ConfigError(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")
    name_sizes = len({run.record.run.size for run in recorded}) > 1
    cells: list[Cell] = []
    notes: list[str] = []
    for task in dict.fromkeys(run.record.run.task for run in recorded):
        cells += _cells([run for run in recorded if run.record.run.task == task], methods, name_sizes, notes)
    constants = {cell.method for cell in cells if cell.is_constant}
    models = tuple(method for method in methods if method not in constants) or methods
    baseline = models[0] if baseline is None else baseline
    compared = [cell for cell in cells if cell.method in (*models, baseline)]
    return Verdicts(
        baseline,
        methods,
        models,
        tuple(cells),
        tuple(compare_all(_comparable(compared, baseline, notes), baseline)),
        _leads([cell for cell in cells if cell.method in models]),
        tuple(_other_comparisons(compared, baseline, name_sizes)),
        _averages(cells),
        tuple(notes),
    )


def _leads(cells: Sequence[Cell]) -> tuple[Lead, ...]:
    """Return the best model of each task and size that has a score."""
    columns: dict[tuple[str, str], list[Runs]] = {}
    for cell in cells:
        if cell.runs is not None and cell.runs.seeds():
            columns.setdefault((cell.task, cell.size), []).append(cell.runs)
    ranked = [
        sorted(runs, key=lambda one: statistics.fmean(map(one.score, one.seeds())), reverse=runs[0].greater_is_better)
        for runs in columns.values()
    ]
    compared = iter(compare_pairs([(runs[0], other) for runs in ranked for other in runs[1:]]))
    return tuple(Lead(runs[0], tuple(itertools.islice(compared, len(runs) - 1))) for runs in ranked)


def _other_comparisons(cells: Sequence[Cell], baseline: str, name_sizes: bool) -> Iterator[OtherComparison]:
    """Compare on each metric and validation split of the tasks but the first of each, in a family of their own."""
    places: dict[str, tuple[str, str, str]] = {}
    runs: list[Runs] = []
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task]
        for split, metric in _further_scores(of_task):
            builder = _RunsBuilder(task, metric, split)
            built = []
            for cell in of_task:
                parts = [f"{cell.size_text} rows"] if name_sizes else []
                parts.append(metric if split is None else f"{split} {metric}")
                name = f"{task} ({', '.join(parts)})"
                scored = builder.build(name, cell.method, cell.recorded)
                if scored is not None:
                    first = next(run.split for run in cell.recorded if run.split is not None)
                    places[name] = (task, cell.size, split or first)
                    built.append(replace(cell, runs=scored))
            built = [_without_examples(cell) for cell in built] if builder.examples_differ else built
            runs += _comparable(built, baseline, [])
    for result in compare_all(runs, baseline):
        yield OtherComparison(*places[result.task], result)


def _further_scores(cells: Sequence[Cell]) -> list[tuple[str | None, str]]:
    """Return the splits and metrics of a task beside the primary one; the split is None where it is the first."""
    done = [run.record for cell in cells for run in cell.recorded if run.record.is_done]
    if not done:
        return []
    splits = [split for split in done[0].scores if split.startswith("validation")]
    return [
        (None if split == splits[0] else split, metric)
        for split in splits
        for metric in done[0].scores[split]
        if metric in METRICS and (split, metric) != (splits[0], done[0].metric)
    ]


def _averages(cells: Sequence[Cell]) -> tuple[AverageCell, ...]:
    """Average the scores over GLUE tasks, by training size and method, for the seeds that scored all of them."""
    tasks = [task for task in GLUE_TASKS if any(cell.task == task for cell in cells)]
    averages = []
    for size, method in dict.fromkeys((cell.size, cell.method) for cell in cells):
        by_seed: dict[int, dict[str, Any]] = {}
        for cell in cells:
            if (cell.size, cell.method) == (size, method) and cell.task in tasks:
                for run in cell.recorded:
                    if run.record.is_done:
                        by_seed.setdefault(run.record.run.seed, {})[cell.task] = run.record.scores
        found = {seed: glue_average(scores) for seed, scores in by_seed.items() if len(scores) == len(tasks)}
        known = {seed: one for seed, one in found.items() if one is not None}
        if known:
            first = next(iter(known.values()))
            scores = {seed: one.value for seed, one in sorted(known.items())}
            averages.append(AverageCell(first.name, first.tasks, size, method, scores))
    return tuple(averages)


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

    def __init__(self, task: str, metric: str | None, split: str | None = None) -> None:
        self.task = task
        self.metric = metric
        self.split = split
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
            split = self.split or run.split
            if not run.record.is_done or split not in run.record.scores:
                continue
            seed, score = run.record.run.seed, run.record.scores[split].get(self.metric)
            scores[seed] = score
            predictions = run.predictions(split)
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
                examples[seed] = self._example_values(run.files.get(split, split), predictions, score)
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

    def _example_values(self, file: Path | str, predictions: Predictions, score: float | None) -> np.ndarray:
        values_N = example_values(str(self.metric), predictions.labels_N, predictions.predictions_N)
        if score is None or not np.isfinite(values_N).all():
            return np.full(len(values_N), math.nan)
        mean = float(values_N.mean())
        tolerance = _TOLERANCE
        if self.metric == "spearmanr":  # the digits tie ranks of a model that predicts nearly the same for all rows
            tolerance += 1 - len(np.unique(predictions.predictions_N)) / len(values_N)
        if not math.isclose(mean, score, rel_tol=tolerance, abs_tol=tolerance):
            raise CheckpointError(
                f"{file}: its predictions score {self.metric} {mean:.4f}, but its record says"
                f" {score:.4f}; they are not from the same run. Delete both and repeat the command to run it again."
            )
        return values_N + (score - mean)
