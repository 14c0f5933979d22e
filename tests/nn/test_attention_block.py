"""Attention blocks against plain loops and against BERT's own layer, and what masks and empty texts do to them."""

import pytest
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from attentune.nn.heads import (
    Attention,
    CrossAttentionBlock,
    HeadOptions,
    TransformerBlock,
    UniformInitLinear,
    attend,
    attention_matrices,
    unused_matrices,
)
from helpers.references import attention_of, shaken, texts_of

KEY_LENGTHS = (4, 2, 1)
MASK_NT = torch.tensor([[place < length for place in range(4)] for length in KEY_LENGTHS])


def shape(**changes: object) -> HeadOptions:
    values = {"hidden_size": 6, "attention_heads": 2, "inner_size": 10, "activation": torch.nn.functional.gelu}
    return HeadOptions(**(values | changes))


def tokens(seed: int, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def check(output_NQD: torch.Tensor, expected: list[list[list[float]]]) -> None:
    torch.testing.assert_close(output_NQD.double(), torch.tensor(expected, dtype=torch.float64), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_attention_is_the_plain_loop(heads: int) -> None:
    attention = shaken(Attention(shape(attention_heads=heads)))
    query_NQD, key_NTD = tokens(1, 3, 5, 6), tokens(2, 3, 4, 6)
    output_NQD = attention(query_NQD, key_NTD, MASK_NT)
    key_texts = [text[:length] for text, length in zip(texts_of(key_NTD), KEY_LENGTHS, strict=True)]
    pairs = zip(texts_of(query_NQD), key_texts, strict=True)
    check(output_NQD, [[attention_of(attention, token, other) for token in text] for text, other in pairs])


def test_a_full_block_that_asks_itself_is_berts_layer() -> None:
    """Given its weights, whatever the bias of its keys, which the softmax takes away."""
    config = BertConfig(
        hidden_size=12, num_attention_heads=3, intermediate_size=20, hidden_act="gelu", attn_implementation="eager"
    )
    theirs = shaken(BertLayer(config))
    mine = TransformerBlock(shape(hidden_size=12, attention_heads=3, inner_size=20), with_dense=False).eval()
    places = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "inner": "intermediate.dense",
        "outer": "output.dense",
        "output_norm": "output.LayerNorm",
    }
    weights = theirs.state_dict()
    names = [name.rpartition(".") for name in mine.state_dict()]
    mine.load_state_dict({f"{at}.{what}": weights[f"{places[at]}.{what}"] for at, _, what in names})
    hidden_NTD = tokens(3, 3, 4, 12)
    closed_NT = torch.zeros(3, 1, 1, 4).masked_fill(~MASK_NT[:, None, None], torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected_NTD = theirs(hidden_NTD, closed_NT)
        expected_NTD = expected_NTD[0] if isinstance(expected_NTD, tuple) else expected_NTD
        torch.testing.assert_close(mine(hidden_NTD, hidden_NTD, MASK_NT), expected_NTD, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_without_tokens_is_never_nan(dtype: torch.dtype) -> None:
    """Nor are its gradients; its tokens are all alike (zeros), so how many there are is of no account."""
    attention = shaken(Attention(shape())).to(dtype)
    mask_NT = torch.tensor([[True, False, False], [False, False, False]])
    query_NQD = tokens(1, 2, 2, 6).to(dtype).requires_grad_()
    output_NQD = attention(query_NQD, torch.zeros(2, 3, 6, dtype=dtype), mask_NT)
    assert output_NQD.isfinite().all()
    one_zero_D = attention.output(attention.value(torch.zeros(6, dtype=dtype)))
    torch.testing.assert_close(output_NQD[1], one_zero_D.expand(2, 6), atol=1e-6, rtol=1e-2)
    output_NQD.sum().backward()
    assert query_NQD.grad.isfinite().all()
    shorter_NQD = attention(query_NQD, torch.zeros(2, 1, 6, dtype=dtype), mask_NT[:, :1])
    torch.testing.assert_close(shorter_NQD, output_NQD, atol=1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)


def test_dropout_of_probabilities_is_for_training_only() -> None:
    attention = Attention(shape(dropout=0.5))
    query_NQD, key_NTD = tokens(1, 3, 5, 6), tokens(2, 3, 4, 6)
    once, again = (attention(query_NQD, key_NTD, MASK_NT) for _ in range(2))
    assert not torch.equal(once, again)
    attention.eval()
    once, again = (attention(query_NQD, key_NTD, MASK_NT) for _ in range(2))
    assert torch.equal(once, again)
    # What is kept is scaled up: on the average nothing changes.
    options = {"mask_NT": torch.ones(1, 200, dtype=torch.bool), "heads": 1}
    values_1TD = 1.0 + tokens(4, 1, 200, 4)
    nothing = torch.zeros(1, 4000, 4), torch.zeros(1, 200, 4)
    dropped = attend(*nothing, values_1TD, **options, dropout=0.5).mean(dim=1)
    torch.testing.assert_close(dropped, attend(*nothing, values_1TD, **options).mean(dim=1), atol=0.02, rtol=0)


def test_near_one_weights_lie_between_and_only_where_they_should() -> None:
    block = TransformerBlock(shape(hidden_size=48, near_one=True), with_dense=True)
    for linear in (block.attention.query, block.attention.key, block.attention.value):
        assert isinstance(linear, UniformInitLinear)
        assert 0.9 <= linear.weight.min() < 0.91
        assert 0.99 < linear.weight.max() <= 1.0
        assert linear.bias is None or not linear.bias.any()
    for linear in (block.attention.output, block.dense, block.inner, block.outer):
        assert not isinstance(linear, UniformInitLinear)
        assert linear.weight.max() < 0.5
    plain = TransformerBlock(shape(hidden_size=48), with_dense=True).attention
    assert not any(isinstance(linear, UniformInitLinear) for linear in plain.children())


@pytest.mark.parametrize(
    ("blocks", "squares"), [((False, False), 8), ((True,), 5), ((None,), 5), ((True, True, None), 15)]
)
def test_matrices_are_counted_as_the_poster_does(blocks: tuple[bool | None, ...], squares: int) -> None:
    made = [
        CrossAttentionBlock(shape()) if dense is None else TransformerBlock(shape(), with_dense=dense)
        for dense in blocks
    ]
    assert attention_matrices(torch.nn.ModuleList(made)) == squares * 6 * 6
    # The program's dense layer of a bare block is counted, though it is not there.
    assert unused_matrices(torch.nn.ModuleList(made)) == blocks.count(None) * 6 * 6
    assert attention_matrices(torch.nn.Linear(3, 3)) == 0
