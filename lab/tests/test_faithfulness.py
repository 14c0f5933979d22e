"""Faithfulness: erasure beside plain loops, orders, measures, ERASER's records, planted words, sanity checks."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.errors import ConfigError, DataError, StorageError
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Settings
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import evaluating
from attentune_lab.faithfulness.eraser_records import write_records
from attentune_lab.faithfulness.measure import (
    ERASURES,
    SHARES,
    Eraser,
    FaithfulnessResult,
    Measures,
    NaopcBounds,
    agreements,
    find_naopc_bounds,
    mean_drops,
    measure_faithfulness,
    possible_methods,
    probability_drops,
    ranked,
    top_counts,
    without_tokens,
)
from attentune_lab.faithfulness.sanity import check_sanity, parts_from_the_head, shuffled_from_the_head
from attentune_lab.faithfulness.synthetic import (
    decisive_tokens,
    evidence_of,
    places_of,
    score_synthetic,
    synthetic_rows,
)
from attentune_lab.synthetic import KINDS
from helpers.explain_references import OneText, aopc, chances
from helpers.tiny import FAMILIES
from helpers.tiny_runs import hooks_of, rows_for, tiny_run

Tiny = Callable[..., Path]
NAMES = ("leave-one-out", "gradient", "ssa")


@pytest.fixture(scope="module")
def quick() -> Measures:
    return Measures(settings=Settings(steps=4), draws=3, beam=2, beam_tokens=6)


@pytest.fixture(scope="module")
def run(tiny: Tiny) -> Predictor:
    return tiny_run(tiny())


@pytest.fixture(scope="module")
def found(run: Predictor, quick: Measures) -> FaithfulnessResult:
    return measure_faithfulness(run, rows_for("classification"), methods=NAMES, measures=quick)


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
    # In bins of one token nothing can be above it, where it masks as the erasure does.
    bins = {own.method: own.bins["comprehensiveness"][0] for own in found.report.scores if own.erasure == "mask"}
    assert bins["leave-one-out"] == pytest.approx(max(bins.values()))
    # The normalised form is of short texts and a share.
    for own in found.report.scores:
        assert own.naopc_rows == 1
        assert own.naopc_comprehensiveness.value == 0 or own.naopc_comprehensiveness.value <= 1.2


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


def test_the_same_question_has_the_same_answer_and_the_model_is_left_as_it_was(quick, run, found) -> None:
    run.model.train()
    again = measure_faithfulness(run, rows_for("classification"), methods=NAMES, measures=quick)
    assert str(again.report.scores) == str(found.report.scores)  # as text, for what is undefined equals nothing
    assert run.model.training
    assert hooks_of(run.model) == 0
    run.model.eval()
    # Without a beam there is no normalised form.
    measures = dataclasses.replace(quick, beam=0, erasures=("delete",))
    scores = measure_faithfulness(run, rows_for("classification"), methods=("ssa",), measures=measures).report.scores
    assert [own.naopc_comprehensiveness for own in scores] == [None, None]


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


def test_what_cannot_be_measured_is_said_at_once(tiny: Tiny, run: Predictor) -> None:
    scores = tiny_run(tiny(), "regression", gate=False)
    with pytest.raises(ConfigError) as raised:
        measure_faithfulness(
            scores, rows_for("regression"), methods=("ssa", "gradiant"), measures=Measures(erasures=("maks",))
        )
    score, erasure, *others = raised.value.problems
    assert score == "runs/tiny: predicts a score; expected a run that predicts one class, whose probability can fall."
    assert erasure.startswith("erasures: got 'maks', expected some of mask, delete, attention. Did you mean")
    assert len(others) == 2
    # Texts without a word are no texts.
    with pytest.raises(DataError, match="got 1 texts, expected at least one with a word in it"):
        measure_faithfulness(run, rows_for("classification").take([2]), methods=("ssa",))


# Records of faithfulness that ERASER's program can score, and words that were planted as ground truth.


# Records


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_records_fit_erasers_formula_documents_and_annotations(found: FaithfulnessResult, tmp_path: Path) -> None:
    write_records(tmp_path / "eraser", found)
    for own in found.report.scores:
        records = lines_of(tmp_path / "eraser" / f"{own.method}.{own.erasure}.jsonl")
        if own.method != "random":
            assert aopc(records, "comprehensiveness") == pytest.approx(own.comprehensiveness.value, abs=1e-9)
            assert aopc(records, "sufficiency") == pytest.approx(own.sufficiency.value, abs=1e-9)
    # Records fit their documents and annotations.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    write_records(tmp_path, found, {0: [(1, 3)]})
    documents = {line["docid"]: line["document"].split(" ") for line in lines_of(tmp_path / "docs.jsonl")}
    annotations = lines_of(tmp_path / "test.jsonl")
    records = lines_of(tmp_path / "ssa.mask.jsonl")
    assert [line["annotation_id"] for line in annotations] == [line["annotation_id"] for line in records]
    assert len(annotations[0]["evidences"]) == 1
    for record in records:
        (rationale,) = record["rationales"]
        assert len(rationale["soft_rationale_predictions"]) == len(documents[rationale["docid"]])
        chances = [record["classification_scores"], record["comprehensiveness_classification_scores"]]
        chances += [part["sufficiency_classification_scores"] for part in record["thresholded_scores"]]
        assert all(sum(own.values()) == pytest.approx(1) and set(own) == {"bad", "good"} for own in chances)
        assert [part["threshold"] for part in record["thresholded_scores"]] == [0.01, 0.05, 0.1, 0.2, 0.5]
    # A folder that eraser would read otherwise is refused.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-3"
    tmp_path.mkdir()
    (tmp_path / "docs").mkdir()
    with pytest.raises(StorageError, match="choose another folder"):
        write_records(tmp_path, found)


# Planted words


@pytest.fixture(scope="module")
def demo_run(tiny) -> Predictor:
    run = tiny_run(tiny(), max_length=150)
    return dataclasses.replace(run, label_space=LabelSpace("classification", ("positive", "negative")))


def test_planted_tokens_spell_the_words_that_decide(quick: Measures, demo_run: Predictor) -> None:
    rows, truths = synthetic_rows(demo_run, 24, "challenge")
    measures = dataclasses.replace(quick, beam=0, erasures=("mask",))
    found = measure_faithfulness(demo_run, rows, methods=("gradient",), measures=measures)
    evidence = evidence_of(found, truths)
    for row, truth in enumerate(truths):
        spans = found.explainer.spans[row]
        decisive, shortcut = decisive_tokens(spans, truth)
        text = "".join(truth.text[spans[place][1] : spans[place][2]] for place in decisive)  # type: ignore[index]
        assert text == "".join(truth.text[start:end] for start, end in truth.decisive)
        name = "".join(truth.text[spans[place][1] : spans[place][2]] for place in shortcut)  # type: ignore[index]
        assert name == ("" if truth.shortcut is None else truth.text[slice(*truth.shortcut)])
        assert sum(end - first for first, end in evidence[row]) == len(decisive)
        assert len(evidence[row]) == len(truth.decisive)
        assert demo_run.label_space.names[int(rows.labels[row])] == ("negative", "positive")[truth.label]
    lines = score_synthetic(found, truths)
    right = [own.target == label for own, label in zip(found.ranked["random"].attributions, rows.labels, strict=True)]
    assert sum(own.rows for own in lines if own.method == "random") == sum(right)
    assert [own.kind for own in lines if own.method == "gradient"] == [
        kind for kind in KINDS if any(truth.kind == kind and ok for truth, ok in zip(truths, right, strict=True))
    ]


def test_places_in_an_order() -> None:
    order = np.array([4, 2, 7, 1])
    assert places_of(order, np.array([2, 4]), np.array([1])) == (1.0, 1.0, 1.5, 0.0)
    assert places_of(order, np.array([1, 2]), np.array([4])) == (0.0, 0.5, 3.0, 1.0)


# Scores that repeat, and scores that follow the model.


def attributed(*scores: float) -> Attribution:
    return Attribution(np.array([0.0, *scores], dtype=np.float32), 0, np.zeros(2), 1, 0.0)


def test_agreement_of_scores() -> None:
    first = [attributed(1, 2, 3), attributed(1, 2, 3), attributed(1, 1), attributed(2, 2), attributed(5)]
    second = [attributed(2, 4, 9), attributed(3, 2, 1), attributed(1, 1), attributed(1, 3), attributed(5)]
    places = [np.arange(1, len(own.scores)) for own in first]
    taus, rhos = agreements(first, second, places)
    assert taus.tolist()[:4] == pytest.approx([1, -1, 1, 0])
    assert rhos.tolist()[:4] == pytest.approx([1, -1, 1, 0])
    assert np.isnan(taus[4])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_shuffled_once_from_the_head_down(tiny, family: str) -> None:
    model = tiny_run(tiny(family)).model
    parts = parts_from_the_head(model)
    names = [name for own in parts.values() for name in own]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    layers = 1 if family == "albert" else model.encoder.config.num_hidden_layers
    assert list(parts) == ["head", *(f"layer {layer}" for layer in range(layers, 0, -1)), "embeddings"]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    done: set[str] = set()
    for part, other in shuffled_from_the_head(model, 0):
        done |= set(parts[part])
        for name, weight in other.named_parameters():
            assert torch.equal(weight, before[name]) or name in done
            assert torch.equal(weight.flatten().sort().values, before[name].flatten().sort().values)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert any(not torch.equal(weight, before[name]) for name, weight in other.named_parameters())


def test_sanity_tells_methods_that_look_at_the_model_from_those_that_do_not(tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification").take([0, 3, 4])
    names = ("ssa", "gradient", "random")
    sanity = check_sanity(run, rows, methods=names, settings=Settings(steps=4))
    assert sanity.rows == 3
    assert [own.method for own in sanity.repeats] == list(names)
    for own in sanity.repeats:
        assert own.again.value == 1
        assert own.alone.value == pytest.approx(1, abs=0.05)
        assert own.precision.value > 0.7
    parts = ["head", "layer 3", "layer 2", "layer 1", "embeddings"]
    taus = {(own.method, own.part): own.tau.value for own in sanity.shuffles}
    assert list(taus) == [(name, part) for name in names for part in parts]
    assert all(taus["random", part] == 1 for part in parts)
    assert taus["ssa", "embeddings"] < 0.6
    assert taus["gradient", "embeddings"] < 0.6
    assert hooks_of(run.model) == 0


# Orders of tokens, what erasing in them does, beside plain loops, and the best and worst order there is.


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.integers(0, 3))
def test_high_scores_come_first_and_all_places_come_once(scores: list[int], seed: int) -> None:
    places = np.arange(2, 2 + len(scores))
    order = ranked(np.array([0, 0, *scores], dtype=np.float32), places, seed)
    assert sorted(order) == places.tolist()
    found = [scores[place - 2] for place in order]
    assert found == sorted(scores, reverse=True)


def test_equal_scores_come_by_lot() -> None:
    orders = [ranked(np.zeros(6), np.arange(6), 0, row) for row in range(300)]
    assert np.mean(orders, axis=0) == pytest.approx(np.full(6, 2.5), abs=0.35)
    assert np.array_equal(orders[0], ranked(np.zeros(6), np.arange(6), 0, 0))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1] * 5), (10, [1, 1, 1, 2, 5]), (30, [1, 2, 3, 6, 15]), (100, [1, 5, 10, 20, 50])]
)
def test_shares_are_rounded_up(count: int, expected: list[int]) -> None:
    assert top_counts(count) == expected


@pytest.mark.integration
@pytest.mark.parametrize("erasure", ERASURES)
@pytest.mark.parametrize("kind", ["classification", "bi-encoder"])
def test_falls_are_those_of_the_loop(tiny: Tiny, kind: str, erasure: str) -> None:
    run, every = tiny_run(tiny(), kind), rows_for(kind)
    rows = every.take([0, 1, 3, 4])
    explainer = Explainer(run, rows)
    scorer, draw = explainer.scorer, np.random.default_rng(1)
    orders = [draw.permutation(scorer.features.non_special_positions(row)) for row in range(len(rows))]
    targets = np.array([1, 0, 1, 0])
    with evaluating(scorer.model):
        found = probability_drops(Eraser(scorer, erasure), np.arange(4), orders, targets)
    for row, order in enumerate(orders):
        text, target = OneText(run, rows, row), targets[row]
        whole = chances(text, (), erasure)[target]
        for place, share in enumerate(SHARES):
            count = max(1, math.ceil(share * len(order) - 1e-9))
            without = chances(text, order[:count].tolist(), erasure)[target]
            only = chances(text, order[count:].tolist(), erasure)[target]
            assert found.comprehensiveness[row, place] == pytest.approx(whole - without, abs=1e-5)
            assert found.sufficiency[row, place] == pytest.approx(whole - only, abs=1e-5)


@pytest.mark.parametrize("erasure", ERASURES)
def test_a_wide_beam_finds_the_limits_of_all_orders(tiny: Tiny, erasure: str) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 4).take([1, 3])
    scorer = Explainer(run, rows).scorer
    places = [scorer.features.non_special_positions(0)[:3], scorer.features.non_special_positions(1)[1:6]]
    numbers, targets = np.arange(2), np.array([1, 0])
    with evaluating(scorer.model):
        eraser = Eraser(scorer, erasure)
        limits = find_naopc_bounds(eraser, numbers, places, targets, beam=10)
        narrow = find_naopc_bounds(eraser, numbers, places, targets, beam=1)
        forwards = mean_drops(eraser, numbers, places, targets)
    for row, own in enumerate(places):
        text = OneText(run, rows, row)
        known = {
            frozenset(gone): chances(text, gone, erasure)[targets[row]]
            for count in range(len(own) + 1)
            for gone in itertools.combinations(own.tolist(), count)
        }
        means = {
            order: np.mean([known[frozenset()] - known[frozenset(order[:size])] for size in range(1, len(order) + 1)])
            for order in itertools.permutations(own.tolist())
        }
        assert limits.upper_N[row] == pytest.approx(max(means.values()), abs=1e-5)
        assert limits.lower_N[row] == pytest.approx(min(means.values()), abs=1e-5)
        assert forwards[row] == pytest.approx(means[tuple(own.tolist())], abs=1e-5)
        assert limits.lower_N[row] <= narrow.lower_N[row] <= narrow.upper_N[row] <= limits.upper_N[row]
    shares = limits.normalised(forwards)
    assert np.all((shares >= -1e-6) & (shares <= 1 + 1e-6))


def test_where_no_order_matters_there_is_no_normalised_form() -> None:
    found = NaopcBounds(np.array([0.2, 0.0]), np.array([0.2, 0.5])).normalised(np.array([0.2, 0.25]))
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(0.5)


# Erasing by mask, deletion and attention is what a plain loop over single texts does.


def questions(places: list[np.ndarray], seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows, and tokens of theirs to erase: none, one, some, all."""
    draw = np.random.default_rng(seed)
    rows, erased = [], []
    for row, own in enumerate(places):
        for count in {0, min(1, len(own)), len(own) // 2, len(own)}:
            rows.append(row)
            erased.append(draw.permutation(own)[:count])
    return np.array(rows), erased


@pytest.mark.parametrize("erasure", ERASURES)
@pytest.mark.parametrize("kind", ["classification", "pair", "bi-encoder", "ordinal"])
def test_probabilities_are_those_of_the_loop(tiny: Tiny, kind: str, erasure: str) -> None:
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    scorer = Explainer(run, rows).scorer
    asked, erased = questions([scorer.features.non_special_positions(row) for row in range(len(rows))])
    with evaluating(scorer.model):
        found = Eraser(scorer, erasure).probabilities(asked, erased)
    texts = [OneText(run, rows, row) for row in range(len(rows))]
    for row, gone, own in zip(asked, erased, found, strict=True):
        assert own == pytest.approx(chances(texts[row], gone.tolist(), erasure), abs=1e-5)
    assert np.ptp(found) > 0.05  # there is something to compare


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_forgets_what_attention_does_not_see(tiny: Tiny, family: str) -> None:
    """Whatever word stands at a hidden place, the answer is the same."""
    run, rows = tiny_run(tiny(family)), rows_for("classification", 2)
    answers = []
    for change in (0, 7):
        scorer = Explainer(run, rows).scorer
        gone = scorer.features.non_special_positions(0)[2:4]
        scorer.features.ids[gone] = scorer.features.ids[gone] + change
        with evaluating(scorer.model):
            answers.append(Eraser(scorer, "attention").probabilities([0, 0], [gone, gone[:1]]))
    assert answers[0][0] == pytest.approx(answers[1][0], abs=1e-6)
    assert answers[0][1] != pytest.approx(answers[1][1], abs=1e-6)


@pytest.mark.parametrize("erasure", ERASURES)
def test_each_erased_row_is_asked_once(tiny: Tiny, erasure: str) -> None:
    scorer = Explainer(tiny_run(tiny()), rows_for("classification", 1)).scorer
    eraser = Eraser(scorer, erasure)
    first, second = np.array([3, 1]), np.array([1, 3])
    with evaluating(scorer.model):
        found = eraser.probabilities([0, 0, 0], [first, second, first[:1]])
        assert eraser.predicted == 2
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(eraser.probabilities([0], [second])[0], found[0])
        assert eraser.predicted == 2
        assert eraser.probabilities([], []).shape == (0, 2)
    assert first.tolist() == [3, 1]


@st.composite
def some_features(draw: st.DrawFn) -> tuple[Features, np.ndarray, list[np.ndarray]]:
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    seconds = np.array([draw(st.integers(0, length)) for length in lengths])
    features = Features(
        ids=np.arange(starts[-1], dtype=np.int32),
        type_ids=(np.arange(starts[-1]) % 2).astype(np.int8),
        special=np.arange(starts[-1]) % 3 == 0,
        starts=starts,
        full_lengths=np.diff(starts),
        second_starts=seconds if draw(st.booleans()) else None,
    )
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
    gone = [np.array(sorted(draw(st.sets(st.integers(0, lengths[row] - 1)))), dtype=np.int64) for row in rows]
    return features, np.array(rows), gone


@given(some_features())
def test_deleting_leaves_the_other_tokens_in_order(case: tuple[Features, np.ndarray, list[np.ndarray]]) -> None:
    features, rows, gone = case
    found = without_tokens(features, rows, gone)
    assert len(found) == len(rows)
    for number, (row, own) in enumerate(zip(rows, gone, strict=True)):
        kept = [place for place in range(features.lengths[row]) if place not in own]
        for name in ("ids", "type_ids", "special"):
            before, after = getattr(features, name)[features.row(int(row))], getattr(found, name)[found.row(number)]
            assert after.tolist() == [before[place] for place in kept]
        if features.second_starts is not None:
            assert found.second_starts[number] == sum(place < features.second_starts[row] for place in kept)
