"""Means and softmax over masks, against plain loops, whatever stands in the padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.nn.heads import fall_back, masked_mean, masked_softmax

MASK_BT = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)


def values(dtype: torch.dtype = torch.float32, *, outside: float = math.nan) -> torch.Tensor:
    values_BTD = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    return values_BTD.masked_fill(~MASK_BT.unsqueeze(-1), outside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outside", [math.nan, -math.inf, 6e4, 0.0])
def test_mean_and_softmax_are_those_of_plain_loops(dtype: torch.dtype, outside: float) -> None:
    values_BTD = values(dtype, outside=outside)
    before = values_BTD.clone()
    mean_BD, share_BT = masked_mean(values_BTD, MASK_BT), masked_softmax(values_BTD[..., 0] * 10, MASK_BT)
    assert mean_BD.dtype == share_BT.dtype == torch.float32
    for row in range(4):
        real = [t for t in range(4) if MASK_BT[row, t]]
        mean = [math.fsum(float(values_BTD[row, t, d]) for t in real) / max(1, len(real)) for d in range(5)]
        assert mean_BD[row].tolist() == pytest.approx(mean, abs=1e-6)
        weights = [math.exp(float(values_BTD[row, t, 0] * 10)) if t in real else 0.0 for t in range(4)]
        expected = [weight / (math.fsum(weights) or 1.0) for weight in weights]
        assert share_BT[row].tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(values_BTD.nan_to_num(), before.nan_to_num()), "inputs are left as they were"


def test_softmax_stays_finite_at_large_scores_and_bf16_values_are_added_up_in_float32() -> None:
    share_BT = masked_softmax(torch.tensor([[1e4, 1e4 - 1, -1e4]]), torch.ones(1, 3, dtype=torch.bool))
    assert share_BT[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0.0], abs=1e-6)
    values_BTD = torch.ones(1, 1001, 1, dtype=torch.bfloat16)
    values_BTD[0, 0] = 256.0
    expected = (256 + 1000) / 1001  # in bf16, 256 + 1 is 256
    assert float(masked_mean(values_BTD, torch.ones(1, 1001, dtype=torch.bool))) == pytest.approx(expected, rel=1e-5)


def test_gradients_reach_the_tokens_in_the_mask_and_no_others() -> None:
    for function in (masked_mean, lambda x, mask: masked_softmax(x[..., 0], mask) * torch.arange(4)):
        values_BTD = values(outside=math.nan).requires_grad_()
        function(values_BTD, MASK_BT).sum().backward()
        gradient_BT = values_BTD.grad.abs().sum(dim=-1)
        assert values_BTD.grad.isfinite().all()
        assert (gradient_BT[~MASK_BT] == 0).all()
        assert (gradient_BT[:2] * MASK_BT[:2]).sum(dim=1).min() > 0


def test_fall_back_takes_the_second_mask_only_where_the_first_is_empty() -> None:
    preferred_BT = torch.tensor([[0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    otherwise_BT = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    assert fall_back(preferred_BT, otherwise_BT).tolist() == [[False, True, False], [True, True, False]]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**31))
def test_padding_changes_nothing(tokens: int, padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values_BTD = torch.randn(2, tokens, 3, generator=generator)
    mask_BT = torch.rand(2, tokens, generator=generator) > 0.4
    padded_BTD = torch.cat([values_BTD, torch.full((2, padding, 3), math.nan)], dim=1)
    padded_BT = torch.cat([mask_BT, torch.zeros(2, padding, dtype=torch.bool)], dim=1)
    mean_BD, share_BT = masked_mean(padded_BTD, padded_BT), masked_softmax(padded_BTD[..., 0], padded_BT)
    torch.testing.assert_close(mean_BD, masked_mean(values_BTD, mask_BT), atol=1e-6, rtol=0)
    torch.testing.assert_close(share_BT[:, :tokens], masked_softmax(values_BTD[..., 0], mask_BT), atol=1e-6, rtol=0)
    assert (share_BT[:, tokens:] == 0).all()
