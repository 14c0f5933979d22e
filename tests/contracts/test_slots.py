"""What every entry of every slot's table owes, alone and with the others: a new entry is covered without a change here.

Padding-proof, finite gradients, the same after saving, no hook left behind, and the same each time in evaluation.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from attentune.config import ModelConfig, load_config, preset_names
from attentune.models.saving import load_model, save_model
from attentune.nn.heads import HEADS
from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS
from tiny import FAMILIES
from tiny_models import FIRST, LONG, SECOND, Built, build, encoded, logits_of

Tiny = Callable[..., Path]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# One of each kind of position: learned, relative, rotary.
SOME_FAMILIES = ("bert", "deberta-v2", "modernbert")


def slots(head: str, layer_mix: str) -> ModelConfig:
    default = ModelConfig()
    return replace(default, head=replace(default.head, kind=head), layer_mix=replace(default.layer_mix, kind=layer_mix))


CASES = [
    pytest.param(family, slots(head, mix), id=f"{family}-{head}-{mix}")
    for family, head, mix in product(SOME_FAMILIES, HEADS, LAYER_MIXES)
] + [
    pytest.param(family, load_config(preset=name).model, id=f"{family}-preset-{name}")
    for family, name in product(FAMILIES, preset_names())
]
every_case = pytest.mark.parametrize(("family", "settings"), CASES)


_BUILT: dict[tuple[str, ModelConfig], Built] = {}


def built(tiny: Tiny, family: str, settings: ModelConfig) -> Built:
    """A fresh model; the first of its kind is kept to be copied, which is faster than building."""
    key = (family, settings)
    if key not in _BUILT:
        _BUILT[key] = build(tiny(family, layers=max(2, *MINIMUM_LAYERS.values()) + 1), settings=settings)
    return copy.deepcopy(_BUILT[key][0]), _BUILT[key][1]


def hooks_of(model: nn.Module) -> dict[str, list[object]]:
    """Every hook, by where it stands."""
    return {
        f"{name}.{kind}": list(getattr(module, kind).values())
        for name, module in model.named_modules()
        for kind in HOOKS
    }


@every_case
def test_padding_changes_nothing(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    model, tokenizer = built(tiny, family, settings)
    together_BC = logits_of((model, tokenizer), FIRST, LONG, "")
    for row, text in enumerate((FIRST, LONG, "")):
        torch.testing.assert_close(logits_of((model, tokenizer), text)[0], together_BC[row], atol=1e-5, rtol=0)
    pairs = dict(tokenizer([FIRST, LONG], [SECOND, LONG], padding=True, return_tensors="pt"))
    alone = dict(tokenizer([FIRST], [SECOND], return_tensors="pt"))
    with torch.no_grad():
        torch.testing.assert_close(model(**alone).logits[0], model(**pairs).logits[0], atol=1e-5, rtol=0)
    # That this says something: the texts differ, and so do their logits.
    assert (together_BC[0] - together_BC[1]).abs().max() > 1e-4


@every_case
def test_gradients_are_finite_and_reach_encoder_and_classifier(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    model, tokenizer = built(tiny, family, settings)
    model.train()
    output = model(**encoded(tokenizer, FIRST, LONG, ""), labels=torch.tensor([0, 1, 1]))
    assert output.loss.isfinite()
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    own = {name for name, _ in model.named_parameters() if not name.startswith("encoder.")}
    assert not [name for name in own if name not in gradients or gradients[name].abs().sum() == 0]


@every_case
def test_a_saved_model_gives_the_same_logits(tiny: Tiny, family: str, settings: ModelConfig, tmp_path: Path) -> None:
    model, tokenizer = built(tiny, family, settings)
    save_model(model, tokenizer, tmp_path)
    assert torch.equal(logits_of(load_model(tmp_path), FIRST, LONG), logits_of((model, tokenizer), FIRST, LONG))


@every_case
def test_evaluation_repeats_itself_and_leaves_no_hook(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    model, tokenizer = built(tiny, family, settings)
    with torch.no_grad():  # on its first such call transformers puts hooks of its own on an encoder, and keeps them
        model.encoder(**encoded(tokenizer, FIRST), output_hidden_states=True)
    before = hooks_of(model)
    once = logits_of((model, tokenizer), FIRST, LONG)
    assert torch.equal(logits_of((model, tokenizer), FIRST, LONG), once)
    model.train()
    model(**encoded(tokenizer, FIRST, LONG), labels=torch.tensor([0, 1])).loss.backward()
    model.eval()
    assert torch.equal(logits_of((model, tokenizer), FIRST, LONG), once)
    assert hooks_of(model) == before


@pytest.mark.parametrize("head", sorted(HEADS))
def test_every_head_and_selection_says_something_of_its_own(tiny: Tiny, head: str) -> None:
    """Two entries that give the same logits would be one entry under two names."""
    seen = [logits_of(built(tiny, "bert", slots(head, mix)), FIRST, LONG) for mix in LAYER_MIXES]
    seen += [logits_of(built(tiny, "bert", slots(other, "last")), FIRST, LONG) for other in HEADS if other != head]
    for place, logits_BC in enumerate(seen):
        assert not [other for other in seen[:place] if torch.allclose(other, logits_BC, atol=1e-6)]
