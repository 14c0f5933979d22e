"""The GLUE average: the mean over tasks of each task's mean score."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

# The tasks that are averaged. MNLI counts once, with its matched and mismatched rows; AX is a diagnostic set.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# WNLI's dev rows contradict its training rows, so papers count the majority class on its test rows instead of a model.
WNLI_SCORE = 0.651

# By split and metric.
Scores = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class GlueAverage:
    """An average over GLUE tasks."""

    value: float  # between 0 and 1; NaN if a score is undefined
    tasks: tuple[str, ...]  # the averaged tasks

    @property
    def is_complete(self) -> bool:
        return self.tasks == GLUE_TASKS

    @property
    def name(self) -> str:
        """Return "GLUE average", or what is averaged if tasks are missing."""
        return "GLUE average" if self.is_complete else f"mean of {len(self.tasks)} GLUE tasks"


def task_score(scores: Scores) -> float:
    """Return the mean of a task's metrics over its validation splits; NaN without any, or if one is undefined."""
    scored = [by_name for split, by_name in scores.items() if split.startswith("validation")]
    values = [math.nan if value is None else value for by_name in scored for value in by_name.values()]
    return statistics.fmean(values) if values else math.nan


def glue_average(by_task: Mapping[str, Scores]) -> GlueAverage | None:
    """Average the scores of GLUE tasks; None for fewer than two of them.

    Each task counts once, with the mean of its metrics (F1 and accuracy, Pearson and Spearman) and of its splits (MNLI
    matched and mismatched). With all eight tasks, WNLI is the ninth, as the majority class (65.1). Scores of WNLI and
    AX are not used.

    Source:
        GLUE (Wang et al., 2019), section 4; WNLI as in BERT (Devlin et al., 2019) and the papers that follow it.
    """
    tasks = tuple(task for task in GLUE_TASKS if task in by_task)
    if len(tasks) < 2:
        return None
    values = [task_score(by_task[task]) for task in tasks]
    if tasks == GLUE_TASKS:
        values.append(WNLI_SCORE)
    return GlueAverage(statistics.fmean(values), tasks)
