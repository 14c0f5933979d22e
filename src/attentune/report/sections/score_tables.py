"""The tables of scores and verdicts, and the same as flat lines for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Table
from attentune.report.numbers import NOTHING, interval, metric_name, p_value, place, score
from attentune.stats.runs import Summary, summarise

BETTER, WORSE, COLLAPSED = "↑", "↓", "†"
_FLAT = (
    "task", "train_size", "method", "metric", "mean", "sd", "low", "high", "seeds", "examples", "failed", "collapsed",
    "baseline", "difference", "difference_low", "difference_high", "p", "p_holm", "p_sign_flip",
    "minimum_detectable_effect", "shown",
    "verdict",
)  # fmt: skip


def scores_table(verdicts: Verdicts) -> Table:
    """Methods down, tasks across: means with intervals, and marks for what the verdicts say."""
    cells = verdicts.cells
    columns = dict.fromkeys((cell.task, cell.size) for cell in cells)
    header = ["method"]
    for column in columns:
        own = [cell for cell in cells if (cell.task, cell.size) == column]
        metric = next((cell.runs.metric for cell in own if cell.runs is not None), "no score")
        header.append(f"{place(own[0], cells)} ({metric_name(metric)})")
    rows = []
    for method in verdicts.methods:
        by_column = {(cell.task, cell.size): cell for cell in cells if cell.method == method}
        entries = (_entry(verdicts, by_column.get(column)) for column in columns)
        rows.append((method if method != verdicts.baseline else f"{method} (baseline)", *entries))
    return Table("scores", "Scores", tuple(header), tuple(rows), notes=_legend(verdicts))


def _entry(verdicts: Verdicts, cell: Cell | None) -> str:
    if cell is None or cell.runs is None or not cell.runs.seeds():
        return NOTHING
    found, metric = summarise(cell.runs), cell.runs.metric
    text = score(found.mean, metric)
    if math.isfinite(found.low):
        text += f" ({interval(found.low, found.high, metric)})"
    return " ".join([text, *mark(verdicts, cell)])


def mark(verdicts: Verdicts, cell: Cell) -> list[str]:
    """Signs for: shown better, shown worse, some runs collapsed."""
    one = verdicts.of(cell)
    signs = [] if one is None or not one.shown else [BETTER if one.difference > 0 else WORSE]
    return [*signs, *([COLLAPSED] if cell.runs is not None and cell.runs.collapsed() else [])]


def _legend(verdicts: Verdicts) -> tuple[str, ...]:
    over = {
        "seeds and examples" if summarise(cell.runs).examples else "seeds"
        for cell in verdicts.cells
        if cell.runs is not None and cell.runs.seeds()
    }
    notes = [
        "Mean over seeds, with its 95 % interval in brackets"
        + (f" over {' or '.join(sorted(over))}" if over else "")
        + ". Scores in points (hundredths); errors in their own unit."
    ]
    if verdicts.comparisons:
        notes.append(
            f"{BETTER} better and {WORSE} worse than {verdicts.baseline}, as far as shown (p after Holm at most 0.05)."
        )
    if any(cell.runs is not None and cell.runs.collapsed() for cell in verdicts.cells):
        notes.append(f"{COLLAPSED} with runs that score no better than the majority guess, or have no defined score.")
    if any(not one.record.is_done for cell in verdicts.cells for one in cell.kept):
        notes.append("Failed runs are left out; they are listed at the end.")
    return tuple(notes)


def sentences_table(verdicts: Verdicts) -> Table:
    """One sentence a comparison, those that show a difference first."""
    rows = tuple(
        ((BETTER if one.difference > 0 else WORSE) if one.shown else NOTHING, f"{one.sentence}.")
        for one in sorted(verdicts.comparisons, key=lambda one: not one.shown)
    )
    notes = (*verdicts.notes, *_shared_notes(verdicts))
    return Table("verdicts", "Verdicts", ("", "verdict"), rows, left=2, notes=notes)


def _shared_notes(verdicts: Verdicts) -> list[str]:
    """The notes on comparisons, each once: what holds for all of them without saying for which."""
    places: dict[str, list[str]] = {}
    for one in verdicts.comparisons:
        for note in one.notes:
            # What is said of a task's runs is the same for all its methods; what was left out is not.
            where = f"{one.task}, {one.method}" if note.startswith("Left out") else one.task
            places.setdefault(note, []).append(where)
    return [
        note if len(where) == len(verdicts.comparisons) > 1 else f"{'; '.join(dict.fromkeys(where))}: {note}"
        for note, where in places.items()
    ]


def differences_table(verdicts: Verdicts) -> Table:
    """The numbers that the sentences rest on."""
    header = (
        "task", "method", "difference", "95 % interval", "p", "p after Holm", "p, sign flip over seeds",
        "could have been shown", "seeds", "examples",
    )  # fmt: skip
    rows = tuple(
        (
            one.task,
            one.method,
            score(one.difference, one.metric, sign=True),
            interval(one.low, one.high, one.metric),
            p_value(one.p),
            p_value(one.p_holm),
            p_value(one.p_sign_flip),
            "> 100"
            if one.greater_is_better and one.minimum_detectable_effect > 1
            else score(one.minimum_detectable_effect, one.metric),
            str(one.seeds),
            NOTHING if one.examples is None else f"{one.examples:,}",
        )
        for one in verdicts.comparisons
    )
    note = (
        f"Difference to {verdicts.baseline}, above zero where the method is better, in points (hundredths); of errors"
        " in their own unit. The interval and p are of the comparison alone; Holm corrects p over all"
        f" {len(rows)} comparisons. Could have been shown: the smallest true difference that this many seeds and"
        " examples find in four of five comparisons."
    )
    return Table("differences", f"Differences to {verdicts.baseline}", header, rows, left=2, notes=(note,))


def spreads_table(verdicts: Verdicts) -> Table:
    """Each method's mean, spread and single scores."""
    header = (
        "task", "method", "metric", "mean", "standard deviation", "95 % interval", "seeds", "failed", "collapsed",
        "scores by seed",
    )  # fmt: skip
    rows = []
    for cell in verdicts.cells:
        failed = sum(not one.record.is_done for one in cell.kept)
        if cell.runs is None:
            rows.append(
                (place(cell, verdicts.cells), cell.method, *[NOTHING] * 5, str(failed or NOTHING), *[NOTHING] * 2)
            )
            continue
        found, metric = summarise(cell.runs), cell.runs.metric
        single = ", ".join(f"{seed}: {score(cell.runs.scores[seed], metric)}" for seed in sorted(cell.runs.scores))
        rows.append(
            (
                place(cell, verdicts.cells),
                cell.method,
                metric_name(metric),
                score(found.mean, metric),
                score(found.sd, metric),
                interval(found.low, found.high, metric),
                str(found.seeds),
                str(failed or NOTHING),
                str(len(found.collapsed) or NOTHING),
                single,
            )
        )
    return Table("spreads", "Spread over seeds", header, tuple(rows), left=3)


def flat_lines(verdicts: Verdicts) -> tuple[tuple[str, ...], ...]:
    """Column names, then a line a method, task and size with all digits; empty where there is nothing."""
    lines: list[tuple[str, ...]] = [_FLAT]
    for cell in verdicts.cells:
        found = None if cell.runs is None else summarise(cell.runs)
        lines.append(_flat_line(verdicts, cell, found))
    return tuple(lines)


def _flat_line(verdicts: Verdicts, cell: Cell, found: Summary | None) -> tuple[str, ...]:
    one = verdicts.of(cell)
    failed = str(sum(not run.record.is_done for run in cell.kept))
    values: list[object] = [cell.task, cell.size, cell.method]
    values += [None] * 7 if found is None else [
        found.metric, found.mean, found.sd, found.low, found.high, found.seeds, found.examples
    ]  # fmt: skip
    values += [failed, None if found is None else len(found.collapsed), verdicts.baseline]
    values += [None] * 9 if one is None else [
        one.difference, one.low, one.high, one.p, one.p_holm, one.p_sign_flip,
        one.minimum_detectable_effect, one.shown, one.sentence
    ]  # fmt: skip
    return tuple(_flat_text(value) for value in values)


def _flat_text(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)


def has_scores(cells: Sequence[Cell]) -> bool:
    """Whether any run has a score."""
    return any(cell.runs is not None and cell.runs.seeds() for cell in cells)
