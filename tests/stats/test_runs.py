"""Runs by seed, collapsed ones, and the summary of a method."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.compare import Runs, summarise
from attentune.stats.estimate import mean_over_seeds_and_examples


def runs(scores: dict[int, float | None], **settings) -> Runs:
    return Runs("bert", "rte", "accuracy", scores, **settings)


def answers(seeds: int, examples: int = 50) -> dict[int, np.ndarray]:
    return {seed: numpy_generator("test-runs", seed).random(examples) < 0.7 for seed in range(seeds)}


def test_a_run_at_or_below_the_majority_guess_has_collapsed() -> None:
    scores = {1: 0.53, 2: 0.52, 3: 0.31, 4: 0.5200000000000001}
    assert runs(scores, majority_score=0.52).collapsed() == [2, 3, 4]
    assert runs(scores).collapsed() == []


def test_where_smaller_is_better_a_run_at_or_above_the_guess_has_collapsed() -> None:
    assert runs({1: 0.4, 2: 0.9, 3: 1.2}, majority_score=0.9, greater_is_better=False).collapsed() == [2, 3]


def test_an_undefined_score_is_the_guesses_where_that_is_known() -> None:
    scores = {2: None, 1: 0.4, 3: math.nan}
    known, unknown = runs(scores, majority_score=0.0), runs(scores)
    assert (known.seeds(), [known.score(seed) for seed in (1, 2, 3)]) == ([1, 2, 3], [0.4, 0.0, 0.0])
    assert unknown.seeds() == [1]
    assert known.collapsed() == unknown.collapsed() == [2, 3]


def test_example_values_come_by_seed_or_not_at_all() -> None:
    rows = answers(3)
    found = runs({seed: row.mean() for seed, row in rows.items()}, examples=rows)
    values = found.example_values([2, 0])
    assert values is not None
    assert values.tolist() == [rows[2].tolist(), rows[0].tolist()]
    assert found.example_values([0, 7]) is None
    assert found.example_values([]) is None
    assert runs({0: 0.5}).example_values([0]) is None
    assert runs({0: None}, examples={0: np.full(9, np.nan)}, majority_score=0.0).example_values([0]) is None


def test_example_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bert on rte \(accuracy\): example values have shapes \[\(3,\), \(4,\)\]"):
        runs({1: 1.0, 2: 1.0}, examples={1: np.ones(3), 2: np.ones(4)}).example_values([1, 2])
    said = (
        r"bert on rte \(accuracy\), seed 1: the example values have the mean 0.25, but the score is 0.5; for a metric "
        "that is not a mean over examples pass its jackknife_values"
    )
    with pytest.raises(ValueError, match=said):
        runs({1: 0.5}, examples={1: np.array([1, 0, 0, 0])}).example_values([1])


def test_a_summary_over_seeds_has_the_t_interval() -> None:
    scores = {1: 0.71, 2: 0.74, 3: 0.70, 4: 0.52}
    found = summarise(runs(scores, majority_score=0.52))
    low, high = stats.ttest_1samp(list(scores.values()), 0).confidence_interval(0.95)
    assert (found.method, found.task, found.metric) == ("bert", "rte", "accuracy")
    assert found.mean == pytest.approx(0.6675)
    assert found.sd == pytest.approx(np.std(list(scores.values()), ddof=1))
    assert [found.low, found.high] == pytest.approx([low, high])
    assert (found.over, found.seeds, found.examples, found.collapsed) == ("seeds", 4, None, (4,))


def test_a_summary_with_examples_has_the_wider_interval() -> None:
    rows = answers(4)
    scores = {seed: float(row.mean()) for seed, row in rows.items()}
    found = summarise(runs(scores, examples=rows), confidence=0.9)
    known = mean_over_seeds_and_examples(np.stack([rows[seed] for seed in range(4)]), confidence=0.9)
    assert [found.low, found.high] == pytest.approx([known.low, known.high])
    assert (found.over, found.examples) == ("seeds and examples", 50)
    plain = summarise(runs(scores), confidence=0.9)
    assert found.high - found.low > plain.high - plain.low


def test_a_summary_of_one_run_or_none_has_no_spread() -> None:
    one, none = summarise(runs({3: 0.7}, examples={3: np.array([1] * 7 + [0] * 3)})), summarise(runs({3: None}))
    assert (one.mean, one.seeds, none.seeds) == (0.7, 1, 0)
    assert np.isnan([one.sd, one.low, one.high, none.mean, none.sd, none.low]).all()


def test_two_examples_are_enough_and_tables_are_refused() -> None:
    two = runs({1: 0.5}, examples={1: np.array([1.0, 0.0])}).example_values([1])
    assert two is not None
    assert two.tolist() == [[1.0, 0.0]]
    for bad in (np.ones(1), np.ones((1, 1)), np.ones((2, 3))):
        with pytest.raises(ValueError, match="expected the same .N,. for all seeds"):
            runs({1: 1.0}, examples={1: bad}).example_values([1])


def test_example_values_in_single_precision_fit_their_score() -> None:
    large, small = np.float32([70_000.01, 70_000.03]), np.float32([1e-7, -1e-7])
    assert runs({1: 70_000.02}, examples={1: large}).example_values([1]) is not None
    assert runs({1: 5e-7}, examples={1: small}).example_values([1]) is not None
