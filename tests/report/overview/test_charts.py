"""Scales, ticks, labels and the Pareto front."""

from __future__ import annotations

import math

import pytest

from attentune.report.overview.charts import (
    ChartRow,
    Point,
    make_scale,
    pareto_front,
    rows_chart,
    scatter_chart,
)


@pytest.mark.parametrize(
    ("values", "is_log", "expected"),
    [
        ([-5.0, 5.0], False, ["−4", "−2", "0", "2", "4"]),
        ([0.0, 0.02], False, ["0", "0.005", "0.01", "0.015", "0.02"]),
        ([3.0, 900.0], True, ["5", "10", "20", "50", "100", "200", "500", "1,000"]),
        ([70.0, 150.0], True, ["80", "100", "120", "140", "160"]),
    ],
)
def test_ticks_are_round_and_inside(values: list[float], is_log: bool, expected: list[str]) -> None:
    scale = make_scale(values, 0, 300, is_log=is_log)
    ticks = scale.ticks()
    shown = [tick.text for tick in ticks]
    assert shown == expected or set(shown) < set(expected)
    assert len(shown) >= 3
    assert [tick.at for tick in ticks] == sorted(tick.at for tick in ticks)
    assert all(0 <= tick.at <= 300 for tick in ticks)


def test_small_differences_do_not_fill_the_chart_and_nan_is_left_out() -> None:
    rows = [
        ChartRow("a", 0.1, math.nan, math.nan, (0.1,), "+0.1", "a: +0.1"),
        ChartRow("b", -0.1, -0.2, 0.1, (), "−0.1", "b: −0.1"),
    ]
    chart = rows_chart("x", rows, "points", level=0.0, least=4.0)
    first, second = chart.marks
    assert first.low is None
    assert first.mean is not None
    assert second.mean is not None
    assert abs(first.mean - second.mean) < 0.06 * (chart.right - chart.left)
    assert chart.level == pytest.approx((first.mean + second.mean) / 2, abs=0.1)


def test_each_task_has_its_own_axis() -> None:
    near, far = (
        rows_chart("x", [ChartRow("a", mean, mean - 1, mean + 1, (), "", "a")], "points", level=0.0, least=4.0)
        for mean in (1.0, 50.0)
    )
    assert [tick.text for tick in near.ticks] != [tick.text for tick in far.ticks]


def test_the_front_has_what_nothing_beats_in_both() -> None:
    points = [
        Point(1, 50, "cheap", ""),
        Point(2, 49, "bad", ""),
        Point(3, 60, "good", ""),
        Point(3, 55, "dominated", ""),
    ]
    assert [point.name for point in pareto_front(points)] == ["cheap", "good"]
    assert [point.name for point in pareto_front(points, greater_is_better=False)] == ["cheap", "bad"]


def test_labels_of_the_front_are_drawn_and_do_not_cover_each_other() -> None:
    points = [Point(10 + number, 50 + 0.2 * number, f"method {number}", f"tip {number}") for number in range(6)]
    points += [Point(40.0, 40.0, "alone", "tip")]
    chart = scatter_chart("task", points, "s", "points", named=["alone"], least=4.0)
    labels = {dot.label for dot in chart.dots if dot.label}
    assert labels >= {f"method {number}" for number in range(6)} | {"alone"}
    assert not next(dot for dot in chart.dots if dot.label == "alone").on_front
    boxes = []
    for dot in chart.dots:
        if dot.label:
            left = dot.label_x - 6.4 * len(dot.label) * dot.end_anchored
            boxes.append((left, dot.label_y, left + 6.4 * len(dot.label)))
    for number, (left, y, right) in enumerate(boxes):
        for other_left, other_y, other_right in boxes[:number]:
            assert abs(y - other_y) >= 10 or min(right, other_right) - max(left, other_left) <= 12
