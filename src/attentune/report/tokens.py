"""Figures of explanations: texts with their tokens on tones, and the attention of each head."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from attentune.errors import ConfigError
from attentune.explain.explanation import Explanation, HeadAttention
from attentune.report.charts import (
    DOTS_PER_INCH,
    check_figure_file,
    name_ticks,
    new_figure,
    save_figure,
    set_text,
    shaded_grid,
)
from attentune.report.explanations import summary_line
from attentune.report.highlight import hex_tone, highest, segments, share_of, sides, visible

# Taller figures are unreadable, and the tallest exceed what Matplotlib can draw.
_MOST_LINES = 400
_WIDTH_IN, _LINE_IN, _MARGIN_IN = 9.0, 0.3, 0.25
# The width of a character is a whole number of pixels; otherwise rounding would move long words off their tones.
_CHARACTER_IN = 14 / DOTS_PER_INCH
_FONT_PT = 72 * _CHARACTER_IN / (1233 / 2048)  # the width of DejaVu Sans Mono's characters as a share of its size
_COLUMNS = int((_WIDTH_IN - 2 * _MARGIN_IN) / _CHARACTER_IN)

# Characters of a line: their first column, the characters, and the share of the highest score (None: no token).
TextRun = tuple[int, str, float | None]
TextPart = tuple[str, float | None]


def draw_explanations(path: str | Path, explanations: Sequence[Explanation]) -> None:
    """Draw texts one below the other, each token on the tone of its score.

    The thickness of the line below a token is proportional to its score; dashes mark tokens that speak against the
    class. Characters that Matplotlib's font lacks are drawn as boxes.
    """
    check_figure_file(path)
    blocks = [(one, _facts(one), list(_lines(one))) for one in explanations]
    count = sum(len(facts) + len(lines) + 1 for _, facts, lines in blocks)
    _check_size(path, count)
    height_in = count * _LINE_IN + 2 * _MARGIN_IN
    figure = new_figure(_WIDTH_IN, height_in)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, _WIDTH_IN), ylim=(height_in, 0))
    axis.set_axis_off()
    top_in = _MARGIN_IN
    for explanation, facts, lines in blocks:
        for number, fact in enumerate(facts):
            _write_text(axis, _MARGIN_IN, top_in + (number + 0.5) * _LINE_IN, fact, color="#555555", fontsize=9)
        for number, runs in enumerate(lines, start=len(facts)):
            for column, characters, share in runs:
                _draw_run(axis, column, top_in + number * _LINE_IN, characters, share, signed=explanation.signed)
        top_in += (len(facts) + len(lines) + 1) * _LINE_IN
    save_figure(figure, path)


def _facts(explanation: Explanation) -> list[str]:
    width = int(_COLUMNS * 1.2)
    unit = textwrap.wrap(visible(explanation.unit, one_line=True), width, max_lines=3, placeholder="...")
    return [textwrap.shorten(summary_line(explanation), width, placeholder="..."), *unit]


def _lines(explanation: Explanation) -> Iterator[list[TextRun]]:
    """Wrap a text into lines, at white space if possible."""
    most = highest(explanation.tokens)
    for name, text, own_tokens in sides(explanation.text, explanation.pair, explanation.tokens):
        parts: list[TextPart] = [(f"{name}: ", None)] if name else []
        for segment in segments(text, own_tokens, signed=explanation.signed):
            parts.append((segment.text, None if segment.score is None else share_of(segment.score, most)))
        yield from _wrapped(_words(parts))


def _wrapped(words: Iterable[list[TextPart]]) -> Iterator[list[TextRun]]:
    """Yield lines of words, each of which is one white-space character or fits into a line."""
    line: list[TextRun] = []
    column = 0
    for word in words:
        length = sum(_columns(characters) for characters, _ in word)
        if word[0][0] == "\n" or column + length > _COLUMNS:
            yield line
            line, column = [], 0
        if word[0][0].isspace() and (column == 0 or word[0][0] == "\n"):
            continue
        for characters, share in word:
            line.append((column, characters, share))
            column += _columns(characters)
    yield line


def _columns(characters: str) -> int:
    """Return the number of columns in a monospaced line; Chinese characters and emoji take two."""
    return sum(1 + (east_asian_width(character) in "WF") for character in characters)


def _words(parts: Iterable[TextPart]) -> Iterator[list[TextPart]]:
    """Yield single white-space characters, and the words between them, which may consist of several parts."""
    word: list[TextPart] = []
    for text, share in parts:
        for characters in filter(None, re.split(r"(\s)", text)):
            for start in range(0, len(characters), _COLUMNS // 2):
                piece = (characters[start : start + _COLUMNS // 2], share)
                length = sum(_columns(sign) for sign, _ in word) + _columns(piece[0])
                if word and (characters.isspace() or length > _COLUMNS):
                    yield word
                    word = []
                word.append(piece)
                if characters.isspace():
                    yield word
                    word = []
    if word:
        yield word


def _draw_run(axis: Any, column: int, top_in: float, characters: str, share: float | None, *, signed: bool) -> None:
    left, right = _MARGIN_IN + column * _CHARACTER_IN, _MARGIN_IN + (column + _columns(characters)) * _CHARACTER_IN
    if share is not None:
        above, below = top_in + 0.03, top_in + _LINE_IN - 0.05
        axis.fill([left, right, right, left], [above, above, below, below], color=hex_tone(share, signed=signed), lw=0)
        style = (0, (1.5, 1)) if signed and share < 0 else "solid"
        if abs(share) >= 0.05:
            axis.plot(
                [left, right], [below, below], color="#1a1a1a", lw=2.5 * abs(share), ls=style, solid_capstyle="butt"
            )
    _write_text(axis, left, top_in + _LINE_IN / 2, characters, fontsize=_FONT_PT)


def _write_text(axis: Any, left_in: float, middle_in: float, text: str, **style: Any) -> None:
    axis.text(left_in, middle_in, text, family="monospace", va="center_baseline", parse_math=False, **style)


def draw_heads(path: str | Path, tables: Sequence[HeadAttention]) -> None:
    """Draw the attention of each head; see `heads_figure`."""
    check_figure_file(path)
    _check_size(path, sum(len(table.tokens) + 6 for table in tables))
    save_figure(heads_figure(tables), path)


def heads_figure(tables: Sequence[HeadAttention]) -> Any:
    """Draw the attention of the first token: tokens as rows, heads as columns, and the token gate's importance.

    Texts are drawn one below the other. Cells of at least 0.1 show their value, for readers who cannot see the colour.

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
    shares = [list(row) for row in table.attention] or [[0.0] * heads]
    _draw_columns(axes[0], shares, [str(head) for head in table.heads], names)
    axes[0].set_xlabel(f"heads of layer {table.layer}", fontsize=9)
    if gate is not None:
        _draw_columns(axes[1], [[score] for score in gate] or [[0.0]], ["SSA"], [""] * len(names))
    of_pair = [number for number, token in enumerate(table.tokens) if token.within == "pair"]
    for axis in axes if of_pair else ():
        axis.axhline(of_pair[0] - 0.5, color="black", lw=1)
    label = visible(str(table.label), one_line=True)
    prediction = label if table.probability is None else f"{label} ({table.probability:.3f})"
    set_text(part.suptitle("-", fontsize=10), f"predicted {prediction}; attention of the first token")


def _draw_columns(axis: Any, values: list[list[float]], columns: list[str], lines: list[str]) -> None:
    most = max(max(line) for line in values)
    shaded_grid(axis, np.array(values), colours="Oranges", most=most or 1.0)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value >= 0.1:
                colour = "#fefefe" if value > 0.75 * most else "#010101"
                axis.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7, color=colour)
    name_ticks(axis, "x", columns, fontsize=8)
    name_ticks(axis, "y", lines, fontsize=9)


def _check_size(path: str | Path, lines: int) -> None:
    if lines > _MOST_LINES:
        raise ConfigError(
            f"{path}: got texts of {lines:,} lines, expected at most {_MOST_LINES} in a figure. Pass fewer or shorter"
            " texts, or write a page: --output_file NAME.html"
        )
