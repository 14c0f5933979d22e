"""Scores that repeat, scores that follow the model, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.scorer import Settings
from attentune_lab.faithfulness.cost import PLAIN, measure_cost, of_length
from attentune_lab.faithfulness.measure import agreements
from attentune_lab.faithfulness.sanity import check_sanity, parts_from_the_head, shuffled_from_the_head
from helpers.tiny import FAMILIES
from helpers.tiny_runs import hooks_of, rows_for, tiny_run


def found(*scores: float) -> Attribution:
    return Attribution(np.array([0.0, *scores], dtype=np.float32), 0, np.zeros(2), 1, 0.0)


def test_agreement_of_scores() -> None:
    first = [found(1, 2, 3), found(1, 2, 3), found(1, 1), found(2, 2), found(5)]
    second = [found(2, 4, 9), found(3, 2, 1), found(1, 1), found(1, 3), found(5)]
    places = [np.arange(1, len(own.scores)) for own in first]
    taus, rhos = agreements(first, second, places)
    assert taus.tolist()[:4] == pytest.approx([1, -1, 1, 0])
    assert rhos.tolist()[:4] == pytest.approx([1, -1, 1, 0])
    assert np.isnan(taus[4])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_shuffled_once_from_the_head_down(tiny, family: str) -> None:
    model = tiny_run(tiny(family)).model
    parts = parts_from_the_head(model)
    names = [name for own in parts.values() for name in own]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    layers = 1 if family == "albert" else model.encoder.config.num_hidden_layers
    assert list(parts) == ["head", *(f"layer {layer}" for layer in range(layers, 0, -1)), "embeddings"]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    done: set[str] = set()
    for part, other in shuffled_from_the_head(model, 0):
        done |= set(parts[part])
        for name, weight in other.named_parameters():
            assert torch.equal(weight, before[name]) or name in done
            assert torch.equal(weight.flatten().sort().values, before[name].flatten().sort().values)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert any(not torch.equal(weight, before[name]) for name, weight in other.named_parameters())


def test_sanity_tells_methods_that_look_at_the_model_from_those_that_do_not(tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification").take([0, 3, 4])
    names = ("ssa", "gradient", "random")
    sanity = check_sanity(run, rows, methods=names, settings=Settings(steps=4))
    assert sanity.rows == 3
    assert [own.method for own in sanity.repeats] == list(names)
    for own in sanity.repeats:
        assert own.again.value == 1
        assert own.alone.value == pytest.approx(1, abs=0.05)
        assert own.precision is not None
        assert own.precision.value > 0.7
    parts = ["head", "layer 3", "layer 2", "layer 1", "embeddings"]
    taus = {(own.method, own.part): own.tau.value for own in sanity.shuffles}
    assert list(taus) == [(name, part) for name in names for part in parts]
    assert all(taus["random", part] == 1 for part in parts)
    assert taus["ssa", "embeddings"] < 0.6
    assert taus["gradient", "embeddings"] < 0.6
    assert hooks_of(run.model) == 0


def test_fp32_and_bf16_are_not_the_same_arithmetic(tiny) -> None:
    """What was asked in bf16 before answers in fp32 when fp32 is asked for, and the other way round."""
    run, rows = tiny_run(tiny()), rows_for("classification", 1)

    def scores(precision: str) -> np.ndarray:
        return Explainer(run, rows, precision=precision).attributions("gradient")[0].scores

    exact, rough = scores("fp32"), scores("bf16")
    assert np.abs(exact - rough).max() > 1e-4
    assert np.array_equal(scores("fp32"), exact)
    assert np.array_equal(scores("bf16"), rough)


@pytest.mark.parametrize("kind", ["classification", "pair", "bi-encoder"])
@pytest.mark.parametrize("tokens", [5, 16, 40])
def test_texts_of_a_length_are_of_that_length(tiny, kind: str, tokens: int) -> None:
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    scorer = Explainer(run, rows).scorer
    features = of_length(scorer.features, tokens, 3)
    assert features.lengths.tolist() == [tokens] * 3
    own = features.special[features.row(1)]
    assert own.sum() == scorer.features.special[scorer.features.row(0)].sum()
    assert own[0]
    assert not own[1]
    if kind == "bi-encoder":
        assert features.second_starts is not None
        assert features.second_starts.tolist() == [tokens - 2] * 3
    with scorer.evaluating():
        assert np.isfinite(replace(scorer, features=features).scores(np.arange(3)).logits_NC).all()


@pytest.mark.integration
def test_costs_are_counted_and_timed(tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification")
    lines = measure_cost(
        run,
        rows,
        methods=("ssa", "gradient", "leave-one-out", "integrated-gradients"),
        settings=Settings(steps=3),
        lengths=(8, 16, 512),
        batches=(1, 2),
        budget_s=0.2,
    )
    found = {(own.method, own.tokens, own.texts): own for own in lines}
    assert {(own.tokens, own.texts) for own in lines} == {(8, 1), (16, 1), (8, 2), (16, 2)}  # 512 is never read
    expected = {
        PLAIN: (1, 0, 2),
        "ssa": (1, 0, 2),
        "gradient": (1, 1, 4),
        "leave-one-out": (2, 0, 2 * (1 + 6)),
        "integrated-gradients": (None, None, 2 * (1 + 2 * 3)),
    }
    for name, (forward, backward, passes) in expected.items():
        own = found[name, 8, 2]
        if own.median_s is None:
            continue  # too slow on this machine
        assert own.passes == passes
        assert forward is None or (own.forward_calls, own.backward_calls) == (forward, backward)
        assert 0 < own.median_s <= own.p95_s
        assert own.repeats >= 1
    assert found[PLAIN, 8, 1].times_plain == 1


def test_what_would_take_too_long_is_left_out(tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification")
    lines = measure_cost(run, rows, methods=("leave-one-out", "ssa"), lengths=(8, 16), batches=(1,), budget_s=1e-9)
    found = {(own.method, own.tokens): own for own in lines}
    assert found["leave-one-out", 8].repeats == 1  # nothing was known of it
    assert found["leave-one-out", 16].median_s is None
    assert found["ssa", 16].median_s is not None
