"""The overview of a report: everything that its page shows beside the tables and figures of `sections`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from attentune.report.load import TaskTexts
from attentune.report.overview.answer import floor_rows, question_of
from attentune.report.overview.charts import PlaneChart
from attentune.report.overview.rows import TaskRows, task_rows
from attentune.report.overview.run import Confusion, RunDetails, confusions, run_details
from attentune.report.overview.tasks import TaskPanel, cost_charts, task_panels
from attentune.report.sections.score_tables import BETTER, COLLAPSED, WORSE, has_collapsed
from attentune.stats.runs import summarise
from attentune.stats.verdict import Comparison

# Differences of this size or more have the full colour, in points; the next one that covers most differences is taken.
_ENDS = (0.02, 0.05, 0.10, 0.20, 0.50)
_COVERED = 0.9


@dataclass(frozen=True)
class HeatCell:
    """One cell of the heat map."""

    text: str  # what it shows
    tip: str  # the cell in words with all numbers
    tone: str = ""  # "better", "worse", or "" without a colour
    strength: float = 0.0  # from 0 to 1, the strength of the colour
    shown: bool = False  # whether the difference is shown


@dataclass(frozen=True)
class HeatRow:
    """A row of the heat map: a method or a baseline of the floor."""

    name: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatMap:
    """Methods by tasks."""

    baseline: str  # the method that others are compared with
    columns: tuple[tuple[str, str], ...]  # the tasks' titles and metrics
    base: HeatRow  # the baseline's scores
    rows: tuple[HeatRow, ...]  # the other methods' differences
    floor: tuple[HeatRow, ...]  # the scores of the floor
    end: str  # the difference with the full colour, as text
    legend: tuple[str, ...]  # sentences on the symbols


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


# Tables and figures of `sections` that the page shows in another form, by the beginnings of their names.
_REPLACED = ("verdicts", "differences", "advantage-", "seeds-", "confusion-")
_REPLACED_BY_RUNS = ("baselines", "spreads", "scores", "loss-")


@dataclass(frozen=True)
class VerdictRow:
    """One comparison as a row of the sortable table: cells as text, and the value to sort by (None: the text)."""

    cells: tuple[tuple[str, float | None], ...]
    tone: str
    sentence: str


@dataclass(frozen=True)
class Overview:
    """What only the page shows."""

    question: str  # the title
    warnings: tuple[str, ...]  # what makes the answer doubtful
    heat: HeatMap | None  # methods by tasks; None without a comparison
    panels: tuple[TaskPanel, ...]  # charts of each task
    costs: tuple[PlaneChart, ...]  # training time against score
    rows: tuple[TaskRows, ...]  # the rows that methods get wrong, by task
    verdicts: tuple[VerdictRow, ...]  # the comparisons
    confusions: tuple[tuple[str, tuple[Confusion, ...]], ...]  # by task and method
    runs: tuple[RunDetails, ...]  # the details of the runs if there is one method only

    def replaces(self, name: str) -> bool:
        """Return whether the page shows this table or figure in another form."""
        return name.startswith(_REPLACED) or (bool(self.runs) and name.startswith(_REPLACED_BY_RUNS))


def make_overview(verdicts: Verdicts, texts: Mapping[str, TaskTexts], *, warnings: tuple[str, ...]) -> Overview:
    """Make the overview."""
    return Overview(
        question_of(verdicts),
        warnings,
        heat_map(verdicts),
        task_panels(verdicts) if verdicts.comparisons else (),
        cost_charts(verdicts),
        task_rows(verdicts, texts),
        tuple(_verdict_row(one) for one in sorted(verdicts.comparisons, key=lambda one: not one.shown)),
        confusions(verdicts),
        run_details(verdicts, dict(texts)),
    )


VERDICT_HEADER = (
    "task", "method", "verdict", "method's mean", "baseline's mean", "difference", "95 % CI", "p", "p after Holm",
    "smallest difference found", "seeds",
)  # fmt: skip
# Shorter names for narrow windows.
SHORT_LABELS = {
    "method's mean": "mean", "baseline's mean": "baseline", "p after Holm": "p (Holm)",
    "smallest difference found": "smallest",
}  # fmt: skip


def _verdict_row(one: Comparison) -> VerdictRow:
    verdict = ("better" if one.difference > 0 else "worse") if one.shown else "not shown"
    effect = "> 100" if one.greater_is_better and one.minimum_detectable_effect > 1 else None
    cells: tuple[tuple[str, float | None], ...] = (
        (one.task, None),
        (one.method, None),
        (verdict, None),
        (format_score(one.method_mean, one.metric), one.method_mean),
        (format_score(one.baseline_mean, one.metric), one.baseline_mean),
        (with_minus(format_score(one.difference, one.metric, sign=True)), one.difference),
        (with_minus(format_interval(one.low, one.high, one.metric)), one.low),
        (format_p(one.p), one.p),
        (format_p(one.p_holm), one.p_holm),
        (effect or format_score(one.minimum_detectable_effect, one.metric), one.minimum_detectable_effect),
        (str(one.seeds), float(one.seeds)),
    )
    return VerdictRow(cells, verdict if one.shown else "", f"{one.sentence}.")
