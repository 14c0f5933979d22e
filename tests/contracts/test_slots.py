"""What every entry of every slot's table owes, alone and with the others: a new entry is covered without a change here.

Padding-proof, finite gradients, the same after saving, no hook left behind, and the same each time in evaluation.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from torch import nn

from attentune.config import BlurConfig, LayerMixConfig, ModelConfig, TokenGateConfig, load_config, model_preset_names
from attentune.models.modeling import AttentuneOutput
from attentune.models.saving import load_model, save_model
from attentune.nn.blur import BLUR_PLACES, LEARNABLE
from attentune.nn.heads import TOKEN_GATES
from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS
from attentune.nn.losses import token_label_sums
from helpers.tiers import diagonal, integration_unless
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, SINGLE_HEADS, Built, build, encoded, logits_of

Tiny = Callable[..., Path]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# One of each kind of position: learned, relative, rotary.
SOME_FAMILIES = ("bert", "deberta-v2", "modernbert")
LAYERS = max(2, *MINIMUM_LAYERS.values()) + 1


# Fresh importances lie around a half, so that this threshold parts them.
GATES = [
    TokenGateConfig(kind, beta, share_weights, threshold)
    for kind in TOKEN_GATES
    if kind != "none"
    for beta, share_weights, threshold in product((0.5, 1.0), (True, False), (0.0, 0.5))
]


def slots(head: str, layer_mix: str, gate: TokenGateConfig | None = None) -> ModelConfig:
    default = ModelConfig()
    return replace(
        default,
        head=replace(default.head, kind=head),
        layer_mix=replace(default.layer_mix, kind=layer_mix),
        token_gate=gate or default.token_gate,
    )


def sesame(place: int, where: str, learnable: str, kind: str = "last", *, squeeze: bool, gated: bool) -> object:
    """Blur, squeeze and gate on one of each kind of family and under one of each head, by turns."""
    family, head = SOME_FAMILIES[place % len(SOME_FAMILIES)], SINGLE_HEADS[place // 3 % len(SINGLE_HEADS)]
    settings = replace(
        slots(head, kind, GATES[place % len(GATES)] if gated else None),
        blur=BlurConfig(where, 0.5, learnable=learnable),
        layer_mix=LayerMixConfig(kind, squeeze),
    )
    parts = (family, head, f"blur-{where}-{learnable}", kind, "squeeze" * squeeze, "gate" * gated)
    return pytest.param(family, settings, id="-".join(part for part in parts if part))


def name_of(gate: TokenGateConfig) -> str:
    shared = "shared" if gate.share_weights else "own"
    return f"{gate.kind}-beta-{gate.beta}-{shared}-threshold-{gate.attention_threshold}"


GATED = [
    pytest.param(
        family,
        slots(head, mix, gate),
        id=f"{family}-{head}-{mix}-{name_of(gate)}",
        marks=integration_unless(place % len(SOME_FAMILIES) == SOME_FAMILIES.index(family)),
    )
    for family, head, mix in zip(SOME_FAMILIES, ("cls-mean", "cls", "mean"), ("last", "sum-all", "last"), strict=True)
    for place, gate in enumerate(GATES)
]
BLURS = list(product([where for where in BLUR_PLACES if where != "none"], LEARNABLE))
BLURRED = [sesame(place, *blur, squeeze=False, gated=False) for place, blur in enumerate(BLURS)]
SQUEEZED = [sesame(place, "none", "no", kind, squeeze=True, gated=False) for place, kind in enumerate(LAYER_MIXES)]
# SSA upon SESAME: each kind of family with each head, and among them every kind of mix and of blur.
COMBINED = [
    sesame(place, *blur, kind, squeeze=True, gated=True)
    for place, blur, kind in zip(range(9), cycle(BLURS), cycle(reversed(LAYER_MIXES)))
]
# Full products run as integration tests; of them the fast tier has each family, preset, head and mix once.
FAST_PRESETS = diagonal(FAMILIES, model_preset_names())
FAST_CASES = diagonal(SOME_FAMILIES, SINGLE_HEADS, list(LAYER_MIXES))
PRESETS = [
    pytest.param(
        family,
        load_config(preset=name).model,
        id=f"{family}-preset-{name}",
        marks=integration_unless((family, name) in FAST_PRESETS),
    )
    for family, name in product(FAMILIES, model_preset_names())
]
CASES = [
    pytest.param(
        family,
        slots(head, mix),
        id=f"{family}-{head}-{mix}",
        marks=integration_unless((family, head, mix) in FAST_CASES),
    )
    for family, head, mix in product(SOME_FAMILIES, SINGLE_HEADS, LAYER_MIXES)
]
every_case = pytest.mark.parametrize(("family", "settings"), CASES + GATED + BLURRED + SQUEEZED + COMBINED + PRESETS)
every_gate = pytest.mark.parametrize(("family", "settings"), GATED)
every_squeeze = pytest.mark.parametrize(
    ("family", "settings"),
    [case for case in SQUEEZED + COMBINED + PRESETS if case.values[1].layer_mix.squeeze],
)


_BUILT: dict[tuple[str, ModelConfig], Built] = {}


def built(tiny: Tiny, family: str, settings: ModelConfig) -> Built:
    """A fresh model; the first of its kind is kept to be copied, which is faster than building."""
    key = (family, settings)
    if key not in _BUILT:
        _BUILT[key] = build(tiny(family, layers=LAYERS), settings=settings)
    return copy.deepcopy(_BUILT[key][0]), _BUILT[key][1]


def hooks_of(model: nn.Module) -> dict[str, list[object]]:
    """Every hook, by where it stands."""
    return {
        f"{name}.{kind}": list(getattr(module, kind).values())
        for name, module in model.named_modules()
        for kind in HOOKS
    }


@torch.no_grad()
def shake(model: nn.Module, *, own: bool) -> None:
    """Move the weights of the slots, or those of the encoder's normalisations, away from where they begin."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if not name.startswith("encoder.") if own else "norm" in name.lower():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))


@torch.no_grad()
def answer(built: Built, *texts: str) -> AttentuneOutput:
    """What the model says of these texts as one batch."""
    return built[0](**encoded(built[1], *texts))


def same_scores(first_BT: torch.Tensor | None, second_BT: torch.Tensor | None) -> bool:
    return first_BT is second_BT or torch.equal(first_BT, second_BT)


def check_row(alone: AttentuneOutput, together: AttentuneOutput, row: int) -> None:
    """A text by itself is what it is in a batch, and tokens at padding are of no importance."""
    torch.testing.assert_close(alone.logits[0], together.logits[row], atol=1e-5, rtol=0)
    if together.token_scores is not None:
        length = alone.token_scores.shape[1]
        assert alone.token_scores.min() > 0
        torch.testing.assert_close(alone.token_scores[0], together.token_scores[row, :length], atol=1e-5, rtol=0)
        assert not together.token_scores[row, length:].any()


@every_case
def test_padding_changes_nothing(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = model, tokenizer = built(tiny, family, settings)
    together = answer(made, FIRST, LONG, "")
    for row, text in enumerate((FIRST, LONG, "")):
        check_row(answer(made, text), together, row)
    pairs = dict(tokenizer([FIRST, LONG], [SECOND, LONG], padding=True, return_tensors="pt"))
    alone = dict(tokenizer([FIRST], [SECOND], return_tensors="pt"))
    with torch.no_grad():
        check_row(model(**alone), model(**pairs), 0)
    # That this says something: the texts differ, and so do their logits and their tokens' importance.
    assert (together.logits[0] - together.logits[1]).abs().max() > 5e-5
    assert (together.token_scores is None) == (settings.token_gate.kind == "none")
    if together.token_scores is not None:
        assert together.token_scores[1].std() > 1e-4


def loss_of(output: AttentuneOutput, mask_BT: torch.Tensor, *, with_tokens: bool) -> torch.Tensor:
    """The rows' mean loss, and that of every other token labelled 0 and 1 in turn."""
    if not with_tokens or output.token_logits is None:
        return output.loss
    labels_BT = torch.tensor([0.0, -1.0, 1.0, -1.0]).repeat(mask_BT.shape[1])[: mask_BT.shape[1]]
    labels_BT = labels_BT.masked_fill(mask_BT == 0, -1.0)
    return output.loss + token_label_sums(output.token_logits, labels_BT)[0] / (labels_BT >= 0).sum()


def gradients_of(made: Built, *, with_tokens: bool) -> dict[str, torch.Tensor]:
    """The gradients that some texts give, by the names of the weights that have one."""
    model, inputs = made[0].train(), encoded(made[1], FIRST, LONG, "")
    output = model(**inputs, labels=torch.tensor([0, 1, 1]))
    loss = loss_of(output, inputs["attention_mask"], with_tokens=with_tokens)
    assert loss.isfinite()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@every_case
def test_gradients_are_finite_and_reach_encoder_and_every_slot(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = built(tiny, family, settings)
    gradients = gradients_of(made, with_tokens=True)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert made[0].get_input_embeddings().weight.grad.abs().sum() > 0
    own = {name for name, _ in made[0].named_parameters() if not name.startswith("encoder.")}
    assert not [name for name in own if name not in gradients or gradients[name].abs().sum() == 0]
    assert any(name.startswith("token_gate.") for name in own) == (settings.token_gate.kind != "none")


@every_gate
def test_a_gate_learns_from_the_tasks_loss_unless_beta_is_1(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = built(tiny, family, settings)
    gradients = gradients_of(made, with_tokens=False)
    own = [name for name, _ in made[0].named_parameters() if name.startswith("token_gate.")]
    reached = [name for name in own if name in gradients and gradients[name].abs().sum() > 0]
    assert reached == ([] if settings.token_gate.beta == 1.0 else own)


@every_gate
def test_with_beta_1_logits_are_those_without_a_gate(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = built(tiny, family, settings)
    plain = built(tiny, family, replace(settings, token_gate=TokenGateConfig("none")))
    assert plain[0].token_gate is None
    weights = {name: weight for name, weight in made[0].state_dict().items() if not name.startswith("token_gate.")}
    plain[0].load_state_dict(weights)  # strict: a gate is all that is between them
    gated, ungated = answer(made, FIRST, LONG), answer(plain, FIRST, LONG)
    assert torch.equal(gated.logits, ungated.logits) == (settings.token_gate.beta == 1.0)
    assert ungated.token_scores is None
    assert ungated.token_logits is None


@every_case
def test_a_saved_model_gives_the_same_logits_and_importance(
    tiny: Tiny, family: str, settings: ModelConfig, tmp_path: Path
) -> None:
    model, tokenizer = built(tiny, family, settings)
    shake(model, own=True)  # no slot's weights as they are drawn
    save_model(model, tokenizer, tmp_path)
    before, after = answer((model, tokenizer), FIRST, LONG), answer(load_model(tmp_path), FIRST, LONG)
    assert torch.equal(after.logits, before.logits)
    assert same_scores(after.token_scores, before.token_scores)
    assert same_scores(after.layer_weights, before.layer_weights)


@every_case
def test_evaluation_repeats_itself_and_the_blurs_hooks_are_the_only_ones(
    tiny: Tiny, family: str, settings: ModelConfig
) -> None:
    made = model, tokenizer = built(tiny, family, settings)
    own = [hook for hooks in hooks_of(model).values() for hook in hooks]
    a_layer = {"none": 0, "scores": 2}.get(settings.blur.where, 1)
    assert len(own) == a_layer * (1 if family == "albert" else LAYERS)  # ALBERT's layers are one
    assert all(hook.__self__ is model.blur_hooks for hook in own)
    with torch.no_grad():  # on its first such call transformers puts hooks of its own on an encoder, and keeps them
        model(**encoded(tokenizer, FIRST), output_hidden_states=True)
    before = hooks_of(model)
    once = answer(made, FIRST, LONG)
    assert torch.equal(answer(made, FIRST, LONG).logits, once.logits)
    gradients_of(made, with_tokens=True)
    model.eval()
    again = answer(made, FIRST, LONG)
    assert torch.equal(again.logits, once.logits)
    assert same_scores(again.token_scores, once.token_scores)
    assert same_scores(again.layer_weights, once.layer_weights)
    assert hooks_of(model) == before


@every_squeeze
def test_layer_weights_are_padding_proof_and_between_0_and_1(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = model, _ = built(tiny, family, settings)
    shake(model, own=False)  # else each layer's mean is 0 from its normalisation, and every text's weights the same
    shake(model, own=True)  # else all layers' weights are 1/2, the neutral start
    together = answer(made, FIRST, LONG, "").layer_weights
    assert together.shape == (3, LAYERS)
    assert 0 < together.min() <= together.max() < 1
    for row, text in enumerate((FIRST, LONG, "")):
        torch.testing.assert_close(answer(made, text).layer_weights[0], together[row], atol=1e-5, rtol=0)
    assert together.std(dim=0).max() > 1e-4, "texts differ"
    assert together.std(dim=1).min() > 1e-3, "layers differ"


def test_every_gate_says_something_of_its_own(tiny: Tiny) -> None:
    """A setting that changed neither logits nor importance would be no setting."""
    seen: list[torch.Tensor] = []
    for gate in GATES:
        if gate.beta == 1.0 and gate.attention_threshold > 0:
            continue  # the tokens are not weighted, so the threshold is of no account
        output = answer(built(tiny, "bert", slots("cls", "last", gate)), FIRST, LONG)
        values = torch.cat([output.logits.flatten(), output.token_scores.flatten()])
        assert not [other for other in seen if torch.allclose(other, values, atol=1e-6)]
        seen.append(values)


@pytest.mark.parametrize("head", SINGLE_HEADS)
def test_every_head_and_selection_says_something_of_its_own(tiny: Tiny, head: str) -> None:
    """Two entries that give the same logits would be one entry under two names."""
    mixes = [built(tiny, "bert", slots(head, mix)) for mix in LAYER_MIXES]
    for model, _ in mixes:  # layers that are weighted by what is learned are their mean at first
        if model.layer_mix is not None and model.layer_mix.layer_weights is not None:
            model.layer_mix.layer_weights.data = torch.arange(LAYERS).float()
    seen = [logits_of(mix, FIRST, LONG) for mix in mixes]
    others = [other for other in SINGLE_HEADS if other != head]
    seen += [logits_of(built(tiny, "bert", slots(other, "last")), FIRST, LONG) for other in others]
    for place, logits_BC in enumerate(seen):
        assert not [other for other in seen[:place] if torch.allclose(other, logits_BC, atol=1e-6)]
