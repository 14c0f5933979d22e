"""The mutable state of a run: what a checkpoint holds besides weights and optimiser."""

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
from attentune.token_labels.base import LabelGenerator
from attentune.token_labels.plan import EpochPlan


@dataclass
class TrainingState:
    """Counters and best score so far; corresponds to transformers' `TrainerState`."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # the current epoch, from 0
    step_in_epoch: int = 0  # optimiser steps done in this epoch
    tokens: int = 0  # tokens trained on, padding not counted
    seconds: float = 0.0  # wall time of training steps, without evaluation and saving
    evaluation_seconds: float = 0.0  # wall time of evaluation
    label_seconds: float = 0.0  # wall time of making token labels
    epoch_labels: dict[str, Any] = field(default_factory=dict)  # counts of this epoch's token labels, for the log
    loss_sum: float = 0.0  # sum of the steps' losses since the last line of the log
    task_loss_sum: float = 0.0  # the same of the task's loss alone, without the token head's
    loss_steps: int = 0  # number of steps in `loss_sum`
    best: dict[str, Any] | None = None  # {"metric", "value", "step"} of the best score, or None
    scores_without_gain: int = 0  # evaluations since the last improvement
    last_scored_step: int = -1  # step of the newest evaluation, or -1
    stopped_early: bool = False  # whether early stopping, or a callback, ended the run
    log_bytes: int = 0  # length of log.jsonl
    log_sha256: str | None = None  # SHA-256 of log.jsonl; None if the run has no log

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingState:
        """Build a state from `to_dict`'s values."""
        check_fields(cls, values)
        counts = {name: value for name, value in values.items() if type(value) is int}
        below = [name for name, value in counts.items() if value < (-1 if name == "last_scored_step" else 0)]
        best = values.get("best")
        if best is not None and (type(best.get("step")) is not int or not isinstance(best.get("value"), (int, float))):
            below.append("best")
        if below:
            raise ValueError(f"{below[0]} is {str(values[below[0]])[:60]}, which is out of range")
        return cls(**values)

    @property
    def tokens_per_second(self) -> float:
        """Training speed so far."""
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def is_best(self) -> bool:
        """Whether the best score is that of the current step."""
        return self.best is not None and self.best["step"] == self.step

    def update_best(self, metric: Metric, value: float, threshold: float) -> bool:
        """Record a score; return whether it is the best so far. An undefined score (NaN) is never an improvement."""
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


class EpochPlanner:
    """Plans epochs with a label generator, and holds the plan in force."""

    def __init__(self, generator: LabelGenerator) -> None:
        self.generator = generator
        self.plan: EpochPlan | None = None

    def begin_epoch(self, epoch: int, on_rows: Callable[[int], None]) -> EpochPlan:
        """Plan an epoch (from 0); `on_rows` is called with the number of rows that the model has predicted."""
        with self.generator.source.scorer.watched(on_rows):
            self.plan = self.generator.plan(epoch)
        return self.plan

    def resume_epoch(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch that was interrupted.

        A plan that depends on the model came with the checkpoint; any other one is made again.
        """
        return self.generator.plan(epoch) if self.plan is None else self.plan

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold of the plan and the generator. All processes must call it together."""
        if not self.generator.needs_model:
            return {}
        return ({} if self.plan is None else self.plan.tensors()) | self.generator.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Restore the plan and the generator; the inverse of `tensors`."""
        self.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        if self.plan is not None:
            self.plan.check(np.diff(self.generator.source.features.starts))
        self.generator.restore(tensors)


@dataclass(frozen=True)
class TrainingRows:
    """The training rows as the loop needs them."""

    features: Features  # the rows' tokens
    labels: np.ndarray  # (N,) class ids or scores; (N, C) for multi-label and for soft targets
    names: Callable[[int], str]  # returns the name of a row for messages, by its index
    pad_token_id: int  # pads shorter rows
    mask_token_id: int  # replaces masked tokens
    weights: np.ndarray | None = None  # (N,) float32 weight of each row's losses; None if all are 1
