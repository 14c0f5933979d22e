"""The figures of scores: by seed, by size of the training part, by a varied setting."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Figure, Section
from attentune.report.figures.lines import Level, Line, lines_figure
from attentune.report.figures.points import PointRow, rows_alt, rows_figure, span_of
from attentune.report.numbers import factor, size_text, slug, unit
from attentune.report.sections.run_tables import settings_of
from attentune.stats.runs import summarise

_MOST_PANELS = 4
LEAST_SPAN_POINTS = 4.0


def seeds_section(verdicts: Verdicts) -> Section | None:
    """Scores seed by seed, a figure a task with its sizes side by side."""
    figures = []
    for task, sizes in by_task(verdicts.cells).items():
        # The largest ones, if they are many.
        chosen = dict(list(sizes.items())[-_MOST_PANELS:])
        metric, guess = next(
            (cell.runs.metric, cell.runs.majority_score) for own in sizes.values() for cell in own if cell.runs
        )
        panels = {
            f"{size_text(size)} rows" if len(chosen) > 1 else "": [
                _score_row(verdicts, method, own) for method in verdicts.methods
            ]
            for size, own in chosen.items()
        }
        figures.append(
            Figure(
                slug("seeds", task),
                f"{task}: scores by seed",
                "Each seed's score, and the mean with its 95 % interval.",
                functools.partial(
                    rows_figure,
                    panels,
                    x_label=unit(metric),
                    level=None if guess is None else ("majority guess", factor(metric) * guess),
                    span=span_of(
                        [row for rows in panels.values() for row in rows],
                        least=LEAST_SPAN_POINTS if factor(metric) == 100 else 1e-9,
                        also=() if guess is None else (factor(metric) * guess,),
                    ),
                ),
                rows_alt(panels, unit(metric)),
            )
        )
    return Section("Scores by seed", tuple(figures)) if figures else None


def by_task(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """The cells with scores by task and size."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell.runs is not None and cell.runs.seeds():
            found.setdefault(cell.task, {}).setdefault(cell.size, []).append(cell)
    return found


def _score_row(verdicts: Verdicts, method: str, cells: Sequence[Cell]) -> PointRow:
    number = verdicts.methods.index(method)
    runs = next((cell.runs for cell in cells if cell.method == method), None)
    if runs is None:
        return PointRow(method, (math.nan,), number=number)
    found, times = summarise(runs), factor(runs.metric)
    scores = [times * runs.score(seed) for seed in runs.seeds()]
    return PointRow(method, scores, times * found.mean, times * found.low, times * found.high, number)


def sizes_section(verdicts: Verdicts) -> Section | None:
    """Score against the size of the training part, a figure a task that has several."""
    figures = []
    for task, sizes in by_task(verdicts.cells).items():
        if len(sizes) < 2:
            continue
        metric = next(cell.runs.metric for own in sizes.values() for cell in own if cell.runs)
        lines: dict[str, Line] = {}
        for number, method in enumerate(verdicts.methods):
            own = [cell for cells in sizes.values() for cell in cells if cell.method == method]
            if own:
                lines[method] = _line([_rows_of(cell) for cell in own], own, number)
        figures.append(
            Figure(
                slug("sizes", task),
                f"{task}: score against size of the training part",
                "Means over seeds with 95 % intervals; points of one size stand a little beside each other.",
                functools.partial(
                    lines_figure,
                    {task: lines},
                    x_label="rows to train on",
                    y_label=unit(metric),
                    ticks=sorted({x for own in sizes.values() for x in [_rows_of(own[0])]}),
                    log_x=True,
                ),
            )
        )
    return Section("Size of the training part", tuple(figures)) if figures else None


def _rows_of(cell: Cell) -> float:
    """How many rows it was trained on."""
    told = [one.record.train.get("rows") for one in cell.kept if one.record.is_done]
    known = [float(rows) for rows in told if rows]
    return known[0] if known else float(cell.size) if cell.size != "all" else math.nan


def _line(xs: Sequence[float], cells: Sequence[Cell], number: int) -> Line:
    """The line of these cells' means; they have scores."""
    order = sorted(range(len(xs)), key=lambda place: xs[place])
    runs = [cells[place].runs for place in order]
    found = [(summarise(one), factor(one.metric)) for one in runs if one is not None]
    # A mean without an interval has one of no length.
    ends = [
        (one.mean if math.isnan(one.low) else one.low, one.mean if math.isnan(one.high) else one.high)
        for one, _ in found
    ]
    return Line(
        [xs[place] for place in order],
        [times * one.mean for one, times in found],
        [times * low for (low, _), (_, times) in zip(ends, found, strict=True)],
        [times * high for (_, high), (_, times) in zip(ends, found, strict=True)],
        number=number,
    )


def setting_section(verdicts: Verdicts) -> Section | None:
    """Score against a setting, where methods differ in one that is a number (SSA, figure 7)."""
    figures = []
    for task, sizes in by_task(verdicts.cells).items():
        cells = list(sizes.values())[-1]
        for name, groups in varied_settings(cells).items():
            figures.append(_setting_figure(verdicts, task, name, groups, cells))
    return Section("Settings", tuple(figures)) if figures else None


def varied_settings(cells: Sequence[Cell]) -> dict[str, list[list[tuple[float, Cell]]]]:
    """By setting the groups of methods that differ in this number and in nothing else, by its value."""
    settings = [settings_of(cell) for cell in cells]
    found: dict[str, list[list[tuple[float, Cell]]]] = {}
    for name in dict.fromkeys(name for one in settings for name in one):
        groups: dict[str, dict[float, Cell]] = {}
        for cell, one in zip(cells, settings, strict=True):
            value = one.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                rest = json.dumps({key: part for key, part in one.items() if key != name}, sort_keys=True)
                groups.setdefault(rest, {}).setdefault(float(value), cell)
        several = [sorted(group.items(), key=lambda pair: pair[0]) for group in groups.values() if len(group) > 1]
        if several:
            found[name] = several
    return found


def _setting_figure(
    verdicts: Verdicts, task: str, name: str, groups: Sequence[Sequence[tuple[float, Cell]]], cells: Sequence[Cell]
) -> Figure:
    lines = {}
    for group in groups:
        first = group[0][1]
        title = str(first.kept[0].record.config.get("preset") or first.method)
        title = title if title not in lines else first.method
        # In the look of the method of this name, if it is one of them.
        number = verdicts.methods.index(next((cell.method for _, cell in group if cell.method == title), first.method))
        lines[title] = _line([x for x, _ in group], [cell for _, cell in group], number)
    inside = {cell.method for group in groups for _, cell in group}
    levels = {}
    for cell in cells:
        if cell.method == verdicts.baseline and cell.method not in inside and cell.runs is not None:
            summary, times = summarise(cell.runs), factor(cell.runs.metric)
            low, high, mean = times * summary.low, times * summary.high, times * summary.mean
            levels[cell.method] = Level(mean, low, high, verdicts.methods.index(cell.method))
    metric = next(cell.runs.metric for cell in cells if cell.runs is not None)
    return Figure(
        slug("setting", task, name),
        f"{task}: score against {name}",
        "Means over seeds with 95 % intervals, of methods that differ in this setting alone."
        + (" The tone is the baseline's interval." if levels else ""),
        functools.partial(
            lines_figure,
            {task: lines},
            x_label=name,
            y_label=unit(metric),
            ticks=sorted({x for group in groups for x, _ in group}),
            levels=levels,
        ),
    )
