"""The training objective: the task's loss, combined with the loss of the token head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from attentune.config import ObjectiveConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, NonFiniteLossError
from attentune.metrics.metrics import Metric
from attentune.nn.losses import (
    LOSSES,
    RowLosses,
    corn_task_counts,
    loss_task_types,
    resolve_loss,
    row_losses,
    token_label_sums,
)
from attentune.training.prepare import class_weight_values

_SHOWN_ROWS = 8
# A loss or gradient is checked before the weights are updated.
UNCHANGED = "No weight was changed by it."


def nonfinite_error(what: str, step: int, rows: Sequence[str], consequence: str) -> NonFiniteLossError:
    """Return the error for a loss, gradient or weights that became infinite or NaN in a step on these rows."""
    shown = ", ".join(rows[:_SHOWN_ROWS]) + (f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else "")
    return NonFiniteLossError(
        f"{what} at step {step}; the rows of this step: {shown}. {consequence} Try a lower --learning_rate, --precision"
        " fp32, or look at these rows."
    )


def count_nonfinite(model: nn.Module) -> int:
    weights = (weight.detach() for weight in model.parameters())
    # One pass over memory instead of five: a sum is finite only if all weights are.
    return sum(0 if math.isfinite(weight.sum()) else int((~weight.isfinite()).sum()) for weight in weights)


@dataclass(frozen=True)
class Denominators:
    """The denominators of one optimiser step's loss sums; known before its forward passes, equal on all processes."""

    target: float  # sum of the rows' class weights
    tokens: int  # number of labelled tokens
    token_share: float  # weight of the token head's mean loss; the task's mean loss has the rest

    def combine(self, sums_3: torch.Tensor) -> torch.Tensor:
        """Return the combined loss of `Objective.sums`, a scalar."""
        target = (1.0 - self.token_share) * sums_3[0] / self.target
        return target + self.token_share * sums_3[1] / self.tokens if self.tokens else target


@dataclass(frozen=True)
class Objective:
    """The loss of a batch: the task's, combined with the token head's."""

    loss: str  # a key of `nn.losses.LOSSES`
    class_weights: torch.Tensor | None  # (C,) float32 weight of each class, None for equal ones
    label_smoothing: float  # share of the target spread over all classes
    alpha: float = 1.0  # weight of the task's loss where tokens are labelled; the token head's has 1 - alpha
    warmup_epochs: float = 0.0  # epochs over which the token head's share rises to 1 - alpha
    num_labels: int = 1  # the number of classes, or 1 for regression
    focal_gamma: float = 2.0  # with loss "focal", its gamma
    score_scale: tuple[float, float] = (0.0, 1.0)  # regression: mean and standard deviation of the training scores

    def sums(
        self,
        output: Any,
        labels_B: torch.Tensor,
        token_labels_BT: torch.Tensor | None,
        weights_B: torch.Tensor | None = None,
        weak_BC: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (3,): the sums of the rows' losses and of the labelled tokens' losses, and the token head's hits.

        Row weights multiply the losses, not the denominators: a row of weight 1 counts the same in any batch.
        `weak_BC`: log-probabilities of a weak model (`training.debias`).
        """
        logits_BC = output.logits if weak_BC is None else output.logits.float() + weak_BC
        loss_B = self.rows(logits_BC, labels_B).loss_B
        target = loss_B.sum() if weights_B is None else (loss_B * weights_B).sum()
        nothing = target.new_zeros(())
        if output.token_logits is None:
            return torch.stack([target, nothing, nothing])
        if token_labels_BT is None:
            # The zero keeps the token head in the graph, as several processes need it.
            return torch.stack([target + 0.0 * output.token_logits.sum(), nothing, nothing])
        return torch.stack([target, *token_label_sums(output.token_logits, token_labels_BT, weights_B)])

    def denominators(self, labels: np.ndarray, tokens: int, epoch: float) -> Denominators:
        warmup = 1.0 if self.warmup_epochs == 0 else min(1.0, epoch / self.warmup_epochs)
        share = (1.0 - self.alpha) * warmup if tokens else 0.0
        return Denominators(self.weight_sum(labels) or 1.0, tokens, share)

    def rows(self, logits_BC: torch.Tensor, labels_B: torch.Tensor) -> RowLosses:
        """Return the losses of each row of a batch, whose scores are standardised as in `Prepared.targets`."""
        mean, std = self.score_scale
        if (mean, std) != (0.0, 1.0):
            logits_BC = (logits_BC - mean) / std
        weights_C = None if self.class_weights is None else self.class_weights.to(logits_BC.device)
        return row_losses(
            self.loss,
            logits_BC,
            labels_B,
            class_weights_C=weights_C,
            label_smoothing=self.label_smoothing,
            focal_gamma=self.focal_gamma,
        )

    def weight_sum(self, labels: np.ndarray) -> float:
        """Return the denominator of these rows' mean loss."""
        if self.loss == "corn":
            return float(corn_task_counts(torch.from_numpy(labels), self.num_labels).double().sum())
        if self.class_weights is None or labels.ndim == 2:
            return float(len(labels))
        return float(self.class_weights.numpy()[labels].astype(np.float64).sum())


def build_objective(
    settings: ObjectiveConfig,
    label_space: LabelSpace,
    labels: np.ndarray,
    *,
    row_weights: np.ndarray | None = None,
    score_scale: tuple[float, float] = (0.0, 1.0),
    soft_targets: bool = False,
) -> Objective:
    """Build the objective for a task and check that its loss fits."""
    loss = resolve_loss(settings.loss, label_space.task_type)
    _check_loss(loss, label_space)
    if soft_targets:
        _check_soft(loss, label_space, settings)
    if loss == "pearson" and row_weights is not None:
        raise ConfigError(
            "objective.loss: pearson has one loss for a whole batch, so rows cannot have weights. Leave the weights"
            " out, or take mse."
        )
    return Objective(
        loss=loss,
        class_weights=_class_weights(settings.class_weights, label_space, labels, row_weights),
        label_smoothing=settings.label_smoothing,
        alpha=settings.alpha,
        warmup_epochs=settings.token_loss_warmup_epochs,
        num_labels=label_space.num_labels,
        focal_gamma=settings.focal_gamma,
        score_scale=score_scale,
    )


def _check_loss(loss: str, label_space: LabelSpace) -> None:
    if label_space.task_type not in loss_task_types(loss):
        fitting = ", ".join(name for name, kinds in LOSSES.items() if label_space.task_type in kinds)
        hint = " (data.task_type ordinal says that classes have an order)" if loss == "corn" else ""
        kind = f"{'an' if label_space.task_type == 'ordinal' else 'a'} {label_space.task_type} task"
        raise ConfigError(
            f"objective.loss: got {loss!r}, which does not fit {kind}; expected auto or one of {fitting}{hint}."
        )
    count = label_space.num_labels
    if loss == "corn" and count < 2:
        raise ConfigError(
            f"objective.loss: corn needs at least two classes, but this task has {count}"
            f" ({', '.join(label_space.names)}). Use cross-entropy."
        )


def _check_soft(loss: str, label_space: LabelSpace, settings: ObjectiveConfig) -> None:
    expected = resolve_loss("auto", label_space.task_type)
    if loss != expected or settings.class_weights is not None or settings.label_smoothing > 0:
        raise ConfigError(
            f"objective: got loss {loss}, class_weights {settings.class_weights} and label_smoothing"
            f" {settings.label_smoothing:g} for rows with soft targets, expected loss {expected} (or auto) alone: the"
            " targets are what is to be learned."
        )


def check_metric(objective: Objective, metric: Metric) -> None:
    if objective.loss == "pearson" and not metric.greater_is_better:
        raise ConfigError(
            f"training.metric_for_best_model: got {metric.name!r}, but objective.loss pearson leaves the scale of the"
            " predictions free until the run's end. Choose by pearson or spearmanr, or train with loss mse."
        )


def _class_weights(
    wanted: Any, label_space: LabelSpace, labels: np.ndarray, row_weights: np.ndarray | None
) -> torch.Tensor | None:
    if wanted is None:
        return None
    if wanted != "balanced":
        return torch.tensor(class_weight_values(wanted, label_space.names), dtype=torch.float32)
    # Weighted rows count by their weights.
    count: Any = len(labels) if row_weights is None else row_weights.sum()
    if label_space.is_multilabel:
        # The weight balances rows with and without the label; a label without training rows keeps a finite one.
        present_C = labels.sum(axis=0) if row_weights is None else (labels * row_weights[:, None]).sum(axis=0)
        absent_C = count - present_C
        balance_C = np.where(absent_C > 0, absent_C, 1) / np.where(present_C > 0, present_C, 1)
        return torch.tensor(balance_C, dtype=torch.float32)
    counts = np.bincount(labels, weights=row_weights, minlength=label_space.num_labels)
    # scikit-learn's rule; a class without training rows gets weight 0, which no row uses.
    values = [count / (label_space.num_labels * number) if number else 0.0 for number in counts]
    return torch.tensor(values, dtype=torch.float32)
