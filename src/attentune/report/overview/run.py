"""What a report on one method shows of its runs: learning curves, classes, calibration, errors by length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attentune.data.doctor_report import Finding
from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import axis_label, metric_name, points_factor
from attentune.report.load import RecordedRun, TaskTexts
from attentune.report.overview.charts import ChartRow, PlaneChart, RowsChart, lines_chart, rows_chart
from attentune.report.overview.rows import ReportRow, wrong_rows
from attentune.report.overview.tasks import floor_chart, scored_columns
from attentune.report.sections.run_figures import confusion_counts, largest_cells
from attentune.runs.records import Predictions, read_probabilities
from attentune.stats.calibration import calibration_error
from attentune.stats.estimate import wilson_interval

_BINS = 10
_LENGTH_GROUPS = 5
# Fewer rows than this are too few for groups by length.
_FEWEST_ROWS = 25
_MOST_CLASSES = 12


@dataclass(frozen=True)
class ClassRow:
    """One class, over all seeds: its rows, and precision, recall and F1 in points ("-" if undefined)."""

    name: str
    rows: int
    precision: str
    recall: str
    f1: str


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix."""

    method: str
    names: tuple[str, ...]  # the classes
    shares: tuple[tuple[int, ...], ...]  # by label and prediction, the percentage of the label's rows
    counts: tuple[tuple[int, ...], ...]  # the same as numbers of rows


@dataclass(frozen=True)
class RunDetails:
    """The details of one method on one task."""

    title: str  # the task, with the size if there are several
    floor: RowsChart | None  # the score beside the baselines; None without them
    curves: tuple[PlaneChart, ...]  # training loss and validation scores by step
    classes: tuple[ClassRow, ...]  # one row per class; empty for regression
    calibration: PlaneChart | None  # predicted probability against the share of right rows; None without probabilities
    calibration_note: str  # the expected calibration error as a sentence
    lengths: RowsChart | None  # error rate by length of the text; None without texts
    wrong: tuple[tuple[ReportRow, float], ...]  # confident errors with their probability in percent
    findings: tuple[Finding, ...] | None  # the doctor's; None if it was not asked
    warnings: tuple[str, ...]  # sentences of the runs' records
    problem: str  # why texts are missing


def run_details(verdicts: Verdicts, texts: dict[str, TaskTexts]) -> tuple[RunDetails, ...]:
    """Make the details of each task if the report has one model only."""
    if len(verdicts.models) > 1:
        return ()
    return tuple(
        _details(verdicts, cells[0], texts.get(cells[0].task, TaskTexts())) for cells in scored_columns(verdicts)
    )


def _details(verdicts: Verdicts, cell: Cell, texts: TaskTexts) -> RunDetails:
    done = [run for run in cell.recorded if run.record.is_done]
    pooled = list(_pooled(done))
    calibration, note = _calibration(pooled)
    wrong = wrong_rows(done[0], pooled[0][1], texts) if len(done) == 1 and pooled else []
    return RunDetails(
        verdicts.title(cell),
        floor_chart(cell),
        tuple(_curves(cell, done)),
        _classes(cell),
        calibration,
        note,
        _lengths(done, texts),
        tuple((row, round(100 * share)) for row, share in wrong),
        texts.findings,
        tuple(dict.fromkeys(warning for run in done for warning in run.record.warnings)),
        texts.problem,
    )


def _curves(cell: Cell, done: Sequence[RecordedRun]) -> Iterator[PlaneChart]:
    """Yield the training loss and the validation score by step, a line for each seed."""
    losses = []
    for run in done:
        points = [(float(one["step"]), float(one["loss"])) for one in run.record.curve if _has(one, "step", "loss")]
        if points:
            losses.append(("seed", points))
    if losses and any(len(points) > 1 for _, points in losses):
        last = ", ".join(f"{points[-1][1]:.3g}" for _, points in losses[:5])
        yield lines_chart(
            "Training loss", losses, "step", "loss", description=f"Training loss by step; at the end {last}.",
        )  # fmt: skip
    metric = "" if cell.runs is None else cell.runs.metric
    scores = []
    for run in done:
        points = [
            (float(one["step"]), points_factor(metric) * float(score))
            for one in run.record.scored
            if one.get("step") is not None and (score := _score(one, run.split, metric)) is not None
        ]
        if points:
            scores.append(("seed", points))
    if scores and metric in METRICS and any(len(points) > 1 for _, points in scores):
        best = (max if METRICS[metric].greater_is_better else min)(y for _, points in scores for _, y in points)
        yield lines_chart(
            f"Validation {metric_name(metric)}", scores, "step", axis_label(metric), dotted=True, least=4.0
            if points_factor(metric) == 100 else 0.0,
            description=f"Validation {metric_name(metric)} by step; the best is {best:.4g}.",
        )  # fmt: skip


def _has(entry: dict[str, object], *names: str) -> bool:
    return all(isinstance(entry.get(name), (int, float)) for name in names)


def _score(entry: dict[str, object], split: str | None, metric: str) -> float | None:
    """Return a score of an entry of `scored`, whose scores are by split."""
    found = entry.get(split or "")
    value = found.get(metric) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _classes(cell: Cell) -> tuple[ClassRow, ...]:
    """Return precision, recall and F1 by class from the counts over all seeds."""
    counts, names = confusion_counts([cell])
    rows = []
    for counts_CC in counts.values():
        for number, name in enumerate(names):
            right, labelled, given = counts_CC[number, number], counts_CC[number].sum(), counts_CC[:, number].sum()
            f1 = _percent(2 * right, labelled + given)
            seeds = sum(run.record.is_done for run in cell.recorded) or 1
            rows.append(ClassRow(name, int(labelled) // seeds, _percent(right, given), _percent(right, labelled), f1))
    return tuple(rows)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def confusions(verdicts: Verdicts) -> tuple[tuple[str, tuple[Confusion, ...]], ...]:
    """Return by task the confusion matrices of all methods, over all seeds, at the largest training set size."""
    by_task = []
    for cells in largest_cells(verdicts).values():
        counts, names = confusion_counts(cells)
        if not 2 <= len(names) <= _MOST_CLASSES:
            continue
        found = []
        for method, counts_CC in counts.items():
            totals_C = counts_CC.sum(axis=1)
            shares = tuple(
                tuple(round(100 * int(value) / max(1, int(total))) for value in row)
                for row, total in zip(counts_CC, totals_C, strict=True)
            )
            numbers = tuple(tuple(int(value) for value in row) for row in counts_CC)
            found.append(Confusion(method, names, shares, numbers))
        by_task.append((verdicts.title(cells[0]), tuple(found)))
    return tuple(by_task)


def _pooled(done: Sequence[RecordedRun]) -> Iterator[tuple[Predictions, np.ndarray]]:
    """Yield the predictions and (N, C) probabilities of each run that has both."""
    for run in done:
        made, file = run.predictions(), run.files.get(run.split or "")
        if made is None or not made.names or made.labels_N.ndim == 2 or run.packed is not None or file is None:
            continue
        probabilities_NC = read_probabilities(file)
        if probabilities_NC.shape == (len(made.ids), len(made.names)):
            yield made, probabilities_NC


def _calibration(pooled: Sequence[tuple[Predictions, np.ndarray]]) -> tuple[PlaneChart | None, str]:
    """Draw the share of right rows against the predicted probability, in bins of equal width."""
    if not pooled:
        return None, ""
    given_N = np.concatenate([p_NC[np.arange(len(p_NC)), made.predictions_N] for made, p_NC in pooled])
    right_N = np.concatenate([made.predictions_N == made.labels_N for made, _ in pooled])
    if np.ptp(given_N) == 0:
        return None, ""
    bin_N = np.clip(np.ceil(given_N * _BINS).astype(int) - 1, 0, _BINS - 1)
    line = [
        (100 * float(given_N[bin_N == number].mean()), 100 * float(right_N[bin_N == number].mean()))
        for number in range(_BINS)
        if (bin_N == number).any()
    ]
    error = 100 * calibration_error(given_N, right_N)
    mean, accuracy = 100 * float(given_N.mean()), 100 * float(right_N.mean())
    side = "more" if mean > accuracy else "less"
    note = (
        f"Expected calibration error {error:.1f} points: the model is {mean:.1f} % sure on average and right in"
        f" {accuracy:.1f} %, so it is {side} confident than it should be."
        if abs(mean - accuracy) >= 1
        else f"Expected calibration error {error:.1f} points: the model is as sure ({mean:.1f} %) as it is right"
        f" ({accuracy:.1f} %)."
    )
    chart = lines_chart(
        "Calibration",
        [("level", [(0.0, 0.0), (100.0, 100.0)]), ("seed", line)],
        "predicted probability (%)",
        "right (%)",
        description=note,
        dotted=True,
        square=True,
    )
    return chart, note


def _lengths(done: Sequence[RecordedRun], texts: TaskTexts) -> RowsChart | None:
    """Draw the error rate by the number of words, in groups of about equal size."""
    lengths, wrong = [], []
    for run in done:
        made = run.predictions()
        if made is None or not made.names or any(one not in texts.texts for one in made.ids):
            return None
        unequal = made.labels_N != made.predictions_N
        wrong.append(unequal.any(axis=1) if unequal.ndim == 2 else unequal)
        lengths.append([len(" ".join(part for part in texts.texts[one] if part).split()) for one in made.ids])
    if not lengths or len(lengths[0]) < _FEWEST_ROWS:
        return None
    length_N, wrong_N = np.concatenate(lengths), np.concatenate(wrong)
    edges = np.unique(np.quantile(length_N, np.linspace(0, 1, _LENGTH_GROUPS + 1)).astype(int))
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (length_N >= low if low == edges[0] else length_N > low) & (length_N <= high)
        count, errors = int(inside.sum()), int(wrong_N[inside].sum())
        if not count:
            continue
        first = low if low == edges[0] else low + 1
        name = f"{first} to {high} words" if first < high else f"{high} words"
        share, (start, end) = 100 * errors / count, wilson_interval(errors, count)
        tip = f"{name}: {share:.1f} % of {count} wrong (95 % CI {100 * start:.1f} to {100 * end:.1f})"
        rows.append(ChartRow(name, share, 100 * start, 100 * end, (), f"{share:.1f} %", tip))
    if len(rows) < 2:
        return None
    overall = 100 * float(wrong_N.mean())
    title = f"Errors by length: {'; '.join(row.tip for row in rows)}."
    return rows_chart(
        title, rows, "wrong rows (%)", level=overall, level_name=f"all rows {overall:.1f} %", least=4.0
    )  # fmt: skip
