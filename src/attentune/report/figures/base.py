"""Figures, drawn with Matplotlib (extra `explain`), which is imported only here and only when something is drawn."""

from __future__ import annotations

import importlib.util
import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.io.files import write_bytes

FIGURE_KINDS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150
# Okabe and Ito's colours, which the colour-blind can tell apart, and hatches, which grey print shows too.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "--")


@dataclass(frozen=True)
class Bar:
    """The height of a bar, and half the length of its error bar (None: it has none)."""

    value: float
    error: float | None = None


def check_figure_file(path: str | Path) -> None:
    """Check that a figure can be drawn into a file of this name, before the work is done.

    Raises:
        ConfigError: Matplotlib is not installed, or the name's ending is none of `FIGURE_KINDS`.
    """
    if Path(path).suffix.lower() not in FIGURE_KINDS:
        raise ConfigError(f"{path}: expected a name for a figure that ends in {', '.join(FIGURE_KINDS)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{path}: drawing needs Matplotlib, which is not installed; run: pip install 'attentune[explain]'"
        )


def new_figure(width_in: float, height_in: float, **options: Any) -> Any:
    """An empty figure of this size; options are those of Matplotlib's `Figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), dpi=DOTS_PER_INCH, **options)


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure as the kind of file that the name's ending says.

    Raises:
        StorageError: the file could not be written.
    """
    write_bytes(path, figure_bytes(figure, Path(path).suffix.lower()[1:]))


def figure_bytes(figure: Any, kind: str) -> bytes:
    """A figure as a file's content: the same each time, without the date, and names in it are not random.

    Signs that Matplotlib's font does not have are drawn as boxes.

    Args:
        figure: of `new_figure`.
        kind: "png", "svg" or "pdf".
    """
    from matplotlib import rc_context

    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "attentune"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(buffer, format=kind, metadata=dates.get(kind))
    return buffer.getvalue()


def draw_bars(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Sequence[Bar]]],
    groups: Sequence[str],
    *,
    y_label: str = "accuracy",
    chance: float | None = None,
    title: str | None = None,
) -> None:
    """Draw panels of grouped bars side by side, with one legend below them.

    Args:
        path: a .png, .svg or .pdf file.
        panels: by title, and in it by series (in the same order everywhere), one bar a group; NaN draws none.
        groups: what stands under each group of bars.
        y_label: what the bars' heights are, from 0 to 1.
        chance: where a dashed line is drawn, and labelled.
        title: a line above all panels.

    Raises:
        ConfigError: as `check_figure_file`.
        StorageError: the file could not be written.
    """
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
    """The figure that `draw_bars` writes."""
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
        axis.set_title("-", fontsize=11).set(parse_math=False, text=name)
    axes[0].set_ylabel(y_label)
    ends = [bar.value + (bar.error or 0) for bars in panels.values() for own in bars.values() for bar in own]
    axes[0].set_ylim(0, max([1.02, *(end + 0.02 for end in ends if end == end)]))
    labels = names if chance is None else [*names, f"chance ({chance:g})"]
    # Set afterwards: in a given label Matplotlib reads $ as mathematics, and leaves one out that begins with "_".
    legend = figure.legend(
        handles, ["-"] * len(labels), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set(parse_math=False, text=label)
    if title is not None:
        figure.suptitle("-", fontsize=10).set(parse_math=False, text=title)
    return figure


def _draw_panel(axis: Any, bars: Mapping[str, Sequence[Bar]], groups: Sequence[str], chance: float | None) -> list[Any]:
    """Draw one panel; what the legend shows is returned."""
    handles: list[Any] = []
    share = 0.8 / len(bars)
    for number, own in enumerate(bars.values()):
        places = [group + share * (number - (len(bars) - 1) / 2) for group in range(len(groups))]
        drawn = axis.bar(
            places,
            [bar.value for bar in own],
            width=share * 0.92,
            color=_COLOURS[number % len(_COLOURS)],
            hatch=_HATCHES[number % len(_HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            zorder=2,
        )
        handles.append(drawn)
        for place, bar in zip(places, own, strict=True):
            if bar.error is not None:
                axis.errorbar(place, bar.value, yerr=bar.error, color="black", capsize=2.5, linewidth=1, zorder=3)
    if chance is not None:
        handles.append(axis.axhline(chance, color="black", linestyle="--", linewidth=1, zorder=4))
    axis.set_xticks(range(len(groups)), groups)
    for label in axis.get_xticklabels():
        label.set_parse_math(False)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    return handles
