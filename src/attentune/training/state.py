"""Where a run stands: what a checkpoint keeps beside weights and optimiser."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attentune.data.tokenization import Features
from attentune.metrics.metrics import Metric
from attentune.results import check_fields


@dataclass
class TrainingState:
    """Counts and choices so far; the only mutable part of a run.

    Attributes:
        step: optimiser steps done.
        epoch: epochs begun, from 0.
        step_in_epoch: optimiser steps done in this epoch.
        tokens: real tokens trained on, padding not counted.
        seconds: wall time in training steps, without scoring and saving.
        evaluation_seconds: wall time spent on scores.
        label_seconds: wall time spent on making the epochs' labels.
        epoch_labels: what the log is to say of this epoch's labels; empty between epochs.
        loss_sum: loss since the last line of the log, times its steps.
        loss_steps: the steps in `loss_sum`.
        best: {"metric", "value", "step"} of the best score, or None.
        scores_without_gain: scores since the best.
        last_scored_step: the step of the newest score, or -1.
        stopped_early: whether early stopping ended the run.
        log_bytes: the length of log.jsonl.
        log_sha256: its hash; None of a run that has no log.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    label_seconds: float = 0.0
    epoch_labels: dict[str, Any] = field(default_factory=dict)
    loss_sum: float = 0.0
    loss_steps: int = 0
    best: dict[str, Any] | None = None
    scores_without_gain: int = 0
    last_scored_step: int = -1
    stopped_early: bool = False
    log_bytes: int = 0
    log_sha256: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingState:
        """The inverse of `to_dict`.

        Raises:
            ValueError, TypeError: it is no such state.
        """
        check_fields(cls, values)
        counts = {name: value for name, value in values.items() if type(value) is int}
        below = [name for name, value in counts.items() if value < (-1 if name == "last_scored_step" else 0)]
        best = values.get("best")
        if best is not None and (type(best.get("step")) is not int or not isinstance(best.get("value"), (int, float))):
            below.append("best")
        if below:
            raise ValueError(f"{below[0]} is {str(values[below[0]])[:60]}, which cannot be")
        return cls(**values)

    def note_score(self, metric: Metric, value: float, threshold: float) -> bool:
        """Take in a score; whether it is the best so far. An undefined score (NaN) is never a gain."""
        self.last_scored_step = self.step
        sign = 1.0 if metric.greater_is_better else -1.0
        before = None if self.best is None else self.best["value"]
        gain = not math.isnan(value) and (before is None or sign * (value - before) > 0)
        if gain and (before is None or sign * (value - before) > threshold):
            self.scores_without_gain = 0
        else:
            self.scores_without_gain += 1
        if gain:
            self.best = {"metric": metric.name, "value": value, "step": self.step}
        return gain


@dataclass(frozen=True)
class TrainingRows:
    """What is trained on.

    Attributes:
        features: the rows' tokens.
        labels: (N,) class ids or scores.
        weights: (N,) float32, what each row's losses are multiplied with; None for 1.
        names: what a row is called in messages, by its number.
        pad_token_id: fills up shorter rows.
        mask_token_id: stands at masked places.
    """

    features: Features
    labels: np.ndarray
    names: Callable[[int], str]
    pad_token_id: int
    mask_token_id: int
    weights: np.ndarray | None = None
