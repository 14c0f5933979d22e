"""Builds small tasks for the dataset checks, and selects findings of a report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.doctor_report import DoctorReport, Finding


def make_rows(
    texts: Sequence[str],
    labels: Sequence[float] | None = None,
    pairs: Sequence[str] | None = None,
    *,
    source: str = "data.csv",
    lines: bool = False,
) -> TextRows:
    if labels is not None:
        labels = np.asarray(labels, dtype=np.float64 if any(isinstance(v, float) for v in labels) else np.int64)
    return TextRows(
        ids=tuple(f"r{place}" for place in range(len(texts))),
        texts=tuple(texts),
        pairs=None if pairs is None else tuple(pairs),
        labels=labels,
        source=source,
        lines=tuple(range(2, len(texts) + 2)) if lines else None,
    )


def make_task(
    splits: dict[str, TextRows],
    *,
    task_type: str = "classification",
    names: tuple[str, ...] = ("no", "yes"),
    metrics: tuple[str, ...] = ("accuracy",),
) -> TaskData:
    return TaskData("toy", LabelSpace(task_type, () if task_type == "regression" else names), metrics, splits)


def find(report: DoctorReport, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


def distinct(count: int, prefix: str = "text") -> list[str]:
    return [f"{prefix} {place}" for place in range(count)]
