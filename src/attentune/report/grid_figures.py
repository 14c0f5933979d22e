"""Confusion matrices and the critical-difference figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attentune.report.figures import new_figure
from attentune.report.plots import look, name_ticks, panel_title, short, write
from attentune.stats.ranks import Ranking

_COLUMNS = 4


def confusion_figure(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> Any:
    """Confusion matrices side by side on one scale of tones, with the share of each label's rows in the cells.

    Args:
        counts: by title, (C, C) rows with this label (down) and prediction (across).
        names: of the C classes.
    """
    columns = min(_COLUMNS, len(counts))
    lines = math.ceil(len(counts) / columns)
    side_in = max(1.3, 0.42 * len(names))
    label_in = 0.075 * min(16, max(len(short(name, 16)) for name in names))
    figure = new_figure(
        columns * (side_in + 0.3) + label_in + 1.1, lines * (side_in + label_in + 0.75), layout="constrained"
    )
    axes = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False)
    image = None
    for axis, (title, counts_CC) in zip(axes.flat, counts.items(), strict=False):
        totals_C1 = counts_CC.sum(axis=1, keepdims=True)
        shares_CC = np.divide(counts_CC, totals_C1, out=np.zeros(counts_CC.shape), where=totals_C1 > 0)
        image = axis.imshow(shares_CC, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        for (label, predicted), share in np.ndenumerate(shares_CC):
            colour = "white" if share > 0.6 else "black"
            axis.text(predicted, label, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        panel_title(axis, title, side_in)
        axis.set_xlabel("predicted", fontsize=9)
        turned = 90 if label_in > 0.5 else 0
        name_ticks(axis, "x", range(len(names)), [short(name, 16) for name in names], fontsize=8, rotation=turned)
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
    """Mean ranks on a line, the best at the left; methods on one bar are not told apart.

    Args:
        ranking: of `stats.ranks.rank_methods`.
        numbers: by method, which says how it looks.

    Source: Demsar, JMLR 7, 2006, figure 1.
    """
    methods, ranks = ranking.methods, ranking.mean_ranks
    count, groups = len(methods), len(ranking.groups)
    top = 0.55 + 0.16 * groups
    half = (count + 1) // 2
    height = top + 0.28 * half + 0.1
    figure = new_figure(7.4, 0.5 + height, layout="constrained")
    axis = figure.subplots()
    axis.set(xlim=(0.35 - 0.35 * (count - 1), count + 0.65 + 0.35 * (count - 1)), ylim=(height, -0.55))
    axis.set_axis_off()
    axis.plot([1, count], [0, 0], color="black", linewidth=1)
    for tick in range(1, count + 1):
        axis.plot([tick, tick], [-0.07, 0], color="black", linewidth=1)
        axis.text(tick, -0.12, str(tick), ha="center", va="bottom", fontsize=9)
    for place, (method, rank) in enumerate(zip(methods, ranks, strict=True)):
        left = place < half
        line = place if left else count - 1 - place
        y = top + 0.28 * line
        end = 0.9 if left else count + 0.1
        own = look(numbers[method])
        axis.plot([rank, rank, end], [0, y, y], color="#555555", linewidth=0.9)
        axis.plot([rank], [0], marker=own.marker, color=own.colour, markersize=7, clip_on=False)
        text = axis.text(
            end + (-0.05 if left else 0.05), y, "-", ha="right" if left else "left", va="center", fontsize=9
        )
        write(text, f"{short(method, 30)} ({rank:.2f})")
    for number, group in enumerate(ranking.groups):
        ends = [ranks[methods.index(method)] for method in (group[0], group[-1])]
        height_of_bar = 0.22 + 0.16 * number
        axis.plot(
            [min(ends) - 0.04, max(ends) + 0.04],
            [height_of_bar] * 2,
            color="black",
            linewidth=3.5,
            solid_capstyle="butt",
        )
    reach = min(ranking.critical_difference, float(count - 1))
    axis.plot([1, 1 + reach], [-0.42, -0.42], color="black", linewidth=1.2, marker="|", markersize=7)
    more = "" if reach == ranking.critical_difference else " (longer than the line)"
    axis.text(
        1 + reach + 0.02 * count,
        -0.42,
        f"critical difference {ranking.critical_difference:.2f}{more}",
        va="center",
        fontsize=9,
    )
    return figure
