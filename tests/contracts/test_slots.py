"""What every entry of every slot's table owes, alone and with the others, for single texts and for bi-encoder pairs.

Neither padding nor other rows of a batch change anything; gradients are finite and reach every slot and text; a saved
model gives the same; no hook is left behind; evaluation repeats itself. A new entry is covered without a change here.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import count, cycle, product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attentune.config import (
    BlurConfig,
    HeadConfig,
    LayerMixConfig,
    ModelConfig,
    TokenGateConfig,
    load_config,
    model_preset_names,
)
from attentune.models.modeling import AttentuneOutput
from attentune.models.saving import load_model, save_model
from attentune.nn.blur import BLUR_PLACES, LEARNABLE
from attentune.nn.classifiers import COMBINATIONS
from attentune.nn.heads import HEADS, TOKEN_GATES
from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS
from attentune.nn.losses import token_label_sums
from helpers.tiers import diagonal, integration_unless
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, SINGLE_HEADS, Built, build, encoded, encoded_apart, logits_of

Tiny = Callable[..., Path]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# One of each kind of position: learned, relative, rotary.
SOME_FAMILIES = ("bert", "deberta-v2", "modernbert")
LAYERS = max(2, *MINIMUM_LAYERS.values()) + 1
TEXTS = (FIRST, LONG, "")
# The first is short beside the second, the other way round, empty on one side, and on both.
PAIRS = ((FIRST, LONG), (LONG, SECOND), ("", FIRST), (SECOND, ""), ("", ""))


# Settings of single texts

# Fresh importances lie around a half, so that this threshold parts them.
GATES = [
    TokenGateConfig(kind, beta, share_weights, threshold)
    for kind in TOKEN_GATES
    if kind != "none"
    for beta, share_weights, threshold in product((0.5, 1.0), (True, False), (0.0, 0.5))
]


def slots(head: str, layer_mix: str, gate: TokenGateConfig | None = None) -> ModelConfig:
    default = ModelConfig()
    head_of, mix_of = replace(default.head, kind=head), replace(default.layer_mix, kind=layer_mix)
    return replace(default, head=head_of, layer_mix=mix_of, token_gate=gate or default.token_gate)


def name_of(family: str, settings: ModelConfig) -> str:
    head, gate, blur = settings.head, settings.token_gate, settings.blur
    parts = [family, head.kind, settings.layer_mix.kind, "squeeze" * settings.layer_mix.squeeze]
    parts += [f"blur-{blur.where}-{blur.learnable}" * (blur.where != "none")]
    if gate.kind != "none":
        parts += [f"{gate.kind}-{gate.beta}-{'shared' if gate.share_weights else 'own'}-{gate.attention_threshold}"]
    if settings.pair_encoding == "bi-encoder":
        parts += ["pairs", head.combine, f"{head.layers}-layers", "bare" * head.bare]
    return "-".join(filter(None, parts))


def case(family: str, settings: ModelConfig, *, name: str = "", is_fast: bool = True) -> object:
    return pytest.param(family, settings, id=name or name_of(family, settings), marks=integration_unless(is_fast))


def sesame(place: int, where: str, learnable: str, kind: str = "last", *, squeeze: bool, gated: bool) -> object:
    """Blur, squeeze and gate on each kind of family and under each head, by turns; with all three they are fast."""
    family, head = SOME_FAMILIES[place % len(SOME_FAMILIES)], SINGLE_HEADS[place // 3 % len(SINGLE_HEADS)]
    plain = slots(head, kind, GATES[place % len(GATES)] if gated else None)
    blur = BlurConfig(where, 0.5, learnable=learnable)
    settings = replace(plain, blur=blur, layer_mix=LayerMixConfig(kind, squeeze))
    return case(family, settings, is_fast=gated)


def presets(*names: str, fast: str) -> list[object]:
    """Each family with each preset; the fast tier has one preset, with the families that no other case has."""
    models = {name: load_config(preset=name).model for name in names}
    return [
        case(family, model, name=f"{family}-preset-{name}", is_fast=name == fast and family not in SOME_FAMILIES)
        for family, (name, model) in product(FAMILIES, models.items())
    ]


GATED = [
    case(family, slots(head, mix, gate), is_fast=place == 3 * SOME_FAMILIES.index(family))
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
# Of the full product of families, heads and mixes the fast tier has each once.
FAST_CASES = diagonal(SOME_FAMILIES, SINGLE_HEADS, list(LAYER_MIXES))
CASES = [
    case(family, slots(head, mix), is_fast=(family, head, mix) in FAST_CASES)
    for family, head, mix in product(SOME_FAMILIES, SINGLE_HEADS, LAYER_MIXES)
]
PRESETS = presets(*model_preset_names(), fast="sesame")


# Settings of pairs


def heads() -> list[HeadConfig]:
    """Every kind under every combination, with blocks of every kind and start."""
    blocks = cycle([{"layers": 1}, {"layers": 2, "init": "uniform"}])
    made = [HeadConfig(kind, combine=combine, **next(blocks)) for kind, combine in product(sorted(HEADS), COMBINATIONS)]
    bare = [HeadConfig("cross-attention", bare=True, layers=layers, projection=7) for layers in (0, 1)]
    return [*made, *bare, HeadConfig("task-attention", attention_heads=1, combine="concat")]


def bi_encoder(head: HeadConfig, **others: object) -> ModelConfig:
    return replace(ModelConfig(), pair_encoding="bi-encoder", head=head, **others)


# Every fourth has every kind, combination and family; the last three are those outside the product.
PLAIN_PAIRS = [
    case(family, bi_encoder(head), is_fast=place % 4 == 0 or place >= len(heads()) - 3)
    for place, family, head in zip(count(), cycle(SOME_FAMILIES), heads())
]
# Blurred, re-weighted layers under a token gate, with every head.
COMBINED_PAIRS = [
    case(
        family,
        bi_encoder(
            head,
            blur=BlurConfig(where, 0.5, learnable=learnable),
            layer_mix=LayerMixConfig(mix, squeeze),
            token_gate=TokenGateConfig("ssa", beta, share_weights, threshold),
        ),
        is_fast=place % 7 == 0,
    )
    for place, family, head, where, learnable, mix, (beta, share_weights, threshold, squeeze) in zip(
        count(),
        cycle(SOME_FAMILIES),
        heads(),
        cycle(BLUR_PLACES),
        cycle(("no", "layer", "head")),
        cycle(reversed(LAYER_MIXES)),
        cycle([(0.5, True, 0.0, True), (0.5, False, 0.5, True), (0.2, False, 0.0, False)]),
    )
]
PAIR_PRESETS = presets(
    "task-attention", "bi-encoder-mean", "bi-encoder-cosine", "bi-encoder-concat", fast="task-attention"
)

SINGLE = CASES + GATED + BLURRED + SQUEEZED + COMBINED + PRESETS
# The presets of pairs take single texts, too; here they are given pairs.
EVERY = [(False, *one.values) for one in SINGLE] + [
    (True, *one.values) for one in PLAIN_PAIRS + COMBINED_PAIRS + PAIR_PRESETS
]
every_case = pytest.mark.parametrize(
    ("pairs", "family", "settings"),
    [
        pytest.param(*values, id=f"{one.id}{'-of-pairs' if values[0] else ''}", marks=one.marks)
        for values, one in zip(EVERY, SINGLE + PLAIN_PAIRS + COMBINED_PAIRS + PAIR_PRESETS, strict=True)
    ],
)
every_gate = pytest.mark.parametrize(("family", "settings"), GATED)
every_squeeze = pytest.mark.parametrize(
    ("family", "settings"), [one for one in SQUEEZED + COMBINED + PRESETS if one.values[1].layer_mix.squeeze]
)
every_family = pytest.mark.parametrize("family", FAMILIES)


_BUILT: dict[tuple[bool, str, ModelConfig], Built] = {}


def built(tiny: Tiny, family: str, settings: ModelConfig, *, pairs: bool = False) -> Built:
    """A fresh model, or one of pairs whose slots are not as they begin; the first of its kind is kept to be copied."""
    key = (pairs, family, settings)
    if key not in _BUILT:
        _BUILT[key] = build(tiny(family, layers=LAYERS), settings=settings, is_pair=pairs)
        if pairs:
            shake(_BUILT[key][0], own=True, by=0.2)
    return copy.deepcopy(_BUILT[key][0]), _BUILT[key][1]


@torch.no_grad()
def shake(model: nn.Module, *, own: bool, by: float = 0.3) -> None:
    """Move the weights of the slots, or those of the encoder's normalisations, away from where they begin."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if not name.startswith("encoder.") if own else "norm" in name.lower():
            weight.add_(by * torch.randn(weight.shape, generator=generator))


def hooks_of(model: nn.Module) -> dict[str, list[object]]:
    """Every hook, by where it stands."""
    parts = product(model.named_modules(), HOOKS)
    return {f"{name}.{kind}": list(getattr(module, kind).values()) for (name, module), kind in parts}


def batch_of(made: Built, *rows: str | tuple[str, str]) -> dict[str, Tensor]:
    """These texts, or pairs that are read apart, as one batch."""
    return encoded_apart(made[1], *rows) if isinstance(rows[0], tuple) else encoded(made[1], *rows)


@torch.no_grad()
def answer(made: Built, *rows: str | tuple[str, str]) -> AttentuneOutput:
    """What the model says of these rows as one batch."""
    return made[0](**batch_of(made, *rows))


def assert_equal(first: AttentuneOutput, second: AttentuneOutput) -> None:
    for name in ("logits", "token_scores", "token_logits", "layer_weights"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other), name


def check_row(alone: AttentuneOutput, together: AttentuneOutput, row: int, *, pairs: bool = False) -> None:
    """A row by itself is what it is in a batch, and tokens at padding are of no importance."""
    close = {"atol": 2e-5, "rtol": 2e-5} if pairs else {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(alone.logits[0], together.logits[row], **close)
    for name in ("token_scores", "token_logits"):
        one, all_of_them = getattr(alone, name), getattr(together, name)
        assert (one is None) == (all_of_them is None)
        if one is not None:
            torch.testing.assert_close(one[0], all_of_them[row, : one.shape[1]], **close)
    if alone.token_scores is not None:
        assert not together.token_scores[row, alone.token_scores.shape[1] :].any()
    if alone.layer_weights is not None:
        torch.testing.assert_close(alone.layer_weights[0], together.layer_weights[row], atol=1e-5, rtol=0)


@every_case
def test_neither_padding_nor_order_nor_company_changes_a_row(tiny, pairs, family, settings):
    made, rows = built(tiny, family, settings, pairs=pairs), PAIRS if pairs else TEXTS
    together = answer(made, *rows)
    assert together.logits.isfinite().all()
    turned = answer(made, *rows[::-1])
    for row, one in enumerate(rows):
        alone = answer(made, one)
        check_row(alone, together, row, pairs=pairs)
        check_row(alone, turned, len(rows) - 1 - row, pairs=pairs)
    # That this says something: the rows differ, and so do their logits and their tokens' importance.
    assert (together.logits[0] - together.logits[1]).abs().max() > (1e-4 if pairs else 5e-5)
    assert (together.token_scores is None) == (settings.token_gate.kind == "none")
    if together.token_scores is not None:
        assert together.token_scores[1].std() > 1e-4
    if pairs:
        other = answer(made, (FIRST, SECOND), (SECOND, LONG))
        assert (other.logits - together.logits[0]).abs().max(dim=1).values.min() > 1e-4
    else:  # pairs that are read as one
        model, tokenizer = made
        read = dict(tokenizer([FIRST, LONG], [SECOND, LONG], padding=True, return_tensors="pt"))
        with torch.no_grad():
            check_row(model(**tokenizer([FIRST], [SECOND], return_tensors="pt")), model(**read), 0)


def gradients_of(made: Built, *rows: str | tuple[str, str], with_tokens: bool = True) -> dict[str, Tensor]:
    """The gradients of a loss of these rows by name; of tokens every other one is labelled, 0 and 1 in turn."""
    model, inputs = made[0].train(), batch_of(made, *rows)
    output, mask_BT = model(**inputs, labels=torch.tensor([0, 1, 1, 0, 1][: len(rows)])), inputs["attention_mask"]
    assert output.loss.isfinite()
    # The scores of pairs themselves: cross-entropy has no gradient left where a score is far out.
    spread = torch.linspace(0.5, 1.5, output.logits.numel()).view_as(output.logits)
    loss = (output.logits * spread).sum() if isinstance(rows[0], tuple) else output.loss
    if with_tokens and output.token_logits is not None:
        labels_BT = torch.tensor([0.0, -1.0, 1.0, -1.0]).repeat(mask_BT.shape[1])[: mask_BT.shape[1]]
        labels_BT = labels_BT.masked_fill(mask_BT == 0, -1.0)
        loss = loss + token_label_sums(output.token_logits, labels_BT)[0] / (labels_BT >= 0).sum()
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@every_case
def test_gradients_are_finite_and_reach_every_text_and_every_slot(tiny, pairs, family, settings):
    made, rows = built(tiny, family, settings, pairs=pairs), PAIRS if pairs else TEXTS
    looked_up: list[Tensor] = []

    def keep(module: nn.Module, given: object, output: Tensor) -> None:
        output.retain_grad()
        looked_up.append(output)

    handle = made[0].get_input_embeddings().register_forward_hook(keep)
    gradients = gradients_of(made, *rows)
    handle.remove()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    inputs, reached_BT = batch_of(made, *rows), looked_up[0].grad.abs().sum(dim=-1) > 0
    begins = inputs["second_start"].tolist() if pairs else [0] * len(rows)
    for row, begin in enumerate(begins):
        assert reached_BT[row, begin:].any()
        assert not begin or reached_BT[row, :begin].any()
    assert not reached_BT[inputs["attention_mask"] == 0].any()
    own = {name for name, _ in made[0].named_parameters() if not name.startswith("encoder.")}
    assert not [name for name in own if name not in gradients or not gradients[name].any()]
    assert any(name.startswith("token_gate.") for name in own) == (settings.token_gate.kind != "none")


@every_case
def test_a_saved_model_gives_the_same(tiny, pairs, family, settings, tmp_path):
    made, rows = built(tiny, family, settings, pairs=pairs), PAIRS if pairs else TEXTS
    shake(made[0], own=True)  # no slot's weights as they are drawn
    save_model(*made, tmp_path)
    assert_equal(answer(load_model(tmp_path), *rows), answer(made, *rows))


@every_case
def test_evaluation_repeats_itself_and_the_blurs_hooks_are_the_only_ones(tiny, pairs, family, settings):
    made, rows = built(tiny, family, settings, pairs=pairs), PAIRS if pairs else TEXTS
    model = made[0]
    own = [hook for hooks in hooks_of(model).values() for hook in hooks]
    a_layer = {"none": 0, "scores": 2}.get(settings.blur.where, 1)
    assert len(own) == a_layer * (1 if family == "albert" else LAYERS)  # ALBERT's layers are one
    assert all(hook.__self__ is model.blur_hooks for hook in own)
    with torch.no_grad():  # on its first such call transformers puts hooks of its own on an encoder, and keeps them
        model(**batch_of(made, *rows), output_hidden_states=True)
    before, once = hooks_of(model), answer(made, *rows)
    assert_equal(answer(made, *rows), once)
    gradients_of(made, *rows)
    model.eval()
    assert_equal(answer(made, *rows), once)
    assert hooks_of(model) == before


@every_gate
def test_a_gate_learns_from_the_tasks_loss_unless_beta_is_1(tiny, family, settings):
    made = built(tiny, family, settings)
    gradients = gradients_of(made, *TEXTS, with_tokens=False)
    own = [name for name, _ in made[0].named_parameters() if name.startswith("token_gate.")]
    reached = [name for name in own if name in gradients and gradients[name].abs().sum() > 0]
    assert reached == ([] if settings.token_gate.beta == 1.0 else own)


@every_gate
def test_with_beta_1_logits_are_those_without_a_gate(tiny, family, settings):
    made = built(tiny, family, settings)
    plain = built(tiny, family, replace(settings, token_gate=TokenGateConfig("none")))
    assert plain[0].token_gate is None
    weights = {name: weight for name, weight in made[0].state_dict().items() if not name.startswith("token_gate.")}
    plain[0].load_state_dict(weights)  # strict: a gate is all that is between them
    gated, ungated = answer(made, FIRST, LONG), answer(plain, FIRST, LONG)
    assert torch.equal(gated.logits, ungated.logits) == (settings.token_gate.beta == 1.0)
    assert ungated.token_scores is None
    assert ungated.token_logits is None


@every_squeeze
def test_layer_weights_are_padding_proof_and_between_0_and_1(tiny, family, settings):
    made = model, _ = built(tiny, family, settings)
    shake(model, own=False)  # else each layer's mean is 0 from its normalisation, and every text's weights the same
    shake(model, own=True)  # else all layers' weights are 1/2, the neutral start
    together = answer(made, *TEXTS).layer_weights
    assert together.shape == (3, LAYERS)
    assert 0 < together.min() <= together.max() < 1
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(answer(made, text).layer_weights[0], together[row], atol=1e-5, rtol=0)
    assert together.std(dim=0).max() > 1e-4, "texts differ"
    assert together.std(dim=1).min() > 1e-3, "layers differ"


# Two entries that gave the same would be one under two names


def assert_all_differ(seen: list[Tensor]) -> None:
    for place, one in enumerate(seen):
        assert not [other for other in seen[:place] if torch.allclose(other, one, atol=1e-6)]


def test_every_gate_says_something_of_its_own(tiny):
    outputs = [
        answer(built(tiny, "bert", slots("cls", "last", gate)), FIRST, LONG)
        for gate in GATES
        if gate.beta < 1.0 or not gate.attention_threshold  # at beta 1 the threshold is of no account
    ]
    assert_all_differ([torch.cat([output.logits.flatten(), output.token_scores.flatten()]) for output in outputs])


@pytest.mark.parametrize(
    "head", [pytest.param(head, marks=integration_unless(head == SINGLE_HEADS[0])) for head in SINGLE_HEADS]
)
def test_every_head_and_selection_says_something_of_its_own(tiny, head):
    mixes = [built(tiny, "bert", slots(head, mix)) for mix in LAYER_MIXES]
    for model, _ in mixes:  # layers that are weighted by what is learned are their mean at first
        if model.layer_mix is not None and model.layer_mix.layer_weights is not None:
            model.layer_mix.layer_weights.data = torch.arange(LAYERS).float()
    others = [built(tiny, "bert", slots(other, "last")) for other in SINGLE_HEADS if other != head]
    assert_all_differ([logits_of(one, FIRST, LONG) for one in [*mixes, *others]])


@pytest.mark.integration
def test_every_head_of_pairs_says_something_of_its_own(tiny):
    made = [built(tiny, "bert", bi_encoder(head), pairs=True) for head in heads()]
    assert_all_differ([answer(one, *PAIRS).logits for one in made])


# Before training: drawn as released programs draw them, and nothing at all where they are off


@pytest.mark.integration
@every_family
def test_fresh_excitation_is_that_of_the_released_program(tiny, family):
    """Biases of 0.8, and weights far wider than the 0.02 of the other slots."""
    model, _ = build(tiny(family, layers=9), settings=load_config(preset="sesame-original").model)
    for linear in (model.layer_mix.excitation.squeeze, model.layer_mix.excitation.excite):
        assert linear.bias.unique().tolist() == [pytest.approx(0.8)]
        assert 0.6 < linear.weight.std() / (2 / linear.in_features) ** 0.5 < 1.5
    assert model.classifier.weight.std() < 0.05


@pytest.mark.integration
@pytest.mark.parametrize("head", SINGLE_HEADS)
@every_family
def test_slots_that_are_off_leave_the_encoder_as_it_is(tiny, family, head):
    """Whatever else is set: neither weights nor hooks, and the head is given the encoder's own output."""
    off = {"blur": BlurConfig("none", 9.0, 7, "1", "head"), "layer_mix": LayerMixConfig("last", False, 5)}
    model, tokenizer = build(tiny(family), head=HeadConfig(head), **off)
    assert {name.split(".")[0] for name, _ in model.named_parameters()} <= {"encoder", "head", "classifier"}
    assert not any(hooks_of(model).values())
    inputs = encoded(tokenizer, FIRST, LONG)
    with torch.no_grad():
        output = model(**inputs)
        hidden_BTD = model.encoder(**inputs).last_hidden_state
        logits_BC, _, _ = model.classify(hidden_BTD, inputs["input_ids"], inputs["attention_mask"].bool())
    assert torch.equal(output.logits, logits_BC)
    assert output.layer_weights is None
