"""CORN against the paper's formula, written out task by task."""

import math

import pytest
import torch

from attentune.nn.classifiers import class_log_probabilities
from attentune.nn.losses import corn_rows, corn_task_counts


def batch(rows: int = 40, classes: int = 5, *, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last linear gives, and classes; all of them occur."""
    generator = torch.Generator().manual_seed(classes)
    labels_B = torch.arange(rows) % classes
    return spread * torch.randn(rows, classes - 1, generator=generator), labels_B[
        torch.randperm(rows, generator=generator)
    ]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def papers_loss(conditional: list[list[float]], labels: list[int], classes: int) -> float:
    """Subset by subset: task k trains on the rows whose class is at least k, and asks whether it is above k."""
    total, examples = 0.0, 0
    for k in range(classes - 1):
        for row, label in zip(conditional, labels, strict=True):
            if label < k:
                continue
            examples += 1
            total -= math.log(sigmoid(row[k])) if label > k else math.log(1 - sigmoid(row[k]))
    return total / examples


@pytest.mark.parametrize("classes", [2, 3, 5, 9])
def test_the_mean_loss_is_that_of_the_papers_subsets(classes: int) -> None:
    conditional_BK, labels_B = batch(classes=classes)
    found = corn_rows(class_log_probabilities(conditional_BK), labels_B)
    expected = papers_loss(conditional_BK.tolist(), labels_B.tolist(), classes)
    assert float(found.mean()) == pytest.approx(expected, rel=1e-5)
    assert found.weight_B.tolist() == [min(label + 1, classes - 1) for label in labels_B.tolist()]
    assert torch.equal(found.weight_B, corn_task_counts(labels_B, classes))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_softmax_of_the_logits_is_the_chain_of_conditional_probabilities(classes: int) -> None:
    conditional_BK, _ = batch(8, classes)
    probabilities_BC = class_log_probabilities(conditional_BK).softmax(dim=1)
    for row, found in zip(conditional_BK.tolist(), probabilities_BC.tolist(), strict=True):
        above = [math.prod(sigmoid(z) for z in row[:k]) for k in range(classes)]  # p(y >= k)
        expected = [above[k] - (above[k + 1] if k + 1 < classes else 0.0) for k in range(classes)]
        assert found == pytest.approx(expected, abs=1e-6)
        assert math.fsum(found) == pytest.approx(1.0, abs=1e-6)


def test_only_a_rows_own_tasks_have_a_gradient() -> None:
    conditional_BK, labels_B = batch()
    conditional_BK.requires_grad_()
    corn_rows(class_log_probabilities(conditional_BK), labels_B).loss_B.sum().backward()
    for row, label in enumerate(labels_B.tolist()):
        for k in range(4):
            wanted = sigmoid(float(conditional_BK[row, k])) - (label > k) if label >= k else 0.0
            assert float(conditional_BK.grad[row, k]) == pytest.approx(wanted, abs=1e-6)


def test_great_numbers_stay_finite_and_bf16_is_computed_in_float32() -> None:
    conditional_BK = torch.tensor([[500.0, -500.0, 30.0], [-1e4, 1e4, 0.0]], requires_grad=True)
    logits_BC = class_log_probabilities(conditional_BK)
    corn_rows(logits_BC, torch.tensor([0, 3])).mean().backward()
    assert logits_BC.isfinite().all()
    assert conditional_BK.grad.isfinite().all()
    half_BK = batch()[0].bfloat16()
    assert class_log_probabilities(half_BK).dtype == torch.float32
    assert torch.equal(class_log_probabilities(half_BK), class_log_probabilities(half_BK.float()))
