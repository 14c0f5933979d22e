"""The question of a report and its answer in a few sentences: the best model, and whether its lead is shown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.analysis import Cell, Lead, Verdicts
from attentune.report.document import format_interval, format_score, metric_name, points_factor
from attentune.stats.compare import Runs, summarise
from attentune.stats.verdict import Comparison

# The names of the baselines in a run's record, and in words; `training.finalize` writes the records.
MODEL, MAJORITY = "this model", "majority"
# The most frequent class, or the mean of the labels.
CONSTANT = "constant answer"
_WORDS = {
    "tfidf-linear": "TF-IDF + linear",
    "frozen-linear": "frozen encoder + linear",
    "cosine": "cosine of frozen embeddings",
    "token-alignment": "token alignment of a frozen encoder",
}
# With more tasks or sizes, the tasks on which each model is best are counted.
MOST_LEADS = 2
_MOST_NAMES = 4


@dataclass(frozen=True)
class FloorRow:
    """A baseline's score on one task: the mean over seeds."""

    name: str  # the baseline in words
    score: float  # in the unit of the metric
    # low, high: its 95 % interval over rows; NaN with several seeds or without one.
    low: float
    high: float
    is_model: bool  # whether it is the run itself


def floor_rows(cell: Cell) -> list[FloorRow]:
    """Return the baselines of a cell's runs on the metric that methods are compared by, the majority class first."""
    if cell.runs is None:
        return []
    if cell.is_constant:
        return [FloorRow(CONSTANT, summarise(cell.runs).mean, math.nan, math.nan, False)]
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
    for name, values in found.items():
        low, high = values[0][1:] if len(values) == 1 else (math.nan, math.nan)
        mean = statistics.fmean(value for value, *_ in values)
        rows.append(FloorRow(words.get(name, name), mean, low, high, name == MODEL))
    return rows


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def question_of(verdicts: Verdicts) -> str:
    """Return the question that the report answers."""
    tasks = list(dict.fromkeys(cell.task for cell in verdicts.cells))
    sizes = {cell.size for cell in verdicts.cells if cell.task == tasks[0]}
    where = f"for {len(tasks)} tasks" if len(tasks) > 1 else f"for {tasks[0]}"
    if len(sizes) > 1:
        where += f", with {len(sizes)} training set sizes"
    if len(verdicts.models) == 1:
        return f"How good is {verdicts.models[0]} {where}?"
    return f"Which of {len(verdicts.models)} models is best {where}?"


def answer_of(verdicts: Verdicts, *, with_baseline: bool = True) -> tuple[str, ...]:
    """Return the answer: runs that learnt nothing, the best model, whether its lead is shown, and what is open.

    The last sentence is on the differences to the baseline.
    """
    leads = verdicts.leads
    if not leads:
        return ("No run has a score.",)
    if len(leads) == 1 and not leads[0].others:
        return tuple(filter(None, (_collapsed_sentence(verdicts), *_single_answer(verdicts))))
    sentences = [_collapsed_sentence(verdicts)]
    sentences += [_lead_sentence(lead) for lead in leads] if len(leads) <= MOST_LEADS else [_counted(verdicts)]
    sentences.append(_open_sentence([lead.others[0] for lead in leads if lead.others and not lead.is_shown]))
    if with_baseline and verdicts.baseline in verdicts.models:
        sentences.append(_baseline_sentence(verdicts))
    return tuple(filter(None, sentences))


def _collapsed_sentence(verdicts: Verdicts) -> str:
    """Return which models' runs are no better than a constant answer; empty if none are, or the leads say it."""
    if len(verdicts.leads) <= MOST_LEADS and all(_is_at_floor(lead.best) and lead.others for lead in verdicts.leads):
        return ""
    cells = [cell for cell in verdicts.cells if cell.method in verdicts.models and cell.runs is not None]
    collapsed = [(cell, len(cell.runs.collapsed())) for cell in cells if cell.runs and cell.runs.collapsed()]
    if not collapsed:
        return ""
    number, total = sum(count for _, count in collapsed), sum(len(cell.runs.scores) for cell in cells if cell.runs)
    several = len({(cell.task, cell.size) for cell in cells}) > 1
    parts = [
        f"{cell.method}{f' on {verdicts.title(cell)}' if several else ''} ({count} of {len(cell.runs.scores)})"
        for cell, count in collapsed
        if cell.runs is not None
    ]
    who = "" if len(cells) == 1 else f": {_names(parts)}"
    return f"Nothing was learnt in {number} of {total} runs, which are no better than a constant answer{who}."


def _lead_sentence(lead: Lead) -> str:
    best = lead.best
    score = _score(best)
    if _is_at_floor(best):
        return (
            f"No model is shown to learn {best.task}: the best, {best.method}, reaches {score}, a constant answer"
            f" {format_score(best.majority_score, best.metric)}."
        )
    if not lead.others:
        return f"{best.method} is the only model with a score for {best.task}: {score}."
    second = lead.others[0]
    equal = [one.method for one in lead.others if one.difference == 0 and one.method_mean == second.method_mean]
    if equal and math.isclose(second.method_mean, _mean(best), rel_tol=1e-9):
        return f"{_names([best.method, *equal])} are equally good for {best.task}: {score}."
    return f"{best.method} is best for {best.task}: {score}, {_lead_words(lead)}."


def _lead_words(lead: Lead) -> str:
    """Return the difference to the next best model in words, and whether it is shown."""
    second = lead.others[0]
    if not second.seeds:
        return f"not compared with {second.method}, the next best: no seed was run with both"
    side = "above" if (second.difference <= 0) == second.greater_is_better else "below"
    size = format_score(abs(second.difference), second.metric)
    text = f"{size} points {side} {second.method}" if _in_points(second) else f"{size} {side} {second.method}"
    if math.isfinite(second.low):
        rows = " over rows" if second.over == "examples" else ""
        text += f" (95 % interval{rows} {format_interval(-second.high, -second.low, second.metric)})"
    not_worse = [one.method for one in lead.others if not (one.shown and one.difference < 0)]
    if not not_worse:
        return f"{text}: shown"
    if second.method not in not_worse:
        return f"{text}: shown, but its lead over {_names(not_worse)} is not"
    is_told = len(not_worse) > 1 and second.seeds > 1
    return f"{text}: not shown" + (f"; {_names(not_worse)} may be as good" if is_told else "")


def _counted(verdicts: Verdicts) -> str:
    """Return on how many tasks and sizes each model is best, the most frequent one first."""
    leads = verdicts.leads
    places = "tasks" if len({cell.task for cell in verdicts.cells}) == len(leads) else "tasks and sizes"
    names = ["no model" if _is_at_floor(lead.best) else lead.best.method for lead in leads]
    shown = Counter(name for name, lead in zip(names, leads, strict=True) if lead.is_shown)
    (first, count), *rest = Counter(names).most_common()
    text = f"{first} is best on {count} of {len(leads)} {places} (shown on {shown[first]})"
    return ", ".join([text, *(f"{name} on {number} ({shown[name]})" for name, number in rest)]) + "."


def _names(names: Sequence[str]) -> str:
    names = (
        names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} others"]
    )
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _mean(runs: Runs) -> float:
    return statistics.fmean(map(runs.score, runs.seeds()))


def _score(runs: Runs) -> str:
    return f"{metric_name(runs.metric)} {format_score(_mean(runs), runs.metric)}"


def _in_points(one: Comparison) -> bool:
    return points_factor(one.metric) == 100


def _is_at_floor(runs: Runs) -> bool:
    """Return whether all runs score no better than a constant answer."""
    return runs.majority_score is not None and len(runs.collapsed()) == len(runs.scores)


def _baseline_sentence(verdicts: Verdicts) -> str:
    """Return which differences to the chosen baseline are shown."""
    total = len(verdicts.comparisons)
    if total < 2 or all(one.seeds < 2 for one in verdicts.comparisons):
        return ""
    shown = [one for one in verdicts.comparisons if one.shown]
    if not shown:
        return f"None of the {total} differences to {verdicts.baseline} is shown."
    better, worse = ([one for one in shown if (one.difference > 0) == is_better] for is_better in (True, False))
    parts = "; ".join(filter(None, (_listed(better, "better"), _listed(worse, "worse"))))
    verb = "is" if len(shown) == 1 else "are"
    return f"{len(shown)} of {total} differences to {verdicts.baseline} {verb} shown: {parts}."


def _listed(comparisons: Sequence[Comparison], word: str) -> str:
    """Return up to two comparisons in words, the largest differences first."""
    if not comparisons:
        return ""
    ordered = sorted(comparisons, key=lambda one: -abs(one.difference))
    parts = [f"{one.method} is {word} on {one.task} by {_difference_words(one)}" for one in ordered[:2]]
    more = len(comparisons) - len(parts)
    return " and ".join(parts) + (f", and {more} more {'is' if more == 1 else 'are'} {word}" if more else "")


def _difference_words(one: Comparison) -> str:
    """Return the size of a difference with its interval, such as "1.9 points (95 % CI 0.4 to 3.4)"."""
    low, high = (one.low, one.high) if one.difference > 0 else (-one.high, -one.low)
    unit = "points" if one.greater_is_better else f"of {metric_name(one.metric)}"
    text = f"{format_score(abs(one.difference), one.metric)} {unit}"
    return f"{text} (95 % CI {format_interval(low, high, one.metric)})" if math.isfinite(low) else text


def _open_sentence(open_ones: Sequence[Comparison]) -> str:
    """Return what can be said of leads that are not shown: how large a difference would have to be."""
    seeds = sorted({one.seeds for one in open_ones if one.seeds})
    if not seeds:
        return ""
    if seeds == [1]:
        return "One seed cannot tell a better method from a lucky run."
    effects = [
        min(1.0, one.minimum_detectable_effect)
        for one in open_ones
        if _in_points(one) and math.isfinite(one.minimum_detectable_effect)
    ]
    if not effects:
        return ""
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if statistics.median(effects) >= 1.0:
        number = {2: "Two", 3: "Three"}.get(seeds[-1], counts) if len(seeds) == 1 else counts
        most = "" if min(effects) >= 1.0 else " in most of these comparisons"
        return f"{number} seeds cannot show any difference{most}."
    size = f"{format_score(statistics.median(effects), 'accuracy')} points"
    about, median = ("about ", " (the median of these comparisons)") if len(set(effects)) > 1 else ("", "")
    return (
        f"Not shown does not mean equal: with {counts} seeds, a true difference has to be {about}{size}{median} to be"
        " found four times in five."
    )


def _single_answer(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the score of the only model, and how it compares with the best baseline."""
    runs = verdicts.leads[0].best
    cell = next(cell for cell in verdicts.cells if cell.runs is runs)
    rows = floor_rows(cell)
    summary, own = summarise(runs), next((row for row in rows if row.is_model), None)
    low, high = (summary.low, summary.high) if own is None or math.isfinite(summary.low) else (own.low, own.high)
    text = f"{cell.method} is the only model for {runs.task}: {_score(runs)}"
    if math.isfinite(low):
        text += f" (95 % interval {format_interval(low, high, runs.metric)})"
    floor = [row for row in rows if not row.is_model and math.isfinite(row.score)]
    if not floor or cell.is_constant:
        return (f"{text}.",)
    best = (max if runs.greater_is_better else min)(floor, key=lambda row: row.score)
    if len(floor) == 1:
        return f"{text}.", f"A constant answer for all rows would score {format_score(best.score, runs.metric)}."
    second = f"The best baseline, {best.name}, reaches {format_score(best.score, runs.metric)}"
    if math.isfinite(best.low):
        second += f" (95 % interval {format_interval(best.low, best.high, runs.metric)})"
    return f"{text}.", f"{second}."
