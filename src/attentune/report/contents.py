"""The contents of a report: the question and its answer in words, then tables and figures of what readers ask next."""

import dataclasses
import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from attentune.report.analysis import Cell, Lead, Verdicts, compare_methods
from attentune.report.charts import Line, PointRow, lines_figure, rows_alt, rows_figure
from attentune.report.details import classes_section, cues_section, model_section, probabilities_section, rows_section
from attentune.report.document import (
    Figure,
    Report,
    Section,
    Table,
    axis_label,
    format_interval,
    format_score,
    metric_name,
    points_factor,
    slug,
)
from attentune.report.load import ReportData, TaskTexts
from attentune.report.tables import (
    baselines_table,
    cost_table,
    failed_table,
    floor_rows,
    further_table,
    model_interval,
    ranking_tables,
    ranks_table,
    scores_table,
    settings_tables,
    shared_sentences,
    verdicts_table,
)
from attentune.runs.records import TEST, RunRecord, unpaired
from attentune.stats.compare import Runs
from attentune.stats.verdict import Comparison

# With more tasks or sizes, the tasks on which each model is best are counted.
_MOST_LEADS = 2
_MOST_NAMES = 4
# Axes of scores span at least 4 points, so that small differences do not look large.
_LEAST_POINTS = 4.0
_MOST_PANELS = 4
_MOST_WARNINGS = 5
# The seconds and the loss by step.
Curve = dict[int, tuple[float, float]]


def make_report(data: ReportData, baseline: str | None = None) -> Report:
    """Make all tables and figures for which there are data."""
    verdicts = compare_methods(data.runs, baseline)
    sections = [
        *_result_sections(verdicts),
        _section("Differences", [verdicts_table(verdicts)] if verdicts.comparisons else []),
        _section("Further scores", [further_table(verdicts), ranks_table(verdicts)]),
        _section("Training set size", _size_figures(verdicts)),
        *(model_section(verdicts, cell) for cell in verdicts.cells),
        *(probabilities_section(verdicts, one, data.texts.get(one.task, TaskTexts())) for one, *_ in verdicts.columns),
        rows_section(verdicts, data.texts),
        cues_section(verdicts),
        classes_section(verdicts),
        _section("Learning curves", [*_loss_figures(verdicts), *_score_figures(verdicts)]),
        _section("Cost", [cost_table(verdicts)]),
        _section("Settings and runs", [*settings_tables(verdicts), failed_table(data.runs)]),
    ]
    records = [one.record for one in data.runs]
    mismatches = [f"Runs that cannot be compared, since their rows differ: {text}." for text in unpaired(iter(records))]
    warnings = (
        (f"{one.run.task}, {one.run.method}, seed {one.run.seed}", text) for one in records for text in one.warnings
    )
    counts = counts_sentence(records, list(dict.fromkeys(one.run.task for one in records)))
    return Report(
        f"Report on {', '.join(data.folders)}",
        tuple(filter(None, (f"{counts} The baseline is {verdicts.baseline}.", _versions_sentence(records)))),
        _with_unique_names(sections),
        answer_of(verdicts, with_baseline=baseline is not None),
        question_of(verdicts) if verdicts.columns or any(one.auto for one in data.runs) else "",
        (*mismatches, *shared_sentences(warnings, _MOST_WARNINGS, "the runs' records")),
    )


def _section(title: str, parts: Sequence[Table | Figure | None]) -> Section | None:
    present = tuple(part for part in parts if part is not None)
    return Section(title, present) if present else None


def _with_unique_names(sections: Sequence[Section | None]) -> tuple[Section, ...]:
    """Drop missing sections, and number tables and figures whose names are alike."""
    used: set[str] = set()
    renamed = []
    for section in filter(None, sections):
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


def _versions_sentence(records: Sequence[RunRecord]) -> str:
    by_name: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            by_name.setdefault(name, {})[version] = None
    parts = [f"{name} {' and '.join(versions)}" for name, versions in by_name.items() if name != "platform"]
    return f"Versions: {', '.join(parts)}." if parts else ""


# ---------------------------------------------------------------- the question and its answer


def question_of(verdicts: Verdicts) -> str:
    tasks = list(dict.fromkeys(cell.task for cell in verdicts.cells))
    sizes = {cell.size for cell in verdicts.cells if cell.task == tasks[0]}
    where = f"for {len(tasks)} tasks" if len(tasks) > 1 else f"for {tasks[0]}"
    if len(sizes) > 1:
        where += f", with {len(sizes)} training set sizes"
    if len(verdicts.models) == 1:
        return f"How good is {verdicts.models[0]} {where}?"
    return f"Which of {len(verdicts.models)} models is best {where}?"


def answer_of(verdicts: Verdicts, *, with_baseline: bool = True) -> tuple[str, ...]:
    """Return the answer: runs that learnt nothing, the best model, whether its lead is shown, and what is open."""
    leads = verdicts.leads
    if not leads:
        auto = [(run.record.run.method, run.auto) for cell in verdicts.cells for run in cell.recorded if run.auto]
        text = "{} was scored on neither validation nor test rows. {}"
        return tuple(text.format(name, one.sentences[1]) for name, one in auto) or ("No run has a score.",)
    sentences = [_collapsed_sentence(verdicts)]
    if len(leads) == 1 and len(verdicts.models) == 1:
        sentences += _single_answer(verdicts.columns[0][0])
    else:
        sentences += [_lead_sentence(lead) for lead in leads] if len(leads) <= _MOST_LEADS else [_counted(verdicts)]
        sentences.append(_open_sentence([lead.others[0] for lead in leads if lead.others and not lead.is_shown]))
        if with_baseline and verdicts.baseline in verdicts.models:
            sentences.append(_baseline_sentence(verdicts))
    unscored = list(dict.fromkeys(cell.method for cell in verdicts.cells if cell.done and cell.runs is None))
    sentences.append(f"Not ranked, without a score on such rows: {_names(unscored)}." if unscored else "")
    if any(record.split == TEST for cell in verdicts.cells for record in cell.done):
        sentences.append("Scores are on test rows, as no run has validation rows.")
    return tuple(filter(None, sentences))


def _collapsed_sentence(verdicts: Verdicts) -> str:
    """Return which models' runs are no better than a constant answer; empty if none are, or the leads say it."""
    if len(verdicts.leads) <= _MOST_LEADS and all(lead.best.learnt_nothing and lead.others for lead in verdicts.leads):
        return ""
    cells = [cell for cell in verdicts.cells if cell.method in verdicts.models and cell.runs is not None]
    collapsed = [(cell, len(cell.scored.collapsed())) for cell in cells if verdicts.has_collapsed(cell)]
    if not collapsed:
        return ""
    number, total = sum(count for _, count in collapsed), sum(len(cell.scored.scores) for cell in cells)
    several = len({(cell.task, cell.size) for cell in cells}) > 1
    parts = [
        f"{cell.method}{f' on {verdicts.title(cell)}' if several else ''} ({count} of {len(cell.scored.scores)})"
        for cell, count in collapsed
    ]
    who = "" if len(cells) == 1 else f": {_names(parts)}"
    return f"Nothing was learnt in {number} of {total} runs, which are no better than a constant answer{who}."


def _lead_sentence(lead: Lead) -> str:
    best, score = lead.best, _score(lead.best)
    if best.learnt_nothing and best.majority_score is not None:
        floor = format_score(best.majority_score, best.metric)
        return (
            f"No model is shown to learn {best.task}: the best, {best.method}, reaches {score}, a constant answer"
            f" {floor}."
        )
    if not lead.others:
        return f"{best.method} is the only model that learnt {best.task}: {score}."
    second = lead.others[0]
    equal = [one.method for one in lead.others if one.difference == 0 and one.method_mean == second.method_mean]
    if equal and math.isclose(second.method_mean, _mean(best), rel_tol=1e-9):
        return f"{_names([best.method, *equal])} are equally good for {best.task}: {score}."
    if not second.seeds:
        distance = f"not compared with {second.method}, the next best: no seed was run with both"
        return f"{best.method} is best for {best.task}: {score}, {distance}."
    side = "above" if (second.difference <= 0) == second.greater_is_better else "below"
    points = " points" if points_factor(second.metric) == 100 else ""
    distance = f"{format_score(abs(second.difference), second.metric)}{points} {side} {second.method}"
    if math.isfinite(second.low):
        rows = " over rows" if second.over == "examples" else ""
        distance += f" (95 % interval{rows} {format_interval(-second.high, -second.low, second.metric)})"
    not_worse = [one.method for one in lead.others if not (one.shown and one.difference < 0)]
    if second.method in not_worse:
        others = f"; {_names(not_worse)} may be as good" if len(not_worse) > 1 and second.seeds > 1 else ""
        distance += f": not shown{others}"
    else:
        distance += f": shown, but its lead over {_names(not_worse)} is not" if not_worse else ": shown"
    return f"{best.method} is best for {best.task}: {score}, {distance}."


def _counted(verdicts: Verdicts) -> str:
    leads = verdicts.leads
    places = "tasks" if len({cell.task for cell in verdicts.cells}) == len(leads) else "tasks and sizes"
    names = ["no model" if lead.best.learnt_nothing else lead.best.method for lead in leads]
    shown = Counter(name for name, lead in zip(names, leads, strict=True) if lead.is_shown)
    (first, count), *rest = Counter(names).most_common()
    text = f"{first} is best on {count} of {len(leads)} {places} (shown on {shown[first]})"
    return ", ".join([text, *(f"{name} on {number} ({shown[name]})" for name, number in rest)]) + "."


def _names(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _mean(runs: Runs) -> float:
    return statistics.fmean(map(runs.score, runs.seeds()))


def _score(runs: Runs) -> str:
    return f"{metric_name(runs.metric)} {format_score(_mean(runs), runs.metric)}"


def _baseline_sentence(verdicts: Verdicts) -> str:
    total = len(verdicts.comparisons)
    if total < 2 or all(one.seeds < 2 for one in verdicts.comparisons):
        return ""
    shown = sorted((one for one in verdicts.comparisons if one.shown), key=lambda one: -abs(one.difference))
    if not shown:
        return f"None of the {total} differences to {verdicts.baseline} is shown."
    parts = []
    for one in shown[:2]:
        word = "better" if one.difference > 0 else "worse"
        low, high = (one.low, one.high) if one.difference > 0 else (-one.high, -one.low)
        unit = "points" if one.greater_is_better else f"of {metric_name(one.metric)}"
        interval = f" (95 % CI {format_interval(low, high, one.metric)})" if math.isfinite(low) else ""
        size = format_score(abs(one.difference), one.metric)
        parts.append(f"{one.method} is {word} on {one.task} by {size} {unit}{interval}")
    more = f", and {len(shown) - 2} more" if len(shown) > 2 else ""
    verb = "is" if len(shown) == 1 else "are"
    return f"{len(shown)} of {total} differences to {verdicts.baseline} {verb} shown: {' and '.join(parts)}{more}."


def _open_sentence(open_ones: Sequence[Comparison]) -> str:
    """Return what can be said of leads that are not shown: how large a difference would have to be."""
    seeds = sorted({one.seeds for one in open_ones if one.seeds})
    if seeds == [1]:
        return "One seed cannot tell a better method from a lucky run."
    effects = [
        min(1.0, one.minimum_detectable_effect)
        for one in open_ones
        if points_factor(one.metric) == 100 and math.isfinite(one.minimum_detectable_effect)
    ]
    if not effects:
        return ""
    counts = " to ".join(dict.fromkeys((str(seeds[0]), str(seeds[-1]))))
    median = statistics.median(effects)
    if median >= 1.0:
        return f"With {counts} seeds no difference can be shown{'' if min(effects) >= 1.0 else ' in most comparisons'}."
    about, which = ("about ", " (the median of these comparisons)") if len(set(effects)) > 1 else ("", "")
    return (
        f"Not shown does not mean equal: with {counts} seeds, a true difference has to be {about}"
        f"{format_score(median, 'accuracy')} points{which} to be found four times in five."
    )


def _single_answer(cell: Cell) -> list[str]:
    runs, rows = cell.scored, floor_rows(cell)
    own = next((row for row in rows if row.is_model), None)
    low, high = model_interval(cell) if own is None or math.isfinite(cell.summary.low) else (own.low, own.high)
    text = f"{cell.method} is the only model for {runs.task}: {_score(runs)}{_interval(low, high, runs.metric)}."
    floor = [row for row in rows if not row.is_model and math.isfinite(row.score)]
    if not floor or cell.is_constant:
        return [text]
    best = (max if runs.greater_is_better else min)(floor, key=lambda row: row.score)
    score = format_score(best.score, runs.metric)
    if len(floor) == 1:
        return [text, f"A constant answer for all rows would score {score}."]
    return [text, f"The best baseline, {best.name}, reaches {score}{_interval(best.low, best.high, runs.metric)}."]


def _interval(low: float, high: float, metric: str) -> str:
    return f" (95 % interval {format_interval(low, high, metric)})" if math.isfinite(low) else ""


# ---------------------------------------------------------------- the first screen


def _result_sections(verdicts: Verdicts) -> list[Section | None]:
    """Show how the models rank, by task or with many tasks in one table of scores; then the scores by seed."""
    columns = verdicts.columns
    if not columns:
        return []
    is_one_run = all(len(cells) == 1 and len(cells[0].scored.scores) == 1 for cells in columns)
    figures = [] if is_one_run else _seeds_figures(verdicts)
    scores, baselines = scores_table(verdicts), baselines_table(verdicts)
    if len(columns) > _MOST_LEADS:
        return [_section("Result", [scores, baselines]), _section("Scores by seed", figures)]
    rankings = ranking_tables(verdicts) if len(verdicts.models) > 1 else []
    return [
        _section("Result", [*rankings, *figures, baselines]),
        _section("Scores", [scores] if rankings else []),
    ]


def _seeds_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the scores by seed: one figure per task, with the training set sizes side by side."""
    figures = []
    for task, columns in _by_task(verdicts).items():
        # The largest sizes if there are many.
        chosen, runs = columns[-_MOST_PANELS:], columns[-1][0].scored
        means = {cell.method: cell.summary.mean for cell in chosen[-1]}
        sign = -1 if runs.greater_is_better else 1
        ranked = sorted(verdicts.models, key=lambda method: sign * means.get(method, -sign * math.inf))
        panels = {
            f"{cells[0].size_text} rows" if len(chosen) > 1 else "": [
                _score_row(verdicts, method, cells) for method in ranked
            ]
            for cells in chosen
        }
        known = [value for rows in panels.values() for row in rows for value in (*row.values, row.low, row.high)]
        known = list(filter(math.isfinite, known))
        floor = math.nan if runs.majority_score is None else points_factor(runs.metric) * runs.majority_score
        # A floor far below all scores would hide their differences.
        level = ("constant answer", floor) if min(known) <= floor <= max(known) else None
        least = _LEAST_POINTS if points_factor(runs.metric) == 100 else 0.0
        label = axis_label(runs.metric)
        draw = functools.partial(rows_figure, panels, x_label=label, level=level, least=least)
        caption = "The score of each seed, and their mean with its 95 % confidence interval."
        title = f"{task}: scores by seed"
        figures.append(Figure(slug("seeds", task), title, caption, draw, rows_alt(panels, label)))
    return figures


def _by_task(verdicts: Verdicts) -> dict[str, list[list[Cell]]]:
    by_task = itertools.groupby(verdicts.columns, key=lambda cells: cells[0].task)
    return {task: list(columns) for task, columns in by_task}


def _score_row(verdicts: Verdicts, method: str, cells: Sequence[Cell]) -> PointRow:
    number, cell = verdicts.methods.index(method), next((cell for cell in cells if cell.method == method), None)
    if cell is None:
        return PointRow(method, (math.nan,), number=number)
    runs, summary, factor = cell.scored, cell.summary, points_factor(cell.scored.metric)
    scores = [factor * runs.score(seed) for seed in runs.seeds()]
    return PointRow(method, scores, factor * summary.mean, factor * summary.low, factor * summary.high, number)


# ---------------------------------------------------------------- figures


def _size_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the score against the training set size: one figure for each task with several sizes."""
    figures = []
    for task, columns in _by_task(verdicts).items():
        if len(columns) < 2:
            continue
        lines = {}
        for number, method in enumerate(verdicts.methods):
            cells = [cell for column in columns for cell in column if cell.method == method]
            if cells:
                lines[method] = _mean_line([(_train_rows(cell), cell) for cell in cells], number)
        ticks = sorted({_train_rows(cells[0]) for cells in columns})
        label = axis_label(columns[0][0].scored.metric)
        draw = functools.partial(lines_figure, lines, x_label="training rows", y_label=label, ticks=ticks, log_x=True)
        caption = (
            "Means over seeds with 95 % confidence intervals; the points of one size are spread slightly, so that they"
            " do not overlap."
        )
        figures.append(Figure(slug("sizes", task), f"{task}: score against training set size", caption, draw))
    return figures


def _train_rows(cell: Cell) -> float:
    known = [float(rows) for record in cell.done if (rows := record.train.get("rows"))]
    return known[0] if known else float(cell.size) if cell.size != "all" else math.nan


def _mean_line(points: Sequence[tuple[float, Cell]], number: int) -> Line:
    found = []
    for x, cell in sorted(points, key=lambda pair: pair[0]):
        one, factor = cell.summary, points_factor(cell.scored.metric)
        # A mean without an interval gets one of length 0.
        low, high = (one.mean, one.mean) if math.isnan(one.low) else (one.low, one.high)
        found.append((x, factor * one.mean, factor * low, factor * high))
    xs, means, lows, highs = zip(*found, strict=True)
    return Line(xs, means, lows, highs, number=number)


def _loss_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the training loss against wall time (SSA, figure 6): one figure per task."""
    figures = []
    for task, cells in verdicts.largest.items():
        lines = {}
        for cell in cells:
            curves = [curve for run in cell.recorded if (curve := loss_curve(run.record)) is not None]
            xs, ys = mean_curve(curves) if curves else ([], [])
            if xs:
                lines[cell.method] = Line(xs, ys, number=verdicts.methods.index(cell.method), marked=False)
        if not lines:
            continue
        positive = all(y > 0 for line in lines.values() for y in line.ys)
        caption = (
            "The median time and mean loss of the seeds at each step, smoothed. The time includes training steps and"
            " the generation of token labels, on the machine of the run. The loss is the task's alone, without that of"
            " a token head."
        )
        caption += "" if positive else " The axis is linear, since some losses are not above 0."
        draw = functools.partial(lines_figure, lines, x_label="wall time (s)", y_label="training loss", log_y=positive)
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
    """Return the median seconds and the mean loss at each step that all runs have logged."""
    # By step and not by time: a run on a busy machine is at another step at the same time, or was suspended.
    steps = sorted(set(curves[0]).intersection(*curves))
    seconds = [float(np.median([curve[step][0] for curve in curves])) for step in steps]
    return seconds, [float(np.mean([curve[step][1] for curve in curves])) for step in steps]


def _score_figures(verdicts: Verdicts) -> list[Figure]:
    """Draw the validation score by step, a line for each seed, if there is one model only."""
    figures = []
    for cells in verdicts.columns if len(verdicts.models) == 1 else []:
        metric = cells[0].scored.metric
        lines: dict[str, Line] = {}
        for run in cells[0].recorded:
            points = [
                (one["step"], points_factor(metric) * score)
                for one in run.record.scored
                if one.get("step") is not None
                and (score := one.get(run.record.split or "", {}).get(metric)) is not None
            ]
            if len(points) > 1:
                xs, ys = zip(*points, strict=True)
                lines[f"seed {run.record.run.seed}"] = Line(xs, ys, number=len(lines))
        if lines:
            title = f"{verdicts.title(cells[0])}: validation {metric_name(metric)} by step"
            draw = functools.partial(lines_figure, lines, x_label="step", y_label=axis_label(metric))
            figures.append(Figure(slug("validation", cells[0].task), title, "A line for each seed.", draw))
    return figures
