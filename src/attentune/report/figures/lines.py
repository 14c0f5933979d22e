"""Line charts: loss against time, score against training set size or a setting, token labels by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.figures.base import add_grid, add_legend, legend_shape, new_figure, panel_title, short, style_of


@dataclass(frozen=True)
class Line:
    """One method's line."""

    xs: Sequence[float]  # the points' horizontal positions
    ys: Sequence[float]  # their vertical positions
    low: Sequence[float] = ()  # the lower end of the interval at each point; empty for no intervals
    high: Sequence[float] = ()  # its upper end
    thin: Sequence[tuple[Sequence[float], Sequence[float]]] = ()  # thin lines of the same method
    number: int = 0  # the method's number, which selects its style
    marked: bool = True  # whether every point has a marker; otherwise only the last one has


@dataclass(frozen=True)
class Level:
    """The score of a method without the varied setting: a horizontal line with its interval."""

    value: float
    low: float
    high: float
    number: int


def lines_figure(
    panels: Mapping[str, Mapping[str, Line]],
    *,
    x_label: str,
    y_label: str,
    ticks: Sequence[float] = (),
    log_x: bool = False,
    log_y: bool = False,
    levels: Mapping[str, Level] | None = None,
    from_zero: bool = False,
    right: float | None = None,
) -> Any:
    """Draw panels of lines side by side on the same scales, with one legend."""
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    names += [name for name in levels or {} if name not in names]
    width_in = max(6.2, 3.6 * len(panels))
    legend_columns, legend_rows = legend_shape(names, width_in)
    height_in = 3.6 + 0.2 * legend_rows
    figure = new_figure(width_in, height_in, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for index, (name, line) in enumerate(lines.items()):
            step = min(0.014, 0.08 / len(lines)) if ticks else 0.0
            handles[name] = _draw_line(axis, line, step * (index - (len(lines) - 1) / 2), log_x, ticks)
        for name, level in (levels or {}).items():
            handles[name] = _draw_level(axis, level)
        if len(panels) > 1:
            panel_title(axis, title)
        axis.set_xlabel(x_label, fontsize=9)
        add_grid(axis, "both")
    if log_x:
        axes[0].set_xscale("log")
    if log_y:
        axes[0].set_yscale("log")
    if ticks:
        axes[0].set_xticks(list(ticks), [f"{tick:,g}" for tick in ticks])
        axes[0].minorticks_off()
    axes[0].set_ylabel(y_label, fontsize=9)
    if from_zero:
        axes[0].set_ylim(bottom=0)
    if right is not None:
        axes[0].set_xlim(0, min(right, axes[0].get_xlim()[1]))
    add_legend(figure, [handles[name] for name in names], [short(name) for name in names], legend_columns)
    return figure


def _draw_line(axis: Any, line: Line, offset: float, log_x: bool, ticks: Sequence[float]) -> Any:
    """Draw a line, shifted by a small offset, so that the intervals of several methods at one x do not overlap."""
    style = style_of(line.number)
    first, last = (min(ticks), max(ticks)) if len(ticks) > 1 else (1.0, math.e if log_x else 2.0)
    xs = [x * (last / first) ** offset for x in line.xs] if log_x else [x + (last - first) * offset for x in line.xs]
    for thin_xs, thin_ys in line.thin:
        axis.plot(thin_xs, thin_ys, color=style.colour, linewidth=0.6, alpha=0.35, zorder=2)
    if line.low:
        down = [max(0.0, y - low) for y, low in zip(line.ys, line.low, strict=True)]
        up = [max(0.0, high - y) for y, high in zip(line.ys, line.high, strict=True)]
        axis.errorbar(
            xs, line.ys, yerr=[down, up], fmt="none", ecolor=style.colour, elinewidth=1, capsize=2.5, zorder=3
        )
    every = None if line.marked else [len(xs) - 1]
    (drawn,) = axis.plot(
        xs,
        line.ys,
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.6,
        marker=style.marker,
        markersize=5.5,
        markevery=every,
        zorder=4,
    )
    return drawn


def _draw_level(axis: Any, level: Level) -> Any:
    style = style_of(level.number)
    if level.low == level.low:
        axis.axhspan(level.low, level.high, color=style.colour, alpha=0.1, linewidth=0, zorder=1)
    return axis.axhline(level.value, color=style.colour, linestyle=style.dash, linewidth=1.4, zorder=2)
