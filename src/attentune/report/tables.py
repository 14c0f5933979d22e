"""The tables of a report, and the same results as records for CSV."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attentune.config import Config, flatten, to_flat
from attentune.report.analysis import Cell, Verdicts
from attentune.report.answer import FloorRow, floor_rows
from attentune.report.document import (
    NOTHING,
    Table,
    format_interval,
    format_median,
    format_p,
    format_score,
    metric_name,
    slug,
)
from attentune.report.load import RecordedRun
from attentune.stats.compare import Runs, summarise
from attentune.stats.ranks import rank_methods
from attentune.stats.verdict import Comparison

BETTER, WORSE, COLLAPSED = "↑", "↓", "†"
# Settings that say where or how a run was made, or that differ between the runs of a method by design.
_RUN_SETTINGS = {
    "preset", "training.output_dir", "training.overwrite_output_dir", "training.resume", "training.seed",
    "training.logging_steps", "training.save_total_limit", "training.report_to", "data.task", "data.tasks",
    "data.task_settings", "data.data_dir", "data.max_train_samples",
}  # fmt: skip
_ALWAYS_LISTED = (
    "model.name_or_path", "training.learning_rate", "training.num_train_epochs", "data.max_length",
)  # fmt: skip
_GIB = 1 << 30
_MOST_ERROR_CHARACTERS = 400


def columns_of(verdicts: Verdicts) -> list[list[Cell]]:
    """Return the models' cells with scores by task and training set size."""
    columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in verdicts.cells:
        if cell.method in verdicts.models and cell.runs is not None and cell.runs.seeds():
            columns.setdefault((cell.task, cell.size), []).append(cell)
    return list(columns.values())


def runs_of(cell: Cell) -> Runs:
    """Return the scores of a cell that has some."""
    assert cell.runs is not None
    return cell.runs


def has_collapsed(verdicts: Verdicts, cell: Cell) -> bool:
    """Return whether runs of a model score no better than a constant answer."""
    return cell.method in verdicts.models and cell.runs is not None and bool(cell.runs.collapsed())


# ---------------------------------------------------------------- scores and verdicts


def ranking_tables(verdicts: Verdicts) -> list[Table]:
    """Make a table for each task and size: the models, best first, and how far each is behind the best one."""
    tables = []
    for cells, lead in zip(columns_of(verdicts), verdicts.leads, strict=True):
        metric = lead.best.metric
        by_method = {cell.method: cell for cell in cells}
        behind = {one.method: one for one in lead.others}
        rows = []
        for method in (lead.best.method, *behind):
            cell = by_method[method]
            mark = f" {COLLAPSED}" if has_collapsed(verdicts, cell) else ""
            summary = summarise(runs_of(cell))
            seconds = _values([run.record.train for run in cell.recorded if run.record.is_done], total_seconds)
            rows.append(
                (
                    f"{method}{mark}",
                    format_score(summary.mean, metric),
                    format_interval(summary.low, summary.high, metric),
                    *_behind(behind.get(method)),
                    f"{statistics.median(seconds):,.0f}" if seconds else NOTHING,
                    str(summary.seeds),
                )
            )
        title = f"Models for {verdicts.title(cells[0])}, best first"
        header = (
            "model", metric_name(metric), "95 % CI", f"behind {lead.best.method}", "95 % CI of that", "shown",
            "training (s)", "seeds",
        )  # fmt: skip
        count = sum(len(one.others) for one in verdicts.leads)
        notes = [f"Shown: p at most 0.05 after Holm's correction over all {count} differences to the best."]
        if any(COLLAPSED in row[0] for row in rows):
            notes.append(f"{COLLAPSED} with runs that are no better than a constant answer.")
        tables.append(
            Table(slug("ranking", cells[0].task, cells[0].size), title, header, tuple(rows), notes=tuple(notes))
        )
    return tables


def _behind(one: Comparison | None) -> tuple[str, str, str]:
    """Return how far a model is behind the best one, with its interval, and whether that is shown."""
    if one is None:
        return NOTHING, NOTHING, NOTHING
    size = format_score(-one.difference, one.metric)
    return size, format_interval(-one.high, -one.low, one.metric), "yes" if one.shown else "no"


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
    parts = [format_score(summary.mean, metric)]
    if math.isfinite(summary.low):
        parts.append(f"({format_interval(summary.low, summary.high, metric)})")
    comparison = verdicts.comparison(cell)
    if comparison is not None and comparison.shown:
        parts.append(BETTER if comparison.difference > 0 else WORSE)
    if has_collapsed(verdicts, cell):
        parts.append(COLLAPSED)
    return " ".join(parts)


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


def verdicts_table(verdicts: Verdicts) -> Table:
    """Make the table of verdicts: a sentence for each comparison, significant differences first."""
    ordered = sorted(verdicts.comparisons, key=lambda comparison: not comparison.shown)
    rows = tuple((_arrow(one), f"{one.sentence}.") for one in ordered)
    notes = (*verdicts.notes, *_shared_notes(verdicts))
    return Table("verdicts", "Verdicts", ("", "verdict"), rows, left=2, notes=notes)


def _arrow(one: Comparison) -> str:
    return (BETTER if one.difference > 0 else WORSE) if one.shown else NOTHING


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


_DIFFERENCE_HEADER = ("task", "method", "baseline", "method's mean", "difference", "95 % CI", "p", "p after Holm")


def _difference_row(one: Comparison) -> tuple[str, ...]:
    return (
        one.task,
        one.method,
        format_score(one.baseline_mean, one.metric),
        format_score(one.method_mean, one.metric),
        format_score(one.difference, one.metric, sign=True),
        format_interval(one.low, one.high, one.metric),
        format_p(one.p),
        format_p(one.p_holm),
    )


def differences_table(verdicts: Verdicts) -> Table:
    """Make the table of the numbers behind the verdicts."""
    header = (*_DIFFERENCE_HEADER, "p, sign-flip test over seeds", "minimum detectable", "seeds", "examples")
    rows = tuple(
        (
            *_difference_row(one),
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
        " in the unit of the labels. The confidence interval and p concern one comparison; Holm's method corrects p"
        f" for all {len(rows)} comparisons. Minimum detectable: the smallest true difference that this number of seeds"
        " and examples detects with a power of 80 %."
    )
    return Table("differences", f"Differences to {verdicts.baseline}", header, rows, left=2, notes=(note,))


def others_table(verdicts: Verdicts) -> Table | None:
    """Make the table of comparisons on further metrics and validation splits; None without any."""
    if not verdicts.others:
        return None
    rows = tuple((*_difference_row(one.result), _arrow(one.result)) for one in verdicts.others)
    note = (
        "The task's first metric on its first validation split decides; these are the others. Holm's method corrects"
        f" these {len(rows)} comparisons among themselves."
    )
    header = (*_DIFFERENCE_HEADER, "verdict")
    return Table("other-metrics", "Further metrics and validation splits", header, rows, left=2, notes=(note,))


def averages_table(verdicts: Verdicts) -> Table | None:
    """Make the table of means over GLUE tasks; None with fewer than two such tasks."""
    if not verdicts.averages:
        return None
    collapsed = {(cell.method, cell.size, cell.task) for cell in verdicts.cells if has_collapsed(verdicts, cell)}
    rows = []
    for one in verdicts.averages:
        is_mean = not any((one.method, one.size, task) in collapsed for task in one.tasks)
        text = one.text if is_mean else f"{NOTHING} {COLLAPSED}"
        rows.append((f"{one.name} ({', '.join(one.tasks)})", one.method, one.size, text, str(len(one.scores))))
    note = (
        "Each task counts once, with the mean of its metrics and of its validation splits. With all eight tasks WNLI is"
        f" counted too, as the majority class (65.1); AX is left out. {COLLAPSED} no mean, since runs have collapsed."
    )
    header = ("average", "method", "rows", "mean", "seeds")
    return Table("glue-average", "Mean over GLUE tasks", header, tuple(rows), left=2, notes=(note,))


def ranks_table(verdicts: Verdicts) -> Table | None:
    """Make the table of mean ranks over tasks, for each task at the largest size that all models have.

    Tasks on which runs have collapsed are left out; None with fewer than two tasks or models.
    """
    of_task: dict[str, list[Cell]] = {}
    left_out = []
    for cells in columns_of(verdicts):
        if {cell.method for cell in cells} >= set(verdicts.models):
            of_task[cells[0].task] = cells
    for task, cells in list(of_task.items()):
        if any(has_collapsed(verdicts, cell) for cell in cells):
            left_out.append(task)
            del of_task[task]
    if len(of_task) < 2 or len(verdicts.models) < 2:
        return None
    means = [{cell.method: summarise(runs_of(cell)).mean for cell in cells} for cells in of_task.values()]
    ranking = rank_methods(
        np.array([[of[method] for method in verdicts.models] for of in means]),
        verdicts.models,
        # NumPy's generator with a fixed seed: attentune.seeding imports PyTorch.
        generator=np.random.default_rng(2006),
        greater_is_better=[runs_of(cells[0]).greater_is_better for cells in of_task.values()],
    )
    best = ranking.mean_ranks[0]
    rows = tuple(
        (method, f"{rank:.2f}", "yes" if ranking.p <= 0.05 and rank - best >= ranking.critical_difference else "no")
        for method, rank in zip(ranking.methods, ranking.mean_ranks, strict=True)
    )
    notes = (
        f"Rank 1 is the best. Friedman's test over {len(of_task)} tasks ({', '.join(of_task)}): p = {ranking.p:.2g};"
        f" mean ranks differ if they are {ranking.critical_difference:.2f} or more apart (Nemenyi, 5 % level). Ranks"
        " ignore the size of a difference, and few tasks give little evidence; read them with the verdicts.",
        *([f"Left out, since runs have collapsed: {', '.join(left_out)}."] if left_out else []),
    )
    header = ("method", "mean rank", "differs from the best")
    return Table("ranks", "Mean ranks over tasks", header, rows, notes=notes)


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
    records: list[dict[str, object]] = []
    for cell in verdicts.cells:
        summary = None if cell.runs is None else summarise(cell.runs)
        comparison = verdicts.comparison(cell)
        of_summary = ("metric", "mean", "sd", "low", "high", "seeds", "examples")
        of_comparison = {
            "difference": "difference", "difference_low": "low", "difference_high": "high", "p": "p",
            "p_holm": "p_holm", "p_sign_flip": "p_sign_flip",
            "minimum_detectable_effect": "minimum_detectable_effect", "shown": "shown", "verdict": "sentence",
        }  # fmt: skip
        records.append(
            {
                "task": cell.task,
                "train_size": cell.size,
                "method": cell.method,
                **{name: getattr(summary, name, None) for name in of_summary},
                "failed": _failed_runs(cell),
                "collapsed": None if summary is None else len(summary.collapsed),
                "baseline": verdicts.baseline,
                **{name: getattr(comparison, attribute, None) for name, attribute in of_comparison.items()},
            }
        )
    return tuple(records)


# ---------------------------------------------------------------- baselines, costs, settings, failed runs


def baselines_table(verdicts: Verdicts) -> Table | None:
    """Make the table of the baselines on the rows of each task, with the model where there is only one."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    alone = verdicts.models[0] if len(verdicts.models) == 1 else ""
    for cell in sorted(verdicts.cells, key=lambda cell: cell.method in verdicts.models):
        floor = [row for row in floor_rows(cell) if not row.is_model or alone]
        if floor and alone and not any(row.is_model for row in floor) and not cell.is_constant:
            summary = summarise(runs_of(cell))
            floor.append(FloorRow(cell.method, summary.mean, summary.low, summary.high, True))
        for row in floor:
            metric = runs_of(cell).metric
            score = format_score(row.score, metric), format_interval(row.low, row.high, metric)
            rows.setdefault((verdicts.title(cell), row.name), (metric_name(metric), *score))
    table = tuple((*place, *scores) for place, scores in sorted(rows.items(), key=lambda item: item[0][0]))
    header = ("task", "model" if alone else "baseline", "metric", "score", "95 % CI")
    return Table("baselines", "Baselines on the same rows", header, table, left=3) if table else None


def cost_table(verdicts: Verdicts) -> Table | None:
    """Make the table of time, speed, memory and parameters by task and method; None without finished runs."""
    baseline_cells = {(cell.task, cell.size): cell for cell in verdicts.cells if cell.method == verdicts.baseline}
    rows = []
    for cell in verdicts.cells:
        costs = [run.record.train for run in cell.recorded if run.record.is_done and run.record.train]
        if not costs:
            continue
        rows.append(
            (
                verdicts.title(cell),
                cell.method,
                format_median(_values(costs, total_seconds)),
                _relative_time(cell, baseline_cells.get((cell.task, cell.size))),
                format_median(_values(costs, lambda cost: cost.get("label_seconds"))),
                format_median(_values(costs, lambda cost: cost.get("tokens_per_second")), 0),
                format_median([peak / _GIB for peak in _values(costs, lambda cost: cost.get("peak_memory_bytes"))], 2),
                _parameters(costs, "parameters"),
                _parameters(costs, "added_parameters"),
                ", ".join(dict.fromkeys(f"{cost.get('device', '?')} {cost.get('precision', '')}" for cost in costs)),
            )
        )
    if not rows:
        return None
    header = (
        "task", "method", "training (s)", f"relative to {verdicts.baseline}", "token labels (s)", "tokens/s",
        "peak memory (GiB)", "parameters", "parameters outside the encoder", "device",
    )  # fmt: skip
    note = (
        "Median over runs with the minimum and maximum in brackets. Training: wall time of training steps and of"
        " generating token labels, without loading, evaluation and saving. Tokens are counted without padding. On a CPU"
        " the peak memory is that of the whole process. Parallel runs on one machine slow each other down."
    )
    # Columns that no record fills are left out.
    columns = [index for index in range(len(header)) if any(row[index] != NOTHING for row in rows)]
    shown_rows = tuple(tuple(row[index] for index in columns) for row in rows)
    shown_header = tuple(header[index] for index in columns)
    return Table("cost", "Time, memory and parameters", shown_header, shown_rows, left=2, notes=(note,))


def _values(costs: Sequence[Mapping[str, Any]], value_of: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
    return [float(value) for value in map(value_of, costs) if value is not None]


def total_seconds(cost: Mapping[str, Any]) -> float | None:
    """Return the training time of a run with that of its token labels."""
    seconds = cost.get("seconds")
    return None if seconds is None else float(seconds) + float(cost.get("label_seconds") or 0.0)


def _relative_time(cell: Cell, baseline: Cell | None) -> str:
    """Return the training time relative to the baseline's: the median over the seeds of both."""
    if baseline is None or baseline is cell:
        return NOTHING
    seconds, baseline_seconds = (
        {run.record.run.seed: total_seconds(run.record.train) for run in one.recorded if run.record.is_done}
        for one in (cell, baseline)
    )
    ratios = [
        time / baseline_time for seed, time in seconds.items() if time and (baseline_time := baseline_seconds.get(seed))
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else NOTHING


def _parameters(costs: Sequence[Mapping[str, Any]], name: str) -> str:
    counts = dict.fromkeys(cost[name] for cost in costs if cost.get(name) is not None)
    return " or ".join(f"{count:,}" for count in counts) or NOTHING


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell's runs by dotted name, without those that differ between runs of one method."""
    settings = flatten(cell.recorded[0].record.config)
    return {name: value for name, value in settings.items() if name not in _RUN_SETTINGS}


def settings_tables(verdicts: Verdicts) -> list[Table]:
    """Make the tables of the settings in which methods differ, and of those that they share.

    Of the shared ones, those other than the default, and the most important.
    """
    by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in verdicts.cells:
        by_method.setdefault(cell.method, []).append(settings_of(cell))
    defaults = to_flat(Config())
    differing, common = [], []
    for name in dict.fromkeys(name for cells in by_method.values() for settings in cells for name in settings):
        entries = [_setting_entry(cells, name) for cells in by_method.values()]
        if len(set(entries)) > 1:
            differing.append((name, *entries))
        elif not entries[0].startswith("by task: ") and (
            name in _ALWAYS_LISTED or entries[0] != _setting_text(defaults.get(name))
        ):
            common.append((name, entries[0]))
    header = ("setting", *by_method)
    tables = (
        Table("methods", "Settings in which methods differ", header, tuple(differing), left=len(header)),
        Table("common", "Settings of all methods", ("setting", "value"), tuple(common), left=2),
    )
    return [table for table in tables if table.rows]


def _setting_entry(cells: Sequence[Mapping[str, Any]], name: str) -> str:
    values = dict.fromkeys(_setting_text(settings.get(name)) for settings in cells)
    return next(iter(values)) if len(values) == 1 else f"by task: {', '.join(values)}"


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def failed_table(recorded: Sequence[RecordedRun]) -> Table | None:
    """Make the table of failed runs with their errors; None if none failed."""
    rows = []
    for one in recorded:
        if not one.record.is_done:
            run, error = one.record.run, one.record.error or {}
            message = f"{error.get('kind', 'error')}: {' '.join(str(error.get('message', '')).split())}"
            rows.append((run.task, run.size, run.method, str(run.seed), message[:_MOST_ERROR_CHARACTERS]))
    header = ("task", "rows", "method", "seed", "error")
    return Table("failed", "Failed runs", header, tuple(rows), left=5) if rows else None


def versions_sentence(recorded: Sequence[RecordedRun]) -> str:
    """Return the versions of the software with which the runs were made."""
    by_name: dict[str, dict[str, None]] = {}
    for run in recorded:
        for name, version in run.record.versions.items():
            by_name.setdefault(name, {})[version] = None
    parts = [f"{name} {' and '.join(versions)}" for name, versions in by_name.items() if name != "platform"]
    return f"Versions: {', '.join(parts)}." if parts else ""
