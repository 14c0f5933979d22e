"""The loss of several labels a row against PyTorch's own and against the loss written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from attentune.nn.losses import label_set_rows, row_losses


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return 3 * torch.randn(7, 4, generator=generator), torch.randint(0, 2, (7, 4), generator=generator)


@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5, 9.0]])
def test_the_mean_is_pytorchs(weights: list[float] | None) -> None:
    logits_BC, labels_BC = example()
    weights_C = None if weights is None else torch.tensor(weights)
    rows = label_set_rows(logits_BC, labels_BC, label_weights_C=weights_C)
    expected = F.binary_cross_entropy_with_logits(logits_BC, labels_BC.float(), pos_weight=weights_C)
    torch.testing.assert_close(rows.mean(), expected)
    assert rows.weight_B.tolist() == [1.0] * 7


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5, 9.0]])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_each_row_is_the_loss_written_out(gamma: float, weights: list[float] | None, smoothing: float) -> None:
    logits_BC, labels_BC = example()
    weights_C = None if weights is None else torch.tensor(weights)
    rows = label_set_rows(logits_BC, labels_BC, gamma=gamma, label_weights_C=weights_C, label_smoothing=smoothing)
    for row in range(7):
        loss = 0.0
        for column in range(4):
            p = 1 / (1 + math.exp(-float(logits_BC[row, column])))
            target = int(labels_BC[row, column]) * (1 - smoothing) + smoothing / 2
            weight = 1.0 if weights is None else weights[column]
            loss += weight * target * (1 - p) ** gamma * -math.log(p)
            loss += (1 - target) * p**gamma * -math.log(1 - p)
        assert float(rows.loss_B[row]) == pytest.approx(loss / 4, rel=1e-4, abs=1e-6)


def test_labels_of_two_dimensions_are_several_a_row() -> None:
    logits_BC, labels_BC = example()
    plain = row_losses("binary-cross-entropy", logits_BC, labels_BC)
    assert torch.equal(plain.loss_B, label_set_rows(logits_BC, labels_BC).loss_B)
    focal = row_losses("focal", logits_BC, labels_BC, focal_gamma=3.0)
    assert torch.equal(focal.loss_B, label_set_rows(logits_BC, labels_BC, gamma=3.0).loss_B)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_great_logits_have_finite_losses_and_gradients(gamma: float) -> None:
    logits_BC = torch.tensor([[300.0, -300.0], [-1e4, 1e4]], requires_grad=True)
    rows = label_set_rows(logits_BC, torch.tensor([[1, 0], [1, 0]]), gamma=gamma)
    assert rows.loss_B.tolist() == [pytest.approx(0.0, abs=1e-6), 1e4]
    rows.mean().backward()
    assert logits_BC.grad.isfinite().all()
