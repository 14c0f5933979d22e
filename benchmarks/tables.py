"""What the pages of results have in common: Markdown tables of means and standard deviations over seeds, in points."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any] | None:
    """A run's record; None where the run has not been made."""
    return json.loads(file.read_text()) if file.exists() else None


def points(runs: Sequence[dict[str, Any] | None]) -> list[float]:
    """The scores of the runs there are, x 100; an undefined score counts as 0."""
    return [100 * (run["score"] or 0.0) for run in runs if run is not None]


def spread(values: Sequence[float], wanted: int) -> str:
    """Mean and standard deviation of `wanted` runs."""
    if len(values) < wanted:
        return f"not measured ({len(values)} of {wanted} runs)" if values else "not measured"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def spread_of_one(values: Sequence[float]) -> str:
    """A single run's score."""
    return f"{values[0]:.1f}" if values else "not measured"


def difference(values: Sequence[float], others: Sequence[float], wanted: int) -> str:
    """The mean difference of paired seeds, with its own standard deviation."""
    if len(values) < wanted or len(others) < wanted:
        return ""
    gaps = [a - b for a, b in zip(values, others, strict=True)]
    return f"{statistics.mean(gaps):+.1f} ± {statistics.stdev(gaps):.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def page(introduction: str, parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A page of parts with titles."""
    return introduction + "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts)
