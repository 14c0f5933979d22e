"""The figures of single runs: loss against time, token labels by epoch, confusion matrices, HANS, layer weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Figure, Section, slug
from attentune.report.figures.base import Bar, bars_figure, short
from attentune.report.figures.grids import confusion_figure
from attentune.report.figures.lines import Line, lines_figure
from attentune.report.load import ReportData
from attentune.runs.records import RunRecord

_MOST_CLASSES = 12
# The seconds and the loss by step.
Curve = dict[int, tuple[float, float]]


def largest_cells(verdicts: Verdicts) -> dict[str, list[Cell]]:
    """Return each task's cells of its largest training set size."""
    by_task: dict[str, list[Cell]] = {}
    for cell in verdicts.cells:
        cells = by_task.setdefault(cell.task, [])
        if cells and cells[0].size != cell.size:
            cells.clear()
        cells.append(cell)
    return by_task


def loss_section(verdicts: Verdicts) -> Section | None:
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
                lines[cell.method] = Line(xs, ys, thin=thin, number=number, marked=False)
        if lines:
            positive = all(
                y > 0 for line in lines.values() for ys in (line.ys, *(ys for _, ys in line.thin)) for y in ys
            )
            figures.append(
                Figure(
                    slug("loss", task),
                    f"{verdicts.title(cells[0])}: training loss against time",
                    "Thin lines are seeds, smoothed; thick lines are the median time and mean loss at each step. The"
                    " time includes training steps and the generation of token labels, on the machine of the run; a"
                    " run that took far longer than the medians leaves the figure at the right. The loss is"
                    " the task's alone, without that of a token head."
                    + ("" if positive else " The axis is linear, since some losses are not above 0."),
                    functools.partial(
                        lines_figure,
                        {task: lines},
                        x_label="wall time (s)",
                        y_label="training loss",
                        log_y=positive,
                        right=1.5 * max(line.xs[-1] for line in lines.values()),
                    ),
                )
            )
    return Section("Loss against time", tuple(figures)) if figures else None


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


def labels_section(verdicts: Verdicts) -> Section | None:
    """Draw what is logged of the token labels by epoch: one figure per task, and one for their samples.

    Of the labels these are the share of label 1 and the token head's accuracy; of the samples how many masked copies of
    `released` keep their prediction and how long they are, and how many reused predictions are wrong.
    """
    figures = []
    for cells in largest_cells(verdicts).values():
        labels = {
            "tokens labelled 1": _positive_share,
            "token head's accuracy": lambda labels: labels.get("token_accuracy"),
        }
        text = (
            "Share of the labelled tokens with label 1, and share that the token head predicts correctly in the epoch:"
            " means over seeds with the minimum and maximum. Epochs without token labels are omitted."
        )
        figures += _epochs_figure(verdicts, cells, "token labels", labels, text, y_label="% of labelled tokens")
        samples = {
            "masked copies kept": lambda labels: labels.get("kept_share"),
            "length of kept samples": _kept_length,
            "reused predictions wrong": lambda labels: labels.get("reused_wrong_share"),
        }
        text = (
            "Masked copies that keep their prediction, in % of those that were predicted; the length of the samples"
            " drawn from them, in % of the mean length of all rows; reused training-time predictions that the present"
            " model gets wrong, in % of a sample of them. Means over seeds with the minimum and maximum."
        )
        figures += _epochs_figure(verdicts, cells, "token-label samples", samples, text, y_label="%")
    return Section("Token labels", tuple(figures)) if figures else None


def _epochs_figure(
    verdicts: Verdicts,
    cells: Sequence[Cell],
    name: str,
    values: Mapping[str, Callable[[Mapping[str, Any]], float | None]],
    text: str,
    *,
    y_label: str,
) -> list[Figure]:
    """Return a figure with a panel for each value that is logged; none if no value is."""
    drawn = {title: _label_lines(verdicts, cells, value_of) for title, value_of in values.items()}
    panels = {title: lines for title, lines in drawn.items() if lines}
    if not panels:
        return []
    epochs = sorted({x for lines in panels.values() for line in lines.values() for x in line.xs})
    draw = functools.partial(lines_figure, panels, x_label="epoch", y_label=y_label, ticks=epochs, from_zero=True)
    return [Figure(slug(name.split()[-1], cells[0].task), f"{verdicts.title(cells[0])}: {name} by epoch", text, draw)]


def _label_lines(
    verdicts: Verdicts, cells: Sequence[Cell], value_of: Callable[[Mapping[str, Any]], float | None]
) -> dict[str, Line]:
    lines = {}
    for cell in cells:
        by_epoch: dict[int, list[float]] = {}
        for run in cell.recorded:
            for labels in run.record.labels_by_epoch:
                value = value_of(labels)
                if value is not None:
                    by_epoch.setdefault(int(labels["epoch"]) + 1, []).append(100.0 * value)
        if by_epoch:
            epochs = sorted(by_epoch)
            lines[cell.method] = Line(
                epochs,
                [float(np.mean(by_epoch[epoch])) for epoch in epochs],
                [min(by_epoch[epoch]) for epoch in epochs],
                [max(by_epoch[epoch]) for epoch in epochs],
                number=verdicts.methods.index(cell.method),
            )
    return lines


def _positive_share(labels: Mapping[str, Any]) -> float | None:
    ones, zeros = labels.get("ones"), labels.get("zeros")
    return None if ones is None or zeros is None or ones + zeros == 0 else ones / (ones + zeros)


def _kept_length(labels: Mapping[str, Any]) -> float | None:
    kept, all_rows = labels.get("kept_tokens"), labels.get("row_tokens")
    return kept / all_rows if kept and all_rows else None


def confusion_section(verdicts: Verdicts) -> Section | None:
    """Draw the confusion matrices: one figure for each classification task."""
    figures = []
    for task, cells in largest_cells(verdicts).items():
        counts, names = confusion_counts(cells)
        if counts and 2 <= len(names) <= _MOST_CLASSES:
            figures.append(
                Figure(
                    slug("confusion", task),
                    f"{verdicts.title(cells[0])}: confusion matrices",
                    "Each cell is the percentage of the rows with this label (left) that got this prediction (below),"
                    " over all seeds.",
                    functools.partial(confusion_figure, counts, names),
                )
            )
    return Section("Confusion matrices", tuple(figures)) if figures else None


def confusion_counts(cells: Sequence[Cell]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return by method the (C, C) counts over all seeds, and the classes; runs with other classes are left out."""
    counts: dict[str, np.ndarray] = {}
    names: tuple[str, ...] = ()
    for cell in cells:
        for run in cell.recorded:
            predictions = run.predictions()
            if predictions is None or not predictions.names or predictions.labels_N.ndim == 2:
                continue
            if names and predictions.names != names:
                continue
            names = predictions.names
            counts_CC = counts.setdefault(cell.method, np.zeros((len(names), len(names)), dtype=np.int64))
            np.add.at(counts_CC, (predictions.labels_N, predictions.predictions_N), 1)
    return counts, names


def hans_section(data: ReportData) -> Section | None:
    """Draw the accuracy on HANS by heuristic (SESAME, figure 3)."""
    figures = []
    for source, content in data.hans.items():
        lines = [line for line in content["lines"] if line["heuristic"] is not None and line["subcase"] is None]
        panels: dict[str, dict[str, list[Bar]]] = {}
        for line in lines:
            panel = panels.setdefault(f"gold label: {short(line['gold_label'])}", {})
            for name, mean, deviation in zip(content["methods"], line["means"], line["deviations"], strict=True):
                panel.setdefault(short(name), []).append(Bar(float("nan") if mean is None else mean, deviation))
        heuristics = [short(name).replace("_", " ") for name in dict.fromkeys(line["heuristic"] for line in lines)]
        if panels:
            figures.append(
                Figure(
                    slug("hans", source),
                    f"HANS: {source}",
                    f"Accuracy by heuristic on {content['rows']:,} rows. Error bars: standard deviation over runs.",
                    functools.partial(bars_figure, panels, heuristics, chance=0.5),
                )
            )
    return Section("HANS", tuple(figures)) if figures else None


def layers_section(data: ReportData) -> Section | None:
    """Draw the layer weights of squeeze-and-excitation (SESAME, figure 4)."""
    figures = []
    for source, content in data.layers.items():
        panels: Mapping[str, Mapping[str, Sequence[Bar]]] = {
            short(split): {
                "mean over texts, with standard deviation": [Bar(line["mean"], line["std"]) for line in lines]
            }
            for split, lines in content.items()
        }
        layers = [str(line["layer"]) for line in next(iter(content.values()))]
        figures.append(
            Figure(
                slug("layers", source),
                f"Layer weights: {source}",
                "The weight by which squeeze-and-excitation multiplies the output of each encoder layer.",
                functools.partial(bars_figure, panels, layers, y_label="layer weight"),
            )
        )
    return Section("Layer weights", tuple(figures)) if figures else None
