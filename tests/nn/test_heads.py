"""Heads against plain loops. What every head owes is in contracts/."""

import math

import pytest
import torch

from attentune.nn.heads import HEADS, ClsHead, ClsMeanHead, MeanHead, Pooler, build_head

# Row 2 has no ordinary token, as an empty text has none.
MASK_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
ORDINARY_BT = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


def hidden(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    hidden_BTD = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2)).to(dtype)
    return hidden_BTD.masked_fill(~MASK_BT.unsqueeze(-1), math.nan)


def mean_of(hidden_BTD: torch.Tensor, row: int, places: list[int]) -> list[float]:
    return [math.fsum(float(hidden_BTD[row, t, d]) for t in places) / len(places) for d in range(4)]


def places_of(mask_BT: torch.Tensor, row: int) -> list[int]:
    return [t for t in range(5) if mask_BT[row, t]]


def test_cls_is_the_first_token() -> None:
    head = ClsHead(hidden_size=4, with_pooler=False)
    assert torch.equal(head(hidden(), MASK_BT, ORDINARY_BT), hidden()[:, 0])
    assert not list(head.parameters())


def test_cls_with_a_pooler_is_tanh_of_a_dense_layer() -> None:
    head = ClsHead(hidden_size=4, with_pooler=True)
    output_BD = head(hidden(), MASK_BT, ORDINARY_BT)
    weight, bias = head.pooler.dense.weight.detach(), head.pooler.dense.bias.detach()
    for row in range(3):
        first = [float(value) for value in hidden()[row, 0]]
        for out in range(4):
            total = float(bias[out]) + math.fsum(float(weight[out, d]) * first[d] for d in range(4))
            assert output_BD[row, out].item() == pytest.approx(math.tanh(total), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_takes_all_real_tokens(dtype: torch.dtype) -> None:
    output_BD = MeanHead()(hidden(dtype), MASK_BT, ORDINARY_BT)
    for row in range(3):
        assert output_BD[row].tolist() == pytest.approx(mean_of(hidden(dtype), row, places_of(MASK_BT, row)), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_cls_mean_weighs_cls_and_the_mean_of_the_ordinary_tokens(share: float, dtype: torch.dtype) -> None:
    hidden_BTD = hidden(dtype)
    output_BD = ClsMeanHead(share_of_cls=share)(hidden_BTD, MASK_BT, ORDINARY_BT)
    for row in range(3):
        mean = mean_of(hidden_BTD, row, places_of(ORDINARY_BT, row) or places_of(MASK_BT, row))
        expected = [share * float(hidden_BTD[row, 0, d]) + (1 - share) * mean[d] for d in range(4)]
        assert output_BD[row].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_every_head_gives_one_finite_vector_a_text(kind: str) -> None:
    head = build_head(kind, hidden_size=4, share_of_cls=0.5, with_pooler=True)
    output_BD = head(hidden(), MASK_BT, ORDINARY_BT)
    assert output_BD.shape == (3, 4)
    assert output_BD.isfinite().all()


def test_only_cls_takes_the_pooler() -> None:
    poolers = {
        kind: [m for m in build_head(kind, hidden_size=4, with_pooler=True).modules() if isinstance(m, Pooler)]
        for kind in HEADS
    }
    assert len(poolers["cls"]) == 1
    assert not poolers["mean"]
    assert not poolers["cls-mean"]
    assert not [m for m in build_head("cls", hidden_size=4).modules() if isinstance(m, Pooler)]
