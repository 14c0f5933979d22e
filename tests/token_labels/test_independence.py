"""Labels are functions of the weights and of (seed, epoch, row), not of how the model is asked."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from attentune.inference.scoring import score_rows
from attentune.token_labels import planner
from attentune.token_labels.base import LabelSource
from helpers.label_sources import Tiny, generator, labels_of, observe_rows, tiny_source

# A share of the rows, so that the choice of rows is a function of the key too.
CASES: dict[str, dict[str, Any]] = {
    "flip": {"ratio": 1.5},
    "drop": {"ratio": 1.5},
    "leave-one-out": {"ratio": 0.5},
    "released": {"aug_ratio_each": 0.3},
    "integrated-gradients": {"ratio": 0.5, "steps": 3},
    "lime": {"ratio": 0.5, "samples": 8},
}
every_case = pytest.mark.parametrize("name", CASES)


def made_by(name: str, source: LabelSource, *, epoch: int = 2) -> tuple[list[int], np.ndarray]:
    made = generator(name, source, **CASES[name]).plan(epoch)
    return made.rows.tolist(), made.token_labels.values


def check_same(one: tuple[list[int], np.ndarray], other: tuple[list[int], np.ndarray]) -> None:
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1], abs=1e-6)


@pytest.mark.integration
@every_case
def test_the_budget_of_a_batch_changes_no_label(tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_source(tiny(), rows=24)
    usual = made_by(name, source)
    assert len(np.unique(usual[1])) > 2
    asked = []

    def score(*args: Any, batch_tokens: int, **options: Any) -> Any:
        asked.append(batch_tokens)
        return score_rows(*args, batch_tokens=batch_tokens, **options)

    for batch_tokens in (1, 70, 100000):
        monkeypatch.setattr(planner, "score_rows", partial(score, batch_tokens=batch_tokens))
        check_same(made_by(name, source), usual)
    assert set(asked) == {1, 70, 100000}


@pytest.mark.integration
@every_case
def test_the_state_of_global_generators_changes_no_label(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=12)
    results = []
    for seed in range(2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        results.append(made_by(name, source))
    check_same(*results)


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out", "released"])
def test_a_model_in_training_is_asked_without_dropout_and_trained_on(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=16)
    usual = made_by(name, source)
    model: Any = source.scorer.model
    assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    model.train()
    check_same(made_by(name, source), usual)
    assert model.training


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out"])
def test_a_rows_labels_do_not_depend_on_the_rows_beside_it(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=16)
    few = labels_of(name, source)
    # The same encoder and classifier, and more rows.
    longer = tiny_source(tiny(), rows=24)
    longer.scorer.model.load_state_dict(source.scorer.model.state_dict())
    gold = np.concatenate([source.gold, longer.gold[16:]])
    more = labels_of(name, replace(longer, gold=gold))
    assert more[: len(few)] == pytest.approx(few, abs=1e-6)


def test_the_order_of_training_changes_no_label_of_the_gradient(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    results = []
    for rows in (np.arange(20), np.random.default_rng(0).permutation(20)):
        maker = generator("gradient", source, targets="soft")
        observe_rows(maker, rows)
        results.append(maker.plan(1).token_labels.values)
    assert results[0] == pytest.approx(results[1], abs=1e-5)
