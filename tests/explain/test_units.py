"""Each score of a word has a unit, which is true: checked for all methods and task types against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentune.data.dataset import LabelSpace, TextRows
from attentune.explain.by_class import class_units
from attentune.explain.explanation import Explanation, word_spans
from attentune.explain.methods import METHODS
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import ModelPredictor, predict
from helpers.tiers import covering
from helpers.tiny_models import rows_of
from helpers.tiny_runs import KINDS, SPACES, TEXTS, saved_ensemble, tiny_run

Tiny = Callable[..., Path]
ALL_KINDS = (*KINDS, "multi_label")
QUICK: dict[str, Any] = {"samples": 12, "steps": 2}


@pytest.fixture(autouse=True)
def label_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPACES, "multi_label", LabelSpace("multi_label", ("late", "rude", "cold")))


def a_row(kind: str) -> TextRows:
    return rows_of(TEXTS[:1], [TEXTS[3]] if kind in ("pair", "bi-encoder") else None)


def explained(run: ModelPredictor, kind: str, method: str, **options: Any) -> Explanation:
    rows = a_row(kind)
    (found,) = explain_texts(run, rows.texts, rows.pairs, method=method, precision="fp32", **QUICK, **options)
    return found


def quantity(kind: str, label: str | float) -> str:
    return "the score (in the units of the labels)" if kind == "regression" else f"the log-odds of {label}"


@covering("kind, method", ALL_KINDS, tuple(METHODS))
def test_every_method_and_task_type_has_a_unit(tiny: Tiny, kind: str, method: str) -> None:
    if (kind, method) == ("bi-encoder", "fast-shap"):
        return  # refused, as another test checks
    found = explained(tiny_run(tiny(), kind, with_head=True), kind, method)
    assert found.to_dict()["unit"] == found.unit
    assert (quantity(kind, found.label) in found.unit) == METHODS[method].explains_class
    assert ("fall" in found.unit) == METHODS[method].signed
    assert "{" not in found.unit
    scores = [token.score for token in found.words]
    if " from 0 to 1" in found.unit:
        assert 0 <= min(scores) <= max(scores) <= 1


def test_attention_with_special_tokens_adds_up_to_one(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    found = explained(run, "classification", "attention", level="token")
    run.model.encoder.set_attn_implementation("eager")
    with torch.no_grad():
        batch = run.tokenizer(TEXTS[0], return_tensors="pt")
        last_HUU = run.model.encoder(**batch, output_attentions=True).attentions[-1][0]
    shares = last_HUU[:, 0].mean(dim=0)
    assert float(shares.sum()) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose([token.score for token in found.tokens], shares[1:-1], atol=1e-5)
    assert found.unit.endswith("with special tokens the shares of all tokens add up to 1")


@pytest.mark.integration
def test_ensembles_delete_words(tiny: Tiny, tmp_path: Path) -> None:
    for kind in ("classification", "regression", "pair"):
        run = saved_ensemble(tmp_path / kind, tiny, kind)
        pairs = [TEXTS[3]] if kind == "pair" else None
        (found,) = explain_texts(run, TEXTS[:1], pairs, method="leave-one-out")
        assert f"change of {quantity(kind, found.label)} when the word is left out (deleted)" in found.unit
        start, end = word_spans(TEXTS[0])[2]
        texts = [TEXTS[0], TEXTS[0][:start] + TEXTS[0][end:]]
        values = []
        for one in predict(run, texts, None if pairs is None else pairs * 2):
            p = one["probabilities"][found.label] if kind != "regression" else 0.5
            values.append(one["prediction"] if kind == "regression" else np.log(p / (1 - p)))
        assert found.words[2].score == pytest.approx(values[0] - values[1], abs=1e-4)
    same = saved_ensemble(tmp_path / "same", tiny, members={"bert": 2, "electra": 1})
    (found,) = explain_texts(same, TEXTS[:1], method="gradient")
    assert "when the word is left out (masked, mean of the models, estimated by the gradient)" in found.unit


def test_a_contrast_is_named(tiny: Tiny) -> None:
    for kind, of in (
        ("pair", "the log-odds of no against yes"),
        ("multi_label", "the log-odds of late minus those of cold"),
    ):
        target, contrast = SPACES[kind].names[0], SPACES[kind].names[-1]
        found = explained(tiny_run(tiny(), kind), kind, "leave-one-out", target=target, contrast=contrast)
        assert of in found.unit


def test_words_by_class_have_the_unit_of_each_class(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    good = explained(run, "classification", "leave-one-out", target="good")
    units = class_units([good], SPACES["classification"])
    assert units == {"good": good.unit, "bad": f"minus the {good.unit}"}
    bad = explained(run, "classification", "leave-one-out", target="bad")
    assert class_units([good, bad], SPACES["classification"]) == {"good": good.unit, "bad": bad.unit}
