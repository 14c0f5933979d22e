"""`explain_texts` for texts, pairs and all kinds of runs: results, JSON, units, heads, and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import attentune
from attentune.config import load_config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.by_class import class_units
from attentune.explain.explainer import Explainer, answer_masked
from attentune.explain.explanation import Explanation, Subword
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Settings
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import ModelPredictor, Predictor, predict, predict_rows
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiers import covering
from helpers.tiny_models import rows_of
from helpers.tiny_runs import KINDS, SPACES, TEXTS, rows_for, saved_ensemble, tiny_run

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))

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


def test_a_large_score_keeps_its_digits(tiny: Tiny) -> None:
    run = tiny_run(tiny(), "regression")
    run.model.config.score_mean = 1234567.89
    (explanation,) = explain_texts(run, ["Yes"], method="gradient")
    assert explanation.label == round(predict(run, ["Yes"])[0]["prediction"], 6)


@covering(
    "kind, method",
    ["classification", "pair", "regression", "multi_label"],
    ["leave-one-out", "fast-shap", "shap", "gradient"],
)
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
        _, after, _ = answer_masked(run, a_row(kind), [found.words[number]], precision="fp32")
        expected = after["probabilities"][str(found.label)] if "probabilities" in after else after["prediction"]
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
    text = "the film " * 200  # is explained as far as it is read
    (long,) = explain_texts(tiny_run(tiny(), max_length=16), [text], method="leave-one-out", level="token")
    assert (long.text, len(long.tokens), long.passes) == (text, 14, 15)


def test_bf16_gives_nearly_the_same(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    for name in ("ssa", "leave-one-out", "gradient", "attention", "integrated-gradients"):
        (full,), (half,) = (
            explain_texts(run, TEXTS[:1], method=name, precision=precision) for precision in ("fp32", "bf16")
        )
        assert explain_texts(run, TEXTS[:1], method=name, precision="fp32")[0].tokens == full.tokens
        one, other = (np.array([token.score for token in own.tokens]) for own in (full, half))
        assert np.abs(one - other).max() < 0.15 * np.abs(one).max()
        assert np.abs(one - other).max() > 0


@pytest.mark.parametrize(("options", "message"), MISTAKES["texts"])
def test_mistakes_are_told(tiny: Tiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain_texts(tiny_run(tiny()), TEXTS[:2], **options)


def test_a_score_has_no_other_class_and_no_texts_need_a_method_that_exists(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="this run predicts a score and has no other class; leave it out"):
        explain_texts(tiny_run(tiny(), "regression"), ["a"], contrast="bad")
    assert explain_texts(tiny_run(tiny()), []) == []
    with pytest.raises(ConfigError, match="method"):
        explain_texts(tiny_run(tiny()), [], method="sssa")


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
    # The same in words, with the figures of the strongest word.
    strongest = max(found.words, key=lambda word: abs(word.score))
    size, added, of = f"{abs(strongest.score):.3g}", strongest.score > 0, quantity(kind, found.label)
    said = {
        True: f"leaving it out {'lowers' if added else 'raises'} {of} by {size}",
        False: f"it adds {size} to {of}" if added else f"it takes {size} from {of}",
    }[found.unit.startswith("change of ")]
    start = f"\u201c{strongest.text}\u201d {strongest.score:+.3g}: {said}"
    assert found.in_words().startswith(start) if METHODS[method].signed else found.in_words() == ""
    scores = [token.score for token in found.words]
    if " from 0 to 1" in found.unit:
        assert 0 <= min(scores) <= max(scores) <= 1
    contrasts = {"pair": "the log-odds of no against yes", "multi_label": "the log-odds of late minus those of cold"}
    if method == "leave-one-out" and kind in contrasts:
        target, contrast = SPACES[kind].names[0], SPACES[kind].names[-1]
        assert contrasts[kind] in explained(tiny_run(tiny(), kind), kind, method, target=target, contrast=contrast).unit


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


def test_words_by_class_have_the_unit_of_each_class(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    good = explained(run, "classification", "leave-one-out", target="good")
    units = class_units([good], SPACES["classification"])
    assert units == {"good": good.unit, "bad": f"minus the {good.unit}"}
    bad = explained(run, "classification", "leave-one-out", target="bad")
    assert class_units([good, bad], SPACES["classification"]) == {"good": good.unit, "bad": bad.unit}


# Explanations of ensembles and baselines: deleted words.


TEXT, PAIR = "Nobody plays, nobody!", "The plot  never moves"


@pytest.fixture(scope="module")
def ensembles(tiny, tmp_path_factory) -> dict[str, Predictor]:
    home = tmp_path_factory.mktemp("runs")
    kinds = ("classification", "pair", "regression")
    return {kind: Predictor.load(saved_ensemble(home / kind, tiny, kind)) for kind in kinds}


def log_odds(run: Predictor, text: str, pair: str | None = None) -> np.ndarray:
    logits_C = predict_rows(run, rows_of([text], None if pair is None else [pair]))[0].astype(float)
    others = [np.logaddexp.reduce(np.delete(logits_C, k)) for k in range(len(logits_C))] if len(logits_C) > 1 else [0.0]
    return logits_C - others


def test_leave_one_out_deletes_words(ensembles):
    (found,) = explain_texts(ensembles["classification"], [TEXT], target="good")
    whole = log_odds(ensembles["classification"], TEXT)[1]
    without = [" plays, nobody!", "Nobody , nobody!", "Nobody plays nobody!", "Nobody plays, !", "Nobody plays, nobody"]
    assert [token.text for token in found.tokens] == ["Nobody", "plays", ",", "nobody", "!"]
    for token, rest in zip(found.tokens, without, strict=True):
        assert token.score == pytest.approx(whole - log_odds(ensembles["classification"], rest)[1], abs=1e-5)
    assert (found.method, found.label, found.signed, found.passes) == ("leave-one-out", "good", True, 6 * 3)
    shares = [predict(ensembles["classification"], [rest])[0]["probabilities"]["good"] for rest in without]
    assert found.without == pytest.approx(shares, abs=1e-5)
    assert [(token.start, token.end) for token in found.tokens] == [(0, 6), (7, 12), (12, 13), (14, 20), (20, 21)]


def test_words_of_both_texts_of_a_pair(ensembles):
    run = ensembles["pair"]
    (found,) = explain_texts(run, ["A cat sat"], [PAIR], target="yes")
    assert [(token.text, token.within) for token in found.tokens] == [
        *((word, "text") for word in ("A", "cat", "sat")), *((word, "pair") for word in PAIR.split()),
    ]  # fmt: skip
    expected = log_odds(run, "A cat sat", PAIR) - log_odds(run, "A cat sat", "The plot  never ")
    assert found.tokens[-1].score == pytest.approx(expected[2], abs=1e-5)
    (against,) = explain_texts(run, ["A cat sat"], [PAIR], target="yes", contrast="no", method="leave-one-out")
    whole, less = (predict_rows(run, rows_of([text], [PAIR]))[0] for text in ("A cat sat", "A  sat"))
    assert against.tokens[1].score == pytest.approx((whole[2] - whole[0]) - (less[2] - less[0]), abs=1e-5)
    assert against.to_dict()["contrast"] == "no"


def test_methods_of_one_model_are_refused(ensembles):
    for method in ("ssa", "gradient"):
        refusal = rf"{method} looks into one model, .*\(ensemble of 2\)\. Methods .* leave-one-out, lime"
        with pytest.raises(ConfigError, match=refusal):
            explain_texts(ensembles["classification"], [TEXT], method=method)
    with pytest.raises(ConfigError, match="level: got token, but lime deletes whole words"):
        explain_texts(ensembles["classification"], [TEXT], method="lime", level="token")
    assert explain_texts(ensembles["classification"], []) == []


def test_a_masked_word_is_deleted(ensembles):
    saved, rows = ensembles["classification"], rows_of([TEXT])
    before, after, tokens = answer_masked(saved, rows, [Subword("plays", 7, 12, 0.0)])
    _, plain, _ = answer_masked(saved, rows, [])
    assert (tokens, before["prediction"]) == ([1], plain["prediction"])
    expected, _, _ = answer_masked(saved, rows_of(["Nobody , nobody!"]), [])
    assert after["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
