"""Matplotlib figures: creating and saving them, the style of methods, legends and axes, and bar charts.

Matplotlib (extra `explain`) is imported only in this package, and only when a figure is drawn.
"""

from __future__ import annotations

import importlib.util
import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.io.files import write_bytes
from attentune.report.highlight import visible

FIGURE_KINDS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150
# Okabe and Ito's colours, which colour-blind readers can distinguish. Shapes, dashes and hatches distinguish methods in
# greyscale print.
_METHOD_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 3)))
_BAR_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "--")
_LONGEST_NAME = 30


def check_figure_file(path: str | Path) -> None:
    """Check, before the work is done, that a figure can be drawn to a file of this name."""
    if Path(path).suffix.lower() not in FIGURE_KINDS:
        raise ConfigError(f"{path}: expected a name for a figure that ends in {', '.join(FIGURE_KINDS)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{path}: drawing needs Matplotlib, which is not installed; run: pip install 'attentune[explain]'"
        )


def new_figure(width_in: float, height_in: float, **options: Any) -> Any:
    """Create an empty figure of this size in inches; the options are those of Matplotlib's `Figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), dpi=DOTS_PER_INCH, **options)


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure in the format of the path's extension."""
    write_bytes(path, figure_bytes(figure, Path(path).suffix.lower()[1:]))


def figure_bytes(figure: Any, kind: str, *, text_as_text: bool = False) -> bytes:
    """Return a figure as the content of a file: identical for identical figures, without dates and random names.

    Characters that Matplotlib's font lacks are drawn as boxes.
    """
    from matplotlib import rc_context

    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    options = {"svg.hashsalt": "attentune", "svg.fonttype": "none" if text_as_text else "path"}
    with rc_context(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(buffer, format=kind, metadata=dates.get(kind))
    return buffer.getvalue()


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn in all figures."""

    colour: str
    marker: str
    dash: Any


def style_of(number: int) -> MethodStyle:
    """Return the style of the method with this number, from 0. The first 77 styles differ from each other."""
    return MethodStyle(
        _METHOD_COLOURS[number % len(_METHOD_COLOURS)],
        _MARKERS[number % len(_MARKERS)],
        _DASHES[number % len(_DASHES)],
    )


def short(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name on one line, with visible control characters, cut to a number of characters."""
    name = " ".join(visible(text, one_line=True).split())
    return name if len(name) <= longest else name[: longest - 3].rstrip() + "..."


def set_text(text: Any, words: str) -> None:
    """Set a Matplotlib text literally, without reading $ as mathematics."""
    text.set(parse_math=False, text=words)


def name_ticks(axis: Any, which: str, positions: Sequence[float], names: Iterable[str], **style: Any) -> None:
    """Put names at these positions of the x or y axis."""
    if which == "x":
        axis.set_xticks(list(positions), [short(name) for name in names], **style)
    else:
        axis.set_yticks(list(positions), [short(name) for name in names], **style)
    for label in axis.get_xticklabels() if which == "x" else axis.get_yticklabels():
        label.set_parse_math(False)


def add_grid(axis: Any, which: str = "y") -> None:
    """Draw light grid lines behind the data, and remove the frame at the top and right."""
    axis.grid(axis=which, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def legend_shape(names: Sequence[str], width_in: float) -> tuple[int, int]:
    """Return the number of columns and rows of a legend with these names below a figure of this width."""
    longest = max((len(short(name)) for name in names), default=1)
    columns = max(1, min(len(names), int(width_in / (0.65 + 0.078 * longest))))
    return columns, math.ceil(len(names) / columns)


def add_legend(figure: Any, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    """Draw one legend below all panels, with the names as they are."""
    # The text is set afterwards: Matplotlib reads $ in a label as mathematics, and drops a label that begins with "_".
    legend = figure.legend(
        handles, ["-"] * len(names), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        set_text(text, name)


def panel_title(axis: Any, title: str, width_in: float = 3.6) -> None:
    """Write a title above a panel, wrapped to this width."""
    set_text(axis.set_title("-", fontsize=10), "\n".join(title_lines(title, width_in)))


def title_lines(title: str, width_in: float) -> list[str]:
    """Return the lines of a panel's title, at most three."""
    characters = max(8, int(width_in / 0.082))
    return textwrap.wrap(short(title, 3 * characters), characters)[:3] or [""]


@dataclass(frozen=True)
class Bar:
    """The height of a bar, and half the length of its error bar (None for no error bar)."""

    value: float
    error: float | None = None


def draw_bars(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Sequence[Bar]]],
    groups: Sequence[str],
    *,
    y_label: str = "accuracy",
    chance: float | None = None,
    title: str | None = None,
) -> None:
    """Draw panels of grouped bars side by side, with one legend below them."""
    check_figure_file(path)
    save_figure(bars_figure(panels, groups, y_label=y_label, chance=chance, title=title), path)


def bars_figure(
    panels: Mapping[str, Mapping[str, Sequence[Bar]]],
    groups: Sequence[str],
    *,
    y_label: str = "accuracy",
    chance: float | None = None,
    title: str | None = None,
) -> Any:
    """Create the figure that `draw_bars` writes."""
    names = [textwrap.shorten(name, 40, placeholder="...") for name in next(iter(panels.values()))]
    width_in = len(panels) * max(4.2, 0.9 + len(groups) * (0.35 + 0.16 * len(names)))
    entries = len(names) + (chance is not None)
    columns = max(1, min(entries, int(width_in / (0.6 + 0.075 * max(map(len, [*names, "chance (0.5)"]))))))
    height_in = 3.5 + 0.2 * -(-entries // columns) + (0.25 if title else 0)
    figure = new_figure(width_in, height_in, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    handles: list[Any] = []
    for axis, (name, bars) in zip(axes, panels.items(), strict=True):
        handles = _draw_panel(axis, bars, groups, chance)
        set_text(axis.set_title("-", fontsize=11), name)
    axes[0].set_ylabel(y_label)
    ends = [bar.value + (bar.error or 0) for bars in panels.values() for series in bars.values() for bar in series]
    axes[0].set_ylim(0, max([1.02, *(end + 0.02 for end in ends if end == end)]))
    labels = names if chance is None else [*names, f"chance ({chance:g})"]
    add_legend(figure, handles, labels, columns)
    if title is not None:
        set_text(figure.suptitle("-", fontsize=10), title)
    return figure


def _draw_panel(axis: Any, bars: Mapping[str, Sequence[Bar]], groups: Sequence[str], chance: float | None) -> list[Any]:
    """Draw one panel, and return its handles for the legend."""
    handles: list[Any] = []
    share = 0.8 / len(bars)
    for number, series in enumerate(bars.values()):
        positions = [group + share * (number - (len(bars) - 1) / 2) for group in range(len(groups))]
        drawn = axis.bar(
            positions,
            [bar.value for bar in series],
            width=share * 0.92,
            color=_BAR_COLOURS[number % len(_BAR_COLOURS)],
            hatch=_HATCHES[number % len(_HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            zorder=2,
        )
        handles.append(drawn)
        for position, bar in zip(positions, series, strict=True):
            if bar.error is not None:
                axis.errorbar(position, bar.value, yerr=bar.error, color="black", capsize=2.5, linewidth=1, zorder=3)
    if chance is not None:
        handles.append(axis.axhline(chance, color="black", linestyle="--", linewidth=1, zorder=4))
    axis.set_xticks(range(len(groups)), groups)
    for label in axis.get_xticklabels():
        label.set_parse_math(False)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    add_grid(axis)
    return handles
