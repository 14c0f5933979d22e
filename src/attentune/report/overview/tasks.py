"""A panel for each task: differences to the baseline and scores by seed, and cost against score."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import axis_label, format_interval, format_score, metric_name, points_factor, with_minus
from attentune.report.overview.answer import FloorRow, floor_rows
from attentune.report.overview.charts import ChartRow, PlaneChart, Point, RowsChart, rows_chart, scatter_chart
from attentune.report.sections.run_tables import total_seconds
from attentune.stats.runs import Runs, summarise

# Axes of scores span at least 4 points, so that small differences do not look large.
_LEAST_POINTS = 4.0


@dataclass(frozen=True)
class TaskPanel:
    """The charts of one task."""

    title: str  # the task, with the size if there are several
    facts: str  # one sentence on the metric and the baseline
    differences: RowsChart | None  # differences to the baseline by method; None without a comparison
    scores: RowsChart | None  # scores by method; None without scores


def task_panels(verdicts: Verdicts) -> tuple[TaskPanel, ...]:
    """Make a panel for each task and training set size with scores."""
    return tuple(_panel(verdicts, cells) for cells in scored_columns(verdicts))


def scored_columns(verdicts: Verdicts) -> list[list[Cell]]:
    """Return the models' cells with scores by task and training set size."""
    columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in verdicts.cells:
        if cell.method in verdicts.models and cell.runs is not None and cell.runs.seeds():
            columns.setdefault((cell.task, cell.size), []).append(cell)
    return list(columns.values())


def _panel(verdicts: Verdicts, cells: Sequence[Cell]) -> TaskPanel:
    title = verdicts.title(cells[0])
    column = [cell for cell in verdicts.cells if (cell.task, cell.size) == (cells[0].task, cells[0].size)]
    base = next((cell for cell in column if cell.method == verdicts.baseline and cell.runs is not None), None)
    facts = _runs(cells[0]).metric
    text = f"{metric_name(facts)}"
    if base is not None:
        text += f"; {verdicts.baseline} {format_score(summarise(_runs(base)).mean, facts)}"
    effects = [
        one.minimum_detectable_effect
        for cell in cells
        if (one := verdicts.comparison(cell)) is not None and math.isfinite(one.minimum_detectable_effect)
    ]
    if effects and points_factor(facts) == 100 and min(effects) > 1:
        text += "; so few seeds cannot show any difference"
    elif effects and points_factor(facts) == 100:
        low, high = (
            "more than 100" if value > 1 else format_score(value, facts) for value in (min(effects), max(effects))
        )
        size = low if low == high else f"{low} to {high}"
        text += f"; a difference of {size} points would be found four times in five"
    return TaskPanel(title, f"{text}.", _differences(verdicts, cells, base), _scores(verdicts, cells))


def _runs(cell: Cell) -> Runs:
    assert cell.runs is not None
    return cell.runs


def _differences(verdicts: Verdicts, cells: Sequence[Cell], base: Cell | None) -> RowsChart | None:
    rows = []
    for cell in cells:
        one = verdicts.comparison(cell)
        if one is None or base is None or not one.seeds:
            continue
        runs, factor, sign = _runs(cell), points_factor(one.metric), 1 if one.greater_is_better else -1
        dots = tuple(
            factor * sign * (runs.score(seed) - _runs(base).score(seed))
            for seed in runs.seeds()
            if seed in _runs(base).seeds()
        )
        value = with_minus(format_score(one.difference, one.metric, sign=True))
        tip = f"{cell.method}: {value}"
        if math.isfinite(one.low):
            tip += f" (95 % CI {format_interval(one.low, one.high, one.metric)})"
        tip += f", {'shown' if one.shown else 'not shown'}"
        mean, low, high = (factor * number for number in (one.difference, one.low, one.high))
        rows.append(
            ChartRow(cell.method, mean, low, high, dots, value, with_minus(tip), filled=one.shown, bold=one.shown)
        )
    if not rows:
        return None
    metric = _runs(cells[0]).metric
    unit = "points" if points_factor(metric) == 100 else metric_name(metric)
    return rows_chart(
        f"Differences to {verdicts.baseline} on {verdicts.title(cells[0])}: {'; '.join(row.tip for row in rows)}.",
        rows,
        f"difference to {verdicts.baseline} ({unit}); right is better",
        level=0.0,
        level_name=verdicts.baseline,
        least=_LEAST_POINTS if unit == "points" else 1e-9,
    )


def _scores(verdicts: Verdicts, cells: Sequence[Cell]) -> RowsChart:
    metric = _runs(cells[0]).metric
    factor, guess = points_factor(metric), _runs(cells[0]).majority_score
    rows = [_score_row(cell, bold=cell.method == verdicts.baseline) for cell in cells]
    floor = math.nan if guess is None else factor * guess
    known = [value for row in rows for value in (row.mean, row.low, row.high, *row.dots) if math.isfinite(value)]
    return rows_chart(
        f"Scores on {verdicts.title(cells[0])}: {'; '.join(row.tip for row in rows)}.",
        rows,
        axis_label(metric),
        level=floor if min(known) <= floor <= max(known) else None,
        level_name="floor",
        least=_LEAST_POINTS if factor == 100 else 1e-9,
    )


def _score_row(cell: Cell, *, bold: bool) -> ChartRow:
    runs = _runs(cell)
    summary, factor = summarise(runs), points_factor(runs.metric)
    value = format_score(summary.mean, runs.metric)
    tip = f"{cell.method}: {value}"
    if math.isfinite(summary.low):
        tip += f" (95 % CI {format_interval(summary.low, summary.high, runs.metric)})"
    mean, low, high = (factor * number for number in (summary.mean, summary.low, summary.high))
    dots = tuple(factor * runs.score(seed) for seed in runs.seeds())
    return ChartRow(cell.method, mean, low, high, dots if len(dots) > 1 else (), value, tip, bold=bold)


def floor_chart(cell: Cell) -> RowsChart | None:
    """Draw the score of a method beside the baselines on the same rows; None without a baseline."""
    rows = floor_rows(cell)
    if cell.runs is None or not [row for row in rows if not row.is_model]:
        return None
    metric, factor = cell.runs.metric, points_factor(cell.runs.metric)
    if not any(row.is_model for row in rows):
        summary = summarise(cell.runs)
        rows.append(FloorRow(cell.method, summary.mean, summary.low, summary.high, True))
    chart_rows = []
    for row in rows:
        value = format_score(row.score, metric)
        tip = f"{row.name}: {value}"
        if math.isfinite(row.low):
            tip += f" (95 % CI {format_interval(row.low, row.high, metric)})"
        mean, low, high = (factor * number for number in (row.score, row.low, row.high))
        chart_rows.append(ChartRow(row.name, mean, low, high, (), value, tip, bold=row.is_model))
    title = f"Scores beside the baselines: {'; '.join(row.tip for row in chart_rows)}."
    return rows_chart(title, chart_rows, axis_label(metric), least=_LEAST_POINTS if factor == 100 else 1e-9)


def cost_charts(verdicts: Verdicts) -> tuple[PlaneChart, ...]:
    """Draw training time against score: one chart for each task with two methods, and one for all tasks if several."""
    charts = []
    relative: dict[str, list[tuple[float, float]]] = {}
    columns = [cells for cells in scored_columns(verdicts) if len(cells) > 1]
    for cells in columns:
        metric = _runs(cells[0]).metric
        factor, points = points_factor(metric), []
        for cell in cells:
            seconds = _seconds(cell)
            if seconds is None:
                continue
            mean = summarise(_runs(cell)).mean
            tip = f"{cell.method}: {seconds:,.1f} s, {format_score(mean, metric)}"
            points.append(Point(seconds, factor * mean, cell.method, tip))
        base = next((point for point in points if point.name == verdicts.baseline), None)
        if len(points) < 2:
            continue
        if base is not None and factor == 100:
            for point in points:
                relative.setdefault(point.name, []).append((point.x / base.x, point.y - base.y))
        charts.append(
            scatter_chart(
                verdicts.title(cells[0]),
                points,
                "training time (s, median)",
                axis_label(metric),
                named=[verdicts.baseline],
                greater_is_better=_runs(cells[0]).greater_is_better,
                least=_LEAST_POINTS if factor == 100 else 1e-9,
            )
        )
    complete = {name: pairs for name, pairs in relative.items() if len(pairs) == len(columns)}
    if len(columns) > 1 and len(complete) > 1:
        charts.insert(0, _overall_chart(verdicts, complete))
    return tuple(charts)


def _overall_chart(verdicts: Verdicts, relative: dict[str, list[tuple[float, float]]]) -> PlaneChart:
    """Draw the means over tasks: the geometric mean of the relative times, and the median difference."""
    points = []
    for name, pairs in relative.items():
        time, difference = statistics.geometric_mean(x for x, _ in pairs), statistics.median(y for _, y in pairs)
        points.append(Point(time, difference, name, f"{name}: {time:.2f} times, {difference:+.1f} points"))
    return scatter_chart(
        f"All {len(next(iter(relative.values())))} tasks",
        points,
        f"training time relative to {verdicts.baseline}",
        "median difference (points)",
        named=[verdicts.baseline],
        least=_LEAST_POINTS,
    )


def _seconds(cell: Cell) -> float | None:
    """Return the median training time of the cell's runs."""
    known = [
        seconds
        for run in cell.recorded
        if run.record.is_done and (seconds := total_seconds(run.record.train)) is not None and seconds > 0
    ]
    return statistics.median(known) if known else None
