"""The bf16 copy answers nearly as the model does, follows its weights, and leaves it alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attentune.config import TokenGateConfig
from attentune.models.precision import BFloat16Copy
from helpers.copies import answers, close, made
from helpers.tiny import FAMILIES

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.integration
@every_family
@pytest.mark.parametrize("kind", ["none", "ssa"])
def test_its_logits_are_the_models_to_bf16s_digits(tiny: Tiny, family: str, kind: str) -> None:
    model, inputs = made(tiny, family, token_gate=TokenGateConfig(kind=kind))
    half = BFloat16Copy(model).fresh()
    ours, theirs = answers(half, inputs), answers(model, inputs)
    assert theirs.std() > 0.5
    assert ours.dtype == torch.float32
    assert close(ours, theirs)
    assert not torch.equal(ours, theirs)
    dtypes = {name: weight.dtype for name, weight in half.named_parameters()}
    exact = {name for name in dtypes if name.startswith("classifier.")}
    assert exact
    assert {dtypes[name] for name in exact} == {torch.float32}
    assert {dtypes[name] for name in dtypes.keys() - exact} == {torch.bfloat16}


@pytest.mark.integration
@every_family
def test_it_follows_the_weights_once_released(tiny: Tiny, family: str) -> None:
    model, inputs = made(tiny, family)
    half = BFloat16Copy(model)
    before = answers(half.fresh(), inputs)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * weight.std(correction=0) * torch.randn(weight.shape, generator=generator))
    now = answers(model, inputs)
    assert not close(before, now, within=0.2)
    assert torch.equal(answers(half.fresh(), inputs), before)
    half.release()
    assert close(answers(half.fresh(), inputs), now)


def test_between_uses_it_holds_no_weights(tiny: Tiny) -> None:
    model, inputs = made(tiny, "bert")
    half = BFloat16Copy(model)
    copy = half.fresh()
    assert sum(weight.numel() for weight in copy.parameters()) == sum(weight.numel() for weight in model.parameters())
    before = answers(copy, inputs)
    half.release()
    assert sum(weight.numel() for weight in copy.parameters()) == 0
    assert torch.equal(answers(half.fresh(), inputs), before)


def test_weights_that_are_one_stay_one(tiny: Tiny) -> None:
    model, _ = made(tiny, "albert")  # shares its layers' weights
    assert len(list(BFloat16Copy(model).fresh().parameters())) == len(list(model.parameters()))
