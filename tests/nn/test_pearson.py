"""Minus the correlation of a batch, against a plain loop; and the scale that it leaves free."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from attentune.nn.classifiers import ScaledOutput, build_outputs, raw_outputs
from attentune.nn.losses import pearson_rows


def batch(rows: int, *, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions that have to do with the labels, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels_B = 5 * torch.rand(rows, generator=generator)
    noise_B = torch.randn(rows, generator=generator)
    return (scale * (0.3 * labels_B + noise_B))[:, None], labels_B


def plain_correlation(one: list[float], other: list[float]) -> float:
    """Written out, in double precision."""
    mean_1, mean_2 = math.fsum(one) / len(one), math.fsum(other) / len(other)
    together = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    square_1 = math.fsum((a - mean_1) ** 2 for a in one)
    square_2 = math.fsum((b - mean_2) ** 2 for b in other)
    return together / math.sqrt(square_1 * square_2)


@pytest.mark.parametrize("rows", [2, 3, 8, 33])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_each_row_has_minus_the_correlation_of_the_batch(rows: int, scale: float) -> None:
    logits_B1, labels_B = batch(rows, scale=scale)
    found = pearson_rows(logits_B1, labels_B.double())
    expected = plain_correlation(logits_B1[:, 0].tolist(), labels_B.tolist())
    assert (found.loss_B.dtype, found.loss_B.shape) == (torch.float32, (rows,))
    assert found.loss_B.tolist() == pytest.approx([-expected] * rows, abs=2e-6)
    assert found.weight_B.tolist() == [1.0] * rows
    assert expected == pytest.approx(stats.pearsonr(logits_B1[:, 0], labels_B).statistic, abs=1e-5)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_the_gradient_is_that_of_the_plain_formula(rows: int) -> None:
    """By central differences in double precision, and by the derivative of the formula."""
    logits_B1, labels_B = batch(rows, seed=3)
    logits_B1.requires_grad_()
    pearson_rows(logits_B1, labels_B).mean().backward()
    values, labels = logits_B1[:, 0].tolist(), labels_B.tolist()
    for row in range(rows):
        above, below = ([v + step * (n == row) for n, v in enumerate(values)] for step in (1e-5, -1e-5))
        slope = (plain_correlation(above, labels) - plain_correlation(below, labels)) / 2e-5
        assert float(logits_B1.grad[row, 0]) == pytest.approx(-slope, abs=2e-5)
    assert rows == 2 or logits_B1.grad.abs().max() > 0.01


NOTHING_TO_LEARN = {
    "one row": ([[0.7]], [3.0]),
    "constant labels": ([[0.1], [0.5], [-2.0]], [2.0, 2.0, 2.0]),
    "constant predictions": ([[0.1], [0.1], [0.1]], [1.0, 2.0, 5.0]),
    "zeros": ([[0.0], [0.0]], [1.0, 2.0]),
    "all constant": ([[4.0], [4.0]], [1.0, 1.0]),
    "predictions that differ by rounding": ([[1.0], [1.0 + 2**-23], [1.0]], [1.0, 2.0, 5.0]),
    "predictions below any use": ([[1e-30], [2e-30], [0.0]], [1.0, 2.0, 5.0]),
    "labels that differ by rounding": ([[0.1], [0.5], [-2.0]], [0.1 + 0.2, 0.3, 0.3]),
}


@pytest.mark.parametrize("name", NOTHING_TO_LEARN)
def test_where_there_is_no_correlation_loss_and_gradient_are_zero(name: str) -> None:
    values, labels = NOTHING_TO_LEARN[name]
    logits_B1 = torch.tensor(values, requires_grad=True)
    found = pearson_rows(logits_B1, torch.tensor(labels, dtype=torch.float64))
    assert found.loss_B.abs().tolist() == [0.0] * len(labels)
    found.loss_B.sum().backward()
    assert torch.equal(logits_B1.grad, torch.zeros_like(logits_B1))


def test_labels_of_any_size_are_labels_and_bf16_predictions_are_correlated_in_float32() -> None:
    logits_B1, labels_B = batch(40)
    expected = pearson_rows(logits_B1, labels_B).loss_B
    for factor in (1e-20, 1e20):
        torch.testing.assert_close(pearson_rows(logits_B1, factor * labels_B).loss_B, expected)
    half_B1 = logits_B1.bfloat16()
    torch.testing.assert_close(pearson_rows(half_B1, labels_B).loss_B, pearson_rows(half_B1.float(), labels_B).loss_B)


# Scale and offset


def test_only_pearson_has_a_scale_of_its_own() -> None:
    assert isinstance(build_outputs("pearson"), ScaledOutput)
    assert [build_outputs(name) for name in ("auto", "cross-entropy", "binary-cross-entropy", "mse")] == [None] * 4
    assert (raw_outputs("pearson", 1), raw_outputs("cross-entropy", 5), raw_outputs("corn", 5)) == (1, 5, 4)


def test_the_fitted_line_is_numpys_and_a_second_fit_changes_nothing() -> None:
    raw_N1, labels_N = batch(50, scale=0.01)
    outputs = ScaledOutput()
    assert torch.equal(outputs(raw_N1), raw_N1)
    assert outputs.fit(outputs(raw_N1)[:, 0], labels_N)
    slope, intercept = np.polyfit(raw_N1[:, 0].double(), labels_N.double(), 1)
    assert outputs.scale.tolist() == pytest.approx([slope], rel=1e-5)
    assert outputs.offset.tolist() == pytest.approx([intercept], rel=1e-5)
    torch.testing.assert_close(outputs(raw_N1)[:, 0].mean(), labels_N.mean())
    once = outputs(raw_N1)
    assert outputs.fit(once[:, 0], labels_N)
    torch.testing.assert_close(outputs(raw_N1), once)
    assert outputs.fit(once[:, 0], 3 * labels_N + 1)
    torch.testing.assert_close(outputs(raw_N1), 3 * once + 1)
    outputs.reset_parameters()
    assert torch.equal(outputs(raw_N1), raw_N1)


@pytest.mark.parametrize("turned", ["falling", "constant"])
def test_predictions_that_do_not_rise_with_the_labels_keep_their_scale(turned: str) -> None:
    raw_N1, labels_N = batch(50)
    outputs = ScaledOutput()
    assert not outputs.fit(-raw_N1[:, 0] if turned == "falling" else torch.ones(50), labels_N)
    assert (outputs.scale.tolist(), outputs.offset.tolist()) == ([1.0], [0.0])
