"""Which rows methods get wrong: those that all methods get wrong, and those where methods differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attentune.explain.explanation import Explanation
from attentune.report.analysis import Cell, Verdicts
from attentune.report.load import RecordedRun, TaskTexts
from attentune.report.sections.run_figures import largest_cells
from attentune.runs.records import Predictions

MOST_ROWS = 8
_MOST_CHARACTERS = 400
_MOST_METHODS = 4
_ONE_SEED = {"most often right": "right", "least often": "wrong"}


@dataclass(frozen=True)
class ReportRow:
    """One row of the data."""

    id: str
    text: tuple[str, ...]  # its text, and the second one of a pair; empty if it is unknown
    label: str
    given: str  # the predictions in words
    who: str  # which methods are right, in words
    explanation: Explanation | None = None  # the words that a model's prediction depends on, if that is recorded


@dataclass(frozen=True)
class TaskRows:
    """The rows of one task."""

    title: str  # the task
    counts: tuple[str, ...]  # sentences on how many rows are right or wrong for all methods
    hard_title: str  # the heading of `hard`
    hard: tuple[ReportRow, ...]  # rows that all methods get wrong
    apart: tuple[ReportRow, ...]  # rows where methods differ most
    problem: str  # why the texts are missing; empty if they are not


def task_rows(verdicts: Verdicts, texts: Mapping[str, TaskTexts]) -> tuple[TaskRows, ...]:
    """Find the rows of each task, at its largest training set size, whose runs were scored on the same rows."""
    found = []
    for task, cells in largest_cells(verdicts).items():
        predicted = _same_rows([cell for cell in cells if cell.method in verdicts.models])
        if predicted:
            found.append(_of_task(verdicts.title(cells[0]), predicted, texts.get(task, TaskTexts())))
    return tuple(found)


def _same_rows(cells: Sequence[Cell]) -> dict[str, list[Predictions]]:
    """Return the predictions by method; empty unless all are on the same rows."""
    found: dict[str, list[Predictions]] = {}
    first: Predictions | None = None
    for cell in cells:
        for run in cell.recorded:
            made = run.predictions() if run.record.is_done else None
            if made is None:
                continue
            first = made if first is None else first
            same = made.ids == first.ids and made.names == first.names and np.array_equal(made.labels_N, first.labels_N)
            if not same:
                return {}
            found.setdefault(cell.method, []).append(made)
    return found


def _of_task(title: str, predicted: Mapping[str, Sequence[Predictions]], texts: TaskTexts) -> TaskRows:
    first = next(iter(predicted.values()))[0]
    if not first.names:
        return _of_regression(title, predicted, texts)
    # By method and row, the share of seeds that are right.
    right_MN = np.stack([np.mean([_right(one) for one in runs], axis=0) for runs in predicted.values()])
    seeds_M = [len(runs) for runs in predicted.values()]
    rows = right_MN.shape[1]
    never_N, always_N = (right_MN == 0).all(axis=0), (right_MN == 1).all(axis=0)
    runs = sum(seeds_M)
    counts = [
        f"{int(always_N.sum()):,} of {rows:,} rows are right in all {runs} runs, {int(never_N.sum()):,} in none."
        if runs > 1
        else f"{int(never_N.sum()):,} of {rows:,} rows are wrong."
    ]
    hard = [
        _row(first, number, texts, given=_given(predicted, number))
        for number in _spread_over(np.flatnonzero(never_N), first.labels_N)
    ]
    apart = []
    if len(predicted) > 1:
        spread_N = right_MN.max(axis=0) - right_MN.min(axis=0)
        largest = float(spread_N.max())
        numbers = np.flatnonzero(spread_N == largest) if largest > 0 else np.array([], dtype=np.int64)
        if largest > 0:
            gap = "right in all seeds of one method and in none of another"
            if largest < 1:
                gap = f"one method is right in {100 * largest:.0f} % more of its seeds than another"
            counts.append(f"{len(numbers):,} rows differ most: {gap}.")
        # Of equal spreads, the rows on which the methods are divided most evenly.
        order = np.argsort(np.abs(right_MN[:, numbers].mean(axis=0) - 0.5), kind="stable")
        for number in numbers[order][:MOST_ROWS]:
            who = _who(list(predicted), seeds_M, right_MN[:, number])
            apart.append(_row(first, int(number), texts, given=_given(predicted, int(number)), who=who))
    return TaskRows(title, tuple(counts), "Rows that no run gets right", tuple(hard), tuple(apart), texts.problem)


def _right(one: Predictions) -> np.ndarray:
    equal = one.labels_N == one.predictions_N
    return equal.all(axis=1) if equal.ndim == 2 else equal


def _spread_over(numbers: np.ndarray, labels_N: np.ndarray) -> list[int]:
    """Return up to `MOST_ROWS` of these rows, taking the classes in turn."""
    if labels_N.ndim == 2:
        return [int(number) for number in numbers[:MOST_ROWS]]
    by_class = [list(numbers[labels_N[numbers] == label]) for label in np.unique(labels_N[numbers])]
    chosen: list[int] = []
    while any(by_class) and len(chosen) < MOST_ROWS:
        for one in by_class:
            if one and len(chosen) < MOST_ROWS:
                chosen.append(int(one.pop(0)))
    return chosen


def _row(first: Predictions, number: int, texts: TaskTexts, *, given: str, who: str = "") -> ReportRow:
    text = texts.texts.get(first.ids[number])
    shown = () if text is None else tuple(_cut(part) for part in text if part is not None)
    explanation = None if text is None else texts.explanations.get(text)
    return ReportRow(first.ids[number], shown, _label(first, first.labels_N[number]), given, who, explanation)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1].rstrip()}\u2026"


def _label(one: Predictions, value: np.ndarray) -> str:
    if not one.names:
        return f"{float(value):.3g}"
    if value.ndim == 1:
        return ", ".join(name for name, there in zip(one.names, value, strict=True) if there) or "none"
    return one.names[int(value)]


def _given(predicted: Mapping[str, Sequence[Predictions]], number: int) -> str:
    """Return the predictions of all runs, the most frequent first, such as "yes (40), no (20)"."""
    runs = [one for of_method in predicted.values() for one in of_method]
    counts = Counter(_label(one, one.predictions_N[number]) for one in runs)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common(3))


def _who(methods: Sequence[str], seeds_M: Sequence[int], right_M: np.ndarray) -> str:
    """Return which methods are right in most and in fewest seeds."""
    parts = []
    for word, share in (("most often right", right_M.max()), ("least often", right_M.min())):
        at = [number for number in range(len(methods)) if right_M[number] == share]
        names = [methods[number] for number in at[:_MOST_METHODS]]
        more = f" and {len(at) - len(names)} more" if len(at) > len(names) else ""
        seeds = f" ({round(share * seeds_M[at[0]])} of {seeds_M[at[0]]} seeds)" if seeds_M[at[0]] > 1 else ""
        parts.append(f"{word if seeds else _ONE_SEED[word]}: {', '.join(names)}{more}{seeds}")
    return "; ".join(parts)


def _of_regression(title: str, predicted: Mapping[str, Sequence[Predictions]], texts: TaskTexts) -> TaskRows:
    """Find rows with large errors for all methods, and with errors that differ between methods."""
    first = next(iter(predicted.values()))[0]
    mean_MN = np.stack([np.mean([one.predictions_N for one in runs], axis=0) for runs in predicted.values()])
    errors_MN = np.abs(mean_MN - first.labels_N)

    def row(number: int) -> ReportRow:
        low, high = int(errors_MN[:, number].argmin()), int(errors_MN[:, number].argmax())
        methods = list(predicted)
        who = f"nearest: {methods[low]} ({mean_MN[low, number]:.3g}); farthest: {methods[high]}"
        who += f" ({mean_MN[high, number]:.3g})"
        given = f"{float(np.median(mean_MN[:, number])):.3g}"
        return _row(first, number, texts, given=given, who=who if len(methods) > 1 else "")

    hard = np.argsort(-errors_MN.min(axis=0), kind="stable")[:MOST_ROWS]
    apart = np.argsort(-(errors_MN.max(axis=0) - errors_MN.min(axis=0)), kind="stable")[:MOST_ROWS]
    several = len(predicted) > 1
    counts = [
        "the largest errors.",
        *(["Predictions are means over seeds; the median over methods is shown."] * several),
    ]
    return TaskRows(
        title,
        tuple(counts),
        "Rows with large errors of all methods",
        tuple(row(int(number)) for number in hard),
        tuple(row(int(number)) for number in apart) if several else (),
        texts.problem,
    )


def wrong_rows(run: RecordedRun, probabilities_NC: np.ndarray, texts: TaskTexts) -> list[tuple[ReportRow, float]]:
    """Return the wrong rows of one run with the highest probability of the prediction, and that probability."""
    made = run.predictions()
    if made is None or not made.names or made.labels_N.ndim == 2:
        return []
    given_N = probabilities_NC[np.arange(len(made.ids)), made.predictions_N]
    wrong = np.flatnonzero(made.labels_N != made.predictions_N)
    order = wrong[np.argsort(-given_N[wrong], kind="stable")][:MOST_ROWS]
    return [(_row(made, int(n), texts, given=_label(made, made.predictions_N[n])), float(given_N[n])) for n in order]
