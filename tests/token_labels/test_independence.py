"""Labels are functions of weights, seed, epoch and row, however one asks."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from attentune.inference.scoring import score_rows
from attentune.token_labels import base
from attentune.token_labels.base import LabelSource
from helpers.label_sources import Tiny, generator, labels_of, tiny_source


def made_by(source: LabelSource) -> tuple[list[int], np.ndarray]:
    made = generator("flip", source, ratio=1.5).plan(2)
    return made.rows.tolist(), made.token_labels.values


def check_same(one: tuple[list[int], np.ndarray], other: tuple[list[int], np.ndarray]) -> None:
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1], abs=1e-6)


@pytest.mark.integration
def test_the_budget_of_a_batch_changes_no_label(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_source(tiny(), rows=24)
    usual = made_by(source)
    assert len(np.unique(usual[1])) > 2
    asked = []

    def score(*args: Any, batch_tokens: int, **options: Any) -> Any:
        asked.append(batch_tokens)
        return score_rows(*args, batch_tokens=batch_tokens, **options)

    for batch_tokens in (1, 70, 100000):
        monkeypatch.setattr(base, "score_rows", partial(score, batch_tokens=batch_tokens))
        check_same(made_by(source), usual)
    assert set(asked) == {1, 70, 100000}


@pytest.mark.integration
def test_the_state_of_global_generators_changes_no_label(tiny: Tiny) -> None:
    source = tiny_source(tiny(), rows=12)
    results = []
    for seed in range(2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        results.append(made_by(source))
    check_same(*results)


def test_a_model_in_training_is_asked_without_dropout_and_left_as_it_was(tiny: Tiny) -> None:
    source = tiny_source(tiny(), rows=16)
    model: Any = source.scorer.model
    weights = {key: weight.clone() for key, weight in model.state_dict().items()}
    usual = made_by(source)
    assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    model.train()
    check_same(made_by(source), usual)
    assert model.training
    assert all(torch.equal(weight, weights[key]) for key, weight in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_rows_labels_do_not_depend_on_the_rows_beside_it(tiny: Tiny) -> None:
    source = tiny_source(tiny(), rows=16)
    few = labels_of("flip", source)
    # The same encoder and classifier, and more rows.
    longer = tiny_source(tiny(), rows=24)
    longer.scorer.model.load_state_dict(source.scorer.model.state_dict())
    gold = np.concatenate([source.gold, longer.gold[16:]])
    more = labels_of("flip", replace(longer, gold=gold))
    assert more[: len(few)] == pytest.approx(few, abs=1e-6)
