"""Heads against plain loops. What every head owes is in contracts/."""

import math
from dataclasses import replace

import pytest
import torch

from attentune.nn.heads import (
    HEADS,
    PAIR_HEADS,
    CrossAttentionBlock,
    CrossAttentionHead,
    HeadOptions,
    Pooler,
    SelfAttentionHead,
    TransformerBlock,
    build_head,
)
from helpers.references import cross_attention_block_of, linear_of, shaken, texts_of, transformer_block_of

# Row 2 has no ordinary token, as an empty text has none.
MASK_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
OPTIONS = HeadOptions(4, attention_heads=2, inner_size=6)
ORDINARY_BT = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


def hidden(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    hidden_BTD = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2)).to(dtype)
    return hidden_BTD.masked_fill(~MASK_BT.unsqueeze(-1), math.nan)


def test_cls_with_a_pooler_is_tanh_of_a_dense_layer() -> None:
    head = build_head("cls", replace(OPTIONS, with_pooler=True))
    expected = [[math.tanh(value) for value in linear_of(head.pooler.dense, text[0])] for text in texts_of(hidden())]
    output_BD = head(hidden(), MASK_BT, ORDINARY_BT)
    torch.testing.assert_close(output_BD.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "share"), [("cls", 1.0), ("mean", 0.0), ("cls-mean", 0.0), ("cls-mean", 0.3), ("cls-mean", 1.0)]
)
def test_pooling_is_the_plain_loop(kind: str, share: float, dtype: torch.dtype) -> None:
    """A share of [CLS], the rest the mean of the real tokens, or for cls-mean of the ordinary ones if there are any."""
    hidden_BTD = hidden(dtype)
    head = build_head(kind, replace(OPTIONS, share_of_cls=share))
    assert not list(head.parameters())
    output_BD = head(hidden_BTD, MASK_BT, ORDINARY_BT)
    for row in range(3):
        mask_T = ORDINARY_BT[row] if kind == "cls-mean" and ORDINARY_BT[row].any() else MASK_BT[row]
        places = mask_T.nonzero()[:, 0].tolist()
        for d in range(4):
            mean = math.fsum(float(hidden_BTD[row, t, d]) for t in places) / len(places)
            expected = share * float(hidden_BTD[row, 0, d]) + (1 - share) * mean
            assert float(output_BD[row, d]) == pytest.approx(expected, abs=1e-6)


def real_texts(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor) -> list[list[list[float]]]:
    return [text[: int(mask.sum())] for text, mask in zip(texts_of(hidden_BTD), mask_BT, strict=True)]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_self_attention_is_cls_of_full_blocks(layers: int) -> None:
    head = shaken(SelfAttentionHead(replace(OPTIONS, layers=layers)), shift=0.0)
    assert len(head.blocks) == layers
    expected = real_texts(hidden(), MASK_BT)
    for block in head.blocks:
        expected = [transformer_block_of(block, text, text) for text in expected]
    output_BD = head(hidden(), MASK_BT, ORDINARY_BT)
    first = torch.tensor([text[0] for text in expected], dtype=torch.float64)
    torch.testing.assert_close(output_BD.double(), first, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("layers", "bare"), [(0, True), (1, False), (2, False), (2, True)])
def test_cross_attention_asks_a_texts_own_tokens_by_the_others(layers: int, bare: bool) -> None:
    """Rows 0, 1 are the first texts of two pairs, rows 2, 3 their second ones; the weights are the same both ways.

    Queries are the other text's, zeros after its end; keys, values and residual the text's own.
    """
    head = shaken(CrossAttentionHead(replace(OPTIONS, layers=layers, bare=bare)), shift=0.0).double()
    kinds = [type(block) for block in head.blocks]
    assert kinds == [TransformerBlock] * layers + [CrossAttentionBlock] * bare
    rows = [0, 1, 2, 1]
    hidden_NTD = torch.stack([hidden()[row] * (number + 1) for number, row in enumerate(rows)]).double()
    mask_NT, ordinary_NT = MASK_BT[rows], ORDINARY_BT[rows]
    expected = real_texts(hidden_NTD, mask_NT)
    for block in head.blocks:
        step = cross_attention_block_of if isinstance(block, CrossAttentionBlock) else transformer_block_of
        padded = [text + [[0.0] * 4] * (5 - len(text)) for text in expected]
        expected = [step(block, padded[(row + 2) % 4], expected[row]) for row in range(4)]
    output_ND = head(hidden_NTD, mask_NT, ordinary_NT)
    first_ND = torch.tensor([text[0] for text in expected], dtype=torch.float64)
    assert (output_ND - first_ND).abs().max() < 1e-6


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_every_head_gives_one_finite_vector_a_text(kind: str) -> None:
    """Whatever stands at padding, for a text without any token (the last) too, and so do its gradients."""
    head = build_head(kind, replace(OPTIONS, with_pooler=True))
    mask_NT = torch.cat([MASK_BT, torch.zeros(1, 5, dtype=torch.bool)])
    hidden_NTD = torch.cat([hidden(), torch.full((1, 5, 4), 0.0 if kind in ("cls", "cls-mean") else math.nan)])
    ordinary_NT = torch.cat([ORDINARY_BT, mask_NT[3:]])
    output_ND = head(hidden_NTD.requires_grad_(), mask_NT, ordinary_NT)
    assert output_ND.shape == (4, 4)
    assert output_ND.isfinite().all()
    output_ND.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in head.parameters())
    assert hidden_NTD.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["self-attention", "cross-attention"])
def test_heads_of_blocks_need_a_block(kind: str) -> None:
    with pytest.raises(ValueError, match=f"expected at least (1|one block) for {kind}"):
        build_head(kind, replace(OPTIONS, layers=0))
    assert set(PAIR_HEADS) <= set(HEADS)
    with pytest.raises(ValueError, match="got 3 texts, expected an even number"):
        CrossAttentionHead(OPTIONS)(hidden(), MASK_BT, ORDINARY_BT)


def test_only_cls_takes_the_pooler() -> None:
    heads = {kind: build_head(kind, replace(OPTIONS, with_pooler=True)) for kind in HEADS}
    poolers = {kind: sum(isinstance(module, Pooler) for module in head.modules()) for kind, head in heads.items()}
    assert poolers == {kind: int(kind == "cls") for kind in HEADS}


@pytest.mark.parametrize("kind", ["self-attention", "cross-attention"])
def test_the_last_block_is_asked_by_cls_alone(kind: str) -> None:
    head = build_head(kind, replace(OPTIONS, layers=2))
    asked = []
    for block in head.blocks:
        block.register_forward_pre_hook(lambda block, inputs: asked.append(inputs[0].shape[1]))
    head(hidden()[[0, 1]], MASK_BT[[0, 1]], ORDINARY_BT[[0, 1]])
    assert asked == [5, 1]
