"""Contracts of every entry of every slot's table for bi-encoder pairs, alone and with the others.

Other rows of the batch, and padding of either text, change nothing; gradients are finite, reach both
texts and every slot; a saved model gives the same; evaluation repeats itself.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import pytest
import torch

from attentune.config import BlurConfig, HeadConfig, LayerMixConfig, ModelConfig, TokenGateConfig, load_config
from attentune.models.modeling import AttentuneOutput
from attentune.models.saving import load_model, save_model
from attentune.nn.blur import BLUR_PLACES
from attentune.nn.classifiers import COMBINATIONS
from attentune.nn.heads import HEADS
from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS
from attentune.nn.losses import token_label_sums
from helpers.tiers import diagonal, integration_unless
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, Built, build, encoded_apart

Tiny = Callable[..., Path]
SOME_FAMILIES = ("bert", "deberta-v2", "modernbert")
LAYERS = max(2, *MINIMUM_LAYERS.values()) + 1
# The first is short beside the second, the other way round, empty on one side, and on both.
PAIRS = ((FIRST, LONG), (LONG, SECOND), ("", FIRST), (SECOND, ""), ("", ""))


def heads() -> list[HeadConfig]:
    """Every kind under every combination, with blocks of every kind and start."""
    blocks = cycle([{"layers": 1}, {"layers": 2, "init": "uniform"}])
    made = [HeadConfig(kind, combine=combine, **next(blocks)) for kind, combine in product(sorted(HEADS), COMBINATIONS)]
    bare = [HeadConfig("cross-attention", bare=True, layers=layers, projection=7) for layers in (0, 1)]
    return [*made, *bare, HeadConfig("task-attention", attention_heads=1, combine="concat")]


def bi_encoder(head: HeadConfig, **slots: object) -> ModelConfig:
    return replace(ModelConfig(), pair_encoding="bi-encoder", head=head, **slots)


def name_of(settings: ModelConfig) -> str:
    head = settings.head
    parts = [head.kind, head.combine, f"{head.layers}-layers", "bare" * head.bare, settings.layer_mix.kind]
    parts += ["squeeze" * settings.layer_mix.squeeze, f"blur-{settings.blur.where}", settings.token_gate.kind]
    return "-".join(filter(None, parts))


def case(family: str, settings: ModelConfig) -> object:
    return pytest.param(family, settings, id=f"{family}-{name_of(settings)}")


PLAIN = [case(family, bi_encoder(head)) for family, head in zip(cycle(SOME_FAMILIES), heads())]
# Blurred, re-weighted layers under a token gate, with every head.
COMBINED = [
    case(
        family,
        bi_encoder(
            head,
            blur=BlurConfig(where, 0.5, learnable=learnable),
            layer_mix=LayerMixConfig(mix, squeeze),
            token_gate=TokenGateConfig("ssa", beta, share_weights, threshold),
        ),
    )
    for family, head, where, learnable, mix, (beta, share_weights, threshold, squeeze) in zip(
        cycle(SOME_FAMILIES),
        heads(),
        cycle(BLUR_PLACES),
        cycle(("no", "layer", "head")),
        cycle(reversed(LAYER_MIXES)),
        cycle([(0.5, True, 0.0, True), (0.5, False, 0.5, True), (0.2, False, 0.0, False)]),
    )
]
PAIR_PRESETS = ("task-attention", "bi-encoder-mean", "bi-encoder-cosine", "bi-encoder-concat")
FAST_PRESETS = diagonal(FAMILIES, PAIR_PRESETS)  # each family; each preset
PRESETS = [
    pytest.param(
        family,
        load_config(preset=name).model,
        id=f"{family}-preset-{name}",
        marks=integration_unless((family, name) in FAST_PRESETS),
    )
    for family, name in product(FAMILIES, PAIR_PRESETS)
]
every_case = pytest.mark.parametrize(("family", "settings"), PLAIN + COMBINED + PRESETS)
_BUILT: dict[tuple[str, ModelConfig], Built] = {}


def built(tiny: Tiny, family: str, settings: ModelConfig) -> Built:
    """A model whose slots are not as they begin; the first of its kind is kept to be copied."""
    key = (family, settings)
    if key not in _BUILT:
        model, tokenizer = build(tiny(family, layers=LAYERS), settings=settings, is_pair=True)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if not name.startswith("encoder."):
                    weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
        _BUILT[key] = model, tokenizer
    return copy.deepcopy(_BUILT[key][0]), _BUILT[key][1]


@torch.no_grad()
def answer(made: Built, *pairs: tuple[str, str]) -> AttentuneOutput:
    return made[0](**encoded_apart(made[1], *pairs))


def check_row(alone: AttentuneOutput, together: AttentuneOutput, row: int) -> None:
    torch.testing.assert_close(alone.logits[0], together.logits[row], atol=2e-5, rtol=2e-5)
    for name in ("token_scores", "token_logits"):
        one, all_of_them = getattr(alone, name), getattr(together, name)
        assert (one is None) == (all_of_them is None)
        if one is not None:
            length = one.shape[1]
            torch.testing.assert_close(one[0], all_of_them[row, :length], atol=2e-5, rtol=2e-5)
            assert not all_of_them[row, length:].any()
    if alone.layer_weights is not None:
        torch.testing.assert_close(alone.layer_weights[0], together.layer_weights[row], atol=1e-5, rtol=0)


@every_case
def test_neither_padding_nor_order_nor_company_changes_a_pair(tiny: Tiny, family: str, settings: ModelConfig) -> None:
    made = built(tiny, family, settings)
    together = answer(made, *PAIRS)
    assert together.logits.isfinite().all()
    for row, pair in enumerate(PAIRS):
        check_row(answer(made, pair), together, row)
    order = [3, 0, 4, 2, 1]
    for row, place in enumerate(order):
        turned = answer(made, *(PAIRS[number] for number in order))
        torch.testing.assert_close(turned.logits[row], together.logits[place], atol=2e-5, rtol=2e-5)
    # That this says something: the pairs differ, and one text of a pair makes a difference.
    assert (together.logits[0] - together.logits[1]).abs().max() > 1e-4
    other = answer(made, (FIRST, SECOND), (SECOND, LONG))
    assert (other.logits - together.logits[0]).abs().max(dim=1).values.min() > 1e-4


@every_case
def test_gradients_are_finite_and_reach_both_texts_and_every_slot(
    tiny: Tiny, family: str, settings: ModelConfig
) -> None:
    model, tokenizer = built(tiny, family, settings)
    inputs = encoded_apart(tokenizer, *PAIRS)
    looked_up = []
    handle = model.get_input_embeddings().register_forward_hook(lambda module, given, output: looked_up.append(output))
    model.train()
    output = model(**inputs, labels=torch.tensor([0, 1, 1, 0, 1]))
    handle.remove()
    assert output.loss.isfinite()
    # The scores themselves: cross-entropy has no gradient left where a score is far out.
    loss = (output.logits * torch.linspace(0.5, 1.5, output.logits.numel()).view_as(output.logits)).sum()
    if output.token_logits is not None:
        labels_BT = torch.full(inputs["input_ids"].shape, -1.0)
        labels_BT[:, 0], labels_BT[:, 1] = 1.0, 0.0
        loss = loss + token_label_sums(output.token_logits, labels_BT)[0]
    (at_tokens_BTE,) = torch.autograd.grad(loss, looked_up, retain_graph=True)
    loss.backward()
    assert at_tokens_BTE.shape[:2] == inputs["input_ids"].shape
    reached_BT = at_tokens_BTE.abs().sum(dim=-1) > 0
    begins_B = inputs["second_start"]
    for row, begin in enumerate(begins_B.tolist()):
        assert reached_BT[row, :begin].any()
        assert reached_BT[row, begin:].any()
    assert not reached_BT[inputs["attention_mask"] == 0].any()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    own = [name for name, _ in model.named_parameters() if not name.startswith("encoder.")]
    assert not [name for name in own if name not in gradients or not gradients[name].any()]


@every_case
def test_a_saved_model_gives_the_same_and_repeats_itself(
    tiny: Tiny, family: str, settings: ModelConfig, tmp_path: Path
) -> None:
    made = model, tokenizer = built(tiny, family, settings)
    save_model(model, tokenizer, tmp_path)
    before, again, after = answer(made, *PAIRS), answer(made, *PAIRS), answer(load_model(tmp_path), *PAIRS)
    for name in ("logits", "token_scores", "token_logits", "layer_weights"):
        expected = getattr(before, name)
        assert (expected is None) == (getattr(after, name) is None)
        if expected is not None:
            assert torch.equal(getattr(after, name), expected)
            assert torch.equal(getattr(again, name), expected)


@pytest.mark.integration
def test_every_head_says_something_of_its_own(tiny: Tiny) -> None:
    """Two settings that gave the same logits would be one under two names."""
    seen: list[torch.Tensor] = []
    for head in heads():
        logits_BC = answer(built(tiny, "bert", bi_encoder(head)), *PAIRS).logits
        assert not [other for other in seen if torch.allclose(other, logits_BC, atol=1e-6)]
        seen.append(logits_BC)
