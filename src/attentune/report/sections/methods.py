"""The figures of methods against each other: advantages over the baseline, ranks over tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from attentune.report.analysis import Verdicts
from attentune.report.document import Figure, Section
from attentune.report.figures.grids import ranks_figure
from attentune.report.figures.points import PointRow, rows_alt, rows_figure, span_of
from attentune.report.figures.style import short
from attentune.report.numbers import factor, metric_name, slug
from attentune.report.sections.scores import LEAST_SPAN_POINTS, by_task
from attentune.stats.ranks import rank_methods
from attentune.stats.runs import summarise
from attentune.stats.verdict import Comparison

_MOST_ROWS = 40


def advantage_section(verdicts: Verdicts) -> Section | None:
    """Differences to the baseline, all tasks on one scale; errors, which have units of their own, each by itself."""
    groups: dict[str, list[Comparison]] = {}
    for one in verdicts.comparisons:
        if one.seeds:
            groups.setdefault("points" if one.greater_is_better else one.metric, []).append(one)
    figures = []
    for name, comparisons in groups.items():
        rows = list(_advantage_rows(verdicts, comparisons))
        span = span_of(rows, least=LEAST_SPAN_POINTS if name == "points" else 1e-9, also=(0.0,))
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


def ranks_section(verdicts: Verdicts) -> Section | None:
    """Mean ranks over tasks with the critical difference; of each task the largest size that all methods have."""
    scores, better, tasks = [], [], []
    for task, sizes in by_task(verdicts.cells).items():
        whole = [own for own in sizes.values() if {cell.method for cell in own} == set(verdicts.methods)]
        if not whole:
            continue
        by_method = {cell.method: cell.runs for cell in whole[-1] if cell.runs is not None}
        scores.append([summarise(by_method[method]).mean for method in verdicts.methods])
        better.append(next(iter(by_method.values())).greater_is_better)
        tasks.append(task)
    if len(tasks) < 2 or len(verdicts.methods) < 2:
        return None
    # The same each time; attentune.seeding would bring PyTorch along.
    generator = np.random.default_rng(2006)
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
