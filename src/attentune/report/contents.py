"""The contents of a report in order: the answer's tables, then figures, rows, classes, costs and settings."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attentune.errors import CheckpointError
from attentune.report.analysis import Cell, Verdicts, compare_methods
from attentune.report.answer import MOST_LEADS, answer_of, question_of
from attentune.report.charts import (
    Bar,
    Level,
    Line,
    Point,
    PointRow,
    bars_figure,
    cost_figure,
    lines_figure,
    rows_alt,
    rows_figure,
    short,
)
from attentune.report.details import classes_section, largest_cells, model_section, rows_section
from attentune.report.document import Figure, Report, Section, Table, axis_label, metric_name, points_factor, slug
from attentune.report.load import HANS_FILE, LAYERS_FILE, ReportData, TaskTexts
from attentune.report.tables import (
    averages_table,
    baselines_table,
    columns_of,
    cost_table,
    differences_table,
    failed_table,
    has_collapsed,
    others_table,
    ranking_tables,
    ranks_table,
    results,
    runs_of,
    scores_table,
    settings_of,
    settings_tables,
    spreads_table,
    total_seconds,
    verdicts_table,
    versions_sentence,
)
from attentune.runs.records import RunRecord, unpaired
from attentune.stats.compare import summarise

# Axes of scores span at least 4 points, so that small differences do not look large.
_LEAST_POINTS = 4.0
_MOST_PANELS = 4
_MOST_WARNINGS = 5
# With more methods, the lines of single seeds would hide the means.
_MOST_WITH_SEEDS = 6
# The seconds and the loss by step.
Curve = dict[int, tuple[float, float]]


def make_report(data: ReportData, baseline: str | None = None) -> Report:
    """Make all tables and figures for which there are data."""
    title = f"Report on {', '.join(data.folders)}"
    extras = _extra_sections(data)
    if not data.runs:
        return Report(title, (), _with_unique_names(extras))
    verdicts = compare_methods(data.runs, baseline)
    texts = {task: dataclasses.replace(one, explanations=data.explanations) for task, one in data.texts.items()}
    columns = columns_of(verdicts)
    several = len(verdicts.models) > 1
    sections = [
        *_result_sections(verdicts),
        _section("Differences", _differences(verdicts) if verdicts.comparisons else []),
        _section("Further scores", [others_table(verdicts), averages_table(verdicts), ranks_table(verdicts)]),
        _section("Cost and score", _cost_figures(verdicts)),
        _section("Training set size", _size_figures(verdicts)),
        _section("Settings and score", _setting_figures(verdicts)),
        *([] if several else [model_section(verdicts, one[0], texts.get(one[0].task, TaskTexts())) for one in columns]),
        *([_doctor_section(texts)] if not several else []),
        rows_section(verdicts, texts),
        classes_section(verdicts),
        _section("Learning curves", [*_loss_figures(verdicts), *_score_figures(verdicts)]),
        *extras,
        _section("Cost", [cost_table(verdicts)]),
        _section("Settings and runs", [*settings_tables(verdicts), failed_table(data.runs)]),
    ]
    records = [one.record for one in data.runs]
    mismatches = [f"Runs that cannot be compared, since their rows differ: {text}." for text in unpaired(iter(records))]
    sentences = (
        f"{counts_sentence(records, list(dict.fromkeys(one.run.task for one in records)))}"
        f" The baseline is {verdicts.baseline}.",
        versions_sentence(data.runs),
    )
    return Report(
        title,
        tuple(filter(None, sentences)),
        _with_unique_names(sections),
        answer_of(verdicts, with_baseline=baseline is not None),
        results(verdicts),
        question_of(verdicts) if columns else "",
        (*mismatches, *_warnings(records)),
    )


def _section(title: str, parts: Sequence[Table | Figure | None]) -> Section | None:
    present = tuple(part for part in parts if part is not None)
    return Section(title, present) if present else None


def _with_unique_names(sections: Sequence[Section | None]) -> tuple[Section, ...]:
    """Drop missing sections, and number tables and figures whose names are alike."""
    used: set[str] = set()
    renamed = []
    for section in sections:
        if section is None:
            continue
        parts: list[Table | Figure] = []
        for part in section.parts:
            name, number = part.name, 2
            while name in used:
                name, number = f"{part.name}-{number}", number + 1
            used.add(name)
            parts.append(dataclasses.replace(part, name=name))
        renamed.append(dataclasses.replace(section, parts=tuple(parts)))
    return tuple(renamed)


def counts_sentence(runs: Sequence[RunRecord], tasks: Sequence[str], noun: str = "task") -> str:
    """Return the numbers of methods, tasks, seeds and runs with their names."""
    methods = list(dict.fromkeys(one.run.method for one in runs))
    seeds = sorted({one.run.seed for one in runs})
    done = [one for one in runs if one.is_done]
    baselines = sum(one.config.get("baseline") is not None for one in done)
    counts = [
        f"{_count(len(methods), 'method')} ({', '.join(methods)})",
        f"{_count(len(tasks), noun)} ({', '.join(tasks)})",
        f"{_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})",
    ]
    ends = [_count(len(done) - baselines, "trained model")] if len(done) > baselines or not baselines else []
    ends += [_count(baselines, "fitted baseline")] if baselines else []
    ends += [_count(len(runs) - len(done), "failed run")] if len(done) < len(runs) else []
    return f"{', '.join(counts)}; {', '.join(ends)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _warnings(records: Sequence[RunRecord]) -> list[str]:
    """Return each warning of the runs' records once, with the runs that it concerns."""
    runs: dict[str, list[str]] = {}
    for one in records:
        for sentence in one.warnings:
            runs.setdefault(sentence, []).append(f"{one.run.task}, {one.run.method}, seed {one.run.seed}")
    lines = [f"{'; '.join(where[:3])}{' and more' * (len(where) > 3)}: {text}" for text, where in runs.items()]
    more = [f"{len(lines) - _MOST_WARNINGS} further warnings are in the runs' records."]
    return lines[:_MOST_WARNINGS] + more * (len(lines) > _MOST_WARNINGS)


# ---------------------------------------------------------------- the first screen


def _result_sections(verdicts: Verdicts) -> list[Section | None]:
    """Show how the models rank, by task or with many tasks in one table of scores; then the scores by seed."""
    columns = columns_of(verdicts)
    if not columns:
        return []
    scores = scores_table(verdicts)
    is_one_run = all(len(cells) == 1 and len(runs_of(cells[0]).scores) == 1 for cells in columns)
    figures = [] if is_one_run else _seeds_figures(verdicts)
    if len(columns) > MOST_LEADS:
        return [
            _section("Result", [scores, baselines_table(verdicts)]),
            _section("Scores by seed", [*figures, spreads_table(verdicts)]),
        ]
    rankings = ranking_tables(verdicts) if len(verdicts.models) > 1 else []
    return [
        _section("Result", [*rankings, *figures, baselines_table(verdicts)]),
        _section("Scores", [scores, spreads_table(verdicts)]),
    ]


def _differences(verdicts: Verdicts) -> list[Table | Figure]:
    """Show the differences to the baseline: all tasks on one scale, and each error metric in a figure of its own."""
    runs = {(cell.runs.task, cell.method): cell.runs for cell in verdicts.cells if cell.runs is not None}
    figures = []
    for name in dict.fromkeys("points" if one.greater_is_better else one.metric for one in verdicts.comparisons):
        rows: list[PointRow] = []
        several = len({one.task for one in verdicts.comparisons}) > 1
        for one in verdicts.comparisons:
            if not one.seeds or name != ("points" if one.greater_is_better else one.metric):
                continue
            if several and one.task not in [row.name for row in rows if not row.values]:
                rows.append(PointRow(one.task))
            factor, sign = points_factor(one.metric), 1 if one.greater_is_better else -1
            ours, base = runs[one.task, one.method], runs[one.task, one.baseline]
            by_seed = [
                factor * sign * (ours.score(seed) - base.score(seed)) for seed in ours.seeds() if seed in base.seeds()
            ]
            mean, low, high = (factor * value for value in (one.difference, one.low, one.high))
            number = verdicts.methods.index(one.method)
            rows.append(PointRow(one.method, by_seed, mean, low, high, number, one.shown))
        unit = "points" if name == "points" else metric_name(name)
        draw = functools.partial(
            rows_figure,
            {"": rows},
            x_label=f"advantage over {short(verdicts.baseline)} ({unit})",
            level=(f"{short(verdicts.baseline)} (no difference)", 0.0),
            hollow="mean, not significant",
            least=_LEAST_POINTS if name == "points" else 0.0,
        )
        caption = (
            "Differences by seed, and their mean with its 95 % confidence interval. Right of the dashed line the"
            " method is better. Filled means mark significant differences (p at most 0.05 after Holm's correction)."
        )
        title = f"Advantage over {verdicts.baseline}"
        if rows:
            figures.append(Figure(slug("advantage", name), title, caption, draw, rows_alt({"": rows}, unit)))
    return [verdicts_table(verdicts), *figures, differences_table(verdicts)]


def _seeds_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the scores by seed: one figure per task, with the training set sizes side by side."""
    figures = []
    for task, sizes in _by_task(verdicts).items():
        # The largest sizes if there are many.
        chosen = list(sizes.values())[-_MOST_PANELS:]
        metric, guess = runs_of(chosen[-1][0]).metric, runs_of(chosen[-1][0]).majority_score
        factor = points_factor(metric)
        means = {cell.method: summarise(runs_of(cell)).mean for cell in chosen[-1]}
        sign = -1 if runs_of(chosen[-1][0]).greater_is_better else 1
        ranked = sorted(verdicts.models, key=lambda method: sign * means.get(method, -sign * math.inf))
        panels = {
            f"{cells[0].size_text} rows" if len(chosen) > 1 else "": [
                _score_row(verdicts, method, cells) for method in ranked
            ]
            for cells in chosen
        }
        known = [value for rows in panels.values() for row in rows for value in (*row.values, row.low, row.high)]
        floor = math.nan if guess is None else factor * guess
        # A floor far below all scores would hide their differences.
        is_near = min(filter(math.isfinite, known)) <= floor <= max(filter(math.isfinite, known))
        draw = functools.partial(
            rows_figure,
            panels,
            x_label=axis_label(metric),
            level=("constant answer", floor) if is_near else None,
            least=_LEAST_POINTS if factor == 100 else 0.0,
        )
        caption = "The score of each seed, and their mean with its 95 % confidence interval."
        alt = rows_alt(panels, axis_label(metric))
        figures.append(Figure(slug("seeds", task), f"{task}: scores by seed", caption, draw, alt))
    return figures


def _by_task(verdicts: Verdicts) -> dict[str, dict[str, list[Cell]]]:
    """Return the models' cells that have scores by task and size."""
    by_task: dict[str, dict[str, list[Cell]]] = {}
    for cells in columns_of(verdicts):
        by_task.setdefault(cells[0].task, {})[cells[0].size] = cells
    return by_task


def _score_row(verdicts: Verdicts, method: str, cells: Sequence[Cell]) -> PointRow:
    number = verdicts.methods.index(method)
    runs = next((cell.runs for cell in cells if cell.method == method), None)
    if runs is None:
        return PointRow(method, (math.nan,), number=number)
    summary, factor = summarise(runs), points_factor(runs.metric)
    scores = [factor * runs.score(seed) for seed in runs.seeds()]
    return PointRow(method, scores, factor * summary.mean, factor * summary.low, factor * summary.high, number)


# ---------------------------------------------------------------- scores against costs, sizes and settings


def _cost_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw training time against score for each task with two models; models with collapsed runs are left out."""
    figures = []
    for cells in columns_of(verdicts):
        metric, points, left_out = runs_of(cells[0]).metric, [], []
        for cell in cells:
            seconds = [
                spent
                for run in cell.recorded
                if run.record.is_done and (spent := total_seconds(run.record.train)) is not None and spent > 0
            ]
            if has_collapsed(verdicts, cell):
                left_out.append(cell.method)
            elif seconds:
                mean = points_factor(metric) * summarise(runs_of(cell)).mean
                number = verdicts.methods.index(cell.method)
                points.append(Point(statistics.median(seconds), mean, cell.method, number))
        if len(points) < 2:
            continue
        caption = (
            "Filled points are on the Pareto front: no model is both cheaper and better. It is made of means, so points"
            " that lie close together can change places by chance."
        )
        caption += f" Left out, since runs have collapsed: {', '.join(left_out)}." if left_out else ""
        draw = functools.partial(
            cost_figure,
            points,
            x_label="training time (s, median)",
            y_label=axis_label(metric),
            greater_is_better=runs_of(cells[0]).greater_is_better,
            least=_LEAST_POINTS if points_factor(metric) == 100 else 0.0,
        )
        alt = "; ".join(f"{one.name} {one.x:,.1f} s, {one.y:.3g}" for one in points)
        title = f"{verdicts.title(cells[0])}: score against training time"
        figures.append(Figure(slug("cost", cells[0].task, cells[0].size), title, caption, draw, alt))
    return figures


def _size_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the score against the training set size: one figure for each task with several sizes."""
    figures = []
    for task, sizes in _by_task(verdicts).items():
        if len(sizes) < 2:
            continue
        lines: dict[str, Line] = {}
        for method in verdicts.models:
            cells = [cell for row in sizes.values() for cell in row if cell.method == method]
            if cells:
                number = verdicts.methods.index(method)
                lines[method] = _mean_line([_train_rows(cell) for cell in cells], cells, number)
        draw = functools.partial(
            lines_figure,
            lines,
            x_label="training rows",
            y_label=axis_label(runs_of(next(iter(sizes.values()))[0]).metric),
            ticks=sorted({_train_rows(cells[0]) for cells in sizes.values()}),
            log_x=True,
        )
        caption = (
            "Means over seeds with 95 % confidence intervals; the points of one size are spread slightly, so that they"
            " do not overlap."
        )
        figures.append(Figure(slug("sizes", task), f"{task}: score against training set size", caption, draw))
    return figures


def _train_rows(cell: Cell) -> float:
    """Return the number of rows on which the cell's runs were trained."""
    counts = [run.record.train.get("rows") for run in cell.recorded if run.record.is_done]
    known = [float(rows) for rows in counts if rows]
    return known[0] if known else float(cell.size) if cell.size != "all" else math.nan


def _mean_line(xs: Sequence[float], cells: Sequence[Cell], number: int) -> Line:
    """Return the line of the means of cells with scores, at these positions."""
    points = []
    for x, cell in sorted(zip(xs, cells, strict=True), key=lambda pair: pair[0]):
        one, factor = summarise(runs_of(cell)), points_factor(runs_of(cell).metric)
        # A mean without an interval gets one of length 0.
        low, high = (one.mean, one.mean) if math.isnan(one.low) else (one.low, one.high)
        points.append((x, factor * one.mean, factor * low, factor * high))
    sorted_xs, means, lows, highs = zip(*points, strict=True)
    return Line(sorted_xs, means, lows, highs, number=number)


def _setting_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the score against a setting, where methods differ in one numeric setting only (SSA, figure 7)."""
    figures = []
    for task, sizes in _by_task(verdicts).items():
        cells = list(sizes.values())[-1]
        for name, groups in _varied_settings(cells).items():
            lines: dict[str, Line] = {}
            for group in groups:
                first = group[0][1]
                title = str(first.recorded[0].record.config.get("preset") or first.method)
                title = title if title not in lines else first.method
                # In the style of the method of this name, if it is in the group.
                named = next((cell.method for _, cell in group if cell.method == title), first.method)
                number = verdicts.methods.index(named)
                lines[title] = _mean_line([x for x, _ in group], [cell for _, cell in group], number)
            varied = {cell.method for group in groups for _, cell in group}
            levels = {}
            for cell in cells:
                if cell.method == verdicts.baseline and cell.method not in varied:
                    row = _score_row(verdicts, cell.method, [cell])
                    levels[cell.method] = Level(row.mean, row.low, row.high, row.number)
            draw = functools.partial(
                lines_figure,
                lines,
                x_label=name,
                y_label=axis_label(runs_of(cells[0]).metric),
                ticks=sorted({x for group in groups for x, _ in group}),
                levels=levels,
            )
            caption = "Means over seeds with 95 % confidence intervals, for methods that differ in this setting only."
            caption += " The shaded band is the baseline's interval." if levels else ""
            figures.append(Figure(slug("setting", task, name), f"{task}: score against {name}", caption, draw))
    return figures


def _varied_settings(cells: Sequence[Cell]) -> dict[str, list[list[tuple[float, Cell]]]]:
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


# ---------------------------------------------------------------- single runs


def _doctor_section(texts: Mapping[str, TaskTexts]) -> Section | None:
    """Show what the doctor says of the data; None if it was not asked."""
    asked = [one.findings for one in texts.values() if one.findings is not None]
    found = tuple(f"{one.message} {one.cure}" for findings in asked for one in findings)
    nothing = ("Nothing: no leaks, no contradictory labels, no empty texts.",)
    return Section("What the doctor says of the data", (), found or nothing, on_page_only=True) if asked else None


def _loss_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the training loss against wall time (SSA, figure 6): one figure per task."""
    figures = []
    for task, cells in largest_cells(verdicts).items():
        lines = {}
        for cell in cells:
            curves = [curve for run in cell.recorded if (curve := loss_curve(run.record)) is not None]
            xs, ys = mean_curve(curves) if curves else ([], [])
            if xs:
                number = verdicts.methods.index(cell.method)
                thin = [([x for x, _ in curve.values()], [y for _, y in curve.values()]) for curve in curves]
                thin = thin if len(cells) <= _MOST_WITH_SEEDS else []
                lines[cell.method] = Line(xs, ys, thin=thin, number=number, marked=False)
        if not lines:
            continue
        positive = all(y > 0 for line in lines.values() for ys in (line.ys, *(ys for _, ys in line.thin)) for y in ys)
        caption = (
            "Thin lines are seeds (of at most 6 methods), smoothed; thick lines are the median time and mean loss at"
            " each step. The time includes training steps and the generation of token labels, on the machine of the"
            " run; a run that took far longer than the medians leaves the figure at the right. The loss is the task's"
            " alone, without that of a token head."
        )
        caption += "" if positive else " The axis is linear, since some losses are not above 0."
        draw = functools.partial(
            lines_figure,
            lines,
            x_label="wall time (s)",
            y_label="training loss",
            log_y=positive,
            right=1.5 * max(line.xs[-1] for line in lines.values()),
        )
        title = f"{verdicts.title(cells[0])}: training loss against time"
        figures.append(Figure(slug("loss", task), title, caption, draw))
    return figures


def loss_curve(record: RunRecord) -> Curve | None:
    """Return the smoothed training loss of the task alone; None if the log has fewer than two entries."""
    entries = [entry for entry in record.curve if entry.get("loss") is not None and entry.get("seconds") is not None]
    if len(entries) < 2:
        return None
    label_seconds = {labels.get("epoch", 0): float(labels.get("seconds") or 0.0) for labels in record.labels_by_epoch}
    seconds = [
        float(entry["seconds"]) + sum(spent for epoch, spent in label_seconds.items() if epoch <= entry.get("epoch", 0))
        for entry in entries
    ]
    losses = np.array([float(entry.get("task_loss", entry["loss"])) for entry in entries])
    width = max(1, len(losses) // 12)
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(0, ends - width)
    smoothed = ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
    steps = (int(entry.get("step", index)) for index, entry in enumerate(entries))
    return dict(zip(steps, zip(seconds, smoothed, strict=True), strict=True))


def mean_curve(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Return the median seconds and the mean loss at each step that all runs have logged.

    Curves are averaged by step and not by time, since a run on a busy machine is at another step at the same time. The
    median of the seconds ignores a run that was suspended.
    """
    steps = sorted(set(curves[0]).intersection(*curves))
    seconds = [float(np.median([curve[step][0] for curve in curves])) for step in steps]
    return seconds, [float(np.mean([curve[step][1] for curve in curves])) for step in steps]


def _score_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the validation score by step, a line for each seed, if there is one model only."""
    figures = []
    for cells in columns_of(verdicts) if len(verdicts.models) == 1 else []:
        metric = runs_of(cells[0]).metric
        lines: dict[str, Line] = {}
        for run in cells[0].recorded:
            points = [
                (one["step"], points_factor(metric) * score)
                for one in run.record.scored
                if one.get("step") is not None and (score := _score(one, run.split, metric)) is not None
            ]
            if len(points) > 1:
                xs, ys = zip(*points, strict=True)
                lines[f"seed {run.record.run.seed}"] = Line(xs, ys, number=len(lines))
        if lines:
            title = f"{verdicts.title(cells[0])}: validation {metric_name(metric)} by step"
            draw = functools.partial(lines_figure, lines, x_label="step", y_label=axis_label(metric))
            figures.append(Figure(slug("validation", cells[0].task), title, "A line for each seed.", draw))
    return figures


def _score(entry: Mapping[str, Any], split: str | None, metric: str) -> float | None:
    """Return a score of an entry of `scored`, whose scores are by split."""
    found = entry.get(split or "")
    value = found.get(metric) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _extra_sections(data: ReportData) -> list[Section | None]:
    try:
        hans = [_hans_figure(*one) for one in data.hans.items()]
        layers = [_layers_figure(*one) for one in data.layers.items()]
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        files = ", ".join([*data.hans, *data.layers])
        raise CheckpointError(
            f"{HANS_FILE} or {LAYERS_FILE} of {files}: expected the format of attentune evaluate --suite hans"
            f" and attentune layers --output_file ({type(error).__name__}: {error}). Repeat it, or remove the file."
        ) from error
    return [_section("HANS", hans), _section("Layer weights", layers)]


def _hans_figure(source: str, content: Mapping[str, Any]) -> Figure | None:
    """Draw the accuracy on HANS by heuristic (SESAME, figure 3)."""
    lines = [line for line in content["lines"] if line["heuristic"] is not None and line["subcase"] is None]
    panels: dict[str, dict[str, list[Bar]]] = {}
    for line in lines:
        panel = panels.setdefault(f"gold label: {short(line['gold_label'])}", {})
        for name, mean, deviation in zip(content["methods"], line["means"], line["deviations"], strict=True):
            panel.setdefault(short(name), []).append(Bar(float("nan") if mean is None else mean, deviation))
    heuristics = [short(name).replace("_", " ") for name in dict.fromkeys(line["heuristic"] for line in lines)]
    caption = f"Accuracy by heuristic on {content['rows']:,} rows. Error bars: standard deviation over runs."
    draw = functools.partial(bars_figure, panels, heuristics, chance=0.5)
    return Figure(slug("hans", source), f"HANS: {source}", caption, draw) if panels else None


def _layers_figure(source: str, content: Mapping[str, Any]) -> Figure:
    """Draw the layer weights of squeeze-and-excitation (SESAME, figure 4)."""
    panels: Mapping[str, Mapping[str, Sequence[Bar]]] = {
        short(split): {"mean over texts, with standard deviation": [Bar(line["mean"], line["std"]) for line in lines]}
        for split, lines in content.items()
    }
    layers = [str(line["layer"]) for line in next(iter(content.values()))]
    caption = "The weight by which squeeze-and-excitation multiplies the output of each encoder layer."
    draw = functools.partial(bars_figure, panels, layers, y_label="layer weight")
    return Figure(slug("layers", source), f"Layer weights: {source}", caption, draw)
