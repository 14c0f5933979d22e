"""Every method is its formula, as a plain loop over single texts has it, whatever it is asked together with."""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attentune.config import HeadConfig
from attentune.config.schema import BlurConfig
from attentune.errors import ConfigError, UnsupportedEncoderError
from attentune.explain.explainer import Explainer
from attentune.explain.explanation import METHOD_NAMES
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Scorer, Settings
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import Predictor, predict_rows
from helpers import explain_references as loops
from helpers import tiny_runs
from helpers.explain_references import OneText
from helpers.tiers import covering, leading
from helpers.tiny import FAMILIES
from helpers.tiny_models import rows_of
from helpers.tiny_runs import KINDS, SPACES, hooks_of, rows_for

Tiny = Callable[..., Path]
tiny_run = functools.partial(tiny_runs.tiny_run, with_head=True)
SETTINGS = Settings(seed=3, steps=6, samples=24)
LOOPS: dict[str, Callable[[OneText], np.ndarray]] = {
    "fast-shap": loops.fast_shap,
    "ssa": loops.ssa,
    "gradient": loops.gradient,
    "integrated-gradients": lambda text: loops.integrated_gradients(text, SETTINGS.steps),
    "leave-one-out": loops.leave_one_out,
    "lime": lambda text: loops.lime(text, samples=24, seed=3),
    "attention": lambda text: loops.attention(text).mean(axis=1),
    "attention-gradient": lambda text: loops.attention(text, times_gradient=True).mean(axis=1),
    "random": lambda text: loops.random(text, 3),
}


def test_names_that_are_checked_without_pytorch_are_those_of_the_methods() -> None:
    assert tuple(METHODS) == METHOD_NAMES
    assert {*LOOPS, "shap"} == set(METHODS)  # SHAP comes near exact Shapley values instead


def scores_of(run: Predictor, name: str, rows: Any, **options: Any) -> list[np.ndarray]:
    found = Explainer(run, rows).attributions(name, settings=SETTINGS, **options)
    return [attribution.scores for attribution in found]


def close_to(expected: np.ndarray, rel: float = 5e-4) -> Any:
    """Equal up to this share of the highest score."""
    return pytest.approx(expected, rel=rel, abs=rel * float(np.abs(expected).max(initial=0.0)) + 1e-9)


@covering("name, kind", list(LOOPS), list(KINDS))
def test_scores_are_those_of_the_loop(tiny: Tiny, name: str, kind: str) -> None:
    if (name, kind) == ("fast-shap", "bi-encoder"):
        return  # a bi-encoder has no attribution head
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    found = Explainer(run, rows).attributions(name, settings=SETTINGS)
    texts = [OneText(run, rows, row) for row in range(len(rows))]
    for attribution, text in zip(found, texts, strict=True):
        assert attribution.scores == close_to(LOOPS[name](text))
        assert kind == "regression" or attribution.target == text.target
        assert attribution.scores.dtype == np.float32
    highest = max(float(np.abs(attribution.scores).max(initial=0.0)) for attribution in found)
    assert highest > 1e-3  # there is something to compare
    assert min(float(own.scores.min(initial=0.0)) for own in found) < 0 or not METHODS[name].signed


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gradient", "leave-one-out", "integrated-gradients", "attention-gradient", "shap"])
def test_another_class_can_be_explained(tiny: Tiny, name: str) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair")
    names = SPACES["pair"].names
    found = {label: scores_of(run, name, rows, target=label) for label in names}
    for place, label in enumerate(names):
        if name in LOOPS:
            assert found[label][0] == close_to(LOOPS[name](OneText(run, rows, 0, place)))
    assert found["no"][0] != close_to(found["yes"][0], rel=0.1)
    mixed = scores_of(run, name, rows, target=[names[row % 3] for row in range(len(rows))])
    for row, own in enumerate(mixed):
        assert own == close_to(found[names[row % 3]][row])


@pytest.mark.parametrize("name", METHODS)
def test_the_same_question_has_the_same_answer(tiny: Tiny, name: str) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 2)
    torch.manual_seed(1)
    first = scores_of(run, name, rows)
    after = torch.rand(3)
    torch.manual_seed(2)
    for own, other in zip(first, scores_of(run, name, rows), strict=True):
        assert np.array_equal(own, other)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)  # others' random numbers are left alone
    (other,) = Explainer(run, rows.take([0])).attributions(name, settings=replace(SETTINGS, seed=4))
    assert np.allclose(first[0], other.scores, rtol=1e-3) == (name not in ("lime", "shap", "random"))


@pytest.mark.integration
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["classification", "bi-encoder"])
def test_passes_are_those_that_were_made(tiny: Tiny, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (name, kind) == ("fast-shap", "bi-encoder"):
        return  # a bi-encoder has no attribution head
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    forward, backward = [], []
    classify = run.model.classify

    def watched(*words: Any) -> Any:
        logits, *others = classify(*words)
        forward.append(len(logits))
        if logits.requires_grad:
            logits.register_hook(lambda slope: backward.append(len(slope)))
        return logits, *others

    monkeypatch.setattr(run.model, "classify", watched)
    explainer = Explainer(run, rows)
    found = explainer.attributions(name, settings=SETTINGS)
    assert sum(attribution.passes for attribution in found) == sum(forward) + sum(backward)
    tokens = [len(explainer.scorer.features.non_special_positions(row)) for row in range(len(rows))]
    expected = {
        "fast-shap": lambda count: 1,
        "ssa": lambda count: 1,
        "attention": lambda count: 1,
        "random": lambda count: 1,
        "gradient": lambda count: 2,
        "attention-gradient": lambda count: 2,
        "leave-one-out": lambda count: 1 + count,
        "integrated-gradients": lambda count: 1 + 2 * SETTINGS.steps * (count > 0),
        "lime": lambda count: {0: 1, 1: 3}.get(count, 25),  # one token: what it adds is asked, not fitted
        "shap": lambda count: {0: 1, 1: 3}.get(count, 25),
    }[name]
    assert [attribution.passes for attribution in found] == [expected(count) for count in tokens]
    assert all(attribution.seconds > 0 for attribution in found)


@pytest.mark.integration
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_is_left_as_it_was(tiny: Tiny, name: str, implementation: str) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 2)
    model: Any = run.model
    explainer = Explainer(run, rows)
    expected = [own.scores for own in explainer.attributions(name, settings=SETTINGS)]
    model.encoder.set_attn_implementation(implementation)
    model.train()  # dropout must not show
    weights = {key: weight.clone() for key, weight in model.state_dict().items()}
    for own, other in zip(expected, explainer.attributions(name, settings=SETTINGS), strict=True):
        assert own == close_to(other.scores)
    assert model.training
    assert model.encoder.config._attn_implementation == implementation
    assert all(torch.equal(weight, weights[key]) for key, weight in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert hooks_of(model) == 0


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_left_behind_by_an_error(tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 1)
    explainer = Explainer(run, rows)
    run.model.encoder.set_attn_implementation("sdpa")
    run.model.train()

    def broken(*words: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(run.model, "classify", broken)
    with pytest.raises(ZeroDivisionError):
        explainer.attributions(name, settings=SETTINGS)
    assert hooks_of(run.model) == 0
    assert run.model.training
    assert run.model.encoder.config._attn_implementation == "sdpa"


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gradient", "attention", "attention-gradient", "integrated-gradients"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_explained(tiny: Tiny, name: str, family: str) -> None:
    run, rows = tiny_run(tiny(family), "pair"), rows_for("pair")
    for row, own in enumerate(scores_of(run, name, rows)):
        assert own == close_to(LOOPS[name](OneText(run, rows, row)))
        assert np.abs(own).max() > 1e-6 or not any((rows.texts[row], rows.pairs[row]))


@pytest.mark.parametrize("name", ["gradient", "leave-one-out", "attention-gradient"])
@pytest.mark.parametrize(
    "options",
    [
        {"head": HeadConfig(kind="cls")},
        {"head": HeadConfig(kind="self-attention", layers=1)},
        {"blur": BlurConfig(where="context", sigma=0.5)},
    ],
    ids=["cls", "self-attention", "blur"],
)
def test_other_slots_can_be_explained(tiny: Tiny, name: str, options: dict[str, Any]) -> None:
    run, rows = tiny_run(tiny(), gate=False, **options), rows_for("classification", 2)
    for row, own in enumerate(scores_of(run, name, rows)):
        assert own == close_to(LOOPS[name](OneText(run, rows, row)))


@pytest.mark.parametrize(
    ("name", "needs", "others"),
    [
        ("ssa", "a model that scores tokens, trained with a preset such as ssa-hybrid; this one does not", ""),
        (
            "fast-shap",
            "a head that is fitted to the run first: attentune explain RUN --fit; this run has none",
            "ssa, ",
        ),
    ],
)
def test_a_run_without_gate_or_head_is_told_what_works(
    tiny: Tiny, name: str, needs: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_runs.tiny_run(tiny(), gate=name != "ssa")
    with pytest.raises(ConfigError) as raised:
        Explainer(run, rows_for("classification", 1)).attributions(name)
    rest = "gradient, integrated-gradients, leave-one-out, lime, shap, attention, attention-gradient, random."
    assert str(raised.value) == f"method: {name} needs {needs}. Methods that work on it: {others}{rest}"
    explainer = Explainer(tiny_run(tiny()), rows_for("classification", 1))
    for hidden in (None, (), (None, None)):
        with monkeypatch.context() as patch:
            patch.setattr(Scorer, "forward", lambda *given, shown=hidden, **options: SimpleNamespace(attentions=shown))
            with pytest.raises(UnsupportedEncoderError, match="bert encoder does not return its attention weights, ex"):
                explainer.attributions("attention")
    monkeypatch.setitem(sys.modules, "captum", None)
    for without in ("integrated-gradients", "lime", "shap"):
        with pytest.raises(ConfigError, match=rf"method: {without}: needs captum, not installed"):
            explainer.attributions(without)
    explainer.attributions("gradient")


# Methods that share a difference out: what they add up to, exact Shapley values, and agreement on a linear model.


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [("integrated-gradients", Settings(steps=50), 1e-2), ("shap", Settings(samples=64), 2e-3)],
)
def test_scores_add_up_to_what_masking_all_tokens_takes(
    tiny: Tiny, kind: str, name: str, settings: Settings, error: float
) -> None:
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    if kind == "bi-encoder" and name == "integrated-gradients":
        settings = Settings(steps=400)  # |u - v| has kinks, which take more steps
    differences = []
    for row, found in enumerate(Explainer(run, rows).attributions(name, settings=settings)):
        text = OneText(run, rows, row)
        differences.append(text.asked() - text.asked(text.places))
        assert float(found.scores.sum()) == pytest.approx(differences[-1], abs=error)
    assert max(map(abs, differences)) > 0.3


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_shap_comes_near_exact_shapley_values(tiny: Tiny, kind: str) -> None:
    run, rows = tiny_run(tiny(), kind), rows_of(["the plot never moves !", "great, not dull"])
    few, many = (Explainer(run, rows).attributions("shap", settings=Settings(samples=count)) for count in (12, 3000))
    for row, found in enumerate(many):
        exact = loops.shapley(OneText(run, rows, row))
        span = float(np.ptp(exact))
        assert span > 0.05
        assert np.abs(found.scores - exact).max() < 0.05 * span
        assert np.abs(few[row].scores - exact).max() > np.abs(found.scores - exact).max()
    explainer = Explainer(run, rows_of(["great plot"]))  # the papers' numbers of samples by default
    passes = {name: explainer.attributions(name)[0].passes for name in ("lime", "shap", "integrated-gradients")}
    assert passes == {"lime": 5001, "shap": 501, "integrated-gradients": 101}


@pytest.mark.integration
def test_long_texts_are_asked_in_parts(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification")
    whole = Explainer(run, rows).attributions("integrated-gradients")
    monkeypatch.setattr("attentune.explain.gradient.BATCH_TOKENS", 70)
    sizes = []
    run.model.register_forward_pre_hook(lambda module, inputs: sizes.append(module) or None)
    parts = Explainer(run, rows).attributions("integrated-gradients")
    for own, other in zip(whole, parts, strict=True):
        assert own.scores == pytest.approx(other.scores, rel=1e-3, abs=1e-5)
        assert own.passes == other.passes
    assert len(sizes) > 60


# Why one class and not another: each method's scores are those of a plain loop with the difference of two logits.


CONTRAST_SETTINGS = Settings(seed=3, steps=6, samples=24, contrast="maybe")
MAYBE = 1


class Contrasted(OneText):
    """A row whose explained value is the logit of the target minus that of "maybe"."""

    def value(self, logits_C: Tensor) -> Tensor:
        return logits_C.double()[self.target] - logits_C.double()[MAYBE]


def other_than_maybe(logits_C: np.ndarray) -> int:
    best = max(range(3), key=lambda c: logits_C[c])
    return best if best != MAYBE else max((0, 2), key=lambda c: logits_C[c])


@leading("name", ["gradient", "leave-one-out", "integrated-gradients", "lime", "attention-gradient"], fast=2)
def test_contrasts_are_those_of_the_loop(tiny, name: str) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair")
    found = Explainer(run, rows).attributions(name, settings=CONTRAST_SETTINGS)
    logits_NC = predict_rows(run, rows)
    predicted = logits_NC.argmax(axis=1).tolist()
    assert MAYBE in predicted  # a row where the most likely other class is explained
    assert {*predicted} != {MAYBE}
    for row, attribution in enumerate(found):
        target = other_than_maybe(logits_NC[row])
        assert attribution.target == target
        expected = LOOPS[name](Contrasted(run, rows, row, target))
        most = float(np.abs(expected).max(initial=0.0))
        assert attribution.scores == pytest.approx(expected, rel=5e-4, abs=5e-4 * most + 1e-9)
    plain = Explainer(run, rows).attributions(name, settings=replace(CONTRAST_SETTINGS, contrast=None))
    assert not np.allclose(plain[0].scores, found[0].scores, rtol=1e-2)


def test_the_shares_of_shap_add_up_to_the_change_of_the_difference(tiny) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair", 1)
    (found,) = Explainer(run, rows).attributions("shap", target="yes", settings=replace(CONTRAST_SETTINGS, samples=300))
    text = Contrasted(run, rows, 0, 2)
    assert float(found.scores.sum()) == pytest.approx(text.asked() - text.asked(text.places), abs=2e-3)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.explains_class])
def test_methods_whose_scores_have_no_class_are_refused(tiny, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        explain_texts(tiny_run(tiny()), ["a"], method=name, contrast="bad")
    assert str(error.value) == (
        f"contrast: the scores of {name} do not depend on the class. Methods that do: fast-shap, gradient,"
        " integrated-gradients, leave-one-out, lime, shap, attention-gradient."
    )
