"""The int8 copy answers nearly as the model does, in every family, and leaves it alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attentune.config import TokenGateConfig
from attentune.models.precision import int8_copy
from helpers.copies import answers, close, made
from helpers.tiny import FAMILIES

Tiny = Callable[..., Path]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["none", "ssa"])
def test_its_logits_are_nearly_the_models(tiny: Tiny, family: str, kind: str) -> None:
    model, inputs = made(tiny, family, token_gate=TokenGateConfig(kind=kind))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    theirs = answers(model, inputs)
    ours = answers(int8_copy(model), inputs)
    assert theirs.std() > 0.5
    # The logits are stretched here, so that the rounding shows.
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.9
    assert close(ours, theirs, within=0.4)
    assert not torch.equal(ours, theirs)
    assert torch.equal(answers(model, inputs), theirs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
