"""The blur inside every family's encoder, against encoders blurred by other means, and what a run does to it."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attentune.config import BlurConfig, load_config
from attentune.errors import UnsupportedEncoderError
from attentune.models.slots import BlurHooks
from helpers.references import (
    HEADS,
    LAYERS,
    PLACES,
    PROJECTIONS,
    TEXTS,
    Tiny,
    blurred,
    check,
    distance,
    hidden_of,
    hooks_of,
)
from helpers.tiers import covering
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, build, encoded, logits_of

every_place = pytest.mark.parametrize("where", PLACES)


@covering("family, where", FAMILIES, PLACES)
def test_each_text_of_a_batch_is_that_of_an_encoder_blurred_by_other_means(tiny: Tiny, family: str, where: str) -> None:
    made, plain = blurred(tiny, family, where), build(tiny(family))
    check(made, plain, family, where, np.full((LAYERS, HEADS), 0.5))
    assert made[0].blur_hooks.layers == (1 if family == "albert" else LAYERS)
    assert plain[0].blur_hooks is None


@pytest.mark.integration
@every_place
@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize(("learnable", "layers"), [("head", "all"), ("layer", "1,3"), ("head", "2"), ("no", " 3 ,1,3")])
def test_each_chosen_layer_and_head_has_its_own_sigma(tiny, family, where, learnable, layers):
    made = blurred(tiny, family, where, layers=layers, learnable=learnable)
    rows = list(range(LAYERS)) if layers == "all" else sorted({int(number) - 1 for number in layers.split(",")})
    sigmas_LH = np.full((LAYERS, HEADS), 0.01)
    sigmas_LH[rows] = 0.5
    if learnable != "no":
        raw = made[0].blur.raw_sigma
        assert raw.shape == ((len(rows), HEADS) if learnable == "head" else (len(rows),))
        with torch.no_grad():
            raw.add_(torch.linspace(-0.5, 1.0, raw.numel()).view_as(raw))
        learned = made[0].blur.sigmas().detach().double().numpy()
        sigmas_LH[rows] = learned if learnable == "head" else learned[:, None]
    assert made[0].blur_hooks.layers == len(rows)
    check(made, build(tiny(family)), family, where, sigmas_LH)


def test_layers_that_share_their_weights_are_blurred_together_or_not_at_all(tiny: Tiny) -> None:
    with pytest.raises(UnsupportedEncoderError) as caught:
        blurred(tiny, "albert", "context", layers="1")
    assert str(caught.value) == (
        "model.blur.layers: this albert encoder's 3 layers share their weights, so they can only be blurred all"
        " together; set it to all."
    )


class Strange(nn.Module):
    """An encoder of which some layers have projections under known names, and the others under names of their own."""

    def __init__(self, *, known: int, layers: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=layers, model_type="strange")
        names = [("v_lin", "out_lin") if number < known else ("first", "second") for number in range(layers)]
        self.layers = nn.ModuleList(
            nn.ModuleDict({"attention": nn.ModuleDict({name: nn.Linear(4, 4) for name in pair})}) for pair in names
        )


@every_place
@pytest.mark.parametrize(("known", "layers"), [(0, 2), (2, 3), (2, 4)])
@pytest.mark.parametrize("numbers", [None, (1,)])
def test_an_encoder_whose_projections_are_not_found_is_refused(where, known, layers, numbers):
    encoder = Strange(known=known, layers=layers)
    with pytest.raises(UnsupportedEncoderError) as caught:
        BlurHooks(encoder, where=where, layers=numbers)
    assert str(caught.value) == (
        f"model.blur: the value and output projections of attention were found in {known} of this strange encoder's"
        f" {layers} layers, expected all, so it cannot be blurred. Set model.blur.where none, or take an encoder of"
        " another family."
    )
    assert not hooks_of(encoder)


def test_the_encoder_of_a_blurred_model_is_not_run_with_another_batchs_matrices(tiny: Tiny) -> None:
    model, tokenizer = build(tiny("bert"), settings=load_config(overrides={"model.blur.where": "context"}).model)
    batch = encoded(tokenizer, FIRST, LONG)
    for _ in range(2):  # before any forward pass, and after one
        with pytest.raises(RuntimeError, match=r"was called directly.*call the model"):
            model.encoder(**batch)
        logits_of((model, tokenizer), FIRST, LONG)


# The blur's hooks: owned, taken away, copied, and at work under all that a run does to a model


def copied(model: Any) -> Any:
    return copy.deepcopy(model)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def loss_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits.square().sum()


@pytest.mark.integration
@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@pytest.mark.parametrize("twin_of", [copied, pickled])
def test_a_copy_blurs_by_itself_and_leaves_the_original_alone(tiny, family, twin_of):
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
def test_gradient_checkpointing_gives_the_same_gradients(tiny, family, where, options, learnable):
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
