"""Our own programs for attention compute what PyTorch's does, in every family that has it, and drop as told."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attentune.models import cpu_layers as attention
from attentune.models.cpu_layers import LONG, PLAIN, use_own_attention
from helpers.tiny import FAMILIES
from helpers.tiny_models import Built, build, encoded

Tiny = Callable[..., Path]
# transformers has no fused attention for these.
NOT_FUSED = ("deberta-v2", "mpnet")
FUSED = tuple(family for family in FAMILIES if family not in NOT_FUSED)
WORDS = "the film was not dull at all and nobody in the house could look away from it "
TEXTS = (WORDS * 8, WORDS * 5, "so fine")  # the first two long enough for pieces


def batch_of(built: Built, *texts: str) -> dict[str, torch.Tensor]:
    """At most 140 tokens a text."""
    return {name: tensor[:, :140] for name, tensor in encoded(built[1], *texts).items()}


def gradients(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    torch.manual_seed(1)  # the classifier has a dropout of its own
    logits = model(**inputs).logits
    logits.float().square().sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The tokens and the dropout of each call of the program for long texts."""
    calls: list[tuple[int, float]] = []
    own = attention.long_attention

    def noted(query: torch.Tensor, *others: torch.Tensor, scaling: float, dropout: float) -> torch.Tensor:
        calls.append((query.shape[2], dropout))
        return own(query, *others, scaling=scaling, dropout=dropout)

    monkeypatch.setattr(attention, "long_attention", noted)
    return calls


@pytest.mark.parametrize("family", FUSED)
def test_training_on_long_texts_is_what_pytorchs_program_does(tiny, family, asked):
    built = model, _ = build(tiny(family), max_length=150, dropout=0.0)
    inputs = batch_of(built, *TEXTS)
    assert inputs["input_ids"].shape[1] > 96
    model.train()
    logits, theirs = gradients(model, inputs)
    assert use_own_attention(model) == PLAIN
    found, ours = gradients(model, inputs)
    assert len(asked) > 0
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        torch.testing.assert_close(ours[name], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", NOT_FUSED)
def test_families_without_fused_attention_keep_their_own(tiny: Tiny, family: str) -> None:
    model, _ = build(tiny(family))
    before = model.encoder.config._attn_implementation
    assert use_own_attention(model) is None
    assert model.encoder.config._attn_implementation == before != "sdpa"


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_model_of_long_texts_drops_in_training_and_predicts_as_pytorch_does(tiny, family, asked, monkeypatch):
    monkeypatch.setattr(attention, "_LONGEST_PLAIN", 149)
    built = model, _ = build(tiny(family), max_length=150, dropout=0.3)
    inputs = batch_of(built, *TEXTS)
    with torch.no_grad():
        theirs = model(**inputs).logits
        assert use_own_attention(model) == LONG
        assert torch.equal(model(**inputs).logits, theirs)
        assert asked == []
        model.train()
        short = batch_of(built, TEXTS[2], WORDS)
        torch.manual_seed(1)
        model(**short)
        assert asked == []
        torch.manual_seed(1)
        first = model(**inputs).logits
        torch.manual_seed(1)
        assert torch.equal(model(**inputs).logits, first)
    assert not torch.equal(first, theirs)
    assert {dropout for _, dropout in asked} == {0.3}


def test_another_program_that_was_chosen_stays(tiny: Tiny) -> None:
    model, _ = build(tiny("bert"))
    model.encoder.set_attn_implementation("eager")
    assert use_own_attention(model) is None
    assert model.encoder.config._attn_implementation == "eager"
