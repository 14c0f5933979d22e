"""Scores that repeat, and scores that follow the model."""

import numpy as np
import pytest
import torch

from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.scorer import Settings
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
