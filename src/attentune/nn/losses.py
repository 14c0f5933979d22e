"""Losses of single rows. Sums travel: the caller adds up numerators and denominators and divides once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RowLosses:
    """The losses of a batch, row by row.

    Attributes:
        loss_B: the weighted loss of each row.
        weight_B: what each row adds to the denominator, so that the mean loss is sum(loss_B) / sum(weight_B).
    """

    loss_B: Tensor
    weight_B: Tensor

    def mean(self) -> Tensor:
        """The mean loss of the batch, a scalar."""
        return self.loss_B.sum() / self.weight_B.sum()


def cross_entropy_rows(
    logits_BC: Tensor, labels_B: Tensor, *, class_weights_C: Tensor | None = None, label_smoothing: float = 0.0
) -> RowLosses:
    """Cross-entropy of each row, in float32; its `mean` equals `torch.nn.functional.cross_entropy`.

    Args:
        logits_BC: scores before the softmax.
        labels_B: class ids.
        class_weights_C: the weight of each class, or None for equal ones.
        label_smoothing: the share of the target spread evenly over all classes.
    """
    loss_B = F.cross_entropy(
        logits_BC.float(), labels_B, weight=class_weights_C, label_smoothing=label_smoothing, reduction="none"
    )
    weight_B = loss_B.new_ones(loss_B.shape) if class_weights_C is None else class_weights_C[labels_B]
    return RowLosses(loss_B, weight_B)


def squared_error_rows(logits_BC: Tensor, scores_B: Tensor) -> RowLosses:
    """The squared error of each row, in float32. `logits_BC` has one column."""
    loss_B = (logits_BC.float().squeeze(-1) - scores_B.float()) ** 2
    return RowLosses(loss_B, loss_B.new_ones(loss_B.shape))


def resolve_loss(loss: str, task_type: str) -> str:
    """The loss that "auto" stands for: "mse" for regression, "cross-entropy" for classes, ordered or not."""
    if loss != "auto":
        return loss
    return "mse" if task_type == "regression" else "cross-entropy"


def row_losses(
    kind: str,
    logits_BC: Tensor,
    labels_B: Tensor,
    *,
    class_weights_C: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> RowLosses:
    """The losses of a batch by the name of the loss, "cross-entropy" or "mse"."""
    if kind == "mse":
        return squared_error_rows(logits_BC, labels_B)
    return cross_entropy_rows(logits_BC, labels_B, class_weights_C=class_weights_C, label_smoothing=label_smoothing)


# What a token label is where there is none.
NO_LABEL = -1.0


def token_label_sums(token_logits_BT2: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The token head's loss over labelled tokens, and how often it is right, as sums.

    Args:
        token_logits_BT2: scores before the softmax for "not important" and "important".
        labels_BT: from 0 to 1; negative where a token has no label.

    Returns:
        The sum of the cross-entropies, and the number of labelled tokens whose more likely side is the label's
        (a half counts as important); divide both by the number of labelled tokens.

    Source: SSA (Kou et al. 2020, section 3.3); labels between 0 and 1 as in a cross-entropy with soft targets.
    """
    labelled_BT = labels_BT >= 0
    log_p_N2 = token_logits_BT2[labelled_BT].float().log_softmax(dim=-1)
    labels_N = labels_BT[labelled_BT].float()
    loss = -(labels_N * log_p_N2[:, 1] + (1.0 - labels_N) * log_p_N2[:, 0]).sum()
    hits = ((log_p_N2[:, 1] > log_p_N2[:, 0]) == (labels_N >= 0.5)).sum()
    return loss, hits.to(torch.float32)
