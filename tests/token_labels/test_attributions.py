"""Integrated gradients and LIME: the same as plain loops, what they promise, and how they leave the model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attentune.errors import ConfigError
from attentune.plugins import install_command
from attentune.token_labels import attribution as attributions
from attentune.token_labels.base import LabelSource
from helpers.label_references import (
    answer,
    attribution_key,
    integrated_gradients,
    is_right,
    labels_of_scores,
    lime_weights,
    ordinary,
    row_loss,
)
from helpers.label_sources import KINDS, RecordingScorer, Tiny, generator, labels_of, tiny_source

NAMES = ("integrated-gradients", "lime")


def scores_of(name: str, source: LabelSource, row: int, key: int = 1, **settings: Any) -> np.ndarray:
    maker: Any = generator(name, source, **settings)
    return maker.attribute(row, source.scorer.inputs(row), key)


def loop_scores(name: str, source: LabelSource, row: int) -> np.ndarray:
    if name == "lime":
        return lime_weights(source, row, attribution_key(source, 1, row), samples=20)
    return integrated_gradients(source, row, steps=6)


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_labels_are_those_of_the_loop(tiny: Tiny, name: str, kind: str) -> None:
    source = tiny_source(tiny(), kind, rows=8)
    hard, soft = (np.full(len(source.features.ids), -1.0) for _ in range(2))
    right = [row for row in range(8) if is_right(source, row, answer(source, row))]
    assert len(right) == 6
    for row in right:
        scores = loop_scores(name, source, row)
        found = scores_of(name, source, row, attribution_key(source, 1, row), steps=6, samples=20)
        assert found == pytest.approx(scores, rel=1e-4, abs=1e-5)
        hard[source.features.row(row)] = labels_of_scores(scores, ordinary(source, row), soft=False)
        soft[source.features.row(row)] = labels_of_scores(scores, ordinary(source, row), soft=True)
    made = generator(name, source, steps=6, samples=20).plan(1)
    assert np.array_equal(made.token_labels.values, hard)
    assert labels_of(name, source, steps=6, samples=20, targets="soft") == pytest.approx(soft, abs=1e-4)
    assert made.facts == {"probed": 8, "correct": 6, "ones": (hard == 1).sum(), "zeros": (hard == 0).sum()}
    assert min(made.facts.values()) > 4


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_add_up_to_the_rise_of_the_loss(tiny: Tiny, kind: str) -> None:
    source = tiny_source(tiny(), kind, rows=6)
    rises = []
    for row in range(6):
        scores = scores_of("integrated-gradients", source, row, steps=60)
        rise = row_loss(source, row, answer(source, row, ordinary(source, row))) - row_loss(
            source, row, answer(source, row)
        )
        rises.append(float(rise))
        # |u - v| has kinks, near which the rule needs more points.
        assert scores.sum() == pytest.approx(rises[-1], abs=0.02 if kind == "bi-encoder" else 1e-4, rel=1e-4)
        special = source.features.special[source.features.row(row)]
        assert (scores[special] == 0).all()
    assert max(rises) > 1.0


def test_lime_is_a_function_of_seed_epoch_and_row(tiny: Tiny) -> None:
    source = tiny_source(tiny(), rows=8)
    first = labels_of("lime", source, targets="soft", samples=16)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert np.array_equal(labels_of("lime", source, targets="soft", samples=16), first)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left as it was
    assert not np.array_equal(labels_of("lime", source, targets="soft", samples=16, epoch=2), first)
    assert not np.array_equal(labels_of("lime", replace(source, seed=8), targets="soft", samples=16), first)
    one, again, other = (scores_of("lime", source, 2, key, samples=16) for key in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_processes_share_the_rows(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=8)
    whole = labels_of(name, source, targets="soft", steps=3, samples=8)
    parts = []
    for process in range(2):
        scorer = RecordingScorer(source.scorer)
        scorer.part = slice(process, None, 2)
        parts.append(labels_of(name, replace(source, scorer=scorer), targets="soft", steps=3, samples=8))
    assert not ((parts[0] >= 0) & (parts[1] >= 0)).any()
    assert (parts[1] >= 0).any()
    assert np.allclose(np.maximum(*parts), whole, atol=1e-6)  # asked in other batches, so up to rounding


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_left_as_it_was(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=6)
    model: Any = source.scorer.model
    weights = {key: weight.clone() for key, weight in model.state_dict().items()}
    expected = labels_of(name, source, targets="soft", steps=3, samples=8)
    model.train()  # dropout must not show
    assert labels_of(name, source, targets="soft", steps=3, samples=8) == pytest.approx(expected, abs=1e-6)
    assert model.training
    assert all(torch.equal(weight, weights[key]) for key, weight in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
def test_without_captum_the_message_says_what_to_install(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_source(tiny(), rows=2)
    monkeypatch.setattr(attributions.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError) as raised:
        generator(name, source)
    assert str(raised.value) == (
        f"labels.generator: {name} needs Captum, which is not installed; run: {install_command('explain')}"
    )
