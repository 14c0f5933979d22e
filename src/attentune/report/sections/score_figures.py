"""The figures of scores: advantages, scores by seed, ranks, and scores by training set size and by a varied setting."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Figure, Section, axis_label, metric_name, points_factor, slug
from attentune.report.figures.base import short
from attentune.report.figures.grids import ranks_figure
from attentune.report.figures.lines import Level, Line, lines_figure
from attentune.report.figures.points import PointRow, rows_alt, rows_figure, span_of
from attentune.report.sections.run_tables import settings_of
from attentune.stats.ranks import rank_methods
from attentune.stats.runs import summarise
from attentune.stats.verdict import Comparison

_MOST_ROWS = 40
_MOST_PANELS = 4
# Axes of scores span at least 4 points, so that small differences do not look large.
_LEAST_SPAN_POINTS = 4.0


def advantage_section(verdicts: Verdicts) -> Section | None:
    """Draw the differences to the baseline: all tasks on one scale, and each error metric in a figure of its own."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in verdicts.comparisons:
        if comparison.seeds:
            groups.setdefault("points" if comparison.greater_is_better else comparison.metric, []).append(comparison)
    figures = []
    for name, comparisons in groups.items():
        rows = list(_advantage_rows(verdicts, comparisons))
        span = span_of(rows, least=_LEAST_SPAN_POINTS if name == "points" else 1e-9, also=(0.0,))
        pages = _pages(rows)
        for number, page in enumerate(pages, start=1):
            part = f", part {number} of {len(pages)}" if len(pages) > 1 else ""
            figures.append(_advantage_figure(verdicts.baseline, name, part, page, span))
    return Section("Advantages", tuple(figures)) if figures else None


def _pages(rows: Sequence[PointRow]) -> list[list[PointRow]]:
    """Split rows before headings into figures that fit on a page."""
    blocks: list[list[PointRow]] = []
    for row in rows:
        if not blocks or not row.values:
            blocks.append([])
        blocks[-1].append(row)
    pages: list[list[PointRow]] = [[]]
    for block in blocks:
        if pages[-1] and len(pages[-1]) + len(block) > _MOST_ROWS:
            pages.append([])
        pages[-1] += block
    return pages


def _advantage_figure(
    baseline: str, name: str, part: str, rows: Sequence[PointRow], span: tuple[float, float]
) -> Figure:
    unit = "points" if name == "points" else metric_name(name)
    return Figure(
        slug("advantage", name),
        f"Advantage over {baseline}{part}",
        "Differences by seed, and their mean with its 95 % confidence interval. Right of the dashed line the method is"
        " better. Filled means mark significant differences (p at most 0.05 after Holm's correction).",
        functools.partial(
            rows_figure,
            {"": rows},
            x_label=f"advantage over {short(baseline)} ({unit})",
            level=(f"{short(baseline)} (no difference)", 0.0),
            hollow="mean, not significant",
            span=span,
        ),
        rows_alt({"": rows}, unit),
    )


def _advantage_rows(verdicts: Verdicts, comparisons: Sequence[Comparison]) -> Iterator[PointRow]:
    tasks = dict.fromkeys(comparison.task for comparison in comparisons)
    runs = {(cell.runs.task, cell.method): cell.runs for cell in verdicts.cells if cell.runs is not None}
    for task in tasks:
        if len(tasks) > 1:
            yield PointRow(task)
        for one in (comparison for comparison in comparisons if comparison.task == task):
            factor = points_factor(one.metric)
            sign = 1 if one.greater_is_better else -1
            method_runs, baseline_runs = runs[task, one.method], runs[task, one.baseline]
            shared_seeds = [seed for seed in method_runs.seeds() if seed in baseline_runs.seeds()]
            yield PointRow(
                one.method,
                [factor * sign * (method_runs.score(seed) - baseline_runs.score(seed)) for seed in shared_seeds],
                factor * one.difference,
                factor * one.low,
                factor * one.high,
                verdicts.methods.index(one.method),
                one.shown,
            )


def seeds_section(verdicts: Verdicts) -> Section | None:
    """Draw the scores by seed: one figure per task, with the training set sizes side by side."""
    figures = []
    for task, sizes in _by_task(verdicts.cells).items():
        # The largest sizes if there are many.
        chosen = list(sizes.values())[-_MOST_PANELS:]
        metric, guess = next(
            (cell.runs.metric, cell.runs.majority_score) for row in sizes.values() for cell in row if cell.runs
        )
        factor = points_factor(metric)
        panels = {
            f"{cells[0].size_text} rows" if len(chosen) > 1 else "": [
                _score_row(verdicts, method, cells) for method in verdicts.models
            ]
            for cells in chosen
        }
        span = span_of(
            [row for rows in panels.values() for row in rows],
            least=_LEAST_SPAN_POINTS if factor == 100 else 1e-9,
        )
        has_level = guess is not None and span[0] <= factor * guess <= span[1]
        figures.append(
            Figure(
                slug("seeds", task),
                f"{task}: scores by seed",
                "The score of each seed, and their mean with its 95 % confidence interval.",
                functools.partial(
                    rows_figure,
                    panels,
                    x_label=axis_label(metric),
                    level=("majority class", factor * (guess or 0.0)) if has_level else None,
                    span=span,
                ),
                rows_alt(panels, axis_label(metric)),
            )
        )
    return Section("Scores by seed", tuple(figures)) if figures else None


def _by_task(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """Return the cells that have scores by task and size."""
    by_task: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell.runs is not None and cell.runs.seeds():
            by_task.setdefault(cell.task, {}).setdefault(cell.size, []).append(cell)
    return by_task


def _score_row(verdicts: Verdicts, method: str, cells: Sequence[Cell]) -> PointRow:
    number = verdicts.methods.index(method)
    runs = next((cell.runs for cell in cells if cell.method == method), None)
    if runs is None:
        return PointRow(method, (math.nan,), number=number)
    summary, factor = summarise(runs), points_factor(runs.metric)
    scores = [factor * runs.score(seed) for seed in runs.seeds()]
    return PointRow(method, scores, factor * summary.mean, factor * summary.low, factor * summary.high, number)


def ranks_section(verdicts: Verdicts) -> Section | None:
    """Draw mean ranks over tasks with the critical difference, for each task at the largest size of all methods."""
    scores, greater_is_better, tasks = [], [], []
    for task, sizes in _by_task(verdicts.cells).items():
        complete = [cells for cells in sizes.values() if {cell.method for cell in cells} >= set(verdicts.models)]
        if not complete:
            continue
        runs = {cell.method: cell.runs for cell in complete[-1] if cell.runs is not None}
        scores.append([summarise(runs[method]).mean for method in verdicts.models])
        greater_is_better.append(next(iter(runs.values())).greater_is_better)
        tasks.append(task)
    if len(tasks) < 2 or len(verdicts.models) < 2:
        return None
    # NumPy's generator with a fixed seed: attentune.seeding imports PyTorch.
    generator = np.random.default_rng(2006)
    ranking = rank_methods(np.array(scores), verdicts.models, generator=generator, greater_is_better=greater_is_better)
    sentence = (
        f"Friedman's test over {len(tasks)} tasks ({', '.join(tasks)}): p = {ranking.p:.2g}."
        " Ranks ignore the size of a difference, and few tasks give little evidence; read them with the verdicts."
    )
    figure = Figure(
        "ranks",
        "Mean ranks over tasks",
        "Rank 1 is the best. Methods below the same thick bar do not differ significantly at the 5 % level (Nemenyi's"
        " critical difference).",
        functools.partial(ranks_figure, ranking, {method: n for n, method in enumerate(verdicts.methods)}),
        ", ".join(f"{name} {rank:.2f}" for name, rank in zip(ranking.methods, ranking.mean_ranks, strict=True)),
    )
    return Section("Several tasks", (figure,), (sentence,))


def sizes_section(verdicts: Verdicts) -> Section | None:
    """Draw the score against the training set size: one figure for each task with several sizes."""
    figures = []
    for task, sizes in _by_task(verdicts.cells).items():
        if len(sizes) < 2:
            continue
        metric = next(cell.runs.metric for cells in sizes.values() for cell in cells if cell.runs)
        lines: dict[str, Line] = {}
        for number, method in enumerate(verdicts.models):
            cells = [cell for row in sizes.values() for cell in row if cell.method == method]
            if cells:
                lines[method] = _mean_line([_train_rows(cell) for cell in cells], cells, number)
        figures.append(
            Figure(
                slug("sizes", task),
                f"{task}: score against training set size",
                "Means over seeds with 95 % confidence intervals; the points of one size are spread slightly, so that"
                " they do not overlap.",
                functools.partial(
                    lines_figure,
                    {task: lines},
                    x_label="training rows",
                    y_label=axis_label(metric),
                    ticks=sorted({_train_rows(cells[0]) for cells in sizes.values()}),
                    log_x=True,
                ),
            )
        )
    return Section("Training set size", tuple(figures)) if figures else None


def _train_rows(cell: Cell) -> float:
    """Return the number of rows on which the cell's runs were trained."""
    counts = [run.record.train.get("rows") for run in cell.recorded if run.record.is_done]
    known = [float(rows) for rows in counts if rows]
    return known[0] if known else float(cell.size) if cell.size != "all" else math.nan


def _mean_line(xs: Sequence[float], cells: Sequence[Cell], number: int) -> Line:
    """Return the line of the means of cells with scores, at these positions."""
    order = sorted(range(len(xs)), key=lambda index: xs[index])
    cell_runs = [cells[index].runs for index in order]
    summaries = [(summarise(runs), points_factor(runs.metric)) for runs in cell_runs if runs is not None]
    # A mean without an interval gets one of length 0.
    return Line(
        [xs[index] for index in order],
        [factor * one.mean for one, factor in summaries],
        [factor * (one.mean if math.isnan(one.low) else one.low) for one, factor in summaries],
        [factor * (one.mean if math.isnan(one.high) else one.high) for one, factor in summaries],
        number=number,
    )


def setting_section(verdicts: Verdicts) -> Section | None:
    """Draw the score against a setting, where methods differ in one numeric setting only (SSA, figure 7)."""
    figures = []
    for task, sizes in _by_task(verdicts.cells).items():
        cells = list(sizes.values())[-1]
        for name, groups in varied_settings(cells).items():
            figures.append(_setting_figure(verdicts, task, name, groups, cells))
    return Section("Settings", tuple(figures)) if figures else None


def varied_settings(cells: Sequence[Cell]) -> dict[str, list[list[tuple[float, Cell]]]]:
    """Return by setting the groups of methods that differ in this number only, each with its value."""
    settings = [settings_of(cell) for cell in cells]
    varied: dict[str, list[list[tuple[float, Cell]]]] = {}
    for name in dict.fromkeys(name for one in settings for name in one):
        groups: dict[str, dict[float, Cell]] = {}
        for cell, one in zip(cells, settings, strict=True):
            value = one.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                rest = json.dumps({key: other for key, other in one.items() if key != name}, sort_keys=True)
                groups.setdefault(rest, {}).setdefault(float(value), cell)
        several = [sorted(group.items(), key=lambda pair: pair[0]) for group in groups.values() if len(group) > 1]
        if several:
            varied[name] = several
    return varied


def _setting_figure(
    verdicts: Verdicts, task: str, name: str, groups: Sequence[Sequence[tuple[float, Cell]]], cells: Sequence[Cell]
) -> Figure:
    lines = {}
    for group in groups:
        first = group[0][1]
        title = str(first.recorded[0].record.config.get("preset") or first.method)
        title = title if title not in lines else first.method
        # In the style of the method of this name, if it is in the group.
        number = verdicts.methods.index(next((cell.method for _, cell in group if cell.method == title), first.method))
        lines[title] = _mean_line([x for x, _ in group], [cell for _, cell in group], number)
    varied = {cell.method for group in groups for _, cell in group}
    levels = {}
    for cell in cells:
        if cell.method == verdicts.baseline and cell.method not in varied and cell.runs is not None:
            summary, factor = summarise(cell.runs), points_factor(cell.runs.metric)
            low, high, mean = factor * summary.low, factor * summary.high, factor * summary.mean
            levels[cell.method] = Level(mean, low, high, verdicts.methods.index(cell.method))
    metric = next(cell.runs.metric for cell in cells if cell.runs is not None)
    return Figure(
        slug("setting", task, name),
        f"{task}: score against {name}",
        "Means over seeds with 95 % confidence intervals, for methods that differ in this setting only."
        + (" The shaded band is the baseline's interval." if levels else ""),
        functools.partial(
            lines_figure,
            {task: lines},
            x_label=name,
            y_label=axis_label(metric),
            ticks=sorted({x for group in groups for x, _ in group}),
            levels=levels,
        ),
    )
