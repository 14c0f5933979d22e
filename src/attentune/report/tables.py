"""The tables of a comparison: scores, verdicts, baselines, costs and settings."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.config import Config, flatten, to_flat
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import (
    NOTHING,
    Table,
    format_interval,
    format_median,
    format_score,
    metric_name,
    slug,
)
from attentune.report.load import RecordedRun
from attentune.stats.compare import rank_methods
from attentune.stats.verdict import Comparison

BETTER, WORSE, COLLAPSED = "↑", "↓", "†"
# The names of the baselines in a run's record, and in words; `training.finalize` writes the records.
MODEL, MAJORITY = "this model", "majority"
# The most frequent class, or the mean of the labels.
CONSTANT = "constant answer"
_WORDS = {
    "tfidf-linear": "TF-IDF + linear",
    "frozen-linear": "frozen encoder + linear",
    "columns-linear": "columns and TF-IDF + linear",
    "cosine": "cosine of frozen embeddings",
    "token-alignment": "token alignment of a frozen encoder",
}
# Settings that say where or how a run was made, or that differ between the runs of a method by design.
_RUN_SETTINGS = {
    "preset", "training.output_dir", "training.overwrite_output_dir", "training.resume", "training.seed",
    "training.logging_steps", "training.save_total_limit", "training.report_to", "data.task",
    "data.data_dir", "data.max_train_samples",
}  # fmt: skip
_ALWAYS_LISTED = (
    "model.name_or_path", "training.learning_rate", "training.num_train_epochs", "data.max_length",
)  # fmt: skip
_GIB = 1 << 30
_MOST_ERROR_CHARACTERS, _MOST_NOTES = 400, 5


# ---------------------------------------------------------------- scores and verdicts


def ranking_tables(verdicts: Verdicts) -> list[Table]:
    """Make a table for each task and size: the models, best first, and how far each is behind the best one."""
    count = sum(len(lead.others) for lead in verdicts.leads)
    tables = []
    for cells, lead in zip(verdicts.columns, verdicts.leads, strict=True):
        metric, best = lead.best.metric, lead.best.method
        by_method = {cell.method: cell for cell in cells}
        behind = {one.method: one for one in lead.others}
        rows = []
        for method in dict.fromkeys((best, *behind, *by_method)):
            cell = by_method[method]
            seconds = _training_seconds(cell)
            rows.append(
                (
                    f"{method} {COLLAPSED}" if verdicts.has_collapsed(cell) else method,
                    format_score(cell.summary.mean, metric),
                    format_interval(cell.summary.low, cell.summary.high, metric),
                    *_behind(behind.get(method)),
                    f"{statistics.median(seconds):,.0f}" if seconds else NOTHING,
                    str(cell.summary.seeds),
                )
            )
        header = (
            "model", metric_name(metric), "95 % CI", f"behind {best}", "95 % CI of that", "shown", "training (s)",
            "seeds",
        )  # fmt: skip
        shown = f"Shown: p at most 0.05 after Holm's correction over all {count} differences to the best."
        notes = [shown] if lead.others else []
        if any(COLLAPSED in row[0] for row in rows):
            notes.append(f"{COLLAPSED} with runs that learnt nothing: they are no better than a constant answer.")
        title = f"Models for {verdicts.title(cells[0])}, best first"
        name = slug("ranking", cells[0].task, cells[0].size)
        tables.append(Table(name, title, header, tuple(rows), notes=tuple(notes)))
    return tables


def _behind(one: Comparison | None) -> tuple[str, str, str]:
    if one is None:
        return NOTHING, NOTHING, NOTHING
    size = format_score(-one.difference, one.metric)
    return size, format_interval(-one.high, -one.low, one.metric), "yes" if one.shown else "no"


def scores_table(verdicts: Verdicts) -> Table:
    """Make the table of mean scores with intervals: methods as rows, tasks as columns, symbols for the verdicts."""
    columns: dict[str, dict[str, Cell]] = {}
    for cell in verdicts.cells:
        columns.setdefault(verdicts.title(cell), {})[cell.method] = cell
    header = ["method"]
    for title, by_method in columns.items():
        metric = next((cell.runs.metric for cell in by_method.values() if cell.runs is not None), "no score")
        header.append(f"{title} ({metric_name(metric)})")
    rows = [
        (
            f"{method} (baseline)" if method == verdicts.baseline else method,
            *(_score_entry(verdicts, by_method.get(method)) for by_method in columns.values()),
        )
        for method in verdicts.methods
    ]
    scored = [cell for cell in verdicts.cells if cell.runs is not None and cell.runs.seeds()]
    sources = sorted({"seeds and examples" if cell.summary.examples else "seeds" for cell in scored})
    over = f" over {' or '.join(sources)}" if sources else ""
    notes = [
        f"Mean over seeds, with its 95 % confidence interval{over} in brackets, in points (hundredths); errors are in"
        " the unit of the labels."
    ]
    if verdicts.comparisons:
        notes.append(
            f"{BETTER} significantly better and {WORSE} significantly worse than {verdicts.baseline} (p at most 0.05"
            " after Holm's correction)."
        )
    if any(verdicts.has_collapsed(cell) for cell in verdicts.cells):
        notes.append(
            f"{COLLAPSED} with runs that learnt nothing: no better than a constant answer, or without a defined score."
        )
    if any(cell.failed for cell in verdicts.cells):
        notes.append("Failed runs are excluded; the table of failed runs lists them.")
    return Table("scores", "Scores", tuple(header), tuple(rows), notes=tuple(notes))


def _score_entry(verdicts: Verdicts, cell: Cell | None) -> str:
    if cell is None or cell.runs is None or not cell.runs.seeds():
        return NOTHING
    metric, comparison = cell.runs.metric, verdicts.comparison(cell)
    parts = [format_score(cell.summary.mean, metric)]
    if math.isfinite(cell.summary.low):
        parts.append(f"({format_interval(cell.summary.low, cell.summary.high, metric)})")
    if comparison is not None and comparison.shown:
        parts.append(_arrow(comparison))
    return " ".join([*parts, COLLAPSED] if verdicts.has_collapsed(cell) else parts)


def _arrow(one: Comparison) -> str:
    return (BETTER if one.difference > 0 else WORSE) if one.shown else NOTHING


def verdicts_table(verdicts: Verdicts) -> Table:
    """Make the table of verdicts: a sentence for each comparison, significant differences first."""
    ordered = sorted(verdicts.comparisons, key=lambda comparison: not comparison.shown)
    rows = tuple((_arrow(one), f"{one.sentence}.") for one in ordered)
    concerned = ((f"{one.task}, {one.method}", note) for one in verdicts.comparisons for note in one.notes)
    notes = (*verdicts.notes, *shared_sentences(concerned, _MOST_NOTES, "the output of attentune compare"))
    return Table("verdicts", f"Differences to {verdicts.baseline}", ("", "verdict"), rows, left=2, notes=notes)


def shared_sentences(pairs: Iterable[tuple[str, str]], most: int, elsewhere: str) -> list[str]:
    """Return each sentence once, after the places that it concerns; of many sentences the first ones."""
    places: dict[str, list[str]] = {}
    for place, sentence in pairs:
        places.setdefault(sentence, []).append(place)
    lines = [f"{'; '.join(at[:3])}{' and more' * (len(at) > 3)}: {sentence}" for sentence, at in places.items()]
    return lines[:most] + [f"{len(lines) - most} more are in {elsewhere}."] * (len(lines) > most)


def further_table(verdicts: Verdicts) -> Table | None:
    """Make the table of the mean scores on further metrics and splits; None without any."""
    scores: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for cell in (cell for cell in verdicts.cells if cell.method in verdicts.models):
        for record in cell.done:
            for split, metric in ((split, metric) for split, part in record.scores.items() for metric in part):
                if metric in METRICS and (split, metric) != (record.split, record.metric):
                    of_metric = scores.setdefault((verdicts.title(cell), split, metric), {})
                    of_metric.setdefault(cell.method, []).append(_number(record.scores[split][metric]))
    rows = []
    for (title, split, metric), found in scores.items():
        means = (format_score(statistics.fmean(found.get(name, [math.nan])), metric) for name in verdicts.models)
        rows.append((title, split, metric_name(metric), *means))
    header, note = ("task", "split", "metric", *verdicts.models), "Means over seeds. No verdict is on these scores."
    return Table("further", "Further metrics and splits", header, tuple(rows), left=3, notes=(note,)) if rows else None


def ranks_table(verdicts: Verdicts) -> Table | None:
    """Make the table of mean ranks over tasks, for each task at the largest size that all models have.

    Tasks on which runs have collapsed are left out; None with fewer than two tasks or models.
    """
    whole = {cells[0].task: cells for cells in verdicts.columns if len(cells) == len(verdicts.models)}
    left_out = [task for task, cells in whole.items() if any(map(verdicts.has_collapsed, cells))]
    of_task = {task: cells for task, cells in whole.items() if task not in left_out}
    if len(of_task) < 2 or len(verdicts.models) < 2:
        return None
    means = [{cell.method: cell.summary.mean for cell in cells} for cells in of_task.values()]
    ranking = rank_methods(
        np.array([[of[method] for method in verdicts.models] for of in means]),
        verdicts.models,
        # NumPy's generator with a fixed seed: attentune.seeding imports PyTorch.
        generator=np.random.default_rng(2006),
        greater_is_better=[cells[0].scored.greater_is_better for cells in of_task.values()],
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


# ---------------------------------------------------------------- baselines, costs, settings, failed runs


@dataclass(frozen=True)
class FloorRow:
    """A baseline's score on one task: the mean over seeds."""

    name: str  # the baseline in words
    score: float  # in the unit of the metric
    # low, high: its 95 % interval over rows; NaN with several seeds or without one.
    low: float
    high: float
    is_model: bool = False  # whether it is the run itself


def floor_rows(cell: Cell) -> list[FloorRow]:
    """Return the baselines of a cell's runs on the metric that methods are compared by, the majority class first."""
    if cell.runs is None:
        return []
    if cell.is_constant:
        return [FloorRow(CONSTANT, cell.summary.mean, math.nan, math.nan)]
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run in cell.recorded:
        recorded = run.record.baselines or {}
        if recorded.get("metric") != cell.runs.metric or not isinstance(recorded.get("methods"), list):
            continue
        for entry in recorded["methods"]:
            if isinstance(entry, dict) and math.isfinite(score := _number(entry.get("score"))):
                interval = _number(entry.get("low")), _number(entry.get("high"))
                found.setdefault(str(entry.get("name", "")), []).append((score, *interval))
    if MAJORITY not in found and cell.runs.majority_score is not None:
        found = {MAJORITY: [(cell.runs.majority_score, math.nan, math.nan)], **found}
    words = _WORDS | {MODEL: cell.method, MAJORITY: CONSTANT}
    rows = []
    for name, scores in found.items():
        low, high = scores[0][1:] if len(scores) == 1 else (math.nan, math.nan)
        mean = statistics.fmean(score for score, *_ in scores)
        rows.append(FloorRow(words.get(name, name), mean, low, high, name == MODEL))
    return rows


def model_interval(cell: Cell) -> tuple[float, float]:
    """Return the interval of a model's score over seeds; for one run without a recorded interval, over rows."""
    summary, scored = cell.summary, cell.scored
    predictions = cell.recorded[0].predictions() if len(cell.recorded) == 1 and not scored.learnt_nothing else None
    if math.isfinite(summary.low) or predictions is None:
        return summary.low, summary.high
    # NumPy's generator with a fixed seed: attentune.seeding imports PyTorch.
    draw, columns = np.random.default_rng(2006), (predictions.labels_N, predictions.predictions_N)
    return score_interval(METRICS[scored.metric], *columns, generator=draw)[1:]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def baselines_table(verdicts: Verdicts) -> Table | None:
    """Make the table of the baselines on the rows of each task, with the model where there is only one."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    alone = len(verdicts.models) == 1
    for cell in sorted(verdicts.cells, key=lambda cell: cell.method in verdicts.models):
        floor = [row for row in floor_rows(cell) if not row.is_model or alone]
        if floor and alone and not any(row.is_model for row in floor) and not cell.is_constant:
            floor.append(FloorRow(cell.method, cell.summary.mean, *model_interval(cell), True))
        for row in floor:
            metric = cell.scored.metric
            score = format_score(row.score, metric), format_interval(row.low, row.high, metric)
            rows.setdefault((verdicts.title(cell), row.name), (metric_name(metric), *score))
    table = tuple((*place, *scores) for place, scores in sorted(rows.items(), key=lambda item: item[0][0]))
    header = ("task", "model" if alone else "baseline", "metric", "score", "95 % CI")
    return Table("baselines", "Baselines on the same rows", header, table, left=3) if table else None


def cost_table(verdicts: Verdicts) -> Table | None:
    """Make the table of time, speed, memory and parameters by task and method; None without finished runs."""
    columns: dict[str, Callable[[Cell], str]] = {
        "training (s)": lambda cell: format_median(_training_seconds(cell)),
        "token labels (s)": lambda cell: format_median(_costs(cell, "label_seconds")),
        "tokens/s": lambda cell: format_median(_costs(cell, "tokens_per_second"), 0),
        "peak memory (GiB)": lambda cell: format_median([peak / _GIB for peak in _costs(cell, "peak_memory_bytes")], 2),
        "parameters": lambda cell: _counts(_costs(cell, "parameters")),
        "parameters outside the encoder": lambda cell: _counts(_costs(cell, "added_parameters")),
        "device": lambda cell: _devices([record.train for record in cell.done]),
    }
    cells = [cell for cell in verdicts.cells if any(record.train for record in cell.done)]
    shown = {name: tuple(map(text_of, cells)) for name, text_of in columns.items()}
    # Columns that no record fills are left out.
    shown = {name: texts for name, texts in shown.items() if set(texts) - {NOTHING}}
    if not cells:
        return None
    note = (
        "Median over runs with the minimum and maximum in brackets. Training: wall time of training steps and of"
        " generating token labels, without loading, evaluation and saving. Tokens are counted without padding. On a CPU"
        " the peak memory is that of the whole process. Parallel runs on one machine slow each other down."
    )
    names = [(verdicts.title(cell), cell.method) for cell in cells]
    rows = tuple((*name, *texts) for name, *texts in zip(names, *shown.values(), strict=True))
    return Table("cost", "Time, memory and parameters", ("task", "method", *shown), rows, left=2, notes=(note,))


def _devices(costs: Sequence[Mapping[str, Any]]) -> str:
    devices = dict.fromkeys(f"{cost['device']} {cost.get('precision', '')}" for cost in costs if "device" in cost)
    return ", ".join(devices) or NOTHING


def _counts(numbers: Sequence[float]) -> str:
    return " or ".join(dict.fromkeys(f"{number:,.0f}" for number in numbers)) or NOTHING


def _costs(cell: Cell, name: str) -> list[float]:
    return [float(value) for record in cell.done if (value := record.train.get(name)) is not None]


def _training_seconds(cell: Cell) -> list[float]:
    """Return the training time of each finished run, with that of its token labels."""
    costs = [record.train for record in cell.done if record.train.get("seconds") is not None]
    return [float(cost["seconds"]) + float(cost.get("label_seconds") or 0.0) for cost in costs]


def settings_tables(verdicts: Verdicts) -> list[Table]:
    """Make the tables of the settings in which methods differ, and of shared ones other than the default."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in verdicts.cells:
        settings = flatten(cell.recorded[0].record.config)
        own = {name: value for name, value in settings.items() if name not in _RUN_SETTINGS}
        by_method.setdefault(cell.method, []).append(own)
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
    entries = dict.fromkeys(_setting_text(settings.get(name)) for settings in cells)
    return next(iter(entries)) if len(entries) == 1 else f"by task: {', '.join(entries)}"


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def failed_table(recorded: Sequence[RecordedRun]) -> Table | None:
    rows = []
    for one in recorded:
        if not one.record.is_done:
            run, error = one.record.run, one.record.error or {}
            message = f"{error.get('kind', 'error')}: {' '.join(str(error.get('message', '')).split())}"
            rows.append((run.task, run.size, run.method, str(run.seed), message[:_MOST_ERROR_CHARACTERS]))
    header = ("task", "rows", "method", "seed", "error")
    return Table("failed", "Failed runs", header, tuple(rows), left=5) if rows else None
