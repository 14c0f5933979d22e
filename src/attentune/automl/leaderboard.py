"""What `attentune auto` shows: progress while it works, and the leaderboard at the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import Metric
from attentune.runs.progress import ComparisonProgress, as_duration
from attentune.runs.records import Run, RunRecord
from attentune.seeding import numpy_generator

LEADERBOARD_FILE = "leaderboard.json"
_RESAMPLES, _FEWER_RESAMPLES, _MANY_ROWS = 1000, 200, 3000


@dataclass(frozen=True)
class LeaderboardRow:
    """A member, or the fusion of several."""

    name: str  # the member's name, or "fusion"
    kind: str  # "baseline", "fine-tuned" or "fusion"
    method: str  # the baseline, the preset, or the kind of fusion
    encoder: str | None = None  # the member's encoder; None if it has none
    status: str = "done"  # "done" or "left out"
    score: float | None = None  # the metric on rows that the model was not trained on; None if undefined or left out
    # low, high: its 95 % interval over these rows; None if undefined.
    low: float | None = None
    high: float | None = None
    seconds: float = 0.0  # the time that all of its folds took
    bytes: int = 0  # the size of its files
    weight: float | None = None  # how much it counts in what was delivered; None if it is not part of that
    note: str = ""  # why it was left out


def scored(metric: Metric, labels: np.ndarray, predictions: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Return `score`, `low` and `high` of predictions of rows that the model was not trained on."""
    resamples = _RESAMPLES if len(labels) <= _MANY_ROWS else _FEWER_RESAMPLES
    values = score_interval(
        metric, labels, predictions, generator=numpy_generator("auto estimate", seed), resamples=resamples
    )
    return {name: _defined(value) for name, value in zip(("score", "low", "high"), values, strict=True)}


def _defined(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def ranked(rows: Sequence[LeaderboardRow], metric: Metric) -> list[LeaderboardRow]:
    """Return the rows best first, then those without a score."""
    sign = -1.0 if metric.greater_is_better else 1.0
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0)))


def to_dicts(rows: Sequence[LeaderboardRow]) -> list[dict[str, Any]]:
    """Return plain values, for JSON."""
    return [dataclasses.asdict(row) for row in rows]


def leaderboard_cells(rows: Sequence[LeaderboardRow]) -> list[tuple[str, ...]]:
    """Return the cells of the leaderboard: name, score, interval, seconds, MB, and what it is used for."""
    return [
        (
            row.name,
            "-" if row.score is None else f"{row.score:.4f}",
            "" if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}",
            f"{row.seconds:.1f}",
            f"{row.bytes / 1e6:.1f}",
            f"delivered, weight {row.weight:.2f}" if row.weight is not None else row.note,
        )
        for row in rows
    ]


def estimate_sentence(estimate: dict[str, Any]) -> str:
    """Return the estimate for new rows in a sentence."""
    if estimate.get("value") is None:
        return f"There is no estimate for new rows: {estimate['metric']} is undefined."
    interval = ""
    if estimate.get("low") is not None and estimate.get("high") is not None:
        interval = f" (95 % interval {estimate['low']:.4f} to {estimate['high']:.4f})"
    return (
        f"Estimate for new rows: {estimate['metric']} {estimate['value']:.4f}{interval}, by {estimate['method']}. It"
        " holds for rows of the same time and source; others are not covered."
    )


def card(rows: Sequence[LeaderboardRow], result: dict[str, Any]) -> str:
    """Return the README.md of the run folder."""
    lines = ["# A model made by attentune auto", "", result["reason"], "", estimate_sentence(result["estimate"]), ""]
    for split, scores in result["scores"].items():
        values = ", ".join(
            f"{name} {'undefined' if value != value else format(value, '.4f')}" for name, value in scores.items()
        )
        lines += [f"Scores on {split} rows, which chose nothing: {values}.", ""]
    header = ("model", f"{result['metric']}, out of fold", *LEADERBOARD_HEADER[2:])
    lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in leaderboard_cells(rows)]
    lines += ["", *(f"- {note}" for note in result["notes"]), ""]
    lines += ["The folder `auto` belongs to the model: it has the members' weights.", ""]
    return "\n".join(lines)


LEADERBOARD_HEADER = ("model", "score", "95 % interval", "seconds", "MB", "")


class AutoProgress(ComparisonProgress):
    """Shows progress on standard error: a bar with the time left on a terminal, plain lines elsewhere."""

    unit = "folds"

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.left_s: Callable[[], float] = lambda: 0.0  # the time that is left of the limit

    def _left(self) -> str:
        return f"{as_duration(max(self.left_s(), 0.0))} left"

    def update(self, done: int, total: int, *, failed: int, running: Sequence[Run], left: float | None) -> None:
        """Move the bar."""
        super().update(done, total, failed=failed, running=running, left=max(self.left_s(), 0.0))

    def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
        """Say why a run failed; of the others, `member_ended` says the score of all together."""
        if not record.is_done:
            self.warning(f"{self.long(record.run)}: {(record.error or {}).get('message')}")

    def doing(self, step: str, *, is_new: bool = True) -> None:
        """Say what is being done, on a line of its own, if the step is new."""
        if is_new:
            self.info(f"{time.strftime('%H:%M:%S')} {step} ({self._left()})")

    def member_ended(self, name: str, metric: str, score: float | None, seconds: float) -> None:
        """Print a line for a member whose folds are all finished."""
        shown = "undefined" if score is None or score != score else f"{score:.4f}"
        info = f"{name}: {metric} {shown} out of fold ({seconds:.0f} s; {self._left()})"
        self.info(f"{time.strftime('%H:%M:%S')} {info}")
