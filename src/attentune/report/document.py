"""The content of a report as plain text: sections, tables and figures, and the formats of numbers and texts."""

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from attentune.metrics.metrics import METRICS

# The cell of a table without a value.
NOTHING = "-"
# A column with a longer entry than this is wrapped.
_LONG_CHARACTERS = 60
_METRIC_NAMES = {
    "f1": "F1",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "f1_weighted": "weighted F1",
    "precision_macro": "macro precision",
    "recall_macro": "macro recall",
    "f1_samples": "F1 by row",
    "hamming_loss": "Hamming loss",
    "matthews_correlation": "Matthews correlation",
    "quadratic_weighted_kappa": "quadratic kappa",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
}


@dataclass(frozen=True)
class Table:
    kind: ClassVar = "table"
    name: str  # letters, digits and hyphens; names the table's label in LaTeX
    title: str  # the caption
    header: tuple[str, ...]  # the column names
    rows: tuple[tuple[str, ...], ...]  # the cells as they are shown
    left: int = 1  # the number of leftmost columns that hold words and are left-aligned; the others are right-aligned
    notes: tuple[str, ...] = ()  # sentences below the table

    @cached_property
    def long_columns(self) -> frozenset[int]:
        return frozenset(
            index for index in range(len(self.header)) if any(len(row[index]) > _LONG_CHARACTERS for row in self.rows)
        )


@dataclass(frozen=True)
class Figure:
    kind: ClassVar = "figure"
    name: str  # letters, digits and hyphens, unique in a report; names the figure's files
    title: str  # what the figure shows
    caption: str  # what a reader must know to read it
    draw: Callable[[], Any]  # creates the Matplotlib figure
    alt: str = ""  # the content in words, for readers who cannot see the figure


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Table | Figure, ...]
    sentences: tuple[str, ...] = ()
    on_page_only: bool = False  # left out of Markdown and LaTeX: texts of rows


@dataclass(frozen=True)
class Report:
    title: str  # the first line
    sentences: tuple[str, ...]  # what the report is about: the numbers of methods, tasks and runs, and versions
    sections: tuple[Section, ...]  # in order; the first one is on the first screen of the page
    answer: tuple[str, ...] = ()  # the first sentences: the best model, and whether its lead is shown
    question: str = ""  # the page's heading; by default the title
    warnings: tuple[str, ...] = ()  # what makes the answer doubtful

    def figures(self) -> Iterator[Figure]:
        for section in self.sections:
            yield from (part for part in section.parts if isinstance(part, Figure))


def points_factor(metric: str) -> float:
    """Return 100 for metrics that are shown in points, and 1 for errors, which keep the unit of their labels."""
    return 100.0 if metric not in METRICS or METRICS[metric].greater_is_better else 1.0


def format_score(value: float | None, metric: str, *, sign: bool = False) -> str:
    """Format a score in points with one digit, or an error with three."""
    if value is None or not math.isfinite(value):
        return NOTHING
    in_points = points_factor(metric) == 100
    text = f"{100 * value:.1f}" if in_points else f"{value:.3g}"
    text = "0.0" if in_points and float(text) == 0 else text
    return f"+{text}" if sign and float(text) > 0 else text


def format_interval(low: float, high: float, metric: str) -> str:
    return NOTHING if not math.isfinite(low) else f"{format_score(low, metric)} to {format_score(high, metric)}"


def format_p(p: float) -> str:
    return NOTHING if not math.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def format_median(values: Sequence[float], digits: int = 1) -> str:
    """Format the median over runs, which ignores a run that was suspended for hours, with the minimum and maximum."""
    if not values:
        return NOTHING
    median = f"{statistics.median(values):,.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def metric_name(metric: str) -> str:
    return _METRIC_NAMES.get(metric, metric.replace("_", " "))


def axis_label(metric: str) -> str:
    """Return a metric's name with its unit, for an axis."""
    return f"{metric_name(metric)} (points)" if points_factor(metric) == 100 else metric_name(metric)


def slug(*parts: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)


def score_text(score: float, *, signed: bool) -> str:
    return f"{score:+.3g}" if signed else f"{score:.3g}"
