"""Dot plots with intervals: scores by seed, and advantages over a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.figures.base import (
    add_grid,
    add_legend,
    legend_shape,
    name_ticks,
    new_figure,
    panel_title,
    short,
    style_of,
)

_ROW_IN = 0.36


@dataclass(frozen=True)
class PointRow:
    """One line of a panel."""

    name: str  # the label at the left; a heading if there are no values
    values: Sequence[float] = ()  # one per seed
    mean: float = math.nan  # their mean; NaN draws none
    low: float = math.nan  # the lower end of the mean's interval; NaN draws none
    high: float = math.nan  # its upper end
    number: int = 0  # the method's number, which selects its style
    filled: bool = True  # whether the marker of the mean is filled


def rows_figure(
    panels: Mapping[str, Sequence[PointRow]],
    *,
    x_label: str,
    level: tuple[str, float] | None = None,
    hollow: str | None = None,
    span: tuple[float, float] | None = None,
) -> Any:
    """Draw panels side by side with the same rows and the same scale."""
    count = max(len(rows) for rows in panels.values())
    width_in = 1.9 + max(4.6, 2.6 * len(panels))
    names = ["one seed", "mean, 95 % CI", *([] if hollow is None else [hollow])]
    names += [] if level is None else [level[0]]
    legend_columns, legend_rows = legend_shape(names, width_in)
    height_in = 0.95 + _ROW_IN * count + 0.2 * legend_rows
    figure = new_figure(width_in, height_in, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        for position, row in enumerate(rows):
            _draw_row(axis, position, row)
        if level is not None:
            axis.axvline(level[1], color="black", linestyle=(0, (4, 2)), linewidth=1, zorder=1)
        if len(panels) > 1 or title:
            panel_title(axis, title)
        axis.set_xlabel(x_label, fontsize=9)
        add_grid(axis, "x")
        axis.tick_params(axis="y", length=0)
    rows = next(iter(panels.values()))
    name_ticks(axes[0], "y", range(len(rows)), [row.name for row in rows], fontsize=9)
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if not row.values else "normal")
    axes[0].set_ylim(count - 0.4, -0.6)
    if span is not None:
        axes[0].set_xlim(*span)
    handles = _handles(axes[0], hollow=hollow is not None, level=level is not None)
    add_legend(figure, handles, [short(name) for name in names], legend_columns)
    return figure


def _draw_row(axis: Any, position: int, row: PointRow) -> None:
    if not row.values:
        return
    style = style_of(row.number)
    # Seeds are drawn below the mean, so that neither hides the other.
    axis.plot(
        row.values,
        [position + 0.22] * len(row.values),
        linestyle="none",
        marker=style.marker,
        markersize=4,
        markerfacecolor="none",
        markeredgecolor=style.colour,
        markeredgewidth=0.9,
        zorder=3,
    )
    if math.isfinite(row.low):
        axis.plot([row.low, row.high], [position - 0.08] * 2, color=style.colour, linewidth=1.8, zorder=3)
        for end in (row.low, row.high):
            axis.plot([end, end], [position - 0.16, position], color=style.colour, linewidth=1.2, zorder=3)
    if math.isfinite(row.mean):
        axis.plot(
            [row.mean],
            [position - 0.08],
            marker=style.marker,
            markersize=7,
            markerfacecolor=style.colour if row.filled else "white",
            markeredgecolor=style.colour,
            markeredgewidth=1.4,
            zorder=4,
        )


def _handles(axis: Any, *, hollow: bool, level: bool) -> list[Any]:
    """What the legend shows, drawn off the panel."""
    empty: list[float] = []
    grey = "#555555"
    handles = [
        axis.plot(empty, empty, "o", markersize=4, markerfacecolor="none", markeredgecolor=grey)[0],
        axis.plot(empty, empty, "-o", markersize=7, color=grey, linewidth=1.8)[0],
    ]
    if hollow:
        handles += axis.plot(
            empty,
            empty,
            "-o",
            markersize=7,
            color=grey,
            linewidth=1.8,
            markerfacecolor="white",
            markeredgewidth=1.4,
        )
    if level:
        handles += axis.plot(empty, empty, color="black", linestyle=(0, (4, 2)), linewidth=1)
    return handles


def span_of(rows: Sequence[PointRow], *, least: float, also: Sequence[float] = ()) -> tuple[float, float]:
    """Return the range that the x axis needs for these rows."""
    values = [value for row in rows for value in (*row.values, row.mean, row.low, row.high)]
    known = [value for value in (*values, *also) if math.isfinite(value)] or [0.0]
    middle, half = (min(known) + max(known)) / 2, max(least, (max(known) - min(known)) * 1.08) / 2
    return middle - half, middle + half


def rows_alt(panels: Mapping[str, Sequence[PointRow]], unit: str) -> str:
    """Return the means in words, for readers who cannot see the figure."""
    parts = [
        f"{short(row.name)}{f' ({short(title)})' if title else ''} {row.mean:.3g}"
        for title, rows in panels.items()
        for row in rows
        if row.values and math.isfinite(row.mean)
    ]
    return f"Means in {unit}: {', '.join(parts)}." if parts else ""
