"""What a report shows of rows and classes: rows that models get wrong, confused classes, calibration, sure errors."""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attentune.automl.leaderboard import AutoResult, leaderboard_cells
from attentune.data.tables import quote
from attentune.metrics.calibration import calibration_error
from attentune.metrics.rejection import Rejection
from attentune.report.analysis import Cell, Verdicts, same_rows
from attentune.report.charts import Line, confusion_figure, lines_figure, short
from attentune.report.document import NOTHING, Figure, Section, Table, slug
from attentune.report.load import TaskTexts
from attentune.runs.records import Predictions

MOST_ROWS = 8
_MOST_CHARACTERS = 400
_MOST_METHODS = 4
# With more classes, a matrix cannot be read: the worst classes and the most confused pairs are listed.
MOST_CLASSES = 12
_WORST_CLASSES, _CONFUSED_PAIRS = 20, 20
_BINS = 10


# ---------------------------------------------------------------- classes


def classes_section(verdicts: Verdicts) -> Section | None:
    """Show for each task which classes are confused: of all models, and in numbers of the best one."""
    best = {(lead.best.task, lead.best.method) for lead in verdicts.leads}
    parts: list[Table | Figure] = []
    for task, cells in verdicts.largest.items():
        counts, names = confusion_counts([cell for cell in cells if cell.method in verdicts.models])
        method = next((cell.method for cell in cells if cell.runs and (cell.runs.task, cell.method) in best), "")
        title = verdicts.title(cells[0])
        if len(names) < 2 or not counts:
            continue
        if len(names) <= MOST_CLASSES:
            caption = (
                "Each cell is the percentage of the rows with this label (left) that got this prediction (below), over"
                " all seeds."
            )
            draw = functools.partial(confusion_figure, counts, names)
            parts.append(Figure(slug("confusion", task), f"{title}: confusion matrices", caption, draw))
        if method in counts:
            parts.append(_classes_table(task, f"{title}: classes of {method}, the worst first", counts[method], names))
            if len(names) > MOST_CLASSES:
                parts += _pairs_table(task, f"{title}: classes that {method} confuses", counts[method], names)
    return Section("Classes", tuple(parts)) if parts else None


def confusion_counts(cells: Sequence[Cell]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return by method the (C, C) counts over all seeds, and the classes; runs with other classes are left out."""
    counts: dict[str, np.ndarray] = {}
    names: tuple[str, ...] = ()
    for cell in cells:
        for run in cell.recorded:
            predictions = run.predictions()
            if predictions is None or not predictions.names or predictions.labels_N.ndim == 2:
                continue
            names = names or predictions.names
            if predictions.names == names:
                counts_CC = counts.setdefault(cell.method, np.zeros((len(names), len(names)), dtype=np.int64))
                np.add.at(counts_CC, (predictions.labels_N, predictions.predictions_N), 1)
    return counts, names


def _classes_table(task: str, title: str, counts_CC: np.ndarray, names: Sequence[str]) -> Table:
    right_C, labelled_C, given_C = counts_CC.diagonal(), counts_CC.sum(axis=1), counts_CC.sum(axis=0)
    f1_C = 2 * right_C / np.maximum(1, labelled_C + given_C)
    order = [int(number) for number in np.argsort(f1_C, kind="stable") if labelled_C[number] + given_C[number]]
    rows = tuple(
        (
            names[number],
            f"{labelled_C[number]:,}",
            _percent(right_C[number], given_C[number]),
            _percent(right_C[number], labelled_C[number]),
            f"{100 * f1_C[number]:.1f}",
        )
        for number in order[:_WORST_CLASSES]
    )
    note = "Precision, recall and F1 in points; rows of all seeds."
    note += f" The {len(rows)} worst of {len(names)} classes." if len(rows) < len(names) else ""
    header = ("class", "rows", "precision", "recall", "F1")
    return Table(slug("classes", task), title, header, rows, notes=(note,))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else NOTHING


def _pairs_table(task: str, title: str, counts_CC: np.ndarray, names: Sequence[str]) -> list[Table]:
    wrong_CC = counts_CC * (1 - np.eye(len(names), dtype=np.int64))
    order = np.argsort(-wrong_CC, axis=None, kind="stable")[:_CONFUSED_PAIRS]
    rows = []
    for label, predicted in zip(*np.unravel_index(order, wrong_CC.shape), strict=True):
        if count := int(wrong_CC[label, predicted]):
            share = _percent(count, int(counts_CC[label].sum()))
            rows.append((names[label], names[predicted], f"{count:,}", share))
    header = ("label", "predicted", "rows", "% of the label's rows")
    notes = (f"The {len(rows)} most frequent confusions, over all seeds.",)
    return [Table(slug("confused", task), title, header, tuple(rows), left=2, notes=notes)] if rows else []


# ---------------------------------------------------------------- cues


def cues_section(verdicts: Verdicts) -> Section | None:
    """Show for each task how far models decide by the cues of their training rows, as recorded in their runs."""
    parts = [table for cells in verdicts.largest.values() if (table := _cues_table(verdicts, cells)) is not None]
    return Section("What models look at", tuple(parts)) if parts else None


def _cues_table(verdicts: Verdicts, cells: Sequence[Cell]) -> Table | None:
    shown = [cell for cell in cells if cell.method in verdicts.models and cell.done]
    cues = {(one["text"], one["label"]): one["rows"] for cell in shown for run in cell.done for one in run.cues}
    rows = []
    for (text, label), count in cues.items():
        by_method = []
        for cell in shown:
            found = [one for run in cell.done for one in run.cues if (one["text"], one["label"]) == (text, label)]
            decided, effect = ([one[name] for one in found] for name in ("decided", "effect"))
            by_method.append(f"{100 * np.mean(decided):.0f} % ({np.mean(effect):+.1f})" if found else NOTHING)
        rows.append((quote(text), label, f"{count:,}", *by_method))
    if not rows:
        return None
    notes = (
        "A cue is a name, number, mark or fixed phrase that goes with one label in training. The share of the"
        " predictions on validation rows with it (500 at most) that are others without it; in brackets by how much"
        " it raises the log-odds of its label, on average. Means over seeds; empty for a model whose training rows"
        " have no such cue, or that leaves it out.",
    )
    header = ("cue", "goes with", "rows", *(cell.method for cell in shown))
    task = cells[0].task
    return Table(slug("cues", task), f"{verdicts.title(cells[0])}: what models look at", header, tuple(rows), 2, notes)


# ---------------------------------------------------------------- rows

_ROW_HEADER = ("row", "text", "label", "predicted")
# A row's id, text, label, predictions and further cells.
_Row = tuple[str, ...]


def rows_section(verdicts: Verdicts, texts: Mapping[str, TaskTexts]) -> Section | None:
    """List by task the rows on which models differ most, and those that no run gets right."""
    parts: list[Table] = []
    sentences: list[str] = []
    for task, cells in verdicts.largest.items():
        predicted = _on_same_rows([cell for cell in cells if cell.method in verdicts.models])
        if not predicted:
            continue
        title, known = verdicts.title(cells[0]), texts.get(task, TaskTexts())
        find = _rows_of_classes if next(iter(predicted.values()))[0].names else _rows_of_scores
        found, apart, hard = find(predicted, known)
        sentences.append(f"{title}: {' '.join(filter(None, (*found, known.problem)))}")
        parts.append(_rows_table(f"apart-{task}", f"{title}: rows on which models differ", apart, "who is right"))
        parts.append(_rows_table(f"hard-{task}", f"{title}: rows that all models get wrong", hard))
    parts = [part for part in parts if part.rows]
    if parts:
        sentences.append("Of many rows, some differ by chance: read them for what they have in common.")
    return Section("Rows", tuple(parts), tuple(sentences), on_page_only=True) if sentences else None


def _rows_table(name: str, title: str, rows: Sequence[_Row], *more: str) -> Table:
    header = (*_ROW_HEADER, *more)
    return Table(slug(name), title, header, tuple(rows), len(header))


def _on_same_rows(cells: Sequence[Cell]) -> dict[str, list[Predictions]]:
    found: dict[str, list[Predictions]] = {}
    for cell in cells:
        for run in cell.recorded:
            predictions = run.predictions() if run.record.is_done else None
            if predictions is not None:
                found.setdefault(cell.method, []).append(predictions)
    every = [one for runs in found.values() for one in runs]
    alike = all(one.names == every[0].names and same_rows(one, every[0]) for one in every)
    return found if alike else {}


def _rows_of_classes(
    predicted: Mapping[str, Sequence[Predictions]], texts: TaskTexts
) -> tuple[list[str], list[_Row], list[_Row]]:
    """Return counts in words, the rows on which models differ most, and those that no run gets right."""
    first = next(iter(predicted.values()))[0]
    # By method and row, the share of seeds that are right.
    right_MN = np.stack([np.mean([_right(one) for one in runs], axis=0) for runs in predicted.values()])
    rows, runs = right_MN.shape[1], sum(map(len, predicted.values()))
    never_N, always_N = (right_MN == 0).all(axis=0), (right_MN == 1).all(axis=0)
    counts = [
        f"{int(always_N.sum()):,} of {rows:,} rows are right in all {runs} runs, {int(never_N.sum()):,} in none."
        if runs > 1
        else f"{int(never_N.sum()):,} of {rows:,} rows are wrong."
    ]
    # Of one run, those with the highest probability are listed.
    wrong = np.flatnonzero(never_N) if runs > 1 or first.labels_N.ndim == 2 else np.array([], dtype=np.int64)
    hard = [_row(first, number, texts, _given(predicted, number)) for number in _spread_over(wrong, first.labels_N)]
    spread_N = right_MN.max(axis=0) - right_MN.min(axis=0)
    largest = float(spread_N.max())
    if len(predicted) == 1 or largest == 0:
        return counts, [], hard
    numbers = np.flatnonzero(spread_N == largest)
    gap = "right in all seeds of one model and in none of another"
    if largest < 1:
        gap = f"one model is right in {100 * largest:.0f} % more of its seeds than another"
    counts.append(f"{len(numbers):,} rows differ most: {gap}.")
    # Of equal spreads, the rows on which the methods are divided most evenly.
    order = np.argsort(np.abs(right_MN[:, numbers].mean(axis=0) - 0.5), kind="stable")
    apart = [
        _row(first, number, texts, _given(predicted, number), _who(predicted, right_MN[:, number]))
        for number in map(int, numbers[order][:MOST_ROWS])
    ]
    return counts, apart, hard


def _rows_of_scores(
    predicted: Mapping[str, Sequence[Predictions]], texts: TaskTexts
) -> tuple[list[str], list[_Row], list[_Row]]:
    """Return the rows whose errors differ most between models, and those with large errors of all of them."""
    first, methods = next(iter(predicted.values()))[0], list(predicted)
    mean_MN = np.stack([np.mean([one.predictions_N for one in runs], axis=0) for runs in predicted.values()])
    errors_MN = np.abs(mean_MN - first.labels_N)

    def row(number: int, *more: str) -> _Row:
        return _row(first, number, texts, f"{float(np.median(mean_MN[:, number])):.3g}", *more)

    def who(number: int) -> str:
        low, high = int(errors_MN[:, number].argmin()), int(errors_MN[:, number].argmax())
        nearest = f"nearest: {methods[low]} ({mean_MN[low, number]:.3g})"
        return f"{nearest}; farthest: {methods[high]} ({mean_MN[high, number]:.3g})"

    hard = [row(int(number)) for number in np.argsort(-errors_MN.min(axis=0), kind="stable")[:MOST_ROWS]]
    if len(methods) == 1:
        return ["the largest errors."], [], hard
    apart = np.argsort(errors_MN.min(axis=0) - errors_MN.max(axis=0), kind="stable")[:MOST_ROWS]
    counts = ["the largest errors. Predictions are means over seeds; the median over models is shown."]
    return counts, [row(number, who(number)) for number in map(int, apart)], hard


def _right(one: Predictions) -> np.ndarray:
    equal = one.labels_N == one.predictions_N
    return equal.all(axis=1) if equal.ndim == 2 else equal


def _spread_over(numbers: np.ndarray, labels_N: np.ndarray) -> list[int]:
    """Return up to `MOST_ROWS` rows, the classes in turn."""
    if labels_N.ndim == 2 or not len(numbers):
        return [int(number) for number in numbers[:MOST_ROWS]]
    by_class = [[n for n in numbers if labels_N[n] == label] for label in np.unique(labels_N[numbers])]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_class))
    return [int(number) for number in in_turn if number is not None][:MOST_ROWS]


def _row(first: Predictions, number: int, texts: TaskTexts, *more: str) -> _Row:
    text = texts.texts.get(first.ids[number], ())
    shown = " | ".join(short(part, _MOST_CHARACTERS) for part in text if part is not None)
    return first.ids[number], shown if text else NOTHING, _label(first, first.labels_N[number]), *more


def _label(one: Predictions, value: np.ndarray) -> str:
    if not one.names:
        return f"{float(value):.3g}"
    if value.ndim == 1:
        return ", ".join(name for name, has in zip(one.names, value, strict=True) if has) or "none"
    return one.names[int(value)]


def _given(predicted: Mapping[str, Sequence[Predictions]], number: int) -> str:
    counts = Counter(_label(one, one.predictions_N[number]) for runs in predicted.values() for one in runs)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common(3))


def _who(predicted: Mapping[str, Sequence[Predictions]], right_M: np.ndarray) -> str:
    parts = []
    for share, among_seeds, alone in (
        (right_M.max(), "most often right", "right"),
        (right_M.min(), "least often", "wrong"),
    ):
        at = [method for method, own in zip(predicted, right_M, strict=True) if own == share]
        more = f" and {len(at) - _MOST_METHODS} more" if len(at) > _MOST_METHODS else ""
        seeds = len(predicted[at[0]])
        word, counted = (among_seeds, f" ({round(share * seeds)} of {seeds} seeds)") if seeds > 1 else (alone, "")
        parts.append(f"{word}: {', '.join(at[:_MOST_METHODS])}{more}{counted}")
    return "; ".join(parts)


# ---------------------------------------------------------------- one model


def model_section(verdicts: Verdicts, cell: Cell) -> Section | None:
    """Show of runs of `auto` the leaderboard, choice and estimate; of them and the only model what they reject."""
    delivered = [run.auto for run in cell.recorded if run.auto is not None]
    if not delivered and len(verdicts.models) > 1:
        return None
    folders = [run.source for run in cell.recorded if isinstance(run.source, Path)]
    rejected = [one.sentence() for one in map(Rejection.load, folders) if one is not None]
    sentences = (*(sentence for one in delivered for sentence in one.sentences), *rejected)
    tables = tuple(_leaderboard(cell.task, one) for one in delivered)
    title = f"The model {cell.method} for {verdicts.title(cell)}"
    return Section(title, tables, sentences) if sentences else None


def _leaderboard(task: str, result: AutoResult) -> Table:
    # Words stand at the left. The rejection may have been chosen anew since.
    header = (result.header[0], "use", *result.header[1:-1])
    rows = ((name, use, *numbers) for name, *numbers, use in leaderboard_cells(result.leaderboard))
    notes = ("The scores are out of fold.", *(note for note in result.notes if note != result.rejection))
    title = f"Members that auto tried, best first ({result.seconds:,.0f} s)"
    return Table(slug("leaderboard", task), title, header, tuple(rows), left=2, notes=notes)


def probabilities_section(verdicts: Verdicts, cell: Cell, texts: TaskTexts) -> Section | None:
    """Show of the only model whether its probabilities can be trusted, and where it errs while sure."""
    if len(verdicts.models) > 1:
        return None
    done = [run.predictions() for run in cell.recorded if run.record.is_done]
    pooled = [one for one in done if one is not None and one.probabilities_NC.size and one.labels_N.ndim == 1]
    errors = _confident_errors(cell.task, pooled[0], texts) if len(cell.done) == 1 and pooled else None
    parts = tuple(part for part in (_calibration_figure(cell.task, pooled), errors) if part is not None)
    return Section(f"Probabilities for {verdicts.title(cell)}", parts, on_page_only=True) if parts else None


def _calibration_figure(task: str, pooled: Sequence[Predictions]) -> Figure | None:
    """Draw the share of right rows against the predicted probability, in bins of equal width."""
    if not pooled:
        return None
    given_N = np.concatenate([one.probabilities_NC[np.arange(len(one.ids)), one.predictions_N] for one in pooled])
    right_N = np.concatenate([one.predictions_N == one.labels_N for one in pooled])
    if np.ptp(given_N) == 0:
        return None
    bin_N = np.clip(np.ceil(given_N * _BINS).astype(int) - 1, 0, _BINS - 1)
    bins = [bin_N == number for number in range(_BINS) if (bin_N == number).any()]
    xs, ys = ([100 * float(values_N[inside_N].mean()) for inside_N in bins] for values_N in (given_N, right_N))
    mean, accuracy = 100 * float(given_N.mean()), 100 * float(right_N.mean())
    verdict = f"as sure ({mean:.1f} %) as it is right ({accuracy:.1f} %)."
    if abs(mean - accuracy) >= 1:
        side = "more" if mean > accuracy else "less"
        verdict = (
            f"{mean:.1f} % sure on average and right in {accuracy:.1f} %, so it is {side} confident than it should be."
        )
    note = f"Expected calibration error {100 * calibration_error(given_N, right_N):.1f} points: the model is {verdict}"
    lines = {"model": Line(xs, ys, number=1), "as often right as sure": Line([0, 100], [0, 100], marked=False)}
    draw = functools.partial(lines_figure, lines, x_label="predicted probability (%)", y_label="right (%)")
    return Figure(slug("calibration", task), "Calibration", note, draw)


def _confident_errors(task: str, one: Predictions, texts: TaskTexts) -> Table | None:
    given_N = one.probabilities_NC[np.arange(len(one.ids)), one.predictions_N]
    wrong = np.flatnonzero(one.labels_N != one.predictions_N)
    order = wrong[np.argsort(-given_N[wrong], kind="stable")][:MOST_ROWS]
    rows = [
        _row(one, n, texts, _label(one, one.predictions_N[n]), f"{100 * given_N[n]:.0f} %") for n in map(int, order)
    ]
    return _rows_table(f"confident-{task}", "Confident errors: check their labels", rows, "sure") if rows else None
