"""Methods that share a difference out: what they add up to, exact Shapley values, and agreement on a linear model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attentune.explain.explainer import Explainer
from attentune.explain.scorer import Settings
from helpers import explain_references as loops
from helpers.explain_references import OneText
from helpers.tiny_models import rows_of
from helpers.tiny_runs import KINDS, rows_for, tiny_run

Tiny = Callable[..., Path]


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("integrated-gradients", Settings(steps=50), 1e-2),
        ("shap", Settings(samples=64), 2e-3),
    ],
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


@pytest.mark.integration
def test_default_samples_are_those_of_the_papers(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny()), rows_of(["great plot"])
    explainer = Explainer(run, rows)
    assert explainer.attributions("lime")[0].passes == 5001
    assert explainer.attributions("shap")[0].passes == 501
    assert explainer.attributions("integrated-gradients")[0].passes == 101


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
