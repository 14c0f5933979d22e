"""Explanations as pictures: texts with their tokens on tones, and what attention heads look at."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from attentune.errors import ConfigError
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.explanation_text import facts
from attentune.report.figures.base import DOTS_PER_INCH, check_figure_file, new_figure, save_figure
from attentune.report.highlight import hex_tone, highest, share_of, sides, stretches, visible

# Taller pictures are of no use, and the largest ones cannot be drawn at all.
_MOST_LINES = 400
_WIDTH_IN, _LINE_IN, _MARGIN_IN = 9.0, 0.3, 0.25
# A sign of the monospaced font is a whole number of pixels wide, or rounding would move long words off their tones.
_SIGN_IN = 14 / DOTS_PER_INCH
_FONT_PT = 72 * _SIGN_IN / (1233 / 2048)  # the width of DejaVu Sans Mono's signs, as a share of its size
_COLUMNS = int((_WIDTH_IN - 2 * _MARGIN_IN) / _SIGN_IN)

# Some signs in a line: where they begin, the signs, and the share of the highest score (None: no token).
Run = tuple[int, str, float | None]
Part = tuple[str, float | None]


def draw_explanations(path: str | Path, explanations: Sequence[Explanation]) -> None:
    """Draw texts one below the other, each token on the tone of its score.

    The line below a token is as thick as its score is high, and dashed where it speaks against the class. Signs that
    Matplotlib's font does not have are drawn as boxes.

    Args:
        path: a .png, .svg or .pdf file.
        explanations: in order.

    Raises:
        ConfigError: as `check_figure_file`; or the texts are too long for a picture.
        StorageError: the file could not be written.
    """
    check_figure_file(path)
    blocks = [(explanation, list(_lines(explanation))) for explanation in explanations]
    count = sum(2 + len(lines) for _, lines in blocks)
    _check_size(path, count)
    height_in = count * _LINE_IN + 2 * _MARGIN_IN
    figure = new_figure(_WIDTH_IN, height_in)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, _WIDTH_IN), ylim=(height_in, 0))
    axis.set_axis_off()
    top_in = _MARGIN_IN
    for explanation, lines in blocks:
        told = textwrap.shorten(facts(explanation), int(_COLUMNS * 1.2), placeholder="...")
        _write(axis, _MARGIN_IN, top_in + _LINE_IN / 2, told, color="#555555", fontsize=9)
        for number, runs in enumerate(lines, start=1):
            for column, signs, share in runs:
                _draw_run(axis, column, top_in + number * _LINE_IN, signs, share, signed=explanation.signed)
        top_in += (2 + len(lines)) * _LINE_IN
    save_figure(figure, path)


def _lines(explanation: Explanation) -> Iterator[list[Run]]:
    """The lines that a text is broken into, at white space where there is some."""
    most = highest(explanation.tokens)
    for name, text, own in sides(explanation.text, explanation.pair, explanation.tokens):
        parts: list[Part] = [(f"{name}: ", None)] if name else []
        for part in stretches(text, own, signed=explanation.signed):
            parts.append((part.text, None if part.score is None else share_of(part.score, most)))
        yield from _broken(_unbroken(parts))


def _broken(words: Iterable[list[Part]]) -> Iterator[list[Run]]:
    """Lines of these words, each of which is one white space or fits into a line."""
    line: list[Run] = []
    column = 0
    for word in words:
        length = sum(_cells(signs) for signs, _ in word)
        if word[0][0] == "\n" or column + length > _COLUMNS:
            yield line
            line, column = [], 0
        if word[0][0].isspace() and (column == 0 or word[0][0] == "\n"):
            continue
        for signs, share in word:
            line.append((column, signs, share))
            column += _cells(signs)
    yield line


def _cells(signs: str) -> int:
    """How many places of a monospaced line they take: Chinese signs and emoji two each."""
    return sum(1 + (east_asian_width(sign) in "WF") for sign in signs)


def _unbroken(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """White space sign by sign, and what stands between it, however many parts that is made of."""
    word: list[Part] = []
    for text, share in parts:
        for signs in filter(None, re.split(r"(\s)", text)):
            for begin in range(0, len(signs), _COLUMNS // 2):
                piece = (signs[begin : begin + _COLUMNS // 2], share)
                if word and (signs.isspace() or sum(_cells(own) for own, _ in word) + _cells(piece[0]) > _COLUMNS):
                    yield word
                    word = []
                word.append(piece)
                if signs.isspace():
                    yield word
                    word = []
    if word:
        yield word


def _draw_run(axis: Any, column: int, top_in: float, signs: str, share: float | None, *, signed: bool) -> None:
    left, right = _MARGIN_IN + column * _SIGN_IN, _MARGIN_IN + (column + _cells(signs)) * _SIGN_IN
    if share is not None:
        above, below = top_in + 0.03, top_in + _LINE_IN - 0.05
        axis.fill([left, right, right, left], [above, above, below, below], color=hex_tone(share, signed=signed), lw=0)
        style = (0, (1.5, 1)) if signed and share < 0 else "solid"
        if abs(share) >= 0.05:
            axis.plot(
                [left, right], [below, below], color="#1a1a1a", lw=2.5 * abs(share), ls=style, solid_capstyle="butt"
            )
    _write(axis, left, top_in + _LINE_IN / 2, signs, fontsize=_FONT_PT)


def _write(axis: Any, left_in: float, middle_in: float, text: str, **style: Any) -> None:
    axis.text(left_in, middle_in, text, family="monospace", va="center_baseline", parse_math=False, **style)


def draw_heads(path: str | Path, tables: Sequence[HeadAttention]) -> None:
    """Draw what each head attends to; see `heads_figure`.

    Args:
        path: a .png, .svg or .pdf file.
        tables: of one text or several.

    Raises:
        ConfigError: as `check_figure_file`; or the texts are too long for a picture.
        StorageError: the file could not be written.
    """
    check_figure_file(path)
    _check_size(path, sum(len(table.tokens) + 6 for table in tables))
    save_figure(heads_figure(tables), path)


def heads_figure(tables: Sequence[HeadAttention]) -> Any:
    """What each head attends to, a line a token and a column a head, beside the token gate's importance; texts one
    below the other.

    Shares from 0.1 on stand in their cells, so that the tone is not alone.

    Source: SSA (Kou et al. 2020, figures 1 and 8).
    """
    heights = [1.6 + 0.24 * max(1, len(table.tokens)) for table in tables]
    columns = max(len(table.heads) for table in tables)
    figure = new_figure(3.2 + 0.42 * columns, sum(heights), layout="constrained")
    rows = figure.subfigures(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, table in zip(rows, tables, strict=True):
        _draw_table(part, table)
    return figure


def _draw_table(part: Any, table: HeadAttention) -> None:
    heads, gate = len(table.heads), table.importance
    axes = part.subplots(
        1, 1 if gate is None else 2, squeeze=False, width_ratios=[heads] if gate is None else [heads, 1]
    )[0]
    names = [textwrap.shorten(visible(token.text, one_line=True), 24, placeholder="...") for token in table.tokens]
    shares = [list(own) for own in table.attention] or [[0.0] * heads]
    _draw_cells(axes[0], shares, [str(head) for head in table.heads], names)
    axes[0].set_xlabel(f"heads of layer {table.layer}", fontsize=9)
    if gate is not None:
        _draw_cells(axes[1], [[score] for score in gate] or [[0.0]], ["SSA"], [""] * len(names))
    seconds = [number for number, token in enumerate(table.tokens) if token.within == "pair"]
    for axis in axes if seconds else ():
        axis.axhline(seconds[0] - 0.5, color="black", lw=1)
    title = part.suptitle("-", fontsize=10)
    label = visible(str(table.label), one_line=True)
    shown = label if table.probability is None else f"{label} ({table.probability:.3f})"
    title.set(parse_math=False, text=f"predicted {shown}; what the first token attends to")


def _draw_cells(axis: Any, values: list[list[float]], columns: list[str], lines: list[str]) -> None:
    most = max(max(line) for line in values)
    axis.imshow(values, cmap="Oranges", vmin=0.0, vmax=most or 1.0, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value >= 0.1:
                colour = "white" if value > 0.75 * most else "black"
                axis.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(columns)), columns, fontsize=8)
    axis.set_yticks(range(len(lines)), lines, fontsize=9)
    for label in axis.get_yticklabels():
        label.set_parse_math(False)
    axis.tick_params(length=0)


def _check_size(path: str | Path, lines: int) -> None:
    if lines > _MOST_LINES:
        raise ConfigError(
            f"{path}: got texts for {lines:,} lines of a picture, expected at most {_MOST_LINES}. Take fewer or shorter"
            " texts, or a page: --output_file NAME.html"
        )
