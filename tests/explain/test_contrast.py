"""Why one class and not another: each method's scores are those of a plain loop with the difference of two logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from attentune.errors import ConfigError
from attentune.explain.explainer import Explainer
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Settings
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import predict_rows
from helpers import explain_references as loops
from helpers.explain_references import OneText
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, rows_for, saved_ensemble, tiny_run

SETTINGS = Settings(seed=3, steps=6, samples=24, contrast="maybe")
MAYBE = 1
LOOPS: dict[str, Callable[[OneText], np.ndarray]] = {
    "gradient": loops.gradient,
    "integrated-gradients": lambda text: loops.integrated_gradients(text, SETTINGS.steps),
    "leave-one-out": loops.leave_one_out,
    "lime": lambda text: loops.lime(text, samples=24, seed=3),
    "attention-gradient": lambda text: loops.attention(text, times_gradient=True).mean(axis=1),
}


class Contrasted(OneText):
    """A row whose explained value is the logit of the target minus that of "maybe"."""

    def value(self, logits_C: Tensor) -> Tensor:
        return logits_C.double()[self.target] - logits_C.double()[MAYBE]


def other_than_maybe(logits_C: np.ndarray) -> int:
    best = max(range(3), key=lambda c: logits_C[c])
    return best if best != MAYBE else max((0, 2), key=lambda c: logits_C[c])


@pytest.mark.parametrize("name", LOOPS)
def test_scores_are_those_of_the_loop(tiny, name: str) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair")
    found = Explainer(run, rows).attributions(name, settings=SETTINGS)
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
    plain = Explainer(run, rows).attributions(name, settings=replace(SETTINGS, contrast=None))
    assert not np.allclose(plain[0].scores, found[0].scores, rtol=1e-2)


def test_the_shares_of_shap_add_up_to_the_change_of_the_difference(tiny) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair", 1)
    (found,) = Explainer(run, rows).attributions("shap", target="yes", settings=replace(SETTINGS, samples=300))
    text = Contrasted(run, rows, 0, 2)
    assert float(found.scores.sum()) == pytest.approx(text.asked() - text.asked(text.places), abs=2e-3)


def test_words_are_deleted_and_gradients_averaged_for_ensembles(tiny, tmp_path: Path) -> None:
    run = saved_ensemble(tmp_path / "pair", tiny, "pair", members={"bert": 2})
    first, second = "A cat sat", "The plot moves"
    (found,) = explain_texts(run, [first], [second], target="yes", contrast="no", method="leave-one-out")

    def value(text: str) -> float:
        logits_C = predict_rows(run, rows_of([text], [second]))[0]
        return float(logits_C[2] - logits_C[0])

    assert found.tokens[1].score == pytest.approx(value(first) - value("A  sat"), abs=1e-5)
    assert found.to_dict()["contrast"] == "no"
    (averaged,) = explain_texts(run, [first], [second], target="yes", contrast="no", method="gradient")
    (against,) = explain_texts(run, [first], [second], target="no", contrast="yes", method="gradient")
    scores, opposite = ([token.score for token in one.tokens] for one in (averaged, against))
    assert scores == pytest.approx([-score for score in opposite], abs=1e-6)
    assert max(map(abs, scores)) > 0


def test_two_classes_have_the_scores_of_the_log_odds(tiny) -> None:
    run = tiny_run(tiny())
    (plain,) = explain_texts(run, [TEXTS[0]], method="gradient", target="good")
    (contrasted,) = explain_texts(run, [TEXTS[0]], method="gradient", target="good", contrast="bad")
    expected = [token.score for token in plain.tokens]
    assert [token.score for token in contrasted.tokens] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert "contrast" not in plain.to_dict()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.explains_class])
def test_methods_whose_scores_have_no_class_are_refused(tiny, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        explain_texts(tiny_run(tiny()), ["a"], method=name, contrast="bad")
    assert str(error.value) == (
        f"contrast: the scores of {name} do not depend on the class. Methods that do: fast-shap, gradient,"
        " integrated-gradients, leave-one-out, lime, shap, attention-gradient."
    )


MISTAKES = {
    "no such class": ("classification", {"contrast": "goood"}, "expected one of the run's classes: bad, good. Did you"),
    "the same class": ("classification", {"contrast": "bad", "target": "bad"}, "which is the class to explain"),
    "a score": ("regression", {"contrast": "bad"}, "this run predicts a score and has no other class; leave it out."),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_refused(tiny, case: str) -> None:
    kind, options, message = MISTAKES[case]
    with pytest.raises(ConfigError) as error:
        explain_texts(tiny_run(tiny(), kind), ["a"], method="gradient", **options)
    assert message in str(error.value)
