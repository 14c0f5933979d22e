"""The focal loss against the loss written out, and against cross-entropy where both are one."""

import math

import pytest
import torch

from attentune.nn.losses import focal_rows


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return 3 * torch.randn(9, 3, generator=generator), torch.tensor([0, 1, 2, 2, 1, 0, 0, 1, 2])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5], [0.0, 1.0, 2.0]])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_each_row_is_the_loss_written_out(gamma: float, weights: list[float] | None, smoothing: float) -> None:
    logits_BC, labels_B = example()
    weights_C = None if weights is None else torch.tensor(weights)
    rows = focal_rows(logits_BC, labels_B, gamma=gamma, class_weights_C=weights_C, label_smoothing=smoothing)
    for row, label in enumerate(labels_B.tolist()):
        scores = [float(score) for score in logits_BC[row]]
        total = math.fsum(math.exp(score) for score in scores)
        loss = 0.0
        for column, score in enumerate(scores):
            p, target = math.exp(score) / total, smoothing / 3 + (1 - smoothing) * (column == label)
            loss += (1.0 if weights is None else weights[column]) * target * (1 - p) ** gamma * -math.log(p)
        assert float(rows.loss_B[row]) == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert float(rows.weight_B[row]) == pytest.approx(1.0 if weights is None else weights[label])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_rows_that_are_sure_have_finite_losses_and_gradients(gamma: float) -> None:
    logits_B2 = torch.tensor([[300.0, -300.0], [-300.0, 300.0], [0.0, 0.0], [20.0, 0.0]], requires_grad=True)
    rows = focal_rows(logits_B2, torch.tensor([0, 0, 1, 0]), gamma=gamma)
    assert rows.loss_B[0].item() == pytest.approx(0.0, abs=1e-6)
    assert rows.loss_B[1].item() == pytest.approx(600.0)
    rows.mean().backward()
    assert logits_B2.grad.isfinite().all()
