"""Losses per row. They return numerators and denominators, so that the caller sums both and divides once."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentune.plugins import is_plugin, load_plugin


@dataclass(frozen=True)
class RowLosses:
    """The losses of a batch, row by row, with their weights."""

    loss_B: Tensor  # the weighted loss of each row
    weight_B: Tensor  # each row's share of the denominator: the mean loss is sum(loss_B) / sum(weight_B)

    def mean(self) -> Tensor:
        """The mean loss of the batch, a scalar."""
        return self.loss_B.sum() / self.weight_B.sum()


def _rows(loss_B: Tensor, labels_B: Tensor | None = None, class_weights_C: Tensor | None = None) -> RowLosses:
    """Give rows their share of the denominator: the weight of their class, or 1."""
    weight_B = None if labels_B is None or class_weights_C is None else class_weights_C[labels_B]
    return RowLosses(loss_B, loss_B.new_ones(loss_B.shape) if weight_B is None else weight_B)


def cross_entropy_rows(
    logits_BC: Tensor, labels_B: Tensor, *, class_weights_C: Tensor | None = None, label_smoothing: float = 0.0
) -> RowLosses:
    """Compute the cross-entropy of each row in float32; its `mean` equals `torch.nn.functional.cross_entropy`."""
    loss_B = F.cross_entropy(
        logits_BC.float(), labels_B, weight=class_weights_C, label_smoothing=label_smoothing, reduction="none"
    )
    return _rows(loss_B, labels_B, class_weights_C)


def softmax_cross_entropy_rows(
    logits_BC: Tensor, labels_B: Tensor, *, class_weights_C: Tensor | None = None, label_smoothing: float = 0.0
) -> RowLosses:
    """Compute the cross-entropy of each row with its probabilities taken as logits: a second softmax.

    The loss of C classes cannot fall below log(1 + (C - 1) / e), and its gradients are small. See `cross_entropy_rows`.

    Source: the program of task-specific attention (Jia 2024) on SST-5; a slip, kept to repeat its numbers.
    """
    p_BC = logits_BC.float().softmax(dim=-1)
    return cross_entropy_rows(p_BC, labels_B, class_weights_C=class_weights_C, label_smoothing=label_smoothing)


def soft_cross_entropy_rows(logits_BC: Tensor, targets_BC: Tensor) -> RowLosses:
    """Compute the cross-entropy of each row with target probabilities, in float32.

    Source: distillation (Hinton, Vinyals and Dean 2015, section 2), with temperature 1.
    """
    loss_B = F.cross_entropy(logits_BC.float(), targets_BC.float(), reduction="none")
    return _rows(loss_B)


def squared_error_rows(logits_BC: Tensor, scores_B: Tensor) -> RowLosses:
    """Compute the squared error of each row in float32; `logits_BC` has one column."""
    loss_B = (logits_BC.float().squeeze(-1) - scores_B.float()) ** 2
    return _rows(loss_B)


def focal_rows(
    logits_BC: Tensor,
    labels_B: Tensor,
    *,
    gamma: float,
    class_weights_C: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> RowLosses:
    """Compute the focal loss of each row in float32: cross-entropy that down-weights well-classified rows.

    A class with probability p and target share t adds t (1 - p)^gamma (-log p); with gamma 0 that is
    `cross_entropy_rows`, with the same meaning of weights and smoothing.

    Source: focal loss (Lin et al. 2017, section 3.2), over a softmax; alpha there is a class's weight here.
    """
    log_p_BC = logits_BC.float().log_softmax(dim=-1)
    target_BC = F.one_hot(labels_B, logits_BC.shape[1]) * (1.0 - label_smoothing) + label_smoothing / logits_BC.shape[1]
    weights_BC = target_BC if class_weights_C is None else target_BC * class_weights_C.float()
    loss_B = (weights_BC * _focus(log_p_BC, gamma) * -log_p_BC).sum(dim=-1)
    return _rows(loss_B, labels_B, class_weights_C)


def label_set_rows(
    logits_BC: Tensor,
    labels_BC: Tensor,
    *,
    gamma: float = 0.0,
    class_weights_C: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> RowLosses:
    """Compute each row's mean binary cross-entropy over labels in float32, for multi-label tasks.

    Without gamma, which is the focal loss's, its `mean` equals `torch.nn.functional.binary_cross_entropy_with_logits`;
    `class_weights_C` are those of a label's presence, PyTorch's `pos_weight`.
    """
    logits_BC, target_BC = logits_BC.float(), labels_BC.float() * (1.0 - label_smoothing) + label_smoothing / 2
    log_p_BC, log_q_BC = F.logsigmoid(logits_BC), F.logsigmoid(-logits_BC)
    present_BC, absent_BC = target_BC * -log_p_BC, (1.0 - target_BC) * -log_q_BC
    if class_weights_C is not None:
        present_BC = present_BC * class_weights_C.float()
    if gamma > 0:
        present_BC, absent_BC = present_BC * _focus(log_p_BC, gamma), absent_BC * _focus(log_q_BC, gamma)
    loss_B = (present_BC + absent_BC).mean(dim=-1)
    return _rows(loss_B)


def _focus(log_p: Tensor, gamma: float) -> Tensor:
    """Compute (1 - p)^gamma with a finite gradient at p = 1."""
    # expm1 is accurate near p = 1; the minimum keeps the gradient finite there for gamma below 1.
    return (-torch.expm1(log_p)).clamp(min=1e-12) ** gamma


def pearson_rows(logits_B1: Tensor, scores_B: Tensor) -> RowLosses:
    """Compute minus the Pearson correlation of the batch in float32, the same number for each of its rows.

    A step's mean loss is then the mean over its batches, weighted by their rows. A batch of fewer than two rows, or
    with constant labels or predictions (up to rounding), has loss 0 and gradient 0. With several processes each
    correlates its own share of a batch.

    Source: task-specific attention (the poster's loss for semantic textual similarity).
    """
    predicted_B = _unit_deviations(logits_B1.squeeze(-1).float(), smallest=1e-12)
    wanted_B = _unit_deviations(scores_B.float(), smallest=0.0)
    # Each sum of squares is at least 1 unless it is 0, so the clamp only prevents 0 / 0.
    squares = (predicted_B**2).sum().clamp(min=1.0) * (wanted_B**2).sum().clamp(min=1.0)
    correlation = (predicted_B * wanted_B).sum() / squares.sqrt()
    loss_B = -correlation.expand(len(predicted_B))
    return _rows(loss_B)


def _unit_deviations(values_B: Tensor, *, smallest: float) -> Tensor:
    """Divide deviations from the mean by the largest one, which a correlation ignores; 0 if they are rounding only."""
    deviations_B = values_B - values_B.mean()
    largest = deviations_B.detach().abs().max()
    rounding = 4 * torch.finfo(torch.float32).eps * values_B.detach().abs().max()
    is_constant = largest <= rounding.clamp(min=smallest)
    scale = torch.where(is_constant, torch.ones_like(largest), largest)
    return torch.where(is_constant, torch.zeros_like(values_B), deviations_B / scale)


def corn_task_counts(labels_B: Tensor, num_classes: int) -> Tensor:
    """Count the conditional tasks of CORN that each row belongs to, min(y + 1, C - 1): (B,) float32."""
    return (labels_B + 1).clamp(max=num_classes - 1).to(torch.float32)


def corn_rows(logits_BC: Tensor, labels_B: Tensor) -> RowLosses:
    """Compute CORN's loss of each row in float32; the denominator counts the rows of its conditional tasks.

    Task k predicts, for rows whose class is at least k, whether it is above k. A row's losses over its tasks add up to
    minus the log-probability of its class.

    Source: CORN (Shi, Cao and Raschka 2021, section 3). coral-pytorch, its authors' library, had its last release in
    2022 and would be a dependency for these few lines.
    """
    loss_B = -logits_BC.float().gather(1, labels_B[:, None]).squeeze(1)
    return RowLosses(loss_B, corn_task_counts(labels_B, logits_BC.shape[1]))


# The task types that each loss applies to; "auto" is the first loss that applies.
LOSSES: dict[str, tuple[str, ...]] = {
    "cross-entropy": ("classification", "ordinal"),
    "binary-cross-entropy": ("multi_label",),
    "focal": ("classification", "ordinal", "multi_label"),
    "mse": ("regression",),
    "pearson": ("regression",),
    "corn": ("ordinal",),
    "softmax-cross-entropy": ("classification", "ordinal"),
}


def loss_task_types(loss: str) -> tuple[str, ...]:
    """Return the task types of a loss; those of other packages say it by the attribute `task_types`."""
    if is_plugin(loss):
        return tuple(load_plugin("attentune.losses", loss).task_types)
    return LOSSES[loss]


def resolve_loss(loss: str, task_type: str) -> str:
    """Resolve "auto": "mse" for regression, "cross-entropy" for classification and ordinal classes, and
    "binary-cross-entropy" for multi-label tasks.
    """
    return next(name for name, kinds in LOSSES.items() if task_type in kinds) if loss == "auto" else loss


def row_losses(
    kind: str,
    logits_BC: Tensor,
    labels_B: Tensor,
    *,
    class_weights_C: Tensor | None = None,
    label_smoothing: float = 0.0,
    focal_gamma: float = 2.0,
) -> RowLosses:
    """Compute a loss by its name, a key of `LOSSES`; class weights and smoothing apply to classes only.

    Labels of two dimensions are multi-label, or with "cross-entropy" the target probabilities of classes.
    """
    if is_plugin(kind):
        return load_plugin("attentune.losses", kind)(
            logits_BC, labels_B, class_weights_C=class_weights_C, label_smoothing=label_smoothing
        )
    plain = {"mse": squared_error_rows, "pearson": pearson_rows, "corn": corn_rows}
    if kind in plain:
        return plain[kind](logits_BC, labels_B)
    options: dict[str, Any] = {"class_weights_C": class_weights_C, "label_smoothing": label_smoothing}
    if labels_B.ndim == 2:
        if kind == "cross-entropy":
            return soft_cross_entropy_rows(logits_BC, labels_B)
        return label_set_rows(logits_BC, labels_B, gamma=focal_gamma if kind == "focal" else 0.0, **options)
    if kind == "focal":
        return focal_rows(logits_BC, labels_B, gamma=focal_gamma, **options)
    function = softmax_cross_entropy_rows if kind == "softmax-cross-entropy" else cross_entropy_rows
    return function(logits_BC, labels_B, **options)


# The token label of an unlabelled token.
NO_LABEL = -1.0


def token_label_sums(
    token_logits_BT2: Tensor, labels_BT: Tensor, weights_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum the token loss over labelled tokens, and count those whose more likely class is the label's.

    Labels are from 0 to 1 (a half counts as important), and negative where a token has none.

    Source: SSA (Kou et al. 2020, section 3.2); labels between 0 and 1 as in a cross-entropy with soft targets.
    """
    labelled_BT = labels_BT >= 0
    log_p_N2 = token_logits_BT2[labelled_BT].float().log_softmax(dim=-1)
    labels_N = labels_BT[labelled_BT].float()
    loss_N = -(labels_N * log_p_N2[:, 1] + (1.0 - labels_N) * log_p_N2[:, 0])
    if weights_B is not None:
        loss_N = loss_N * weights_B[:, None].expand_as(labelled_BT)[labelled_BT]
    loss = loss_N.sum()
    hits = ((log_p_N2[:, 1] > log_p_N2[:, 0]) == (labels_N >= 0.5)).sum()
    return loss, hits.to(torch.float32)


def with_token_loss(loss: Tensor, token_logits_BT2: Tensor, labels_BT: Tensor, *, share: float) -> Tensor:
    """Combine (1 - share) x the task loss + share x the mean token loss; the task loss alone if no token is labelled.

    Source: SSA (Kou et al. 2020, section 3.2).
    """
    count = (labels_BT >= 0).sum()
    # No branch: this avoids a device synchronisation and keeps the token head in the graph.
    share_now = share * (count > 0).to(loss.dtype)
    token_loss = token_label_sums(token_logits_BT2, labels_BT)[0] / count.clamp(min=1)
    return (1.0 - share_now) * loss + share_now * token_loss
