"""`explain_texts`: what it returns for texts and pairs, what its JSON holds, and how it tells mistakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attentune
from attentune.config import load_config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.by_class import class_units
from attentune.explain.explainer import Explainer, answer_masked
from attentune.explain.explanation import Explanation
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Settings
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import ModelPredictor, predict
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiers import covering
from helpers.tiny_models import rows_of
from helpers.tiny_runs import KINDS, SPACES, TEXTS, rows_for, tiny_run

Tiny = Callable[..., Path]
QUICK: dict[str, Any] = {"samples": 8, "steps": 2}


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    overrides = settings(folder, tiny("bert"), preset="ssa-hybrid", training__num_train_epochs=1)
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "run"


def test_a_run_folder_is_explained(trained: Path) -> None:
    texts = ["the film was great", "a dull story, so awful", ""]
    found = attentune.explain_texts(trained, texts, method="ssa")
    assert [explanation.text for explanation in found] == texts
    assert all(isinstance(explanation, Explanation) for explanation in found)
    for explanation, said in zip(found, predict(trained, texts), strict=True):
        assert explanation.label == explanation.prediction == said["prediction"]
        assert explanation.probability == pytest.approx(said["probabilities"][said["prediction"]], abs=1e-4)
        assert (explanation.method, explanation.signed, explanation.passes) == ("ssa", False, 1)
        assert explanation.seconds > 0
        assert all(0 < token.score < 1 for token in explanation.tokens)
    assert [token.text for token in found[1].tokens] == ["a", "dull", "story", ",", "so", "awful"]
    assert found[2].tokens == ()


@pytest.mark.integration
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_lie_on_the_text_with_the_methods_scores(tiny: Tiny, name: str, kind: str) -> None:
    if name == "fast-shap" and kind == "bi-encoder":
        pytest.skip("a bi-encoder has no attribution head")
    run, rows = tiny_run(tiny(), kind, with_head=True), rows_for(kind)
    found = explain_texts(run, rows.texts, rows.pairs, method=name, level="token", **QUICK)
    explainer = Explainer(run, rows)
    plain = explainer.attributions(name, settings=Settings(samples=8, steps=2))
    for row, (explanation, attribution) in enumerate(zip(found, plain, strict=True)):
        own = {"text": rows.texts[row], "pair": rows.pairs[row] if rows.pairs else ""}
        assert explanation.tokens == explanation.pieces
        assert all(own[piece.within][piece.start : piece.end] == piece.text for piece in explanation.pieces)
        ordinary = explainer.scorer.features.non_special_positions(row)
        assert [piece.score for piece in explanation.pieces] == pytest.approx(
            attribution.scores[ordinary], rel=1e-4, abs=1e-6
        )
        assert explanation.signed == METHODS[name].signed
        assert (explanation.probability is None) == (kind == "regression")
        if kind == "regression":
            assert explanation.label == explanation.prediction == pytest.approx(float(attribution.logits[0]), abs=1e-5)
        else:
            assert explanation.label == SPACES[kind].names[attribution.target]


def test_json_is_as_promised(tiny: Tiny) -> None:
    run = tiny_run(tiny(), "pair")
    (explanation,) = explain_texts(run, ["Nobody plays."], ["unwatchable"], method="gradient", target="maybe")
    line = json.loads(json.dumps(explanation.to_dict()))
    assert list(line) == [
        "text", "pair", "method", "label", "probability", "prediction", "signed", "passes", "seconds", "level", "unit",
        "tokens",
    ]  # fmt: skip
    assert [list(token) for token in line["tokens"]] == [["text", "start", "end", "score", "in"]] * 4
    assert [(token["text"], token["start"], token["end"], token["in"]) for token in line["tokens"]] == [
        ("Nobody", 0, 6, "text"), ("plays", 7, 12, "text"), (".", 12, 13, "text"), ("unwatchable", 0, 11, "pair"),
    ]  # fmt: skip
    assert (line["text"], line["pair"], line["label"], line["passes"]) == ("Nobody plays.", "unwatchable", "maybe", 2)
    assert [token["score"] for token in line["tokens"]] == pytest.approx(
        [t.score for t in explanation.tokens], rel=1e-5
    )
    (single,) = explain_texts(tiny_run(tiny(), "regression"), ["Yes"], method="gradient")
    line = single.to_dict()
    assert (line["pair"], line["probability"]) == (None, None)
    assert list(line["tokens"][0]) == ["text", "start", "end", "score"]


@pytest.mark.parametrize("kind", ["classification", "pair", "regression", "multi_label"])
@pytest.mark.parametrize("method", ["fast-shap", "leave-one-out", "shap", "gradient"])
def test_what_is_predicted_without_a_word_is_measured(tiny: Tiny, kind: str, method: str) -> None:
    run = tiny_run(tiny(), kind, with_head=True)
    found = explained(run, kind, method)
    if method == "gradient":
        assert found.without is None
        return
    measured = [number for number, value in enumerate(found.without or ()) if value is not None]
    strongest = int(np.argmax([abs(word.score) for word in found.words]))
    assert measured == (list(range(len(found.words))) if method == "leave-one-out" else [strongest])
    assert found.passes == {"fast-shap": 1, "shap": 13}.get(method, found.passes)
    for number in measured:
        after = answer_masked(run, a_row(kind), [found.words[number]], precision="fp32").after
        expected = after.probabilities[str(found.label)] if after.probabilities else after.prediction
        assert found.without[number] == pytest.approx(expected, abs=1e-5)


def test_words_and_pieces_are_both_at_hand(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    for name in ("leave-one-out", "ssa"):
        (words,) = explain_texts(run, TEXTS[:1], method=name)
        (tokens,) = explain_texts(run, TEXTS[:1], method=name, level="token")
        assert words.words == words.tokens == tokens.words
        assert len(words.tokens) < len(tokens.tokens)
        own = [piece.score for piece in words.pieces if piece.start >= 16 and piece.end <= 27]
        assert len(own) > 2
        (word,) = [token for token in words.tokens if token.text == "unwatchable"]
        assert (word.score == pytest.approx(max(own))) == (name == "ssa")


def test_a_long_text_is_explained_as_far_as_it_is_read(tiny: Tiny) -> None:
    text = "the film " * 200
    (explanation,) = explain_texts(tiny_run(tiny(), max_length=16), [text], method="leave-one-out", level="token")
    assert explanation.text == text
    assert len(explanation.tokens) == 14
    assert explanation.passes == 15


def test_no_texts_have_no_explanations(tiny: Tiny) -> None:
    assert explain_texts(tiny_run(tiny()), []) == []
    with pytest.raises(ConfigError, match="method"):
        explain_texts(tiny_run(tiny()), [], method="sssa")


def test_bf16_gives_nearly_the_same(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    for name in ("ssa", "leave-one-out", "gradient", "attention", "integrated-gradients"):
        (full,), (half,) = (
            explain_texts(
                ModelPredictor(run.folder, run.config, run.label_space, run.model, run.tokenizer),
                TEXTS[:1],
                method=name,
                precision=precision,
            )
            for precision in ("fp32", "bf16")
        )
        one, other = (np.array([token.score for token in own.tokens]) for own in (full, half))
        assert np.abs(one - other).max() < 0.15 * np.abs(one).max()
        assert np.abs(one - other).max() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "leave-one-ou"}, "method: got 'leave-one-ou', .* fast-shap, ssa, .*Did you mean 'leave-one-out'"),
        ({"target": "goood"}, "target: got 'goood', expected .* the run's classes: bad, good. Did you mean 'good'?"),
        ({"target": ["good"]}, "target: got 1 classes for 2 texts; expected one for all, or one for each."),
        ({"level": "words"}, "level: got 'words', expected word or token. Did you mean 'word'?"),
        ({"steps": 0}, "steps: got 0, expected at least 1."),
        ({"samples": 0}, "samples: got 0, expected at least 1."),
        ({"contrast": "goood"}, "contrast: got 'goood', expected one of the run's classes: bad, good. Did you"),
        ({"contrast": "bad", "target": "bad"}, "contrast: got 'bad', which is the class to explain"),
    ],
)  # fmt: skip
def test_mistakes_are_told(tiny: Tiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain_texts(tiny_run(tiny()), TEXTS[:2], **options)
    if "contrast" in options:
        with pytest.raises(ConfigError, match="this run predicts a score and has no other class; leave it out"):
            explain_texts(tiny_run(tiny(), "regression"), ["a"], contrast="bad")


def test_texts_of_the_wrong_kind_are_refused(tiny: Tiny) -> None:
    single, pair = tiny_run(tiny()), tiny_run(tiny(), "pair")
    with pytest.raises(DataError, match="got pairs of texts, but .* was trained on single texts"):
        explain_texts(single, ["a"], ["b"])
    with pytest.raises(DataError, match="got single texts, but .* was trained on pairs"):
        explain_texts(pair, ["a"])
    with pytest.raises(DataError, match="got 1 texts and 2 second texts"):
        explain_texts(pair, ["a"], ["b", "c"])
    with pytest.raises(DataError, match=r"put it in \[brackets\]"):
        explain_texts(single, "a text")


# Each score of a word has a unit, which is true: checked for all methods and task types against plain loops.


ALL_KINDS = (*KINDS, "multi_label")
UNITS_QUICK: dict[str, Any] = {"samples": 12, "steps": 2}


@pytest.fixture(autouse=True)
def label_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPACES, "multi_label", LabelSpace("multi_label", ("late", "rude", "cold")))


def a_row(kind: str) -> TextRows:
    return rows_of(TEXTS[:1], [TEXTS[3]] if kind in ("pair", "bi-encoder") else None)


def explained(run: ModelPredictor, kind: str, method: str, **options: Any) -> Explanation:
    rows = a_row(kind)
    (found,) = explain_texts(run, rows.texts, rows.pairs, method=method, precision="fp32", **UNITS_QUICK, **options)
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
