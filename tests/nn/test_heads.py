"""Heads, attention blocks, means and softmax over masks, against plain loops. What every head owes is in contracts/."""

import math
from dataclasses import replace

import pytest
import torch

from attentune.nn.heads import (
    HEADS,
    PAIR_HEADS,
    Attention,
    CrossAttentionHead,
    HeadOptions,
    Pooler,
    SelfAttentionHead,
    TransformerBlock,
    UniformInitLinear,
    attend,
    build_head,
    fall_back,
    masked_mean,
    masked_softmax,
)
from helpers.references import attention_of, cross_attention_block_of, linear_of, shaken, texts_of, transformer_block_of

SOME_BT = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)


def filled(dtype: torch.dtype = torch.float32, *, outside: float = math.nan) -> torch.Tensor:
    values_BTD = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    return values_BTD.masked_fill(~SOME_BT.unsqueeze(-1), outside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outside", [math.nan, -math.inf, 6e4, 0.0])
def test_mean_and_softmax_are_those_of_plain_loops(dtype: torch.dtype, outside: float) -> None:
    values_BTD = filled(dtype, outside=outside)
    before = values_BTD.clone()
    mean_BD, share_BT = masked_mean(values_BTD, SOME_BT), masked_softmax(values_BTD[..., 0] * 10, SOME_BT)
    assert mean_BD.dtype == share_BT.dtype == torch.float32
    for row in range(4):
        real = [t for t in range(4) if SOME_BT[row, t]]
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
        values_BTD = filled(outside=math.nan).requires_grad_()
        function(values_BTD, SOME_BT).sum().backward()
        gradient_BT = values_BTD.grad.abs().sum(dim=-1)
        assert values_BTD.grad.isfinite().all()
        assert (gradient_BT[~SOME_BT] == 0).all()
        assert (gradient_BT[:2] * SOME_BT[:2]).sum(dim=1).min() > 0


def test_fall_back_takes_the_second_mask_only_where_the_first_is_empty() -> None:
    preferred_BT = torch.tensor([[0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    otherwise_BT = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    assert fall_back(preferred_BT, otherwise_BT).tolist() == [[False, True, False], [True, True, False]]


# Attention blocks against plain loops and against BERT's own layer, and what masks and empty texts do to them


KEY_LENGTHS = (4, 2, 1)
MASK_NT = torch.tensor([[place < length for place in range(4)] for length in KEY_LENGTHS])


def options(**changes: object) -> HeadOptions:
    values = {"hidden_size": 6, "attention_heads": 2, "inner_size": 10, "activation": torch.nn.functional.gelu}
    return HeadOptions(**(values | changes))


def normal(seed: int, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def assert_is(output_NQD: torch.Tensor, expected: list[list[list[float]]]) -> None:
    torch.testing.assert_close(output_NQD.double(), torch.tensor(expected, dtype=torch.float64), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_attention_is_the_plain_loop(heads: int) -> None:
    attention = shaken(Attention(options(attention_heads=heads)))
    query_NQD, key_NTD = normal(1, 3, 5, 6), normal(2, 3, 4, 6)
    output_NQD = attention(query_NQD, key_NTD, MASK_NT)
    key_texts = [text[:length] for text, length in zip(texts_of(key_NTD), KEY_LENGTHS, strict=True)]
    pairs = zip(texts_of(query_NQD), key_texts, strict=True)
    assert_is(output_NQD, [[attention_of(attention, token, other) for token in text] for text, other in pairs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_without_tokens_is_never_nan(dtype: torch.dtype) -> None:
    """Nor are its gradients; its tokens are all alike (zeros), so how many there are is of no account."""
    attention = shaken(Attention(options())).to(dtype)
    mask_NT = torch.tensor([[True, False, False], [False, False, False]])
    query_NQD = normal(1, 2, 2, 6).to(dtype).requires_grad_()
    output_NQD = attention(query_NQD, torch.zeros(2, 3, 6, dtype=dtype), mask_NT)
    assert output_NQD.isfinite().all()
    one_zero_D = attention.output(attention.value(torch.zeros(6, dtype=dtype)))
    torch.testing.assert_close(output_NQD[1], one_zero_D.expand(2, 6), atol=1e-6, rtol=1e-2)
    output_NQD.sum().backward()
    assert query_NQD.grad.isfinite().all()
    shorter_NQD = attention(query_NQD, torch.zeros(2, 1, 6, dtype=dtype), mask_NT[:, :1])
    torch.testing.assert_close(shorter_NQD, output_NQD, atol=1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)


def test_dropout_of_probabilities_is_for_training_only() -> None:
    attention = Attention(options(dropout=0.5))
    query_NQD, key_NTD = normal(1, 3, 5, 6), normal(2, 3, 4, 6)
    once, again = (attention(query_NQD, key_NTD, MASK_NT) for _ in range(2))
    assert not torch.equal(once, again)
    attention.eval()
    once, again = (attention(query_NQD, key_NTD, MASK_NT) for _ in range(2))
    assert torch.equal(once, again)
    # What is kept is scaled up: on the average nothing changes.
    one_head = {"mask_NT": torch.ones(1, 200, dtype=torch.bool), "heads": 1}
    values_1TD = 1.0 + normal(4, 1, 200, 4)
    nothing = torch.zeros(1, 4000, 4), torch.zeros(1, 200, 4)
    dropped = attend(*nothing, values_1TD, **one_head, dropout=0.5).mean(dim=1)
    torch.testing.assert_close(dropped, attend(*nothing, values_1TD, **one_head).mean(dim=1), atol=0.02, rtol=0)


def test_near_one_weights_lie_between_and_only_where_they_should() -> None:
    block = TransformerBlock(options(hidden_size=48, near_one=True), with_dense=True)
    for linear in (block.attention.query, block.attention.key, block.attention.value):
        assert isinstance(linear, UniformInitLinear)
        assert 0.9 <= linear.weight.min() < 0.91
        assert 0.99 < linear.weight.max() <= 1.0
        assert linear.bias is None or not linear.bias.any()
    for linear in (block.attention.output, block.dense, block.inner, block.outer):
        assert not isinstance(linear, UniformInitLinear)
        assert linear.weight.max() < 0.5
    plain = TransformerBlock(options(hidden_size=48), with_dense=True).attention
    assert not any(isinstance(linear, UniformInitLinear) for linear in plain.children())


# Heads against plain loops. What every head owes is in contracts/


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
    assert kinds == [TransformerBlock] * layers + [Attention] * bare
    rows = [0, 1, 2, 1]
    hidden_NTD = torch.stack([hidden()[row] * (number + 1) for number, row in enumerate(rows)]).double()
    mask_NT, ordinary_NT = MASK_BT[rows], ORDINARY_BT[rows]
    expected = real_texts(hidden_NTD, mask_NT)
    for block in head.blocks:
        step = cross_attention_block_of if isinstance(block, Attention) else transformer_block_of
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
