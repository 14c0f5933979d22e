"""The figures of what happened in the runs: loss against time, token labels by epoch, confusion, HANS, layers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attentune.experiments.comparison.records import RunRecord
from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Figure, Section
from attentune.report.figures.base import Bar, bars_figure
from attentune.report.figures.grids import confusion_figure
from attentune.report.figures.lines import Line, lines_figure
from attentune.report.figures.style import short
from attentune.report.load import ReportData
from attentune.report.numbers import place, slug

_MOST_CLASSES = 12
# By step: seconds, and the loss.
Curve = dict[int, tuple[float, float]]


def largest_cells(verdicts: Verdicts) -> dict[str, list[Cell]]:
    """The cells of each task's largest size of the training part."""
    found: dict[str, list[Cell]] = {}
    for cell in verdicts.cells:
        own = found.setdefault(cell.task, [])
        if own and own[0].size != cell.size:
            own.clear()
        own.append(cell)
    return found


def loss_section(verdicts: Verdicts) -> Section | None:
    """Training loss against wall time (SSA, figure 6), a figure a task."""
    figures = []
    for task, cells in largest_cells(verdicts).items():
        lines = {}
        for cell in cells:
            curves = [curve for one in cell.kept if (curve := loss_curve(one.record)) is not None]
            xs, ys = middle_curve(curves) if curves else ([], [])
            if xs:
                number = verdicts.methods.index(cell.method)
                thin = [([x for x, _ in curve.values()], [y for _, y in curve.values()]) for curve in curves]
                lines[cell.method] = Line(xs, ys, thin=thin, number=number, marked=False)
        if lines:
            figures.append(
                Figure(
                    slug("loss", task),
                    f"{place(cells[0], verdicts.cells)}: training loss against time",
                    "Thin lines are seeds, smoothed; thick ones the median time and mean loss at each step. The time is"
                    " that of training steps and of making token labels, on the machine of the run; runs that took far"
                    " longer than all medians leave at the right. With token labels the loss includes the token head's,"
                    " so that heights of different methods are not to be compared.",
                    functools.partial(
                        lines_figure,
                        {task: lines},
                        x_label="wall time (s)",
                        y_label="training loss",
                        right=1.5 * max(line.xs[-1] for line in lines.values()),
                    ),
                )
            )
    return Section("Loss against time", tuple(figures)) if figures else None


def loss_curve(record: RunRecord) -> Curve | None:
    """The loss of a run as it was logged, smoothed; None if fewer than two lines were."""
    lines = [line for line in record.curve if line.get("loss") is not None and line.get("seconds") is not None]
    if len(lines) < 2:
        return None
    made = {part.get("epoch", 0): float(part.get("seconds") or 0.0) for part in record.labels_by_epoch}
    seconds = [
        float(line["seconds"]) + sum(spent for epoch, spent in made.items() if epoch <= line.get("epoch", 0))
        for line in lines
    ]
    losses = np.array([float(line["loss"]) for line in lines])
    width = max(1, len(losses) // 12)
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(0, ends - width)
    smoothed = ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
    steps = (int(line.get("step", place)) for place, line in enumerate(lines))
    return dict(zip(steps, zip(seconds, smoothed, strict=True), strict=True))


def middle_curve(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Median seconds and mean loss at each step that all runs have logged.

    At each step, and not at each second: a run on a busy machine is at another step then. Of seconds the median, as a
    run that lay still says nothing of the method.
    """
    steps = sorted(set(curves[0]).intersection(*curves))
    seconds = [float(np.median([curve[step][0] for curve in curves])) for step in steps]
    return seconds, [float(np.mean([curve[step][1] for curve in curves])) for step in steps]


def labels_section(verdicts: Verdicts) -> Section | None:
    """What the token labels were, epoch by epoch."""
    figures = []
    for task, cells in largest_cells(verdicts).items():
        ones = _label_lines(verdicts, cells, lambda facts: _share(facts.get("ones"), facts.get("zeros")))
        right = _label_lines(verdicts, cells, lambda facts: facts.get("token_accuracy"))
        if not ones:
            continue
        panels = {"tokens labelled 1": ones} | ({"token head's accuracy": right} if right else {})
        epochs = sorted({x for lines in panels.values() for line in lines.values() for x in line.xs})
        figures.append(
            Figure(
                slug("labels", task),
                f"{place(cells[0], verdicts.cells)}: token labels by epoch",
                "Share of the labelled tokens whose label is 1, and of those that the token head gets right in the"
                " epoch; means over seeds, with the lowest and highest seed. Epochs without labels are left out.",
                functools.partial(
                    lines_figure, panels, x_label="epoch", y_label="% of labelled tokens", ticks=epochs, from_zero=True
                ),
            )
        )
    return Section("Token labels", tuple(figures)) if figures else None


def _label_lines(verdicts: Verdicts, cells: Sequence[Cell], pick: Any) -> dict[str, Line]:
    lines = {}
    for cell in cells:
        by_epoch: dict[int, list[float]] = {}
        for one in cell.kept:
            for facts in one.record.labels_by_epoch:
                value = pick(facts)
                if value is not None:
                    by_epoch.setdefault(int(facts["epoch"]) + 1, []).append(100.0 * value)
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


def _share(ones: int | None, zeros: int | None) -> float | None:
    return None if ones is None or zeros is None or ones + zeros == 0 else ones / (ones + zeros)


def confusion_section(verdicts: Verdicts) -> Section | None:
    """Which classes are taken for which, a figure a task with classes."""
    figures = []
    for task, cells in largest_cells(verdicts).items():
        counts, names = confusion_counts(cells)
        if counts and 2 <= len(names) <= _MOST_CLASSES:
            figures.append(
                Figure(
                    slug("confusion", task),
                    f"{place(cells[0], verdicts.cells)}: confusion",
                    "Of the rows with the label at the left, the percentage that is predicted as what stands below; all"
                    " seeds together.",
                    functools.partial(confusion_figure, counts, names),
                )
            )
    return Section("Confusion", tuple(figures)) if figures else None


def confusion_counts(cells: Sequence[Cell]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """By method the (C, C) counts over all seeds, and the classes; methods with other classes are left out."""
    counts: dict[str, np.ndarray] = {}
    names: tuple[str, ...] = ()
    for cell in cells:
        for one in cell.kept:
            found = one.predictions()
            if found is None or not found.names or found.labels_N.ndim == 2 or (names and found.names != names):
                continue
            names = found.names
            own = counts.setdefault(cell.method, np.zeros((len(names), len(names)), dtype=np.int64))
            np.add.at(own, (found.labels_N, found.predictions_N), 1)
    return counts, names


def hans_section(material: ReportData) -> Section | None:
    """Accuracy on HANS by heuristic (SESAME, figure 3)."""
    figures = []
    for source, content in material.hans.items():
        cells = [line for line in content["lines"] if line["heuristic"] is not None and line["subcase"] is None]
        panels: dict[str, dict[str, list[Bar]]] = {}
        for line in cells:
            panel = panels.setdefault(f"gold label: {short(line['gold_label'])}", {})
            for name, mean, spread in zip(content["methods"], line["means"], line["deviations"], strict=True):
                panel.setdefault(short(name), []).append(Bar(float("nan") if mean is None else mean, spread))
        groups = [short(name).replace("_", " ") for name in dict.fromkeys(line["heuristic"] for line in cells)]
        if panels:
            figures.append(
                Figure(
                    slug("hans", source),
                    f"HANS: {source}",
                    f"Accuracy by heuristic on {content['rows']:,} rows; error bars: standard deviation over runs.",
                    functools.partial(bars_figure, panels, groups, chance=0.5),
                )
            )
    return Section("HANS", tuple(figures)) if figures else None


def layers_section(material: ReportData) -> Section | None:
    """Which layers squeeze-and-excitation listens to (SESAME, figure 4)."""
    figures = []
    for source, content in material.layers.items():
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
                "What squeeze-and-excitation multiplies each encoder layer with.",
                functools.partial(bars_figure, panels, layers, y_label="layer's weight"),
            )
        )
    return Section("Layers", tuple(figures)) if figures else None
