"""Slots as they are before training: drawn as released programs draw them, and nothing at all where they are off."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attentune.config import BlurConfig, HeadConfig, LayerMixConfig, load_config
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SINGLE_HEADS, build, encoded

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.integration
@every_family
def test_fresh_excitation_is_that_of_the_released_program(tiny: Tiny, family: str) -> None:
    """Biases of 0.8, and weights far wider than the 0.02 of the other slots."""
    model, _ = build(tiny(family, layers=9), settings=load_config(preset="sesame-original").model)
    for linear in (model.layer_mix.excitation.squeeze, model.layer_mix.excitation.excite):
        assert linear.bias.unique().tolist() == [pytest.approx(0.8)]
        assert 0.6 < linear.weight.std() / (2 / linear.in_features) ** 0.5 < 1.5
    assert model.classifier.weight.std() < 0.05


@pytest.mark.integration
@every_family
@pytest.mark.parametrize("learnable", ["layer", "head"])
def test_fresh_sigmas_are_the_given_one(tiny: Tiny, family: str, learnable: str) -> None:
    model, _ = build(tiny(family), blur=BlurConfig("value", 0.7, learnable=learnable))
    count = 1 if family == "albert" else 3
    torch.testing.assert_close(
        model.blur.sigmas(), torch.full((count, 4) if learnable == "head" else (count,), 0.7), rtol=1e-4, atol=0
    )


@pytest.mark.integration
@pytest.mark.parametrize("head", SINGLE_HEADS)
@every_family
def test_slots_that_are_off_leave_the_encoder_as_it_is(tiny: Tiny, family: str, head: str) -> None:
    """Whatever else is set: neither weights nor hooks, and the head is given the encoder's own output."""
    off = {"blur": BlurConfig("none", 9.0, 7, "1", "head"), "layer_mix": LayerMixConfig("last", False, 5)}
    model, tokenizer = build(tiny(family), head=HeadConfig(head), **off)
    parts = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert parts <= {"encoder", "head", "classifier"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    inputs = encoded(tokenizer, FIRST, LONG)
    with torch.no_grad():
        output = model(**inputs)
        hidden_BTD = model.encoder(**inputs).last_hidden_state
        logits_BC, _, _ = model.classify(hidden_BTD, inputs["input_ids"], inputs["attention_mask"].bool())
    assert torch.equal(output.logits, logits_BC)
    assert output.layer_weights is None
