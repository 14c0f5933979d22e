"""Explanations of ensembles and baselines: deleted words."""

from pathlib import Path

import numpy as np
import pytest

from attentune.errors import ConfigError
from attentune.explain.explainer import answer_masked
from attentune.explain.explanation import Subword
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import Predictor, predict, predict_rows
from helpers.tiny_models import rows_of
from helpers.tiny_runs import saved_ensemble

TEXT, PAIR = "Nobody plays, nobody!", "The plot  never moves"


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("runs")
    return {kind: saved_ensemble(home / kind, tiny, kind) for kind in ("classification", "pair", "regression")}


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
    shares = [predict(folders["classification"], [rest])[0]["probabilities"]["good"] for rest in without]
    assert found.without == pytest.approx(shares, abs=1e-5)
    assert [(token.start, token.end) for token in found.tokens] == [(0, 6), (7, 12), (12, 13), (14, 20), (20, 21)]


def test_words_of_both_texts_of_a_pair(folders):
    run = folders["pair"]
    (found,) = explain_texts(run, ["A cat sat"], [PAIR], target="yes")
    assert [(token.text, token.within) for token in found.tokens] == [
        *((word, "text") for word in ("A", "cat", "sat")), *((word, "pair") for word in PAIR.split()),
    ]  # fmt: skip
    expected = log_odds(run, "A cat sat", PAIR) - log_odds(run, "A cat sat", "The plot  never ")
    assert found.tokens[-1].score == pytest.approx(expected[2], abs=1e-5)


def test_methods_of_one_model_are_refused(folders):
    for method in ("ssa", "gradient"):
        refusal = rf"{method} looks into one model, .*\(ensemble of 2\)\. Methods .* leave-one-out, lime"
        with pytest.raises(ConfigError, match=refusal):
            explain_texts(folders["classification"], [TEXT], method=method)
    with pytest.raises(ConfigError, match="level: got token, but lime deletes whole words"):
        explain_texts(folders["classification"], [TEXT], method="lime", level="token")
    assert explain_texts(folders["classification"], []) == []


def test_a_masked_word_is_deleted(folders):
    saved, rows = Predictor.load(folders["classification"]), rows_of([TEXT])
    masked = answer_masked(saved, rows, [Subword("plays", 7, 12, 0.0)])
    plain = answer_masked(saved, rows, [])
    assert (masked.tokens, masked.before.prediction) == ((1,), plain.after.prediction)
    after = answer_masked(saved, rows_of(["Nobody , nobody!"]), []).before
    assert masked.after.probabilities == pytest.approx(after.probabilities, abs=1e-6)
