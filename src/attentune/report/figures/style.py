"""What the figures of a comparison have in common: how a method looks, plain texts, legends, axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.report.highlight import visible

# Okabe and Ito's colours, which the colour-blind can tell apart. Shapes and dashes tell them apart in grey print too.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 3)))
_LONGEST = 30


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn in all figures."""

    colour: str
    marker: str
    dash: Any


def style_of(number: int) -> MethodStyle:
    """The look of the method with this number, from 0. No two of the first 77 are alike."""
    return MethodStyle(
        _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)]
    )


def short(text: str, longest: int = _LONGEST) -> str:
    """A name from the data on one line, with its control characters visible, not longer than so many signs."""
    seen = " ".join(visible(text, one_line=True).split())
    return seen if len(seen) <= longest else seen[: longest - 3].rstrip() + "..."


def write(text: Any, words: str) -> None:
    """Set a Matplotlib text to words as they are: $ is no mathematics."""
    text.set(parse_math=False, text=words)


def name_ticks(axis: Any, which: str, places: Sequence[float], names: Iterable[str], **style: Any) -> None:
    """Names at these places of the x or y axis."""
    if which == "x":
        axis.set_xticks(list(places), [short(name) for name in names], **style)
    else:
        axis.set_yticks(list(places), [short(name) for name in names], **style)
    for label in axis.get_xticklabels() if which == "x" else axis.get_yticklabels():
        label.set_parse_math(False)


def tidy(axis: Any, grid: str = "y") -> None:
    """Light grid lines behind the data, and no box around them."""
    axis.grid(axis=grid, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def legend_rows(names: Sequence[str], width_in: float) -> tuple[int, int]:
    """How many columns and rows a legend of these names has below a figure of this width."""
    longest = max((len(short(name)) for name in names), default=1)
    columns = max(1, min(len(names), int(width_in / (0.65 + 0.078 * longest))))
    return columns, math.ceil(len(names) / columns)


def add_legend(figure: Any, handles: Sequence[Any], names: Sequence[str], width_in: float) -> None:
    """One legend below all panels; names are shown as they are."""
    columns, _ = legend_rows(names, width_in)
    # Set afterwards: in a given label Matplotlib reads $ as mathematics, and leaves one out that begins with "_".
    made = figure.legend(
        handles, ["-"] * len(names), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    for text, name in zip(made.get_texts(), names, strict=True):
        write(text, short(name))


def panel_title(axis: Any, title: str, width_in: float = 3.6) -> None:
    """A title above a panel, broken into lines that are not wider than this."""
    write(axis.set_title("-", fontsize=10), "\n".join(title_lines(title, width_in)))


def title_lines(title: str, width_in: float) -> list[str]:
    """The lines of a panel's title: three at most."""
    signs = max(8, int(width_in / 0.082))
    return textwrap.wrap(short(title, 3 * signs), signs)[:3] or [""]
