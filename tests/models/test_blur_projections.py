"""The blur inside every family's encoder, against encoders that are blurred by other means, one text at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attentune.config import load_config
from attentune.errors import UnsupportedEncoderError
from attentune.models.slots import BlurHooks
from helpers.references import HEADS, LAYERS, PLACES, Tiny, blurred, check, hooks_of
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, build, encoded, logits_of

every_family = pytest.mark.parametrize("family", FAMILIES)
every_place = pytest.mark.parametrize("where", PLACES)


@every_place
@every_family
def test_each_text_of_a_batch_is_that_of_an_encoder_blurred_by_other_means(tiny: Tiny, family: str, where: str) -> None:
    made, plain = blurred(tiny, family, where), build(tiny(family))
    check(made, plain, family, where, np.full((LAYERS, HEADS), 0.5))
    assert made[0].blur_hooks.layers == (1 if family == "albert" else LAYERS)
    assert plain[0].blur_hooks is None


@pytest.mark.integration
@every_place
@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert"])
@pytest.mark.parametrize("layers", ["3,1", " 1 , 3,1"])
def test_chosen_layers_alone_are_blurred(tiny: Tiny, family: str, where: str, layers: str) -> None:
    sigmas_LH = np.full((LAYERS, HEADS), 0.01)
    sigmas_LH[[0, 2]] = 0.5
    made = blurred(tiny, family, where, layers=layers)
    assert made[0].blur_hooks.layers == 2
    check(made, build(tiny(family)), family, where, sigmas_LH)


@pytest.mark.integration
@every_place
@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize(("learnable", "layers"), [("head", "all"), ("layer", "1,3"), ("head", "2")])
def test_each_layer_and_head_has_its_own_learned_sigma(
    tiny: Tiny, family: str, where: str, learnable: str, layers: str
) -> None:
    made = blurred(tiny, family, where, layers=layers, learnable=learnable)
    raw = made[0].blur.raw_sigma
    rows = list(range(LAYERS)) if layers == "all" else [int(number) - 1 for number in layers.split(",")]
    assert raw.shape == ((len(rows), HEADS) if learnable == "head" else (len(rows),))
    with torch.no_grad():
        raw.add_(torch.linspace(-0.5, 1.0, raw.numel()).view_as(raw))
    sigmas_LH = np.full((LAYERS, HEADS), 0.01)
    learned = made[0].blur.sigmas().detach().double().numpy()
    sigmas_LH[rows] = learned if learnable == "head" else learned[:, None]
    check(made, build(tiny(family)), family, where, sigmas_LH)


def test_layers_that_share_their_weights_are_blurred_together_or_not_at_all(tiny: Tiny) -> None:
    with pytest.raises(UnsupportedEncoderError) as caught:
        blurred(tiny, "albert", "context", layers="1")
    assert str(caught.value) == (
        "model.blur.layers: this albert encoder's 3 layers share their weights, so they can only be blurred all"
        " together; set it to all."
    )


@pytest.mark.parametrize(("layers", "wrong"), [("0", "0"), ("4", "4"), ("1,5,0,2", "5, 0")])
def test_layers_that_are_not_there_are_refused(tiny: Tiny, layers: str, wrong: str) -> None:
    with pytest.raises(UnsupportedEncoderError) as caught:
        blurred(tiny, "bert", "value", layers=layers)
    assert str(caught.value) == (
        f"model.blur.layers: got {wrong}, expected numbers from 1 to 3, the layers of this encoder, or all."
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
def test_an_encoder_whose_projections_are_not_found_is_refused(
    where: str, known: int, layers: int, numbers: tuple[int, ...] | None
) -> None:
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
