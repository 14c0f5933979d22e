"""The texts of a report's tasks and what the doctor says of them. `cli.report` reads both from the data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attentune.data.checks.report import Finding
from attentune.explain.explanation import Explanation


@dataclass(frozen=True)
class TaskTexts:
    """The texts of a task's validation rows.

    Attributes:
        texts: by row id, the text and the second text of a pair.
        findings: what the doctor says of the task's rows; None if it was not asked.
        problem: why there are no texts; empty if there are.
        explanations: by text and second text, what `attentune explain` has written on them.
    """

    texts: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    findings: tuple[Finding, ...] | None = None
    problem: str = ""
    explanations: Mapping[tuple[str, str | None], Explanation] = field(default_factory=dict)
