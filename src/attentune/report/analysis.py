"""From the records of a comparison to verdicts, by method and task."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError
from attentune.metrics.intervals import baseline_score, example_values
from attentune.metrics.metrics import METRICS
from attentune.report.load import RecordedRun
from attentune.runs.records import Predictions, Run, RunRecord
from attentune.stats.compare import Runs, Summary, compare_all, compare_pairs, summarise
from attentune.stats.verdict import Comparison


@dataclass(frozen=True)
class Cell:
    """One method on one task and training set size."""

    task: str  # the task's name
    size: str  # the number of training rows, or "all"
    method: str  # the method's name
    recorded: tuple[RecordedRun, ...]  # its runs by seed, including failed ones
    runs: Runs | None  # the scores that statistics use; None without a score

    @property
    def done(self) -> list[RunRecord]:
        return [run.record for run in self.recorded if run.record.is_done]

    @property
    def failed(self) -> int:
        return len(self.recorded) - len(self.done)

    @property
    def is_constant(self) -> bool:
        """Whether the method is the baseline that gives one answer for all rows."""
        return any(run.record.config.get("baseline") == "majority" for run in self.recorded)

    @property
    def size_text(self) -> str:
        return self.size if self.size == "all" else f"{int(self.size):,}"

    @property
    def scored(self) -> Runs:
        assert self.runs is not None  # callers ask cells with scores only
        return self.runs

    @cached_property
    def summary(self) -> Summary:
        """The mean and spread of a cell that has scores; without an interval if all runs learnt nothing."""
        summary = summarise(self.scored)
        return replace(summary, low=math.nan, high=math.nan) if self.scored.learnt_nothing else summary

    def to_dict(self) -> dict[str, Any]:
        summary = None if self.runs is None else self.summary
        return {
            "task": self.task,
            "train_size": self.size,
            "method": self.method,
            "metric": summary and summary.metric,
            "mean": summary and summary.mean,
            "std": summary and summary.sd,
            "n": 0 if summary is None else summary.seeds,
            "failed": self.failed,
            "scores": {str(record.run.seed): record.score for record in self.done},
        }


@dataclass(frozen=True)
class Lead:
    """The best model on one task and training set size, by its mean score."""

    best: Runs  # its scores
    others: tuple[Comparison, ...]  # the other models that learnt something compared with it, best mean first

    @property
    def is_shown(self) -> bool:
        """Whether all other models are shown to be worse."""
        return bool(self.others) and all(one.shown and one.difference < 0 for one in self.others)


@dataclass(frozen=True)
class Verdicts:
    baseline: str  # the method that the others are compared with
    methods: tuple[str, ...]  # all methods, in order
    models: tuple[str, ...]  # the methods without the constant answer
    cells: tuple[Cell, ...]  # by task, size and method
    # One per task, size and method other than the baseline, on the task's first metric and validation split, corrected
    # together for multiple testing.
    comparisons: tuple[Comparison, ...]
    leads: tuple[Lead, ...]  # the best model of each of `columns`, with its comparisons corrected together
    notes: tuple[str, ...]  # remarks that concern several comparisons

    @cached_property
    def columns(self) -> list[list[Cell]]:
        """The models' cells with scores by task and training set size."""
        return _columns(cell for cell in self.cells if cell.method in self.models)

    @cached_property
    def largest(self) -> dict[str, list[Cell]]:
        """Each task's cells of its largest training set size."""
        sizes = {cell.task: cell.size for cell in self.cells}
        return {task: [cell for cell in self.cells if (cell.task, cell.size) == (task, sizes[task])] for task in sizes}

    def has_collapsed(self, cell: Cell) -> bool:
        """Return whether runs of a model are no better than a constant answer."""
        return cell.method in self.models and cell.runs is not None and bool(cell.runs.collapsed())

    def comparison(self, cell: Cell) -> Comparison | None:
        if cell.runs is None:
            return None
        key = (cell.runs.task, cell.runs.metric, cell.method)
        return next((one for one in self.comparisons if (one.task, one.metric, one.method) == key), None)

    def title(self, cell: Cell) -> str:
        several_sizes = len({other.size for other in self.cells}) > 1
        return f"{cell.task}, {cell.size_text} rows" if several_sizes else cell.task

    def to_dict(self) -> dict[str, Any]:
        return {
            "cells": [cell.to_dict() for cell in self.cells],
            "baseline": self.baseline,
            "comparisons": [{**asdict(one), "shown": one.shown, "sentence": one.sentence} for one in self.comparisons],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return the sentences with their notes, for standard output; empty without a comparison."""
        lines = []
        for comparison in self.comparisons:
            lines += [f"{comparison.sentence}.", *(f"  {note}" for note in comparison.notes)]
        return "".join(f"{line}\n" for line in (*lines, *self.notes))


def _columns(cells: Iterable[Cell]) -> list[list[Cell]]:
    columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.runs is not None and cell.runs.seeds():
            columns.setdefault((cell.task, cell.size), []).append(cell)
    return list(columns.values())


def same_rows(one: Predictions, other: Predictions) -> bool:
    return one.ids == other.ids and np.array_equal(one.labels_N, other.labels_N)


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
    learnt = {cell.method for cell in cells if cell.runs is not None and not cell.runs.learnt_nothing}
    baseline = baseline or next((method for method in models if method in learnt), models[0])
    compared = [cell for cell in cells if cell.method in (*models, baseline)]
    return Verdicts(
        baseline,
        methods,
        models,
        tuple(cells),
        tuple(compare_all(_comparable([cell.runs for cell in compared], baseline, notes), baseline)),
        _leads(cell for cell in cells if cell.method in models),
        tuple(notes),
    )


def _leads(cells: Iterable[Cell]) -> tuple[Lead, ...]:
    ranked = [
        sorted(
            [cell.scored for cell in column if not cell.scored.learnt_nothing] or [cell.scored for cell in column],
            key=lambda one: statistics.fmean(map(one.score, one.seeds())),
            reverse=column[0].scored.greater_is_better,
        )
        for column in _columns(cells)
    ]
    compared = iter(compare_pairs([(runs[0], other) for runs in ranked for other in runs[1:]]))
    return tuple(Lead(runs[0], tuple(itertools.islice(compared, len(runs) - 1))) for runs in ranked)


def _comparable(runs: Sequence[Runs | None], baseline: str, notes: list[str]) -> list[Runs]:
    """Return the runs on tasks and sizes for which the baseline has a score; note the others."""
    scored = [one for one in runs if one is not None and one.seeds()]
    baseline_tasks = {one.task for one in scored if one.method == baseline}
    notes += [
        f"{task}: {baseline} has no score on this task, so no method is compared with it."
        for task in dict.fromkeys(one.task for one in scored)
        if task not in baseline_tasks
    ]
    return [one for one in scored if one.task in baseline_tasks]


def _cells(recorded: Sequence[RecordedRun], methods: Sequence[str], name_sizes: bool, notes: list[str]) -> list[Cell]:
    """Return the cells of a task; their scores have values per example if all runs share their rows."""

    def position(run: Run) -> tuple[bool, int, int, int]:
        return run.train_size is None, run.train_size or 0, methods.index(run.method), run.seed

    task = recorded[0].record.run.task
    metric = next((run.record.metric for run in recorded if run.record.metric), None)
    ordered = sorted(recorded, key=lambda one: position(one.record.run))
    groups = itertools.groupby(ordered, key=lambda one: (one.record.run.size, one.record.run.method))
    cells = [Cell(task, size, method, tuple(runs), None) for (size, method), runs in groups]
    if metric is None or metric not in METRICS:
        return cells
    found: list[Runs | None] = []
    first: Predictions | None = None
    examples_differ = False
    for cell in cells:
        scores: dict[int, float | None] = {}
        examples: dict[int, np.ndarray] = {}
        guesses: list[float] = []
        constant: set[int] = set()
        overlap = 0.0
        for run in cell.recorded:
            split = run.record.split
            if not run.record.is_done or split is None:
                continue
            seed, score = run.record.run.seed, run.record.scores[split].get(metric)
            scores[seed] = score
            folds = run.record.config.get("data", {}).get("folds")
            overlap = 1.0 / (folds - 1) if folds else 0.0
            predictions = run.predictions()
            if predictions is None or len(predictions.ids) < 2:
                continue
            if (predictions.predictions_N == predictions.predictions_N[0]).all():
                constant.add(seed)
            # The score of the majority class, or of the mean for regression.
            guess = baseline_score(metric, predictions.labels_N, is_regression=not predictions.names)
            # Each fold has its own examples, so methods cannot be paired by example.
            guesses = [*guesses, guess] if folds else [guess]
            if not folds:
                first = predictions if first is None else first
                examples_differ |= not same_rows(predictions, first)
                examples[seed] = _example_values(metric, predictions, score)
        better = METRICS[metric].greater_is_better
        floor = float(np.mean(guesses)) if guesses else None
        bounds = METRICS.bounds(metric)
        name = f"{task} ({cell.size_text} rows)" if name_sizes else task
        ends = better, floor, overlap, frozenset(constant), bounds
        found.append(Runs(cell.method, name, metric, scores, examples or None, *ends) if scores else None)
    if examples_differ:
        found = [one and replace(one, examples=None) for one in found]
        notes.append(
            f"{task}: the runs were not all scored on the same examples, so the verdict covers the variation over seeds"
            " only."
        )
    return [replace(cell, runs=runs) for cell, runs in zip(cells, found, strict=True)]


def _example_values(metric: str, predictions: Predictions, score: float | None) -> np.ndarray:
    """Return values per example whose mean is the score; NaN where they are undefined."""
    values_N = example_values(metric, predictions.labels_N, predictions.predictions_N)
    if score is None or not np.isfinite(values_N).all():
        return np.full(len(values_N), math.nan)
    # Predicted scores are saved with six digits, which moves the mean a little from that of the record.
    return values_N + (score - float(values_N.mean()))
