"""The figures of scores: advantages, seeds, sizes of the training part, a varied setting, ranks over tasks."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from attentune.report.document import Figure, Section
from attentune.report.grid_figures import ranks_figure
from attentune.report.line_figures import Level, Line, lines_figure
from attentune.report.numbers import factor, metric_name, size_text, slug, unit
from attentune.report.plots import short
from attentune.report.row_figures import PointRow, rows_alt, rows_figure, span_of
from attentune.report.run_tables import settings_of
from attentune.report.verdicts import Cell, Verdicts
from attentune.seeding import numpy_generator
from attentune.stats.ranks import rank_methods
from attentune.stats.summary import summarise
from attentune.stats.verdict import Comparison

_MOST_PANELS, _MOST_ROWS = 4, 40
_LEAST_SPAN = 4.0  # points


def advantage_section(verdicts: Verdicts) -> Section | None:
    """Differences to the baseline, all tasks on one scale; errors, which have units of their own, each by itself."""
    groups: dict[str, list[Comparison]] = {}
    for one in verdicts.comparisons:
        if one.seeds:
            groups.setdefault("points" if one.greater_is_better else one.metric, []).append(one)
    figures = []
    for name, comparisons in groups.items():
        rows = list(_advantage_rows(verdicts, comparisons))
        span = span_of(rows, least=_LEAST_SPAN if name == "points" else 1e-9, also=(0.0,))
        parts = _in_parts(rows)
        for number, part in enumerate(parts, start=1):
            told = f", part {number} of {len(parts)}" if len(parts) > 1 else ""
            figures.append(_advantage_figure(verdicts.baseline, name, told, part, span))
    return Section("Advantages", tuple(figures)) if figures else None


def _in_parts(rows: Sequence[PointRow]) -> list[list[PointRow]]:
    """The rows as figures of a height that fits on a page, cut before headings."""
    parts: list[list[PointRow]] = [[]]
    blocks: list[list[PointRow]] = []
    for row in rows:
        if not blocks or not row.values:
            blocks.append([])
        blocks[-1].append(row)
    for block in blocks:
        if parts[-1] and len(parts[-1]) + len(block) > _MOST_ROWS:
            parts.append([])
        parts[-1] += block
    return parts


def _advantage_figure(
    baseline: str, name: str, part: str, rows: Sequence[PointRow], span: tuple[float, float]
) -> Figure:
    unit_name = "points" if name == "points" else metric_name(name)
    return Figure(
        slug("advantage", name),
        f"Advantage over {baseline}{part}",
        "Differences seed by seed, and their mean with its 95 % interval; right of the dashed line the method is"
        " better. A filled mean is a difference that is shown (p after Holm at most 0.05).",
        functools.partial(
            rows_figure,
            {"": rows},
            x_label=f"advantage over {short(baseline)} ({unit_name})",
            level=(f"{short(baseline)} (no difference)", 0.0),
            hollow="mean, no difference shown",
            span=span,
        ),
        rows_alt({"": rows}, unit_name),
    )


def _advantage_rows(verdicts: Verdicts, comparisons: Sequence[Comparison]) -> Iterator[PointRow]:
    tasks = dict.fromkeys(one.task for one in comparisons)
    runs = {(cell.runs.task, cell.method): cell.runs for cell in verdicts.cells if cell.runs is not None}
    for task in tasks:
        if len(tasks) > 1:
            yield PointRow(task)
        for one in (one for one in comparisons if one.task == task):
            times = factor(one.metric) * (1 if one.greater_is_better else -1)
            ours, theirs = runs[task, one.method], runs[task, one.baseline]
            shared = [seed for seed in ours.seeds() if seed in theirs.seeds()]
            yield PointRow(
                one.method,
                [times * (ours.score(seed) - theirs.score(seed)) for seed in shared],
                factor(one.metric) * one.difference,
                factor(one.metric) * one.low,
                factor(one.metric) * one.high,
                verdicts.methods.index(one.method),
                one.shown,
            )


def seeds_section(verdicts: Verdicts) -> Section | None:
    """Scores seed by seed, a figure a task with its sizes side by side."""
    figures = []
    for task, sizes in _by_task(verdicts.cells).items():
        # The largest ones, if they are many.
        chosen = dict(list(sizes.items())[-_MOST_PANELS:])
        metric, guess = next((cell.runs.metric, cell.runs.guess) for own in sizes.values() for cell in own if cell.runs)
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
                        least=_LEAST_SPAN if factor(metric) == 100 else 1e-9,
                        also=() if guess is None else (factor(metric) * guess,),
                    ),
                ),
                rows_alt(panels, unit(metric)),
            )
        )
    return Section("Scores by seed", tuple(figures)) if figures else None


def _by_task(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
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
    for task, sizes in _by_task(verdicts.cells).items():
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
    for task, sizes in _by_task(verdicts.cells).items():
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


def ranks_section(verdicts: Verdicts) -> Section | None:
    """Mean ranks over tasks with the critical difference; of each task the largest size that all methods have."""
    scores, better, tasks = [], [], []
    for task, sizes in _by_task(verdicts.cells).items():
        whole = [own for own in sizes.values() if {cell.method for cell in own} == set(verdicts.methods)]
        if not whole:
            continue
        by_method = {cell.method: cell.runs for cell in whole[-1] if cell.runs is not None}
        scores.append([summarise(by_method[method]).mean for method in verdicts.methods])
        better.append(next(iter(by_method.values())).greater_is_better)
        tasks.append(task)
    if len(tasks) < 2 or len(verdicts.methods) < 2:
        return None
    generator = numpy_generator("report-ranks")
    ranking = rank_methods(np.array(scores), verdicts.methods, generator=generator, greater_is_better=better)
    numbers = {method: number for number, method in enumerate(verdicts.methods)}
    told = (
        f"Friedman's test over {len(tasks)} tasks ({', '.join(tasks)}): p = {ranking.p:.2g}."
        " A rank does not know how large a difference is, and few tasks tell little: read it beside the verdicts."
    )
    figure = Figure(
        "ranks",
        "Mean ranks over tasks",
        "1 is the best. Methods under one thick bar are not told apart at 5 % (Nemenyi's critical difference).",
        functools.partial(ranks_figure, ranking, numbers),
        ", ".join(f"{name} {rank:.2f}" for name, rank in zip(ranking.methods, ranking.mean_ranks, strict=True)),
    )
    return Section("Several tasks", (figure,), (told,))
