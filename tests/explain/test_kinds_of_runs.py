"""Explanations of ensembles and baselines: deleted words, and gradients averaged over models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.errors import ConfigError
from attentune.explain.explainer import answer, answer_masked, words_read
from attentune.explain.methods import METHODS
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import Predictor, predict_rows
from helpers.tiers import covering
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, saved_ensemble

TEXT, PAIR = "Nobody plays, nobody!", "The plot  never moves"


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("runs")
    made = {kind: saved_ensemble(home / kind, tiny, kind) for kind in ("classification", "pair", "regression")}
    made["one tokenizer"] = saved_ensemble(home / "same", tiny, members={"bert": 2, "electra": 1})
    return made


def log_odds(run: Path, text: str, pair: str | None = None) -> np.ndarray:
    logits_C = predict_rows(run, rows_of([text], None if pair is None else [pair]))[0].astype(float)
    others = [np.logaddexp.reduce(np.delete(logits_C, k)) for k in range(len(logits_C))] if len(logits_C) > 1 else [0.0]
    return logits_C - others


def test_leave_one_out_deletes_words(folders):
    (found,) = explain_texts(folders["classification"], [TEXT], target="good")
    whole = log_odds(folders["classification"], TEXT)[1]
    without = [" plays, nobody!", "Nobody , nobody!", "Nobody plays nobody!", "Nobody plays, !", "Nobody plays, nobody"]
    assert [token.text for token in found.tokens] == ["Nobody", "plays", ",", "nobody", "!"]
    for token, rest in zip(found.tokens, without, strict=True):
        assert token.score == pytest.approx(whole - log_odds(folders["classification"], rest)[1], abs=1e-5)
    assert (found.method, found.label, found.signed, found.passes) == ("leave-one-out", "good", True, 6 * 3)
    assert [(token.start, token.end) for token in found.tokens] == [(0, 6), (7, 12), (12, 13), (14, 20), (20, 21)]


def test_words_of_both_texts_of_a_pair(folders):
    run = folders["pair"]
    (found,) = explain_texts(run, ["A cat sat"], [PAIR], target="yes")
    assert [(token.text, token.within) for token in found.tokens] == [
        *((word, "text") for word in ("A", "cat", "sat")), *((word, "pair") for word in PAIR.split()),
    ]  # fmt: skip
    expected = log_odds(run, "A cat sat", PAIR) - log_odds(run, "A cat sat", "The plot  never ")
    assert found.tokens[-1].score == pytest.approx(expected[2], abs=1e-5)


@covering(
    "kind, method",
    ["classification", "pair", "regression"],
    [name for name, entry in METHODS.items() if entry.needs == "predictions"],
)
def test_methods_of_predictions_explain_every_text(folders, kind, method):
    pairs = TEXTS[::-1] if kind == "pair" else None
    found = explain_texts(folders[kind], TEXTS, pairs, method=method, samples=20)
    again = explain_texts(folders[kind], TEXTS, pairs, method=method, samples=20)
    assert [[token.score for token in one.tokens] for one in found] == [
        [token.score for token in one.tokens] for one in again
    ]
    assert any(token.score for one in found for token in one.tokens)
    for text, one in zip(TEXTS, found, strict=True):
        assert one.text == text
        assert np.isfinite([token.score for token in one.tokens]).all()


@pytest.mark.parametrize("method", ["gradient", "integrated-gradients"])
def test_gradients_are_the_weighted_mean_of_the_models(folders, method):
    run = folders["one tokenizer"]
    options: dict[str, Any] = {"method": method, "target": "good", "level": "token", "steps": 4}
    found = explain_texts(run, [TEXT, TEXTS[0]], **options)
    weights = {"bert/fold-1": 0.375, "bert/fold-2": 0.375, "electra/fold-1": 0.25}
    parts = {name: explain_texts(run / "members" / name, [TEXT, TEXTS[0]], **options) for name in weights}
    for row, one in enumerate(found):
        expected = sum(
            weight * np.array([token.score for token in parts[name][row].tokens]) for name, weight in weights.items()
        )
        np.testing.assert_allclose([token.score for token in one.tokens], expected, rtol=1e-4, atol=1e-6)
        assert [token.text for token in one.tokens] == [token.text for token in parts["bert/fold-1"][row].tokens]
        assert one.passes == sum(part[row].passes for part in parts.values()) + 3
    predicted = Predictor.load(run)
    assert found[0].probability == pytest.approx(answer(predicted, rows_of([TEXT])).probabilities["good"])


def test_gradients_of_other_tokenizers_are_refused(folders):
    with pytest.raises(ConfigError, match=r"gradient averages the scores of tokens, .*Use leave-one-out, lime or shap"):
        explain_texts(folders["classification"], [TEXT], method="gradient")
    with pytest.raises(ConfigError, match=r"ssa looks into one model, which this run is not \(ensemble of 2\)"):
        explain_texts(folders["classification"], [TEXT], method="ssa")
    with pytest.raises(ConfigError, match="level: got token, but lime deletes whole words"):
        explain_texts(folders["classification"], [TEXT], method="lime", level="token")
    assert explain_texts(folders["classification"], []) == []


def test_a_masked_word_is_deleted(folders):
    saved, rows = Predictor.load(folders["classification"]), rows_of([TEXT])
    words = words_read(saved, rows)
    assert [word.text for word in words] == ["Nobody", "plays", ",", "nobody", "!"]
    masked = answer_masked(saved, rows, [words[1]])
    assert (masked.tokens, masked.before.prediction) == ((1,), answer(saved, rows).prediction)
    after = answer(saved, rows_of(["Nobody , nobody!"]))
    assert masked.after.probabilities == pytest.approx(after.probabilities, abs=1e-6)
