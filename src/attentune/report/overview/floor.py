"""The floor under every method: the baselines on the same rows, as far as the records have them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from attentune.report.analysis import Cell
from attentune.report.sections.run_tables import methods_of
from attentune.stats.runs import summarise

# The names of the baselines in a run's record, and in words; `training.baseline_comparison` writes the records.
MODEL, MAJORITY = "this model", "majority"
# The most frequent class, or the mean of the labels.
CONSTANT = "constant answer"
_WORDS = {
    "tfidf-linear": "TF-IDF + linear",
    "frozen-linear": "frozen encoder + linear",
    "cosine": "cosine of frozen embeddings",
    "token-alignment": "token alignment of a frozen encoder",
}


@dataclass(frozen=True)
class FloorRow:
    """A baseline's score on one task: the mean over seeds.

    Attributes:
        name: the baseline in words.
        score: in the unit of the metric.
        low, high: its 95 % interval over rows; NaN with several seeds or without one.
        is_model: whether it is the run itself.
    """

    name: str
    score: float
    low: float
    high: float
    is_model: bool


def floor_rows(cell: Cell) -> list[FloorRow]:
    """Return the baselines of a cell's runs on the metric that methods are compared by, the majority class first."""
    if cell.runs is None:
        return []
    if cell.is_constant:
        return [FloorRow(CONSTANT, summarise(cell.runs).mean, math.nan, math.nan, False)]
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run in cell.recorded:
        made = run.record.baselines or {}
        if made.get("metric") != cell.runs.metric:
            continue
        for entry in methods_of(made):
            score = _number(entry.get("score"))
            if math.isfinite(score):
                interval = _number(entry.get("low")), _number(entry.get("high"))
                found.setdefault(str(entry.get("name", "")), []).append((score, *interval))
    if MAJORITY not in found and cell.runs.majority_score is not None:
        found = {MAJORITY: [(cell.runs.majority_score, math.nan, math.nan)], **found}
    rows = []
    for name, values in found.items():
        low, high = values[0][1:] if len(values) == 1 else (math.nan, math.nan)
        rows.append(FloorRow(_name(name, cell), statistics.fmean(v[0] for v in values), low, high, name == MODEL))
    return rows


def _name(name: str, cell: Cell) -> str:
    if name == MODEL:
        return cell.method
    if name == MAJORITY:
        return CONSTANT
    return _WORDS.get(name, name)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
