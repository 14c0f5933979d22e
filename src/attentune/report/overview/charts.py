"""The geometry of the page's charts: scales, ticks, and the positions of marks, which the templates draw as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from attentune.report.figures.base import short

# Sizes in the units of a chart's view box; a character is that of a 12 px sans-serif font.
_WIDTH, _ROW, _CHARACTER = 420.0, 22.0, 6.4
_LONGEST_NAME = 24
# Below this cost a label covers nothing.
_FREE = 18.0
_MOST_TICKS, _FEWEST_TICKS = 6, 3


@dataclass(frozen=True)
class Tick:
    """A tick of an axis: its position, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale from values to positions."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, rounded to a tenth; values outside are put on the edge."""
        low, high, value = (
            (math.log(one) for one in (self.low, self.high, max(value, 1e-12)))
            if self.is_log
            else (self.low, self.high, value)
        )
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int = _MOST_TICKS) -> tuple[Tick, ...]:
        """Return round values on the scale with their positions."""
        values = _log_ticks(self.low, self.high) if self.is_log else []
        if len(values) < _FEWEST_TICKS:
            values = _linear_ticks(self.low, self.high, most)
        return tuple(Tick(self.at(value), f"{value:,.10g}".replace("-", "\u2212")) for value in values)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) + 0.0 for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [value for value in values if low <= value <= high]
    return inside if len(inside) <= _MOST_TICKS else [value for value in inside if f"{value:e}"[0] == "1"]


def make_scale(values: Sequence[float], start: float, end: float, *, least: float = 0.0, is_log: bool = False) -> Scale:
    """Return a scale with room for these values."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)] or [1.0]
    low, high = min(known), max(known)
    if is_log:
        room = (high / low) ** 0.08 if high > low * 1.2 else 1.2
        return Scale(low / room, high * room, start, end, is_log=True)
    least = least or max(1e-9, abs(high) * 1e-6)
    middle, half = (low + high) / 2, max(least, (high - low) * 1.1) / 2
    return Scale(middle - half, middle + half, start, end)


@dataclass(frozen=True)
class Mark:
    """One row of a rows chart, at its vertical position."""

    name: str  # the label at the left
    y: float  # the vertical position
    # mean, low, high: horizontal positions; low and high are None without an interval.
    mean: float | None
    low: float | None
    high: float | None
    dots: tuple[float, ...]  # horizontal positions of single seeds
    value: str  # the number at the right
    tip: str  # the row in words
    filled: bool  # whether the mark of the mean is filled
    bold: bool  # whether the row is emphasised


@dataclass(frozen=True)
class RowsChart:
    """Rows with a mean, its interval and single seeds on one axis."""

    title: str  # what the chart shows, for readers who cannot see it
    # width, height: the view box.
    width: float
    height: float
    # left, right, bottom: the edges of the plot.
    left: float
    right: float
    bottom: float
    marks: tuple[Mark, ...]  # the rows
    ticks: tuple[Tick, ...]  # of the axis
    level: float | None  # the position of a vertical line; None for none
    level_name: str  # what the line is
    unit: str  # the name of the axis


@dataclass(frozen=True)
class ChartRow:
    """A row before it has a position: see `Mark`."""

    name: str
    mean: float
    low: float
    high: float
    dots: tuple[float, ...]
    value: str
    tip: str
    filled: bool = True
    bold: bool = False


def rows_chart(
    title: str, rows: Sequence[ChartRow], unit: str, *, level: float | None = None, level_name: str = "", least: float
) -> RowsChart:
    """Place rows on an axis of their own; `least` is the smallest range of the axis."""
    names = [short(row.name, _LONGEST_NAME) for row in rows]
    left = 14 + _CHARACTER * max((len(name) for name in names), default=1)
    right = _WIDTH - 14 - _CHARACTER * max((len(row.value) for row in rows), default=1)
    values = [value for row in rows for value in (row.mean, row.low, row.high, *row.dots)]
    scale = make_scale([*values, *([] if level is None else [level])], left, right, least=least)

    def place(value: float) -> float | None:
        return scale.at(value) if math.isfinite(value) else None

    marks = tuple(
        Mark(
            name,
            round(_ROW * (number + 0.5) + 4, 1),
            place(row.mean),
            place(row.low),
            place(row.high),
            tuple(scale.at(value) for value in row.dots if math.isfinite(value)),
            row.value,
            row.tip,
            row.filled,
            row.bold,
        )
        for number, (name, row) in enumerate(zip(names, rows, strict=True))
    )
    bottom = _ROW * len(rows) + 8
    return RowsChart(
        title,
        _WIDTH,
        bottom + 40,
        left,
        right,
        bottom,
        marks,
        scale.ticks(),
        None if level is None else scale.at(level),
        level_name,
        unit,
    )


@dataclass(frozen=True)
class Dot:
    """A point of a scatter or line chart."""

    # x, y: its position.
    x: float
    y: float
    label: str  # the text beside it; empty for none
    # label_x, label_y: the position of the label.
    label_x: float
    label_y: float
    end_anchored: bool  # whether the label ends at its position
    on_front: bool  # whether it is on the Pareto front
    tip: str  # the point in words


@dataclass(frozen=True)
class PlaneChart:
    """Points or lines in a plane."""

    title: str  # the heading
    description: str  # the content in words, for readers who cannot see the chart
    # width, height, left, right, top, bottom: the view box and the edges of the plot.
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    # x_ticks, y_ticks: of the axes.
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    # x_unit, y_unit: the names of the axes.
    x_unit: str
    y_unit: str
    dots: tuple[Dot, ...] = ()  # the points
    lines: tuple[tuple[str, str], ...] = ()  # by CSS class, a polyline as the text of its points


@dataclass(frozen=True)
class Point:
    """A point before it has a position: its values, its name and the name in words with the numbers."""

    x: float
    y: float
    name: str
    tip: str


def pareto_front(points: Sequence[Point], *, greater_is_better: bool = True) -> list[Point]:
    """Return the points that no other point beats in one of cost (x) and score (y) without losing in the other."""
    sign = 1.0 if greater_is_better else -1.0
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.x, -sign * one.y)):
        if not front or sign * point.y > sign * front[-1].y:
            front.append(point)
    return front


def scatter_chart(
    title: str,
    points: Sequence[Point],
    x_unit: str,
    y_unit: str,
    *,
    named: Sequence[str] = (),
    greater_is_better: bool = True,
    least: float,
) -> PlaneChart:
    """Draw cost against score with the Pareto front as a line."""
    width, height, left, right, top, bottom = _WIDTH, 300.0, 52.0, _WIDTH - 12, 12.0, 250.0
    spread = max(point.x for point in points) / max(1e-12, min(point.x for point in points))
    x_scale = make_scale([point.x for point in points], left + 10, right - 10, is_log=spread > 1.15)
    y_scale = make_scale([point.y for point in points], bottom - 8, top + 8, least=least)
    front = pareto_front(points, greater_is_better=greater_is_better)
    ordered = [*[point for point in points if point not in front], *front]
    placed: list[tuple[float, float, float, float]] = []
    dots = []
    for point in ordered:
        x, y = x_scale.at(point.x), y_scale.at(point.y)
        placed.append((x - 5, y - 5, x + 5, y + 5))
    line_points = [(x_scale.at(point.x), y_scale.at(point.y)) for point in front]
    placed += _boxes_along(line_points)
    by_importance = sorted(ordered, key=lambda point: (point not in front, point.name not in named))
    for point in by_importance:
        x, y = x_scale.at(point.x), y_scale.at(point.y)
        needed = point in front or point.name in named
        label = short(point.name, _LONGEST_NAME)
        others = [(x_scale.at(other.x), y_scale.at(other.y)) for other in points if other is not point]
        label_x, label_y, end, free = _label_place(
            x, y, label, placed, (left, right, top, bottom), others, needed=needed
        )
        dots.append(Dot(x, y, label if free or needed else "", label_x, label_y, end, point in front, point.tip))
    dots.reverse()
    line = " ".join(f"{x},{y}" for x, y in line_points)
    description = f"On the front, from cheap to expensive: {'; '.join(point.tip for point in front)}."
    return PlaneChart(
        title, description, width, height, left, right, top, bottom, x_scale.ticks(), y_scale.ticks(), x_unit, y_unit,
        tuple(dots), (("front", line),) if len(front) > 1 else (),
    )  # fmt: skip


def _label_place(
    x: float,
    y: float,
    label: str,
    placed: list[tuple[float, float, float, float]],
    plot: tuple[float, float, float, float],
    others: Sequence[tuple[float, float]],
    *,
    needed: bool,
) -> tuple[float, float, bool, bool]:
    """Choose the place around a point where its label covers least and is nearest to it, and add it to `placed`."""
    left, right, top, bottom = plot
    long = _CHARACTER * len(label)
    best: tuple[float, float, float, bool, tuple[float, float, float, float]] | None = None
    for dy in (4.0, -9.0, 16.0, -20.0, 28.0):
        for end in (False, True):
            at = x - 9 if end else x + 9
            box = (at - long if end else at, y + dy - 10, at if end else at + long, y + dy + 3)
            covered = sum(_overlap(box, other) for other in placed)
            outside = max(0.0, left - box[0]) + max(0.0, box[2] - right) + max(0.0, top - 8 - box[1])
            edge_x, edge_y, own = at, y + dy - 4, math.hypot(at - x, dy - 4)
            nearer = sum(math.hypot(edge_x - other[0], edge_y - other[1]) < own + 2 for other in others)
            cost = 10 * covered + 60 * (outside + max(0.0, box[3] - bottom)) + abs(dy) + 200 * nearer
            if best is None or cost < best[0]:
                best = (cost, at, y + dy, end, box)
    assert best is not None
    is_free = best[0] < _FREE
    if needed or is_free:
        placed.append(best[4])
    return round(best[1], 1), round(best[2], 1), best[3], is_free


def _boxes_along(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """Return small boxes along a line, which labels should not cover."""
    boxes = []
    for (x, y), (next_x, next_y) in itertools.pairwise(points):
        steps = max(2, int(math.hypot(next_x - x, next_y - y) / 6))
        for step in range(steps + 1):
            at_x, at_y = x + (next_x - x) * step / steps, y + (next_y - y) * step / steps
            boxes.append((at_x - 2, at_y - 2, at_x + 2, at_y + 2))
    return boxes


def _overlap(first: tuple[float, float, float, float], second: tuple[float, float, float, float]) -> float:
    wide = min(first[2], second[2]) - max(first[0], second[0])
    tall = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, wide) * max(0.0, tall)


def lines_chart(
    title: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x_unit: str,
    y_unit: str,
    *,
    description: str,
    least: float = 0.0,
    dotted: bool = False,
    square: bool = False,
) -> PlaneChart:
    """Draw lines, each with its CSS class."""
    width, height, left, right, top, bottom = _WIDTH, 260.0, 52.0, _WIDTH - 12, 12.0, 212.0
    xs, ys = ([point[axis] for _, line in lines for point in line] for axis in (0, 1))
    if square:
        x_scale, y_scale = Scale(0, 100, left, right), Scale(0, 100, bottom, top)
    else:
        x_scale = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, left + 6, right - 6)
        y_scale = make_scale(ys, bottom - 6, top + 6, least=least)
    drawn = tuple(
        (name, " ".join(f"{x_scale.at(x)},{y_scale.at(y)}" for x, y in line)) for name, line in lines if len(line) > 1
    )
    dots = tuple(
        Dot(x_scale.at(x), y_scale.at(y), "", 0, 0, False, True, f"{x_unit} {x:,.4g}, {y_unit} {y:,.4g}")
        for name, line in lines
        for x, y in line
        if (dotted or len(line) == 1) and name != "level"
    )
    return PlaneChart(
        title, description, width, height, left, right, top, bottom, x_scale.ticks(), y_scale.ticks(5), x_unit, y_unit,
        dots, drawn,
    )  # fmt: skip
