"""The blur's hooks: owned, taken away, copied, and at work under all that a run does to a model."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attentune.config import BlurConfig
from helpers.references import PLACES, PROJECTIONS, TEXTS, Tiny, blurred, distance, hidden_of, hooks_of
from helpers.tiny import FAMILIES
from helpers.tiny_models import LONG, build, encoded

every_family = pytest.mark.parametrize("family", FAMILIES)
every_place = pytest.mark.parametrize("where", PLACES)


@pytest.mark.integration
@every_place
@every_family
def test_the_taps_own_every_hook_and_take_them_away(tiny: Tiny, family: str, where: str) -> None:
    made = model, _ = blurred(tiny, family, where)
    hooks = hooks_of(model)
    assert len(hooks) == model.blur_hooks.layers * (2 if where == "scores" else 1)
    assert all(hook.__self__ is model.blur_hooks for hook in hooks)
    before = hidden_of(made, *TEXTS)
    model.blur_hooks.remove()
    assert not hooks_of(model)
    plain = hidden_of(build(tiny(family)), *TEXTS)
    assert distance(hidden_of(made, *TEXTS), plain) < 1e-6
    assert distance(before, plain) > 0.02


def copied(model: Any) -> Any:
    return copy.deepcopy(model)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def loss_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits.square().sum()


@pytest.mark.integration
@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@pytest.mark.parametrize("twin_of", [copied, pickled])
def test_a_copy_blurs_by_itself_and_leaves_the_original_alone(
    tiny: Tiny, family: str, twin_of: Callable[[Any], Any]
) -> None:
    """Copied with a graph of the last forward pass alive."""
    made = model, tokenizer = blurred(tiny, family, "scores", learnable="head")
    before = hidden_of(made, *TEXTS)
    loss = loss_of(model, encoded(tokenizer, *TEXTS))
    twin = twin_of(model)
    assert all(hook.__self__ is twin.blur_hooks for hook in hooks_of(twin))
    assert len(hooks_of(twin)) == len(hooks_of(model)) == 2 * model.blur_hooks.layers
    assert distance(hidden_of((twin, tokenizer), *TEXTS), before) == 0
    with torch.no_grad():
        twin.blur.raw_sigma.add_(2.0)
    assert distance(hidden_of((twin, tokenizer), *TEXTS), before) > 0.02
    loss_of(twin, encoded(tokenizer, LONG)).backward()
    assert model.blur.raw_sigma.grad is None
    loss.backward()
    assert model.blur.raw_sigma.grad.abs().min() > 0
    twin.blur_hooks.remove()
    assert not hooks_of(twin)
    assert distance(hidden_of(made, *TEXTS), before) == 0


def gradients_of(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(model, inputs).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


# ALBERT and MPNet know no gradient checkpointing; DeBERTa's relative positions do not go with the reentrant kind.
CHECKPOINTING = [
    pytest.param(family, options, learnable, id=f"{family}-{learnable}")
    for family in FAMILIES
    for options, learnable in (({}, "head"), ({"use_reentrant": True}, "no"))
    if family not in ("albert", "mpnet") and not (options and family == "deberta-v2")
]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@every_place
@pytest.mark.parametrize(("family", "options", "learnable"), CHECKPOINTING)
def test_gradient_checkpointing_gives_the_same_gradients(
    tiny: Tiny, family: str, where: str, options: dict[str, bool], learnable: str
) -> None:
    model, tokenizer = build(tiny(family), blur=BlurConfig(where, 0.5, learnable=learnable), dropout=0.0)
    inputs = encoded(tokenizer, *TEXTS)
    model.dropout.p = 0.0
    whole = gradients_of(model.train(), inputs)
    runs: list[int] = []
    output = model.encoder.get_submodule(PROJECTIONS[family][1].format(0))
    output.register_forward_hook(lambda module, args, output: runs.append(0))
    model.gradient_checkpointing_enable(options or None)
    again = gradients_of(model, inputs)
    assert len(runs) == 2, "the layer ran again in the backward pass"
    assert set(again) == set(whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: name + text)
    assert ("blur.raw_sigma" in whole) == (learnable == "head")
    assert learnable == "no" or whole["blur.raw_sigma"].abs().min() > 0
