"""The token gate against plain loops, whatever stands at padding, and with gradients through the weights."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attentune.nn.heads import ImportanceGate, PositionLinear, TokenHead, importance_weights, token_importance
from helpers.references import linear_of, norm_of

D = 4
MASK_BT = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
# The third text has no ordinary token: [CLS] and [SEP] alone.
ORDINARY_BT = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
PADDING = {"nan": math.nan, "inf": math.inf, "large": 1e30, "zero": 0.0}


def hidden(outside: float = math.nan) -> torch.Tensor:
    hidden_BTD = torch.randn(*MASK_BT.shape, D, generator=torch.Generator().manual_seed(5))
    return hidden_BTD.masked_fill(~MASK_BT.unsqueeze(-1), outside)


def token_head(positions: int | None = None) -> TokenHead:
    """A token head with weights that leave no two tokens alike."""
    head = TokenHead(hidden_size=D, activation=F.gelu, positions=positions)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def gate(beta: float, *, threshold: float = 0.0, positions: int | None = None) -> ImportanceGate:
    sizes = {"hidden_size": D, "activation": F.gelu, "positions": positions}
    made = ImportanceGate(**sizes, share_of_head=beta, threshold=threshold)
    made.token_head = token_head(positions)
    return made


def scores_of(head: TokenHead, values: list[float], position: int) -> list[float]:
    """Dense, GELU, LayerNorm, linear (one a position where there are several), written out."""
    changed = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in linear_of(head.dense, values)]
    normed = norm_of(head.norm, changed)
    if isinstance(head.output, PositionLinear):
        weights = head.output.weight[position].tolist()
        return [math.fsum(w * v for w, v in zip(row, normed, strict=True)) for row in weights]
    return linear_of(head.output, normed)


def weights_of(scores: list[float], row: int, threshold: float) -> list[float]:
    """The softmax over importance of methods 2.3 and 2.4, written out."""
    real = [t for t in range(6) if MASK_BT[row, t]]
    chosen = [t for t in real if ORDINARY_BT[row, t] and scores[t] >= threshold] or real
    total = math.fsum(math.exp(scores[t]) for t in chosen)
    return [math.exp(scores[t]) / total if t in chosen else 0.0 for t in range(6)]


def test_weights_of_positions_start_as_berts_do() -> None:
    torch.manual_seed(3)
    linear = PositionLinear(50, 40)
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert list(linear.state_dict()) == ["weight"], "no bias, as in the program"


def test_longer_rows_than_positions_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="got 7 tokens, expected at most 6: with share_weights off .* max_length"):
        gate(1.0, positions=6)(torch.ones(1, 7, D), torch.ones(1, 7).bool(), torch.ones(1, 7).bool(), torch.ones(1, D))


@pytest.mark.parametrize("outside", [math.nan, 1.0, 0.0])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 1.0])
def test_the_weights_are_those_of_a_plain_loop(threshold: float, outside: float) -> None:
    scores_BT = torch.rand(3, 6, generator=torch.Generator().manual_seed(8)).masked_fill(~MASK_BT, outside)
    weights_BT = importance_weights(scores_BT, MASK_BT, ORDINARY_BT, threshold=threshold)
    assert weights_BT.sum(dim=1).tolist() == pytest.approx([1.0] * 3)
    for row in range(3):
        assert weights_BT[row].tolist() == pytest.approx(weights_of(scores_BT[row].tolist(), row, threshold), abs=1e-6)


@pytest.mark.parametrize("outside", PADDING.values(), ids=PADDING)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("beta", "positions"), [(0.0, None), (0.2, 6), (0.9, 9)])
def test_the_gated_vector_is_that_of_a_plain_loop(beta, positions, threshold, outside):
    hidden_BTD, sentence_BD = hidden(outside), torch.randn(3, D, generator=torch.Generator().manual_seed(7))
    made = gate(beta, threshold=threshold, positions=positions)
    with torch.no_grad():
        gated_BD, token_logits_BT2, importance_BT = made(hidden_BTD, MASK_BT, ORDINARY_BT, sentence_BD)
    for row in range(3):
        scores = [0.0] * 6
        for t in range(6):
            if MASK_BT[row, t]:
                no, yes = scores_of(made.token_head, hidden_BTD[row, t].tolist(), t)
                assert token_logits_BT2[row, t].tolist() == pytest.approx([no, yes], abs=2e-5)
                scores[t] = 1 / (1 + math.exp(no - yes))
        assert importance_BT[row].tolist() == pytest.approx(scores, abs=1e-5)
        weights = weights_of(scores, row, threshold)
        for d in range(D):
            pooled = math.fsum(weights[t] * float(hidden_BTD[row, t, d]) for t in range(6) if MASK_BT[row, t])
            expected = beta * float(sentence_BD[row, d]) + (1 - beta) * pooled
            assert float(gated_BD[row, d]) == pytest.approx(expected, abs=1e-5)


def test_with_beta_1_the_heads_vector_is_left_as_it_is() -> None:
    sentence_BD = torch.randn(3, D, dtype=torch.bfloat16)
    gated_BD, token_logits_BT2, importance_BT = gate(1.0)(hidden(), MASK_BT, ORDINARY_BT, sentence_BD)
    assert gated_BD is sentence_BD
    assert torch.equal(token_logits_BT2[MASK_BT], token_head()(hidden())[MASK_BT])
    assert torch.equal(importance_BT, token_importance(token_logits_BT2, MASK_BT))
    assert importance_BT.dtype == torch.float32


def test_what_stands_at_padding_has_no_part_in_gradients() -> None:
    gradients = []
    for outside in (0.0, 50.0):
        made, hidden_BTD = gate(0.3, positions=6), hidden(outside).requires_grad_()
        gated_BD, _, importance_BT = made(hidden_BTD, MASK_BT, ORDINARY_BT, torch.zeros(3, D))
        (gated_BD.square().sum() + importance_BT.sum()).backward()
        assert (hidden_BTD.grad[~MASK_BT] == 0).all()
        assert (hidden_BTD.grad[MASK_BT] != 0).any(dim=1).all()
        gradients.append([parameter.grad for parameter in made.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(second, first, atol=1e-5, rtol=1e-5)


def test_the_gated_vectors_gradients_are_those_of_finite_differences() -> None:
    made = gate(0.3, positions=6)
    hidden_BTD, sentence_BD = hidden(0.0), torch.zeros(3, D)

    def total(weights: nn.Module) -> torch.Tensor:
        return (weights(hidden_BTD, MASK_BT, ORDINARY_BT, sentence_BD)[0] * torch.arange(1.0, D + 1)).sum()

    total(made).backward()
    step = 3e-2
    for name, parameter in made.named_parameters():
        place = int(parameter.grad.abs().argmax())
        values = []
        for sign in (1, -1):
            moved = copy.deepcopy(made)
            with torch.no_grad():
                moved.get_parameter(name).view(-1)[place] += sign * step
                values.append(float(total(moved)))
        slope = (values[0] - values[1]) / (2 * step)
        assert float(parameter.grad.view(-1)[place]) == pytest.approx(slope, rel=3e-2, abs=1e-3), name
