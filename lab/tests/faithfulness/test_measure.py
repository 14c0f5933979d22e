"""Faithfulness of several methods on one run: random baseline and intervals."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attentune.errors import ConfigError, DataError
from attentune.explain.methods import METHODS
from attentune.inference.predictor import Predictor
from attentune_lab.faithfulness.measure import (
    ERASURES,
    FaithfulnessResult,
    Measures,
    measure_faithfulness,
    possible_methods,
)
from helpers.tiny_runs import hooks_of, rows_for, tiny_run

Tiny = Callable[..., Path]
NAMES = ("leave-one-out", "gradient", "ssa")


def test_every_method_is_measured_under_every_erasure_beside_the_floor(found: FaithfulnessResult) -> None:
    report = found.report
    assert [(own.erasure, own.method) for own in report.scores] == [
        (erasure, name) for erasure in ERASURES for name in (*NAMES, "random")
    ]
    assert report.rows == 4
    assert report.left_out == 1  # the text with nothing in it
    assert found.kept == [0, 1, 3, 4]
    assert [own["method"] for own in report.costs] == [*NAMES, "random"]
    assert report.costs[2]["passes"] == 1


def test_means_intervals_and_differences_are_those_of_the_falls(found: FaithfulnessResult) -> None:
    base = found.probability_drops["leave-one-out", "mask"].comprehensiveness.mean(axis=1)
    for own in found.report.scores:
        assert own.comprehensiveness.low <= own.comprehensiveness.value <= own.comprehensiveness.high
        assert own.signed == METHODS[own.method].signed
        if own.method == "random":
            continue  # the mean of several draws
        probability_drops = found.probability_drops[own.method, own.erasure]
        assert own.comprehensiveness.value == pytest.approx(probability_drops.comprehensiveness.mean())
        assert own.sufficiency.value == pytest.approx(probability_drops.sufficiency.mean())
        assert own.bins["comprehensiveness"] == pytest.approx(probability_drops.comprehensiveness.mean(axis=0))
        if own.erasure == "mask" and own.difference is not None:
            assert own.difference.value == pytest.approx(
                (probability_drops.comprehensiveness.mean(axis=1) - base).mean()
            )
    assert found.report.scores[0].difference is None


def test_leave_one_out_by_masks_names_the_token_whose_mask_lowers_the_class_most(found: FaithfulnessResult) -> None:
    """In bins of one token nothing can be above it, where it masks as the erasure does."""
    bins = {own.method: own.bins["comprehensiveness"][0] for own in found.report.scores if own.erasure == "mask"}
    assert bins["leave-one-out"] == pytest.approx(max(bins.values()))


def test_the_normalised_form_is_of_short_texts_and_a_share(found: FaithfulnessResult) -> None:
    for own in found.report.scores:
        assert own.naopc_rows == 1
        assert own.naopc_comprehensiveness is not None
        assert own.naopc_comprehensiveness.value == 0 or own.naopc_comprehensiveness.value <= 1.2


def test_without_a_beam_there_is_no_normalised_form(quick: Measures, run: Predictor) -> None:
    measures = dataclasses.replace(quick, beam=0, erasures=("delete",))
    scores = measure_faithfulness(run, rows_for("classification"), methods=("ssa",), measures=measures).report.scores
    assert [own.naopc_comprehensiveness for own in scores] == [None, None]


def test_the_same_question_has_the_same_answer_and_the_model_is_left_as_it_was(quick, run, found):
    run.model.train()
    again = measure_faithfulness(run, rows_for("classification"), methods=NAMES, measures=quick)
    assert str(again.report.scores) == str(found.report.scores)  # as text, for what is undefined equals nothing
    assert run.model.training
    assert hooks_of(run.model) == 0
    run.model.eval()


@pytest.mark.parametrize("kind", ["pair", "bi-encoder", "ordinal"])
def test_pairs_and_ordered_classes_can_be_measured(quick: Measures, tiny: Tiny, kind: str) -> None:
    run = tiny_run(tiny(), kind)
    report = measure_faithfulness(run, rows_for(kind), methods=("gradient",), measures=quick).report
    assert report.rows == 4
    assert all(np.isfinite(own.comprehensiveness.value) for own in report.scores)


def test_default_methods_are_those_that_work_here_but_the_dear_ones(tiny: Tiny, run: Predictor) -> None:
    assert possible_methods(run) == tuple(name for name in METHODS if name not in ("fast-shap", "lime", "shap"))
    assert "ssa" not in possible_methods(tiny_run(tiny(), gate=False))
    assert "fast-shap" in possible_methods(tiny_run(tiny(), with_head=True))


def test_all_that_is_wrong_is_said_at_once(tiny: Tiny) -> None:
    run = tiny_run(tiny(), "regression", gate=False)
    with pytest.raises(ConfigError) as raised:
        measure_faithfulness(
            run, rows_for("regression"), methods=("ssa", "gradiant"), measures=Measures(erasures=("maks",))
        )
    score, erasure, *others = raised.value.problems
    assert score == "runs/tiny: predicts a score; expected a run that predicts one class, whose probability can fall."
    assert erasure.startswith("erasures: got 'maks', expected some of mask, delete, attention. Did you mean")
    assert len(others) == 2


def test_texts_without_a_word_are_no_texts(run: Predictor) -> None:
    with pytest.raises(DataError, match="got 1 texts, expected at least one with a word in it"):
        measure_faithfulness(run, rows_for("classification").take([2]), methods=("ssa",))
