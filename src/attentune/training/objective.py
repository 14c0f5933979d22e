"""What training minimises, settled from the settings and the training labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attentune.config import ObjectiveConfig
from attentune.data.rows import LabelSpace
from attentune.errors import ConfigError
from attentune.nn.losses import RowLosses, resolve_loss, row_losses


@dataclass(frozen=True)
class Objective:
    """The loss of a batch, and what each row adds to the denominator.

    Attributes:
        loss: "cross-entropy" or "mse".
        class_weights: (C,) float32 weight of each class, or None for equal ones.
        label_smoothing: the share of the target spread over all classes.
    """

    loss: str
    class_weights: torch.Tensor | None
    label_smoothing: float

    def rows(self, logits_BC: torch.Tensor, labels_B: torch.Tensor) -> RowLosses:
        """The losses of a batch, row by row."""
        weights_C = None if self.class_weights is None else self.class_weights.to(logits_BC.device)
        return row_losses(
            self.loss, logits_BC, labels_B, class_weights_C=weights_C, label_smoothing=self.label_smoothing
        )

    def weight_sum(self, labels: np.ndarray) -> float:
        """The denominator of these rows' mean loss; known before the forward pass, on every process alike."""
        if self.class_weights is None:
            return float(len(labels))
        return float(self.class_weights.numpy()[labels].astype(np.float64).sum())


def build_objective(settings: ObjectiveConfig, label_space: LabelSpace, labels: np.ndarray) -> Objective:
    """The objective for these training labels.

    Raises:
        ConfigError: the loss or the weights do not fit the task.
    """
    loss = resolve_loss(settings.loss, label_space.task_type)
    classes = label_space.task_type != "regression"
    if classes != (loss == "cross-entropy"):
        raise ConfigError(f"objective.loss: got {settings.loss!r}, which does not fit a {label_space.task_type} task.")
    if not classes and (settings.class_weights is not None or settings.label_smoothing > 0):
        raise ConfigError("objective: class_weights and label_smoothing need classes; this task is a regression.")
    weights = None if settings.class_weights is None else _class_weights(settings.class_weights, label_space, labels)
    return Objective(loss, weights, settings.label_smoothing)


def _class_weights(wanted: Any, label_space: LabelSpace, labels: np.ndarray) -> torch.Tensor:
    names = label_space.names
    if wanted == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        # scikit-learn's rule; a class without a training row gets weight 0, which no row ever uses.
        values = [len(labels) / (len(names) * count) if count else 0.0 for count in counts]
        return torch.tensor(values, dtype=torch.float32)
    if isinstance(wanted, str):
        wanted = [part.strip() for part in wanted.split(",")]
    if isinstance(wanted, Mapping):
        if set(map(str, wanted)) != set(names):
            raise ConfigError(f"objective.class_weights: got {sorted(map(str, wanted))}, expected {sorted(names)}.")
        wanted = [{str(key): value for key, value in wanted.items()}[name] for name in names]
    try:
        values = [float(value) for value in wanted] if isinstance(wanted, Sequence) else []
    except (TypeError, ValueError):
        values = []
    if len(values) != len(names) or any(not np.isfinite(value) or value < 0 for value in values) or not any(values):
        raise ConfigError(
            f"objective.class_weights: got {wanted!r}, expected balanced, or {len(names)} numbers of at least 0,"
            f" one for each of {', '.join(names)}."
        )
    return torch.tensor(values, dtype=torch.float32)
