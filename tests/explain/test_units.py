"""Each score of a word has a unit, which is true: checked for all methods and task types against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentune.attribution.registry import METHODS
from attentune.data.dataset import LabelSpace, TextRows
from attentune.explain.by_class import class_units
from attentune.explain.explanation import Explanation
from attentune.explain.texts import explain_texts
from attentune.explain.words import word_spans
from attentune.inference.predictor import ModelPredictor, predict
from helpers.ensembles import saved_ensemble
from helpers.explain_runs import KINDS, SPACES, TEXTS, tiny_run
from helpers.tiers import covering
from helpers.tiny_models import rows_of

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


def masked_value(run: ModelPredictor, kind: str, places: list[int], label: str | float) -> float:
    """The log-odds of a label, or the score, of the first row with these tokens masked, from the model alone.

    log p / (1 - p) is the label's logit minus the logarithm of the others' exponentials, or in multi-label its logit.
    """
    rows = a_row(kind)
    pairs = () if rows.pairs is None else rows.pairs
    if kind == "bi-encoder":
        encoded = [run.tokenizer(text)["input_ids"] for text in (*rows.texts, *pairs)]
        ids = [*encoded[0], *encoded[1]]
        more = {"second_start": torch.tensor([len(encoded[0])])}
    else:
        batch = run.tokenizer(*rows.texts, *pairs)
        ids = list(batch["input_ids"])
        more = {"token_type_ids": torch.tensor([batch["token_type_ids"]])} if "token_type_ids" in batch else {}
    for place in places:
        ids[place] = run.tokenizer.mask_token_id
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        logits = run.model(**inputs, **more).logits[0].double().numpy()
    if kind == "regression":
        return float(logits[0])
    number = SPACES[kind].names.index(str(label))
    others = 1.0 if kind == "multi_label" else np.exp(np.delete(logits, number)).sum()
    return float(logits[number] - np.log(others))


def places_of(run: ModelPredictor, kind: str, explanation: Explanation) -> list[list[int]]:
    """The positions of each word's tokens, found by the tokenizer's own offsets."""
    rows = a_row(kind)
    sides = [("text", rows.texts[0])] + ([] if rows.pairs is None else [("pair", rows.pairs[0])])
    placed: list[tuple[int, str, int, int]] = []
    first = 0
    for number, (within, text) in enumerate(sides):
        offsets = run.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        # A pair that is read as one has no second [CLS].
        skip = 1 if number and kind != "bi-encoder" else 0
        placed += [(first - skip + n, within, start, end) for n, (start, end) in enumerate(offsets) if start < end]
        first += len(offsets)
    return [
        [place for place, within, start, end in placed if within == w.within and start < w.end and w.start < end]
        for w in explanation.words
    ]


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


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_leave_one_out_is_the_change_when_the_word_is_masked(tiny: Tiny, kind: str) -> None:
    run = tiny_run(tiny(), kind)
    found = explained(run, kind, "leave-one-out")
    falls = "it falls" if kind == "regression" else "they fall"
    assert found.unit == f"change of {quantity(kind, found.label)} when the word is left out (masked); +: {falls}"
    places = places_of(run, kind, found)
    assert max(map(len, places)) > 1
    whole = masked_value(run, kind, [], found.label)
    plain = [whole - masked_value(run, kind, own, found.label) for own in places]
    np.testing.assert_allclose([word.score for word in found.words], plain, rtol=1e-3, atol=2e-5)
    assert found.passes == 1 + sum(map(len, places)) + sum(len(own) > 1 for own in places)


@covering("kind, method", ALL_KINDS, ("shap", "integrated-gradients"))
def test_parts_add_up_to_the_change_when_all_words_are_masked(tiny: Tiny, kind: str, method: str) -> None:
    run, rows = tiny_run(tiny(), kind), a_row(kind)
    (found,) = explain_texts(run, rows.texts, rows.pairs, method=method, precision="fp32", samples=60, steps=300)
    assert f"of the change of {quantity(kind, found.label)} when all words are left out (masked)" in found.unit
    places = [place for own in places_of(run, kind, found) for place in own]
    change = masked_value(run, kind, [], found.label) - masked_value(run, kind, places, found.label)
    assert sum(word.score for word in found.words) == pytest.approx(change, rel=0.05, abs=0.02)


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
