"""The tables of scores and verdicts, and the same results as records for CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import NOTHING, Table, format_interval, format_p, format_score, metric_name
from attentune.stats.runs import summarise

BETTER, WORSE, COLLAPSED = "↑", "↓", "†"


def has_scores(cells: Sequence[Cell]) -> bool:
    """Return whether any run has a score."""
    return any(cell.runs is not None and cell.runs.seeds() for cell in cells)


def scores_table(verdicts: Verdicts) -> Table:
    """Make the table of mean scores with intervals: methods as rows, tasks as columns, symbols for the verdicts."""
    cells = verdicts.cells
    columns = dict.fromkeys((cell.task, cell.size) for cell in cells)
    header = ["method"]
    for column in columns:
        column_cells = [cell for cell in cells if (cell.task, cell.size) == column]
        metric = next((cell.runs.metric for cell in column_cells if cell.runs is not None), "no score")
        header.append(f"{verdicts.title(column_cells[0])} ({metric_name(metric)})")
    rows = []
    for method in verdicts.methods:
        by_column = {(cell.task, cell.size): cell for cell in cells if cell.method == method}
        entries = (_score_entry(verdicts, by_column.get(column)) for column in columns)
        rows.append((method if method != verdicts.baseline else f"{method} (baseline)", *entries))
    return Table("scores", "Scores", tuple(header), tuple(rows), notes=_score_notes(verdicts))


def _score_entry(verdicts: Verdicts, cell: Cell | None) -> str:
    if cell is None or cell.runs is None or not cell.runs.seeds():
        return NOTHING
    summary, metric = summarise(cell.runs), cell.runs.metric
    text = format_score(summary.mean, metric)
    if math.isfinite(summary.low):
        text += f" ({format_interval(summary.low, summary.high, metric)})"
    return " ".join([text, *_symbols(verdicts, cell)])


def _symbols(verdicts: Verdicts, cell: Cell) -> list[str]:
    """Return the symbols for: significantly better, significantly worse, with collapsed runs."""
    symbols = []
    comparison = verdicts.comparison(cell)
    if comparison is not None and comparison.shown:
        symbols.append(BETTER if comparison.difference > 0 else WORSE)
    if has_collapsed(verdicts, cell):
        symbols.append(COLLAPSED)
    return symbols


def has_collapsed(verdicts: Verdicts, cell: Cell) -> bool:
    """Return whether runs of a model score no better than a constant answer."""
    return cell.method in verdicts.models and cell.runs is not None and bool(cell.runs.collapsed())


def _score_notes(verdicts: Verdicts) -> tuple[str, ...]:
    sources = {
        "seeds and examples" if summarise(cell.runs).examples else "seeds"
        for cell in verdicts.cells
        if cell.runs is not None and cell.runs.seeds()
    }
    over = f" over {' or '.join(sorted(sources))}" if sources else ""
    notes = [
        f"Mean over seeds, with its 95 % confidence interval{over} in brackets, in points (hundredths); errors are in"
        " the unit of the labels."
    ]
    if verdicts.comparisons:
        notes.append(
            f"{BETTER} significantly better and {WORSE} significantly worse than {verdicts.baseline} (p at most 0.05"
            " after Holm's correction)."
        )
    if any(has_collapsed(verdicts, cell) for cell in verdicts.cells):
        notes.append(
            f"{COLLAPSED} with collapsed runs, which score no better than the majority class or have no defined score."
        )
    if any(not run.record.is_done for cell in verdicts.cells for run in cell.recorded):
        notes.append("Failed runs are excluded; the table of failed runs lists them.")
    return tuple(notes)


def sentences_table(verdicts: Verdicts) -> Table:
    """Make the table of verdicts: a sentence for each comparison, significant differences first."""
    rows = tuple(
        ((BETTER if comparison.difference > 0 else WORSE) if comparison.shown else NOTHING, f"{comparison.sentence}.")
        for comparison in sorted(verdicts.comparisons, key=lambda comparison: not comparison.shown)
    )
    notes = (*verdicts.notes, *_shared_notes(verdicts))
    return Table("verdicts", "Verdicts", ("", "verdict"), rows, left=2, notes=notes)


def _shared_notes(verdicts: Verdicts) -> list[str]:
    """Return each note of the comparisons once, with the tasks and methods that it concerns unless it concerns all."""
    comparisons = verdicts.comparisons
    notes = dict.fromkeys(note for comparison in comparisons for note in comparison.notes)
    lines = []
    for note in notes:
        if len(comparisons) > 1 and all(note in comparison.notes for comparison in comparisons):
            lines.append(note)
            continue
        places = {}
        for task in dict.fromkeys(comparison.task for comparison in comparisons):
            of_task = [comparison for comparison in comparisons if comparison.task == task]
            methods = [comparison.method for comparison in of_task if note in comparison.notes]
            if methods:
                concerns_all = len(methods) == len(of_task)
                methods_mentioned = concerns_all or all(method in note for method in methods)
                places[task] = task if methods_mentioned else f"{task}, {' and '.join(methods)}"
        lines.append(f"{'; '.join(places.values())}: {note}")
    return lines


def differences_table(verdicts: Verdicts) -> Table:
    """Make the table of the numbers behind the verdicts."""
    header = (
        "task", "method", "difference", "95 % CI", "p", "p after Holm", "p, sign-flip test over seeds",
        "minimum detectable", "seeds", "examples",
    )  # fmt: skip
    rows = tuple(
        (
            one.task,
            one.method,
            format_score(one.difference, one.metric, sign=True),
            format_interval(one.low, one.high, one.metric),
            format_p(one.p),
            format_p(one.p_holm),
            format_p(one.p_sign_flip),
            "> 100"
            if one.greater_is_better and one.minimum_detectable_effect > 1
            else format_score(one.minimum_detectable_effect, one.metric),
            str(one.seeds),
            NOTHING if one.examples is None else f"{one.examples:,}",
        )
        for one in verdicts.comparisons
    )
    note = (
        f"Difference to {verdicts.baseline}, positive where the method is better, in points (hundredths), for errors"
        " in the unit of the labels. The confidence interval and p concern one comparison; Holm's method corrects p for"
        " all"
        f" {len(rows)} comparisons. Minimum detectable: the smallest true difference that this number of seeds and"
        " examples detects with a power of 80 %."
    )
    return Table("differences", f"Differences to {verdicts.baseline}", header, rows, left=2, notes=(note,))


def others_table(verdicts: Verdicts) -> Table | None:
    """Make the table of comparisons on further metrics and validation splits; None without any."""
    if not verdicts.others:
        return None
    header = ("task", "method", "baseline", "method's mean", "difference", "95 % CI", "p", "p after Holm", "verdict")
    results = [other.result for other in verdicts.others]
    rows = tuple(
        (
            one.task,
            one.method,
            format_score(one.baseline_mean, one.metric),
            format_score(one.method_mean, one.metric),
            format_score(one.difference, one.metric, sign=True),
            format_interval(one.low, one.high, one.metric),
            format_p(one.p),
            format_p(one.p_holm),
            (BETTER if one.difference > 0 else WORSE) if one.shown else NOTHING,
        )
        for one in results
    )
    note = (
        "The task's first metric on its first validation split decides; these are the others. Holm's method corrects"
        f" these {len(rows)} comparisons among themselves."
    )
    return Table("other-metrics", "Further metrics and validation splits", header, rows, left=2, notes=(note,))


def averages_table(verdicts: Verdicts) -> Table | None:
    """Make the table of means over GLUE tasks; None with fewer than two such tasks."""
    if not verdicts.averages:
        return None
    rows = tuple(
        (f"{one.name} ({', '.join(one.tasks)})", one.method, one.size, one.text, str(len(one.scores)))
        for one in verdicts.averages
    )
    note = (
        "Each task counts once, with the mean of its metrics and of its validation splits. With all eight tasks WNLI is"
        " counted too, as the majority class (65.1); AX is left out."
    )
    header = ("average", "method", "rows", "mean", "seeds")
    return Table("glue-average", "Mean over GLUE tasks", header, rows, left=2, notes=(note,))


def spreads_table(verdicts: Verdicts) -> Table:
    """Make the table of each method's mean, standard deviation and single scores."""
    header = (
        "task", "method", "metric", "mean", "standard deviation", "95 % CI", "seeds", "failed", "collapsed",
        "scores by seed",
    )  # fmt: skip
    rows = []
    for cell in verdicts.cells:
        title = verdicts.title(cell)
        failed = str(_failed_runs(cell) or NOTHING)
        if cell.runs is None:
            rows.append((title, cell.method, *[NOTHING] * 5, failed, *[NOTHING] * 2))
            continue
        summary, metric = summarise(cell.runs), cell.runs.metric
        by_seed = [f"{seed}: {format_score(cell.runs.scores[seed], metric)}" for seed in sorted(cell.runs.scores)]
        rows.append(
            (
                title,
                cell.method,
                metric_name(metric),
                format_score(summary.mean, metric),
                format_score(summary.sd, metric),
                format_interval(summary.low, summary.high, metric),
                str(summary.seeds),
                failed,
                str(len(summary.collapsed) or NOTHING),
                ", ".join(by_seed),
            )
        )
    return Table("spreads", "Spread over seeds", header, tuple(rows), left=3)


def _failed_runs(cell: Cell) -> int:
    return sum(not run.record.is_done for run in cell.recorded)


def results(verdicts: Verdicts) -> tuple[dict[str, object], ...]:
    """Return a record with all digits for each task, size and method; None where a value does not exist."""
    return tuple(_result(verdicts, cell) for cell in verdicts.cells)


def _result(verdicts: Verdicts, cell: Cell) -> dict[str, object]:
    summary = None if cell.runs is None else summarise(cell.runs)
    comparison = verdicts.comparison(cell)

    def of_summary(name: str) -> object:
        return None if summary is None else getattr(summary, name)

    def of_comparison(name: str) -> object:
        return None if comparison is None else getattr(comparison, name)

    return {
        "task": cell.task,
        "train_size": cell.size,
        "method": cell.method,
        **{name: of_summary(name) for name in ("metric", "mean", "sd", "low", "high", "seeds", "examples")},
        "failed": _failed_runs(cell),
        "collapsed": None if summary is None else len(summary.collapsed),
        "baseline": verdicts.baseline,
        "difference": of_comparison("difference"),
        "difference_low": of_comparison("low"),
        "difference_high": of_comparison("high"),
        **{name: of_comparison(name) for name in ("p", "p_holm", "p_sign_flip", "minimum_detectable_effect", "shown")},
        "verdict": of_comparison("sentence"),
    }
