"""The heat map of methods by tasks: differences to the baseline, and the scores of the floor below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import (
    NOTHING,
    format_interval,
    format_p,
    format_score,
    metric_name,
    points_factor,
    with_minus,
)
from attentune.report.overview.floor import floor_rows
from attentune.report.sections.score_tables import BETTER, COLLAPSED, WORSE, has_collapsed
from attentune.stats.runs import summarise
from attentune.stats.verdict import Comparison

# Differences of this size or more have the full colour, in points; the next one that covers most differences is taken.
_ENDS = (0.02, 0.05, 0.10, 0.20, 0.50)
_COVERED = 0.9


@dataclass(frozen=True)
class HeatCell:
    """One cell of the heat map.

    Attributes:
        text: what it shows.
        tip: the cell in words with all numbers.
        tone: "better", "worse", or "" without a colour.
        strength: from 0 to 1, the strength of the colour.
        shown: whether the difference is shown.
    """

    text: str
    tip: str
    tone: str = ""
    strength: float = 0.0
    shown: bool = False


@dataclass(frozen=True)
class HeatRow:
    """A row of the heat map: a method or a baseline of the floor."""

    name: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatMap:
    """Methods by tasks.

    Attributes:
        baseline: the method that others are compared with.
        columns: the tasks' titles and metrics.
        base: the baseline's scores.
        rows: the other methods' differences.
        floor: the scores of the floor.
        end: the difference with the full colour, as text.
        legend: sentences on the symbols.
    """

    baseline: str
    columns: tuple[tuple[str, str], ...]
    base: HeatRow
    rows: tuple[HeatRow, ...]
    floor: tuple[HeatRow, ...]
    end: str
    legend: tuple[str, ...]


def heat_map(verdicts: Verdicts) -> HeatMap | None:
    """Make the heat map; None without a comparison."""
    if not verdicts.comparisons:
        return None
    columns = [
        column for column in dict.fromkeys((cell.task, cell.size) for cell in verdicts.cells)
        if any(cell.runs is not None and cell.runs.seeds() for cell in _of(verdicts, column))
    ]  # fmt: skip
    by_place = {(cell.method, cell.task, cell.size): cell for cell in verdicts.cells}
    titles = []
    for column in columns:
        cells = [cell for cell in _of(verdicts, column) if cell.runs is not None]
        titles.append((verdicts.title(cells[0]), metric_name(cells[0].runs.metric if cells[0].runs else "")))
    end = _end(verdicts.comparisons)

    def row(method: str) -> HeatRow:
        cells = (by_place.get((method, *column)) for column in columns)
        return HeatRow(method, tuple(_cell(verdicts, cell, end) for cell in cells))

    others = tuple(row(method) for method in verdicts.models if method != verdicts.baseline)
    return HeatMap(
        verdicts.baseline,
        tuple(titles),
        row(verdicts.baseline),
        others,
        _floor(verdicts, columns),
        f"{100 * end:g}",
        _legend(verdicts, end),
    )


def _of(verdicts: Verdicts, column: tuple[str, str]) -> list[Cell]:
    return [cell for cell in verdicts.cells if (cell.task, cell.size) == column]


def _end(comparisons: Sequence[Comparison]) -> float:
    """Return the difference with the full colour: round, and at least as large as most differences."""
    sizes = sorted(
        abs(one.difference) for one in comparisons if one.greater_is_better and math.isfinite(one.difference)
    )
    if not sizes:
        return _ENDS[0]
    most = sizes[min(len(sizes) - 1, int(_COVERED * len(sizes)))]
    return next((end for end in _ENDS if end >= most), 1.0)


def _cell(verdicts: Verdicts, cell: Cell | None, end: float) -> HeatCell:
    if cell is None or cell.runs is None or not cell.runs.seeds():
        return HeatCell(NOTHING, "no score")
    summary, metric = summarise(cell.runs), cell.runs.metric
    place = f"{cell.method} on {verdicts.title(cell)}: {metric_name(metric)} {format_score(summary.mean, metric)}"
    if math.isfinite(summary.low):
        place += f" (95 % CI {format_interval(summary.low, summary.high, metric)})"
    collapsed = f" {COLLAPSED}" if has_collapsed(verdicts, cell) else ""
    if collapsed:
        place += f"; {len(cell.runs.collapsed())} of {len(cell.runs.scores)} runs no better than the floor"
    one = verdicts.comparison(cell)
    if cell.method == verdicts.baseline or one is None or not math.isfinite(one.difference):
        return HeatCell(f"{with_minus(format_score(summary.mean, metric))}{collapsed}", with_minus(f"{place}."))
    text = with_minus(format_score(one.difference, metric, sign=True))
    arrow = f" {BETTER if one.difference > 0 else WORSE}" if one.shown else ""
    tip = f"{place}. Difference to {one.baseline} {text}"
    if math.isfinite(one.low):
        tip += f" (95 % CI {format_interval(one.low, one.high, metric)})"
    tip += f", p after Holm {format_p(one.p_holm)}" if math.isfinite(one.p_holm) else ""
    verdict = ("shown to be better" if one.difference > 0 else "shown to be worse") if one.shown else "not shown"
    size = abs(one.difference) / (end if points_factor(metric) == 100 else max(abs(summary.mean), 1e-9))
    tone = "better" if one.difference > 0 else "worse"
    return HeatCell(
        f"{text}{arrow}{collapsed}", with_minus(f"{tip}: {verdict}."), tone, round(min(1.0, size), 2), one.shown
    )


def _floor(verdicts: Verdicts, columns: Sequence[tuple[str, str]]) -> tuple[HeatRow, ...]:
    """Return the rows of the baselines: the scores that the records of any method have, by task."""
    by_column: dict[tuple[str, str], dict[str, HeatCell]] = {}
    for column in columns:
        cells = _of(verdicts, column)
        for cell in sorted(cells, key=lambda cell: cell.method in verdicts.models):
            for row in floor_rows(cell):
                if row.is_model or cell.runs is None:
                    continue
                metric = cell.runs.metric
                text = format_score(row.score, metric)
                tip = f"{row.name} on {verdicts.title(cell)}: {metric_name(metric)} {text}"
                if math.isfinite(row.low):
                    tip += f" (95 % CI {format_interval(row.low, row.high, metric)})"
                by_column.setdefault(column, {}).setdefault(row.name, HeatCell(text, f"{tip}."))
    names = dict.fromkeys(name for cells in by_column.values() for name in cells)
    nothing = HeatCell(NOTHING, "not recorded")
    return tuple(
        HeatRow(name, tuple(by_column.get(column, {}).get(name, nothing) for column in columns)) for name in names
    )


def _legend(verdicts: Verdicts, end: float) -> tuple[str, ...]:
    in_points = all(one.greater_is_better for one in verdicts.comparisons)
    units = "in points (hundredths)" + ("" if in_points else "; errors in the unit of the labels, positive is better")
    count = len(verdicts.comparisons)
    correction = f" after Holm's correction over all {count} comparisons" if count > 1 else ""
    sentences = [
        f"Mean difference to {verdicts.baseline} {units}; full colour from {100 * end:g} points.",
        f"{BETTER} shown to be better, {WORSE} shown to be worse (p at most 0.05{correction}), framed;"
        " everything else can be chance.",
    ]
    if any(has_collapsed(verdicts, cell) for cell in verdicts.cells):
        sentences.append(f"{COLLAPSED} has runs that score no better than always giving the same answer.")
    return tuple(sentences)
