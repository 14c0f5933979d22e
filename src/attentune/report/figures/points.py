"""Rows of points with intervals: scores by seed, and advantages over a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.figures.base import new_figure
from attentune.report.figures.style import add_legend, legend_rows, name_ticks, panel_title, short, style_of, tidy

_ROW_IN = 0.36


@dataclass(frozen=True)
class PointRow:
    """One line of a panel.

    Attributes:
        name: what stands at its left; a heading if there are no values.
        values: one a seed.
        mean: of them; NaN draws none.
        low: the lower end of the mean's interval; NaN draws none.
        high: its upper end.
        number: the method's, which says how it looks.
        filled: whether the mean is filled.
    """

    name: str
    values: Sequence[float] = ()
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    number: int = 0
    filled: bool = True


def rows_figure(
    panels: Mapping[str, Sequence[PointRow]],
    *,
    x_label: str,
    level: tuple[str, float] | None = None,
    hollow: str | None = None,
    span: tuple[float, float] | None = None,
) -> Any:
    """Panels side by side with the same rows and the same scale.

    Args:
        panels: by title, their rows, alike in name and order.
        x_label: what the values are.
        level: a name and where its upright line is drawn.
        hollow: what a mean that is not filled says, for the legend.
        span: from where to where the x axis reaches; as far as the values do if not given.
    """
    count = max(len(rows) for rows in panels.values())
    width_in = 1.9 + max(4.6, 2.6 * len(panels))
    names = ["one seed", "mean, 95 % interval", *([] if hollow is None else [hollow])]
    names += [] if level is None else [level[0]]
    height_in = 0.95 + _ROW_IN * count + 0.2 * legend_rows(names, width_in)[1]
    figure = new_figure(width_in, height_in, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        for place, row in enumerate(rows):
            _draw_row(axis, place, row)
        if level is not None:
            axis.axvline(level[1], color="black", linestyle=(0, (4, 2)), linewidth=1, zorder=1)
        if len(panels) > 1 or title:
            panel_title(axis, title)
        axis.set_xlabel(x_label, fontsize=9)
        tidy(axis, "x")
        axis.tick_params(axis="y", length=0)
    rows = next(iter(panels.values()))
    name_ticks(axes[0], "y", range(len(rows)), [row.name for row in rows], fontsize=9)
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if not row.values else "normal")
    axes[0].set_ylim(count - 0.4, -0.6)
    if span is not None:
        axes[0].set_xlim(*span)
    add_legend(figure, _handles(axes[0], hollow=hollow is not None, level=level is not None), names, width_in)
    return figure


def _draw_row(axis: Any, place: int, row: PointRow) -> None:
    if not row.values:
        return
    own = style_of(row.number)
    # Seeds stand below the mean, so that neither hides the other.
    axis.plot(
        row.values,
        [place + 0.22] * len(row.values),
        linestyle="none",
        marker=own.marker,
        markersize=4,
        markerfacecolor="none",
        markeredgecolor=own.colour,
        markeredgewidth=0.9,
        zorder=3,
    )
    if math.isfinite(row.low):
        axis.plot([row.low, row.high], [place - 0.08] * 2, color=own.colour, linewidth=1.8, zorder=3)
        for end in (row.low, row.high):
            axis.plot([end, end], [place - 0.16, place], color=own.colour, linewidth=1.2, zorder=3)
    if math.isfinite(row.mean):
        axis.plot(
            [row.mean],
            [place - 0.08],
            marker=own.marker,
            markersize=7,
            markerfacecolor=own.colour if row.filled else "white",
            markeredgecolor=own.colour,
            markeredgewidth=1.4,
            zorder=4,
        )


def _handles(axis: Any, *, hollow: bool, level: bool) -> list[Any]:
    """What the legend shows, drawn off the panel."""
    nothing: list[float] = []
    grey = "#555555"
    found = [
        axis.plot(nothing, nothing, "o", markersize=4, markerfacecolor="none", markeredgecolor=grey)[0],
        axis.plot(nothing, nothing, "-o", markersize=7, color=grey, linewidth=1.8)[0],
    ]
    if hollow:
        found += axis.plot(
            nothing,
            nothing,
            "-o",
            markersize=7,
            color=grey,
            linewidth=1.8,
            markerfacecolor="white",
            markeredgewidth=1.4,
        )
    if level:
        found += axis.plot(nothing, nothing, color="black", linestyle=(0, (4, 2)), linewidth=1)
    return found


def span_of(rows: Sequence[PointRow], *, least: float, also: Sequence[float] = ()) -> tuple[float, float]:
    """From where to where the x axis must reach for these rows.

    Args:
        rows: what will be drawn, in one figure or several with the same scale.
        least: how far it reaches at least, so that noise far below this does not fill the panel.
        also: further values that must be seen.
    """
    values = [value for row in rows for value in (*row.values, row.mean, row.low, row.high)]
    known = [value for value in (*values, *also) if math.isfinite(value)] or [0.0]
    middle, half = (min(known) + max(known)) / 2, max(least, (max(known) - min(known)) * 1.08) / 2
    return middle - half, middle + half


def rows_alt(panels: Mapping[str, Sequence[PointRow]], unit: str) -> str:
    """The means in words, for those who cannot see the figure."""
    parts = [
        f"{short(row.name)}{f' ({short(title)})' if title else ''} {row.mean:.3g}"
        for title, rows in panels.items()
        for row in rows
        if row.values and math.isfinite(row.mean)
    ]
    return f"Means in {unit}: {', '.join(parts)}." if parts else ""
