"""Numbers and names as a report shows them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Cell

NOTHING = "-"
_METRICS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "f1_weighted": "weighted F1",
    "precision_macro": "macro precision",
    "recall_macro": "macro recall",
    "f1_samples": "F1 by row",
    "subset_accuracy": "subset accuracy",
    "hamming_loss": "Hamming loss",
    "matthews_correlation": "Matthews correlation",
    "quadratic_weighted_kappa": "quadratic kappa",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "mean_absolute_error": "mean absolute error",
    "mean_squared_error": "mean squared error",
}


def factor(metric: str) -> float:
    """100 for metrics that are read in points, 1 for errors, which have the unit of their labels."""
    return 100.0 if metric not in METRICS or METRICS[metric].greater_is_better else 1.0


def score(value: float | None, metric: str, *, sign: bool = False) -> str:
    """A score in points with one digit, an error with three."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{100 * value:.1f}" if factor(metric) == 100 else f"{value:.3g}"
    text = "0.0" if float(text) == 0 and factor(metric) == 100 else text
    return f"+{text}" if sign and float(text) > 0 else text


def interval(low: float, high: float, metric: str) -> str:
    """ "49.1 to 55.5"."""
    return NOTHING if not math.isfinite(low) else f"{score(low, metric)} to {score(high, metric)}"


def p_value(p: float) -> str:
    """A p to two digits."""
    return NOTHING if not math.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def metric_name(metric: str) -> str:
    """A metric in words."""
    return _METRICS.get(metric, metric)


def unit(metric: str) -> str:
    """A metric and its unit, for an axis."""
    return f"{metric_name(metric)} (points)" if factor(metric) == 100 else metric_name(metric)


def size_text(size: str) -> str:
    """ "250", "1,000" or "all"."""
    return size if size == "all" else f"{int(size):,}"


def place(cell: Cell, cells: Sequence[Cell]) -> str:
    """The cell's task, with its size where there are several."""
    several = len({one.size for one in cells}) > 1
    return f"{cell.task}, {size_text(cell.size)} rows" if several else cell.task


def slug(*parts: str) -> str:
    """Parts as a name for files: letters, digits and hyphens."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)


def median_text(values: Sequence[float], digits: int = 1) -> str:
    """Median over runs with the lowest and highest: one run that lay still for hours moves no median."""
    if not values:
        return NOTHING
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
