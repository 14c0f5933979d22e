"""Confusion matrices, and the critical-difference diagram of mean ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attentune.report.figures.base import (
    name_ticks,
    new_figure,
    panel_title,
    set_text,
    short,
    style_of,
    title_lines,
)
from attentune.stats.ranks import Ranking

_COLUMNS = 4
_CHARACTER_IN, _LINE_IN = 0.078, 0.62


def confusion_figure(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> Any:
    """Draw confusion matrices side by side with one colour scale, and in each cell the share of the label's rows."""
    columns = min(_COLUMNS, len(counts))
    lines = math.ceil(len(counts) / columns)
    side_in = max(1.3, 0.42 * len(names))
    label_in = 0.075 * min(16, max(len(short(name, 16)) for name in names))
    title_in = 0.18 * max(len(title_lines(title, side_in)) for title in counts)
    figure = new_figure(
        columns * (side_in + 0.3) + label_in + 1.1, lines * (side_in + label_in + title_in + 0.62), layout="constrained"
    )
    axes = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False)
    image = None
    figure.get_layout_engine().set(h_pad=0.1)
    for index, (axis, (title, counts_CC)) in enumerate(zip(axes.flat, counts.items(), strict=False)):
        totals_C1 = counts_CC.sum(axis=1, keepdims=True)
        shares_CC = np.divide(counts_CC, totals_C1, out=np.zeros(counts_CC.shape), where=totals_C1 > 0)
        image = axis.imshow(shares_CC, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        for (label, predicted), share in np.ndenumerate(shares_CC):
            colour = "white" if share > 0.6 else "black"
            axis.text(predicted, label, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        panel_title(axis, title, side_in)
        if index + columns >= len(counts):
            axis.set_xlabel("predicted", fontsize=9)
        rotation = 90 if label_in > 0.5 else 0
        name_ticks(axis, "x", range(len(names)), [short(name, 16) for name in names], fontsize=8, rotation=rotation)
        name_ticks(axis, "y", range(len(names)), [short(name, 16) for name in names], fontsize=8)
        axis.tick_params(length=0, labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("label", fontsize=9)
    for axis in axes.flat[len(counts) :]:
        axis.set_axis_off()
    bar = figure.colorbar(image, ax=axes, fraction=0.05, shrink=0.9 / lines, anchor=(0, 1))
    bar.set_label("% of the label's rows", fontsize=9)
    bar.set_ticks([0, 0.5, 1], labels=["0", "50", "100"])
    return figure


def ranks_figure(ranking: Ranking, numbers: Mapping[str, int]) -> Any:
    """Draw mean ranks on a line, the best at the left, and bars below the methods that do not differ significantly.

    Source: Demsar, JMLR 7, 2006, figure 1.
    """
    names = [f"{short(name)} ({rank:.2f})" for name, rank in zip(ranking.methods, ranking.mean_ranks, strict=True)]
    count, half = len(names), (len(names) + 1) // 2
    difference = f"critical difference {ranking.critical_difference:.2f}"
    # All positions are in inches, so that names have the space that they need.
    left_in = 0.45 + _CHARACTER_IN * max(map(len, names[:half]))
    line_in = max(2.4, 0.55 * (count - 1))
    right_in = 0.45 + _CHARACTER_IN * max(map(len, [*names[half:], difference + " (longer)"]))
    top_in = 0.95 + 0.16 * len(ranking.groups)
    size = (left_in + line_in + right_in, top_in + 0.28 * half + 0.15)
    figure = new_figure(*size)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, size[0]), ylim=(size[1], 0))
    axis.set_axis_off()
    step_in = line_in / (count - 1)
    _rank_line(axis, left_in, step_in, ranking, difference)
    for index, (method, rank) in enumerate(zip(ranking.methods, ranking.mean_ranks, strict=True)):
        is_left = index < half
        x, y = left_in + step_in * (rank - 1), top_in + 0.28 * (index if is_left else count - 1 - index)
        end = left_in - 0.15 if is_left else left_in + line_in + 0.15
        style = style_of(numbers[method])
        axis.plot([x, x, end], [_LINE_IN, y, y], color="#555555", linewidth=0.9)
        axis.plot([x], [_LINE_IN], marker=style.marker, color=style.colour, markersize=7)
        alignment = {"ha": "right"} if is_left else {"ha": "left"}
        set_text(
            axis.text(end + (-0.06 if is_left else 0.06), y, "-", va="center", fontsize=9, **alignment), names[index]
        )
    return figure


def _rank_line(axis: Any, left_in: float, step_in: float, ranking: Ranking, difference: str) -> None:
    """Draw the line with its ticks, the critical difference above it and the bars of the groups below it."""
    count = len(ranking.methods)
    axis.plot([left_in, left_in + step_in * (count - 1)], [_LINE_IN] * 2, color="black", linewidth=1)
    for tick in range(count):
        x = left_in + step_in * tick
        axis.plot([x, x], [_LINE_IN - 0.07, _LINE_IN], color="black", linewidth=1)
        axis.text(x, _LINE_IN - 0.1, str(tick + 1), ha="center", va="bottom", fontsize=9)
    reach = min(ranking.critical_difference, float(count - 1))
    more = "" if reach == ranking.critical_difference else " (longer)"
    axis.plot([left_in, left_in + step_in * reach], [0.2, 0.2], color="black", linewidth=1.2, marker="|", markersize=7)
    axis.text(left_in + step_in * reach + 0.1, 0.2, difference + more, va="center", fontsize=9)
    for number, group in enumerate(ranking.groups):
        ranks = [ranking.mean_ranks[ranking.methods.index(method)] for method in (group[0], group[-1])]
        ends = [left_in + step_in * (rank - 1) for rank in ranks]
        y = _LINE_IN + 0.2 + 0.16 * number
        axis.plot([min(ends) - 0.05, max(ends) + 0.05], [y, y], color="black", linewidth=3.5, solid_capstyle="butt")
