"""The question of a report and its answer in two sentences, from the verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attentune.report.analysis import Verdicts
from attentune.report.document import format_score, metric_name, points_factor
from attentune.report.overview.floor import floor_rows
from attentune.stats.runs import summarise
from attentune.stats.verdict import Comparison


def question_of(verdicts: Verdicts) -> str:
    """Return the question that the report answers."""
    tasks = list(dict.fromkeys(cell.task for cell in verdicts.cells))
    sizes = {cell.size for cell in verdicts.cells if cell.task == tasks[0]}
    where = f"on {len(tasks)} tasks" if len(tasks) > 1 else f"on {'own data' if tasks[0] == 'own' else tasks[0]}"
    if len(sizes) > 1:
        where += f", with {len(sizes)} training set sizes"
    others = [method for method in verdicts.methods if method != verdicts.baseline]
    if not others:
        return f"How good is {verdicts.baseline} {where}?"
    if len(others) == 1:
        return f"Is {others[0]} better than {verdicts.baseline} {where}?"
    return f"Is any of {len(others)} methods better than {verdicts.baseline} {where}?"


def answer_of(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the answer: what is shown, and what the data cannot tell."""
    comparisons = verdicts.comparisons
    if not comparisons:
        return _scores_answer(verdicts)
    if all(one.seeds < 2 for one in comparisons):
        return _one_seed_answer(comparisons)
    better = [one for one in comparisons if one.shown and one.difference > 0]
    worse = [one for one in comparisons if one.shown and one.difference <= 0]
    open_ones = [one for one in comparisons if not one.shown]
    return tuple(
        sentence for sentence in (_shown_sentence(verdicts, better, worse), _open_sentence(comparisons, open_ones))
        if sentence
    )  # fmt: skip


def _shown_sentence(verdicts: Verdicts, better: Sequence[Comparison], worse: Sequence[Comparison]) -> str:
    total = len(verdicts.comparisons)
    if not better and not worse:
        if total == 1:
            one = verdicts.comparisons[0]
            return f"No difference is shown: {_score_words(one)}, and a gap of this size can be chance."
        return f"No: none of the {total} differences to {verdicts.baseline} is shown."
    tail = _listed(worse, "worse")
    if not better:
        return f"No method is shown to be better, and {tail}."
    of_total = "" if total == 1 else f" in {len(better)} of {total} comparisons"
    return f"Yes{of_total}: {_listed(better, 'better')}{f'; {tail}' if worse else ''}."


def _listed(comparisons: Sequence[Comparison], word: str) -> str:
    """Return up to two comparisons in words, the largest differences first."""
    if not comparisons:
        return ""
    ordered = sorted(comparisons, key=lambda one: -abs(one.difference))
    parts = [f"{one.method} is {word} on {one.task} by {difference_words(one)}" for one in ordered[:2]]
    more = len(comparisons) - len(parts)
    return " and ".join(parts) + (f", and {more} more {'is' if more == 1 else 'are'} {word}" if more else "")


def difference_words(one: Comparison) -> str:
    """Return the size of a difference with its interval, such as "1.9 points (95 % CI 0.4 to 3.4)"."""
    low, high = (one.low, one.high) if one.difference > 0 else (-one.high, -one.low)
    unit = "points" if one.greater_is_better else f"of {metric_name(one.metric)}"
    text = f"{format_score(abs(one.difference), one.metric)} {unit}"
    if math.isfinite(low):
        text += f" (95 % CI {format_score(low, one.metric)} to {format_score(high, one.metric)})"
    return text


def _score_words(one: Comparison) -> str:
    means = [format_score(mean, one.metric) for mean in (one.method_mean, one.baseline_mean)]
    text = f"{one.method} scores {means[0]} and {one.baseline} {means[1]} ({metric_name(one.metric)})"
    if math.isfinite(one.low):
        text += f", a difference of {format_score(one.difference, one.metric, sign=True)} (95 % CI"
        text += f" {format_score(one.low, one.metric)} to {format_score(one.high, one.metric)})"
    return text


def _open_sentence(comparisons: Sequence[Comparison], open_ones: Sequence[Comparison]) -> str:
    """Return what can be said of the comparisons without a shown difference: how large one would have to be."""
    if not open_ones:
        return ""
    effects = [
        min(1.0, one.minimum_detectable_effect)
        for one in open_ones
        if points_factor(one.metric) == 100 and math.isfinite(one.minimum_detectable_effect)
    ]
    seeds = sorted({one.seeds for one in open_ones})
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = "seed" if seeds == [1] else "seeds"
    if len(open_ones) == len(comparisons):
        others = "This"
    elif len(open_ones) == 1:
        others = "No difference is shown in the other comparison, which"
    else:
        others = f"For the other {len(open_ones)} no difference is shown, which"
    sentence = f"{others} does not mean that there is none"
    if not effects:
        return f"{sentence}."
    if statistics.median(effects) >= 1.0:
        number = {1: "one", 2: "two", 3: "three"}.get(seeds[-1], counts) if len(seeds) == 1 else counts
        most = "" if min(effects) >= 1.0 else " in most of these comparisons"
        return f"{sentence}: {number} {plural} cannot show any difference{most}."
    size = f"{format_score(statistics.median(effects), 'accuracy')} points"
    about = "about " if len(set(effects)) > 1 else ""
    median = " (the median of these comparisons)" if about else ""
    return (
        f"{sentence}: with {counts} {plural}, a true difference has to be {about}{size}{median} to be found four times"
        " in five."
    )


def _one_seed_answer(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    largest = max(comparisons, key=lambda one: abs(one.difference) if math.isfinite(one.difference) else -1.0)
    if not largest.seeds:
        return ("Not answered: no seed was run with both methods.",)
    return (
        "Not answered: with one seed a better method cannot be told from a lucky run.",
        f"The largest difference is that on {largest.task}: {_score_words(largest)}.",
    )


def _scores_answer(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the score of the only method, and how it compares with the best baseline."""
    scored = [cell for cell in verdicts.cells if cell.runs is not None and cell.runs.seeds()]
    if not scored:
        return ("No run has a score.",)
    if len(scored) > 1:
        parts = [f"{format_score(summarise(cell.runs).mean, cell.runs.metric)} on {verdicts.title(cell)}"
                 for cell in scored if cell.runs is not None]  # fmt: skip
        return (f"{verdicts.baseline} scores {', '.join(parts)}.",)
    (cell,) = scored
    assert cell.runs is not None
    summary, metric = summarise(cell.runs), cell.runs.metric
    rows = floor_rows(cell)
    own = next((row for row in rows if row.is_model), None)
    low, high = (summary.low, summary.high) if own is None or math.isfinite(summary.low) else (own.low, own.high)
    text = f"{cell.method} reaches {metric_name(metric)} {format_score(summary.mean, metric)}"
    if math.isfinite(low):
        text += f" (95 % CI {format_score(low, metric)} to {format_score(high, metric)})"
    floor = [row for row in rows if not row.is_model and math.isfinite(row.score)]
    if not floor:
        return (f"{text}.",)
    sign = 1.0 if cell.runs.greater_is_better else -1.0
    best = max(floor, key=lambda row: sign * row.score)
    second = f"The best baseline, {best.name}, reaches {format_score(best.score, metric)}"
    if math.isfinite(best.low):
        second += f" (95 % CI {format_score(best.low, metric)} to {format_score(best.high, metric)})"
    if len(floor) == 1:
        second = f"A constant answer for all rows would score {format_score(best.score, metric)}"
    return f"{text}.", f"{second}."
