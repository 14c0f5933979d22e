"""Labels of scores are those of plain loops, and functions of weights, seed, epoch and row, however one asks."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from attentune.inference.scoring import score_rows
from attentune.token_labels import planner
from attentune.token_labels.base import LabelSource
from helpers.label_references import (
    answer,
    attribution_key,
    integrated_gradients,
    is_right,
    labels_of_scores,
    lime_weights,
    ordinary,
    rise_scores,
    row_loss,
)
from helpers.label_sources import KINDS, RecordingScorer, Tiny, generator, labels_of, observe_rows, tiny_source
from helpers.tiers import leading

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


@every_case
def test_a_model_in_training_is_asked_without_dropout_and_left_as_it_was(tiny: Tiny, name: str) -> None:
    source = tiny_source(tiny(), rows=16)
    model: Any = source.scorer.model
    weights = {key: weight.clone() for key, weight in model.state_dict().items()}
    usual = made_by(name, source)
    assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    model.train()
    check_same(made_by(name, source), usual)
    assert model.training
    assert all(torch.equal(weight, weights[key]) for key, weight in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


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


# Integrated gradients and LIME: the same as plain loops, what they promise, and how they leave the model


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


# The first-order estimate of what masking a token does to the loss, and the labels made of it


ROWS = np.arange(20)


def loop_labels(source: LabelSource, rows: np.ndarray, *, soft: bool) -> np.ndarray:
    values = np.full(len(source.features.ids), -1.0)
    for row in map(int, rows):
        if is_right(source, row, answer(source, row)):
            values[source.features.row(row)] = labels_of_scores(
                rise_scores(source, row), ordinary(source, row), soft=soft
            )
    return values


@leading("kind", KINDS, fast=2)
def test_gradient_scores_and_labels_are_those_of_the_loop(tiny: Tiny, kind: str) -> None:
    source = tiny_source(tiny(), kind)
    hard, soft = (generator("gradient", source, targets=targets) for targets in ("hard", "soft"))
    for maker in (hard, soft):
        observe_rows(maker, ROWS)
    scores = np.concatenate([rise_scores(source, row) for row in range(20)])
    assert hard.tensors()["gradient_scores"] == pytest.approx(scores, abs=1e-5, rel=1e-4)
    assert scores.max() > 0.05
    assert scores.min() < -0.05
    made, softly = hard.plan(1), soft.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS, soft=False))
    assert softly.token_labels.values == pytest.approx(loop_labels(source, ROWS, soft=True), abs=1e-5)
    assert made.facts["probed"] == 20
    assert made.facts["correct"] == 15
    assert made.facts["ones"] > 10
    assert made.facts["zeros"] > 10


def test_batches_and_the_losss_denominator_change_no_label(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    plans = []
    for rows, batch_rows, factor in ((ROWS, 1, 1.0), (ROWS[::-1], 7, 1.0), (ROWS, 20, 0.125)):
        maker = generator("gradient", source, targets="soft")
        observe_rows(maker, rows, batch_rows=batch_rows, factor=factor)
        plans.append(maker.plan(1).token_labels.values)
    assert plans[1] == pytest.approx(plans[0], abs=1e-5)
    assert plans[2] == pytest.approx(plans[0], abs=1e-5)


def test_where_masking_moves_a_token_little_the_estimate_is_the_rise_itself(tiny: Tiny) -> None:
    # A first-order estimate is exact in the limit of small steps. All word embeddings are therefore drawn near to the
    # mask token's; left as they are, the layer norms alone bend the way to it so much that ranks need not agree.
    source = tiny_source(tiny())
    words = source.scorer.model.get_input_embeddings().weight
    with torch.no_grad():
        words.copy_(words[source.mask_token_id] + 0.02 * (words - words[source.mask_token_id]))
    maker = generator("gradient", source)
    observe_rows(maker, ROWS)
    scores = maker.tensors()["gradient_scores"]
    estimates, rises = [], []
    for row in range(20):
        before = float(row_loss(source, row, answer(source, row)))
        for place in ordinary(source, row):
            estimates.append(scores[source.features.starts[row] + place])
            rises.append(float(row_loss(source, row, answer(source, row, [place]))) - before)
    assert spearmanr(estimates, rises).statistic > 0.95
    assert np.polyfit(estimates, rises, 1)[0] == pytest.approx(1.0, abs=0.1)


def test_only_what_was_seen_since_the_last_plan_is_labelled(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    maker = generator("gradient", source)
    observe_rows(maker, ROWS[:9])
    made = maker.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS[:9], soft=False))
    assert made.facts["probed"] == 9
    nothing = maker.plan(2)
    assert nothing.token_labels is None
    assert nothing.facts["probed"] == 0
    assert nothing.facts["reason"].startswith("no sentence was probed")
    observe_rows(maker, ROWS[9:])
    later = maker.plan(3).token_labels.values
    assert np.array_equal(later, loop_labels(source, ROWS[9:], soft=False))


def test_an_overflowed_gradient_says_nothing(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    maker = generator("gradient", source, targets="soft")
    observe_rows(maker, ROWS, factor=float("nan"))
    assert (maker.tensors()["gradient_scores"] == 0).all()
    made = maker.plan(1)
    assert made.facts["ones"] == 0
    assert set(made.token_labels.values.tolist()) == {-1.0, 0.0}


def test_what_was_seen_goes_through_a_checkpoint(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    first, second = generator("gradient", source), generator("gradient", source)
    observe_rows(first, ROWS[:10])
    observe_rows(second, ROWS[15:])  # must be forgotten
    tensors = first.tensors()
    kept = {name: values.copy() for name, values in tensors.items()}
    second.restore(tensors)
    observe_rows(second, ROWS[10:15])
    assert all(np.array_equal(tensors[name], kept[name]) for name in kept)  # not changed through the restored one
    made = second.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS[:15], soft=False))
    assert made.facts["probed"] == 15


def test_of_several_processes_one_takes_what_was_saved(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    whole = generator("gradient", source)
    observe_rows(whole, ROWS)
    saved = whole.tensors()
    parts = []
    for process in range(2):
        scorer = RecordingScorer(source.scorer)
        scorer.part = slice(process, None, 2)
        maker = generator("gradient", replace(source, scorer=scorer))
        observe_rows(maker, ROWS[15:])  # must be forgotten
        maker.restore(saved)
        parts.append(maker.tensors())
    for name, values in saved.items():
        assert values.any()
        assert np.array_equal(parts[0][name] + parts[1][name], values)
