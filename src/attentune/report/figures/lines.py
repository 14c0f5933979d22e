"""Lines: loss against time, score against the size of the training part or a setting, token labels by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.figures.base import new_figure
from attentune.report.figures.style import add_legend, legend_rows, panel_title, style_of, tidy


@dataclass(frozen=True)
class Line:
    """One method's line.

    Attributes:
        xs, ys: its points.
        low, high: the interval at each point; empty for none.
        thin: further lines of it, such as those of single seeds, as (xs, ys).
        number: the method's, which says how it looks.
        marked: whether every point has its marker; only the last one has, otherwise.
    """

    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    thin: Sequence[tuple[Sequence[float], Sequence[float]]] = ()
    number: int = 0
    marked: bool = True


@dataclass(frozen=True)
class Level:
    """A method without the varied setting: one value with its interval, drawn across the panel."""

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
    levels: Mapping[str, Level] | None = None,
    from_zero: bool = False,
    right: float | None = None,
) -> Any:
    """Panels of lines side by side on the same scales, with one legend.

    Args:
        panels: by title, lines by method.
        x_label: what runs to the right, with its unit.
        y_label: what runs upwards, with its unit.
        ticks: where the x axis has ticks; Matplotlib's choice if not given.
        log_x: whether equal factors are equally far apart.
        levels: by method, values that do not depend on x.
        from_zero: whether the y axis begins at 0.
        right: for an x axis from zero, where it ends at the latest; thin lines may leave there.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    names += [name for name in levels or {} if name not in names]
    width_in = max(6.2, 3.6 * len(panels))
    height_in = 3.6 + 0.2 * legend_rows(names, width_in)[1]
    figure = new_figure(width_in, height_in, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for place, (name, line) in enumerate(lines.items()):
            step = min(0.014, 0.08 / len(lines)) if ticks else 0.0
            handles[name] = _draw_line(axis, line, step * (place - (len(lines) - 1) / 2), log_x, ticks)
        for name, level in (levels or {}).items():
            handles[name] = _draw_level(axis, level)
        if len(panels) > 1:
            panel_title(axis, title)
        axis.set_xlabel(x_label, fontsize=9)
        tidy(axis, "both")
    if log_x:
        axes[0].set_xscale("log")
    if ticks:
        axes[0].set_xticks(list(ticks), [f"{tick:,g}" for tick in ticks])
        axes[0].minorticks_off()
    axes[0].set_ylabel(y_label, fontsize=9)
    if from_zero:
        axes[0].set_ylim(bottom=0)
    if right is not None:
        axes[0].set_xlim(0, min(right, axes[0].get_xlim()[1]))
    add_legend(figure, [handles[name] for name in names], names, width_in)
    return figure


def _draw_line(axis: Any, line: Line, beside: float, log_x: bool, ticks: Sequence[float]) -> Any:
    """Points of several methods at one x stand a little beside each other, so that their intervals can be seen.

    Args:
        axis: what it is drawn on.
        line: what is drawn.
        beside: how far from the tick, as a share of what the ticks span.
        log_x: whether equal factors are equally far apart.
        ticks: where the x axis has ticks.
    """
    own = style_of(line.number)
    first, last = (min(ticks), max(ticks)) if len(ticks) > 1 else (1.0, math.e if log_x else 2.0)
    xs = [x * (last / first) ** beside for x in line.xs] if log_x else [x + (last - first) * beside for x in line.xs]
    for thin_xs, thin_ys in line.thin:
        axis.plot(thin_xs, thin_ys, color=own.colour, linewidth=0.6, alpha=0.35, zorder=2)
    if line.low:
        down = [max(0.0, y - low) for y, low in zip(line.ys, line.low, strict=True)]
        up = [max(0.0, high - y) for y, high in zip(line.ys, line.high, strict=True)]
        axis.errorbar(xs, line.ys, yerr=[down, up], fmt="none", ecolor=own.colour, elinewidth=1, capsize=2.5, zorder=3)
    every = None if line.marked else [len(xs) - 1]
    (drawn,) = axis.plot(
        xs,
        line.ys,
        color=own.colour,
        linestyle=own.dash,
        linewidth=1.6,
        marker=own.marker,
        markersize=5.5,
        markevery=every,
        zorder=4,
    )
    return drawn


def _draw_level(axis: Any, level: Level) -> Any:
    own = style_of(level.number)
    if level.low == level.low:
        axis.axhspan(level.low, level.high, color=own.colour, alpha=0.1, linewidth=0, zorder=1)
    return axis.axhline(level.value, color=own.colour, linestyle=own.dash, linewidth=1.4, zorder=2)
