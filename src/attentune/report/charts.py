"""The charts of reports, drawn with Matplotlib: rows with intervals, lines, confusion.

Matplotlib (extra `report`) is imported only here, and only when a figure is drawn.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.tables import visible
from attentune.errors import ConfigError
from attentune.io.files import write_bytes
from attentune.plugins import require_extra

FIGURE_KINDS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150
# Okabe and Ito's colours, which colour-blind readers can distinguish. Shapes and dashes distinguish methods in
# greyscale print.
_METHOD_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 3)))
_GREY = "#555555"
_GRID: dict[str, Any] = {"color": "#dddddd", "linewidth": 0.6, "zorder": 0}
_LONGEST_NAME = 30
_ROW_IN = 0.36
_MOST_MATRICES_BESIDE = 4


def check_figure_file(path: str | Path) -> None:
    """Check, before the work is done, that a figure can be drawn to a file of this name."""
    if Path(path).suffix.lower() not in FIGURE_KINDS:
        raise ConfigError(f"{path}: expected a name for a figure that ends in {', '.join(FIGURE_KINDS)}.")
    require_extra("report", "matplotlib", what=str(path))


def new_figure(width_in: float, height_in: float, **options: Any) -> Any:
    """Create an empty figure of this size in inches; the options are those of Matplotlib's `Figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), dpi=DOTS_PER_INCH, **options)


def save_figure(figure: Any, path: str | Path) -> None:
    write_bytes(path, figure_bytes(figure, Path(path).suffix.lower()[1:]))


def figure_bytes(figure: Any, kind: str, *, text_as_text: bool = False) -> bytes:
    """Return a figure as the content of a file: identical for identical figures, without dates and random names."""
    from matplotlib import rc_context

    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    options = {"svg.hashsalt": "attentune", "svg.fonttype": "none" if text_as_text else "path"}
    with rc_context(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # drawn as boxes
        figure.savefig(buffer, format=kind, metadata=dates.get(kind))
    return buffer.getvalue()


def short(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name on one line, with visible control characters, cut to a number of characters."""
    name = " ".join(visible(text, one_line=True).split())
    return name if len(name) <= longest else name[: longest - 3].rstrip() + "..."


def set_text(text: Any, words: str) -> None:
    text.set(parse_math=False, text=words)


def name_ticks(axis: Any, which: str, names: Iterable[str], **style: Any) -> None:
    """Put names at 0, 1, 2, ... of the x or y axis."""
    shown = [short(name) for name in names]
    (axis.set_xticks if which == "x" else axis.set_yticks)(range(len(shown)), shown, **style)
    for label in axis.get_xticklabels() if which == "x" else axis.get_yticklabels():
        label.set_parse_math(False)


def shaded_grid(axis: Any, values_RC: np.ndarray, *, colours: str, most: float = 1.0) -> None:
    """Shade a cell of a grid for each value, the first row at the top: shapes, since pages load no pictures."""
    rows, columns = values_RC.shape
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    axis.pcolormesh(*edges, values_RC, cmap=colours, vmin=0.0, vmax=most, clip_on=False)
    axis.set_ylim(rows - 0.5, -0.5)
    axis.tick_params(length=0)


def _panels(panels: Iterable[str], width_in: float, height_in: float, names: Sequence[str]) -> tuple[Any, Any, int]:
    """Return a figure with axes side by side on the same scales, and the columns of the legend of these names."""
    longest = max((len(name) for name in names), default=1)
    columns = max(1, min(len(names), int(width_in / (0.65 + 0.078 * longest))))
    figure = new_figure(width_in, height_in + 0.2 * math.ceil(len(names) / columns), layout="constrained")
    titles = list(panels)
    axes = figure.subplots(1, len(titles), sharey=True, sharex=True, squeeze=False)[0]
    for axis, title in zip(axes, titles, strict=True):
        if len(titles) > 1:
            set_text(axis.set_title("-", fontsize=10), _wrapped(title, 3.6))
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes, columns


def _wrapped(title: str, width_in: float) -> str:
    characters = max(8, int(width_in / 0.082))
    return "\n".join(textwrap.wrap(short(title, 3 * characters), characters)[:3])


def _add_legend(figure: Any, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    # The text is set afterwards: Matplotlib reads $ in a label as mathematics, and drops a label that begins with "_".
    legend = figure.legend(
        handles, ["-"] * len(names), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        set_text(text, name)


def _style(number: int) -> dict[str, Any]:
    """Return the colour, marker and dashes of the method with this number. The first 77 differ from each other."""
    return {
        "color": _METHOD_COLOURS[number % len(_METHOD_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


@dataclass(frozen=True)
class PointRow:
    name: str  # the label at the left
    values: Sequence[float] = ()  # one per seed
    mean: float = math.nan  # their mean; NaN draws none
    low: float = math.nan  # the lower end of the mean's error bar; NaN draws none
    high: float = math.nan  # its upper end
    number: int = 0  # the method's number, which selects its style


def rows_figure(
    panels: Mapping[str, Sequence[PointRow]],
    *,
    x_label: str,
    level: tuple[str, float] | None = None,
    least: float = 0.0,
    mean_name: str = "mean, 95 % CI",
) -> Any:
    """Draw panels side by side with the same rows and the same scale, which spans at least `least`.

    `mean_name` says what the large points and their error bars are.
    """
    rows = next(iter(panels.values()))
    names = [*(["one seed"] if any(len(row.values) > 1 for row in rows) else []), mean_name]
    names += [] if level is None else [short(level[0])]
    width_in = 1.9 + max(4.6, 2.6 * len(panels))
    figure, axes, columns = _panels(panels, width_in, 0.95 + _ROW_IN * len(rows), names)
    for axis, drawn in zip(axes, panels.values(), strict=True):
        for position, row in enumerate(drawn):
            _draw_row(axis, position, row)
        if level is not None:
            axis.axvline(level[1], color="black", linestyle=(0, (4, 2)), linewidth=1, zorder=1)
        axis.set_xlabel(x_label, fontsize=9)
        axis.grid(axis="x", **_GRID)
        axis.tick_params(axis="y", length=0)
    name_ticks(axes[0], "y", [row.name for row in rows], fontsize=9)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    every = [row for drawn in panels.values() for row in drawn]
    values = [value for row in every for value in (*row.values, row.mean, row.low, row.high)]
    values += [] if level is None else [level[1]]
    known = [value for value in values if math.isfinite(value)] or [0.0]
    middle, half = (min(known) + max(known)) / 2, max(least, (max(known) - min(known)) * 1.08, 1e-9) / 2
    axes[0].set_xlim(middle - half, middle + half)
    line: dict[str, Any] = {"color": _GREY, "linewidth": 1.8, "markersize": 7}
    drawn_as: list[dict[str, Any]] = [
        {"marker": "o", "markersize": 4, "markerfacecolor": "none", "markeredgecolor": _GREY, "linestyle": "none"},
        {"marker": "o", **line},
        {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1},
    ]
    used = [names[0] == "one seed", True, level is not None]
    handles = [axes[0].plot([], [], **style)[0] for style, needed in zip(drawn_as, used, strict=True) if needed]
    _add_legend(figure, handles, names, columns)
    return figure


def _draw_row(axis: Any, position: int, row: PointRow) -> None:
    style = _style(row.number)
    colour, marker = style["color"], style["marker"]
    # Seeds are drawn below the mean, so that neither hides the other.
    if len(row.values) > 1:
        seeds = {"markersize": 4, "markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 0.9}
        axis.plot(row.values, [position + 0.22] * len(row.values), linestyle="none", marker=marker, zorder=3, **seeds)
    if math.isfinite(row.low):
        half = [[max(0.0, row.mean - row.low)], [max(0.0, row.high - row.mean)]]
        axis.errorbar([row.mean], [position - 0.08], xerr=half, fmt="none", ecolor=colour, elinewidth=1.8, capsize=3)
    if math.isfinite(row.mean):
        axis.plot([row.mean], [position - 0.08], linestyle="none", marker=marker, markersize=7, color=colour, zorder=4)


def rows_alt(panels: Mapping[str, Sequence[PointRow]], unit: str) -> str:
    """Return the means in words, for readers who cannot see the figure."""
    parts = [
        f"{short(row.name)}{f' ({short(title)})' if title else ''} {row.mean:.3g}"
        for title, rows in panels.items()
        for row in rows
        if row.values and math.isfinite(row.mean)
    ]
    return f"Means in {unit}: {', '.join(parts)}." if parts else ""


@dataclass(frozen=True)
class Line:
    xs: Sequence[float]  # the points' horizontal positions
    ys: Sequence[float]  # their vertical positions
    low: Sequence[float] = ()  # the lower end of the interval at each point; empty for no intervals
    high: Sequence[float] = ()  # its upper end
    number: int = 0  # the method's number, which selects its style
    marked: bool = True  # whether every point has a marker; otherwise only the last one has


def lines_figure(
    lines: Mapping[str, Line],
    *,
    x_label: str,
    y_label: str,
    ticks: Sequence[float] = (),
    log_x: bool = False,
    log_y: bool = False,
) -> Any:
    names = [short(name) for name in lines]
    figure, (axis,), columns = _panels([""], 6.2, 3.6, names)
    step = min(0.014, 0.08 / len(lines)) if ticks else 0.0
    handles = [
        _draw_line(axis, line, step * (index - (len(lines) - 1) / 2), log_x, ticks)
        for index, line in enumerate(lines.values())
    ]
    axis.set_xlabel(x_label, fontsize=9)
    axis.set_ylabel(y_label, fontsize=9)
    axis.grid(**_GRID)
    if log_x:
        axis.set_xscale("log")
    if log_y:
        axis.set_yscale("log")
    if ticks:
        axis.set_xticks(list(ticks), [f"{tick:,g}" for tick in ticks])
        axis.minorticks_off()
    _add_legend(figure, handles, names, columns)
    return figure


def _draw_line(axis: Any, line: Line, offset: float, log_x: bool, ticks: Sequence[float]) -> Any:
    """Draw a line, shifted by a small offset, so that the intervals of several methods at one x do not overlap."""
    style = _style(line.number)
    first, last = (min(ticks), max(ticks)) if len(ticks) > 1 else (1.0, math.e if log_x else 2.0)
    xs = [x * (last / first) ** offset for x in line.xs] if log_x else [x + (last - first) * offset for x in line.xs]
    if line.low:
        down = [max(0.0, y - low) for y, low in zip(line.ys, line.low, strict=True)]
        up = [max(0.0, high - y) for y, high in zip(line.ys, line.high, strict=True)]
        axis.errorbar(
            xs, line.ys, yerr=[down, up], fmt="none", ecolor=style["color"], elinewidth=1, capsize=2.5, zorder=3
        )
    every = None if line.marked else [len(xs) - 1]
    (drawn,) = axis.plot(xs, line.ys, linewidth=1.6, markersize=5.5, markevery=every, zorder=4, **style)
    return drawn


def confusion_figure(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> Any:
    """Draw confusion matrices side by side, and in each cell the percentage of the label's rows."""
    columns = min(_MOST_MATRICES_BESIDE, len(counts))
    lines = math.ceil(len(counts) / columns)
    side_in = max(1.3, 0.42 * len(names))
    labels = [short(name, 16) for name in names]
    label_in = 0.075 * max(map(len, labels))
    titles = [_wrapped(title, side_in) for title in counts]
    title_in = 0.18 * max(1 + title.count("\n") for title in titles)
    figure = new_figure(
        columns * (side_in + 0.3) + label_in + 0.4, lines * (side_in + label_in + title_in + 0.62), layout="constrained"
    )
    axes = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False)
    figure.get_layout_engine().set(h_pad=0.1)
    for index, (axis, title, counts_CC) in enumerate(zip(axes.flat, titles, counts.values(), strict=False)):
        totals_C1 = counts_CC.sum(axis=1, keepdims=True)
        shares_CC = np.divide(counts_CC, totals_C1, out=np.zeros(counts_CC.shape), where=totals_C1 > 0)
        shaded_grid(axis, shares_CC, colours="Blues")
        axis.set_aspect("equal")
        for (label, predicted), share in np.ndenumerate(shares_CC):
            # Fixed colours: a page's own would change in dark mode.
            colour = "#fefefe" if share > 0.6 else "#010101"
            axis.text(predicted, label, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        set_text(axis.set_title("-", fontsize=10), title)
        if index + columns >= len(counts):
            axis.set_xlabel("predicted", fontsize=9)
        name_ticks(axis, "x", labels, fontsize=8, rotation=90 if label_in > 0.5 else 0)
        name_ticks(axis, "y", labels, fontsize=8)
        axis.tick_params(length=0, labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("label", fontsize=9)
    for axis in axes.flat[len(counts) :]:
        axis.set_axis_off()
    return figure
