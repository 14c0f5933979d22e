"""From runs to verdicts, and ranks of methods over tasks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import t, ttest_1samp

from attentune.seeding import numpy_generator
from attentune.stats.compare import (
    Ranking,
    Runs,
    compare_all,
    compare_runs,
    critical_difference,
    holm,
    rank_methods,
    summarise,
)
from attentune.stats.estimate import mean_over_seeds, mean_over_seeds_and_examples
from attentune.stats.power import minimum_detectable_effect

EXAMPLES = 200


def scored(method: str, scores: list[float | None], task: str = "rte", **settings) -> Runs:
    return Runs(method, task, settings.pop("metric", "accuracy"), dict(enumerate(scores)), **settings)


def played(method: str, accuracy: float, seeds: int = 5, task: str = "rte", **settings) -> Runs:
    """Answers of right and wrong, the examples' ease shared by all methods of a task."""
    ease = numpy_generator("test-compare", task).normal(size=EXAMPLES)
    luck = numpy_generator("test-compare", task, method).normal(size=(seeds, EXAMPLES))
    rows = ease + luck < math.sqrt(2) * stats.norm.ppf(accuracy)
    return Runs(
        method, task, "accuracy", {s: rows[s].mean() for s in range(seeds)}, examples=dict(enumerate(rows)), **settings
    )


def test_over_seeds_it_is_the_paired_t_test() -> None:
    first, second = [0.61, 0.64, 0.60, 0.66, 0.62], [0.64, 0.65, 0.63, 0.70, 0.63]
    found = compare_runs(scored("bert", first), scored("ssa", second))
    known = stats.ttest_rel(second, first)
    low, high = known.confidence_interval(0.95)
    assert (found.baseline, found.method, found.task, found.metric) == ("bert", "ssa", "rte", "accuracy")
    assert [found.difference, found.low, found.high] == pytest.approx([np.mean(second) - np.mean(first), low, high])
    assert found.p == found.p_holm == pytest.approx(known.pvalue, rel=1e-9)
    assert (found.over, found.seeds, found.examples, found.family) == ("seeds", 5, None, 1)
    assert found.p_sign_flip == 0.0625
    gaps = np.subtract(second, first)
    assert found.minimum_detectable_effect == pytest.approx(minimum_detectable_effect(5, gaps.std(ddof=1)))
    assert [found.baseline_mean, found.method_mean] == pytest.approx([0.626, 0.65])
    assert found.sentence == "ssa beats bert on rte by 2.4 points (95 % CI 0.7 to 4.1, p = 0.016, 5 seeds)"
    said = "With 5 seeds the exact sign-flip test cannot give a p below 0.0625, whatever the difference."
    assert found.notes == (said,)


def test_with_examples_it_is_the_mean_over_both() -> None:
    first, second = played("bert", 0.6), played("ssa", 0.7)
    found = compare_runs(first, second, alpha=0.1)
    values = np.stack([second.examples[s].astype(float) - first.examples[s] for s in range(5)])
    known = mean_over_seeds_and_examples(values, confidence=0.9)
    assert [found.low, found.high, found.p] == pytest.approx([known.low, known.high, known.p])
    assert (found.over, found.examples) == ("seeds and examples", EXAMPLES)
    assert found.minimum_detectable_effect == pytest.approx(
        minimum_detectable_effect(
            5,
            math.sqrt(5 * known.seed_variance),
            examples=EXAMPLES,
            example_sd=math.sqrt(EXAMPLES * known.example_variance),
            alpha=0.1,
        )
    )
    assert "90 % CI" in found.sentence


@given(scores=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=2, max_size=8), data=st.data())
def test_turning_the_two_round_turns_the_verdict_round(scores: list[tuple[int, int]], data: st.DataObject) -> None:
    first = scored("a", [one / 200 for one, _ in scores])
    second = scored("b", [two / 200 for _, two in scores])
    there, back = compare_runs(first, second), compare_runs(second, first)
    assert [back.difference, back.low, back.high] == pytest.approx(
        [-there.difference, -there.high, -there.low], abs=1e-12, nan_ok=True
    )
    for name in ("p", "p_sign_flip", "minimum_detectable_effect"):
        assert getattr(back, name) == pytest.approx(getattr(there, name), rel=1e-9, nan_ok=True)
    order = data.draw(st.permutations(range(len(scores))))
    shuffled = (Runs(one.method, "rte", "accuracy", {s: one.scores[s] for s in order}) for one in (first, second))
    assert compare_runs(*shuffled) == there or math.isnan(there.low)


def test_where_smaller_is_better_an_advantage_is_a_fall() -> None:
    settings = {"metric": "mean_squared_error", "greater_is_better": False}
    found = compare_runs(scored("a", [0.9, 1.0, 0.8], **settings), scored("b", [0.7, 0.71, 0.65], **settings))
    turned = compare_runs(scored("a", [-0.9, -1.0, -0.8]), scored("b", [-0.7, -0.71, -0.65]))
    assert (found.difference, found.low, found.p) == (turned.difference, turned.low, turned.p)
    assert found.difference == pytest.approx(0.64 / 3)
    assert (found.baseline_mean, found.shown) == (pytest.approx(0.9), True)


def test_seeds_that_only_one_has_are_left_out_and_named() -> None:
    found = compare_runs(
        Runs("bert", "rte", "accuracy", {1: 0.6, 2: 0.62, 3: 0.7, 9: None}),
        Runs("ssa", "rte", "accuracy", {2: 0.64, 1: 0.63, 4: 0.9}),
    )
    assert found.seeds == 2
    assert found.difference == pytest.approx(0.025)
    assert found.notes[0] == "Left out, because only one of the two methods has a score: seeds 3, 4, 9."
    assert compare_runs(scored("a", [0.5]), Runs("b", "rte", "accuracy", {7: 0.5})).sentence.endswith(
        ": no seed was run with both methods"
    )
    found = compare_runs(scored("bert", [0.61, 0.62, 0.64]), played("ssa", 0.7, seeds=3))
    assert (found.over, found.examples) == ("seeds", None)
    assert found.notes[0].startswith("Not all runs have finite values per example")


def test_two_seeds_are_enough_for_every_test() -> None:
    first, second = [0.60, 0.62], [0.70, 0.73]
    runs = [scored("bert", first), scored("ssa", second)]
    (found,) = compare_all(runs, "bert", alpha=0.2)
    known = stats.ttest_rel(second, first)
    low, high = known.confidence_interval(0.8)
    assert [found.low, found.high, found.p] == pytest.approx([low, high, known.pvalue])
    assert (found.p_holm, found.p_sign_flip) == (found.p, 0.5)
    assert (found.family, found.seeds, found.alpha) == (1, 2, 0.2)
    assert found.minimum_detectable_effect == pytest.approx(
        minimum_detectable_effect(2, np.std([0.1, 0.11], ddof=1), alpha=0.2)
    )
    assert found.notes[0].startswith("With 2 seeds the exact")
    summary = summarise(scored("bert", first))
    assert summary.sd == pytest.approx(np.std(first, ddof=1))
    both = compare_runs(played("bert", 0.6, seeds=2), played("ssa", 0.7, seeds=2))
    assert (both.over, both.examples) == ("seeds and examples", EXAMPLES)


def test_one_seed_gives_an_interval_over_examples_and_no_verdict() -> None:
    first, second = played("bert", 0.55, seeds=1), played("ssa", 0.8, seeds=1)
    found = compare_runs(first, second)
    known = stats.ttest_rel(second.examples[0].astype(float), first.examples[0].astype(float)).confidence_interval(0.95)
    assert [found.low, found.high] == pytest.approx([known.low, known.high])
    assert found.low > 0
    assert not found.shown
    assert (found.over, found.examples) == ("examples", EXAMPLES)
    wider = stats.ttest_rel(second.examples[0].astype(float), first.examples[0].astype(float)).confidence_interval(0.99)
    assert compare_runs(first, second, alpha=0.01).low == pytest.approx(wider.low)
    assert np.isnan([found.p, found.p_holm, found.p_sign_flip, found.minimum_detectable_effect]).all()
    assert found.notes == ()
    assert math.isnan(compare_runs(scored("a", [0.5]), scored("b", [0.9])).low)


def test_the_same_difference_on_all_seeds_gets_the_sign_flip_tests_p() -> None:
    found = compare_runs(scored("a", [0.5, 0.6, 0.7]), scored("b", [0.6, 0.7, 0.8]))
    assert (found.p, found.shown) == (0.25, False)
    assert math.isnan(found.low)
    assert found.notes[0].startswith("The difference is the same on all seeds")
    ten = compare_runs(scored("a", [0.5] * 10), scored("b", [0.6] * 10))
    assert (ten.p, ten.shown) == (2 / 1024, True)
    same = compare_runs(scored("a", [0.5, 0.6, 0.7]), scored("b", [0.5, 0.6, 0.7]))
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)


def test_a_family_is_corrected_together() -> None:
    runs = [played("bert", 0.6), played("a", 0.75), played("b", 0.65), played("c", 0.61)]
    runs += [played("bert", 0.6, task="cola"), played("a", 0.62, task="cola")]
    found = compare_all(runs, "bert")
    assert [(one.method, one.task) for one in found] == [("a", "rte"), ("b", "rte"), ("c", "rte"), ("a", "cola")]
    assert [one.p_holm for one in found] == pytest.approx(holm(np.array([one.p for one in found])).tolist())
    assert {one.family for one in found} == {4}
    assert found[0].shown
    for one, (baseline, method) in zip(found, [(0, 1), (0, 2), (0, 3), (4, 5)], strict=True):
        alone = compare_runs(runs[baseline], runs[method])
        assert (one.p, one.low, one.difference) == (alone.p, alone.low, alone.difference)
        assert one.minimum_detectable_effect > alone.minimum_detectable_effect
        strictest = compare_runs(runs[baseline], runs[method], alpha=0.05 / 4)
        assert one.minimum_detectable_effect == pytest.approx(strictest.minimum_detectable_effect)
        assert one.p_holm <= compare_runs(runs[baseline], runs[method], family=4).p_holm
    largest = compare_runs(scored("bert", [0.5, 0.6, 0.7]), scored("ssa", [0.6, 0.5, 0.75]), family=9)
    assert (largest.p > 1 / 9, largest.p_holm) == (True, 1.0)
    # Those without a p do not count.
    runs = [played("bert", 0.6), played("a", 0.7), played("b", 0.6), played("c", 0.7, seeds=1)]
    found = compare_all(runs, "bert")
    assert [one.family for one in found] == [2, 2, 2]
    assert math.isnan(found[2].p_holm)
    assert [one.p_holm for one in found[:2]] == pytest.approx(holm(np.array([found[0].p, found[1].p])).tolist())
    assert compare_all([runs[0]], "bert") == []


def test_runs_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"runs are of \('cola', 'accuracy', True\) and of \('rte', 'accuracy', True\)"
    ):
        compare_runs(scored("bert", [0.5]), scored("a", [0.5], task="cola"))
    short = Runs("a", "rte", "accuracy", {0: 1.0, 1: 0.0}, examples={0: np.ones(9), 1: np.zeros(9)})
    with pytest.raises(ValueError, match="a has values for 9 examples of rte, bert for 200; expected the same"):
        compare_runs(played("bert", 0.6), short)


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=12), alpha=st.sampled_from([0.01, 0.05, 0.5]))
def test_holm_rejects_what_the_steps_reject(p_values: list[float], alpha: float) -> None:
    """The smallest p against alpha / m, the next against alpha / (m - 1), until one fails."""
    rejected = [False] * len(p_values)
    for step, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if p_values[place] * (len(p_values) - step) > alpha:
            break
        rejected[place] = True
    assert (holm(p_values) <= alpha).tolist() == rejected
    found = holm([math.nan, *p_values, math.nan])  # comparisons that could not be made do not count
    assert found[1:-1].tolist() == holm(p_values).tolist()
    assert np.isnan(found[[0, -1]]).all()
    assert holm([]).tolist() == []


# The corrected resampled t test: its formula, and that it is right more often than the plain one.


VALUES = np.array([0.02, -0.01, 0.05, 0.03, 0.00, 0.04, 0.01, 0.02, -0.02, 0.06])


def fold_runs(method: str, scores: np.ndarray, folds: int = 10) -> Runs:
    return Runs(method, "rte", "accuracy", dict(enumerate(scores, start=1)), overlap=1 / (folds - 1))


def test_it_is_the_formula_of_nadeau_and_bengio() -> None:
    found = mean_over_seeds(VALUES, overlap=1 / 9)
    mean, variance = VALUES.mean(), VALUES.var(ddof=1)
    error = math.sqrt((1 / 10 + 1 / 9) * variance)
    assert found.value == pytest.approx(mean)
    assert found.p == pytest.approx(2 * t.sf(mean / error, 9), rel=1e-6)
    half = t.ppf(0.975, 9) * error
    assert (found.low, found.high) == (pytest.approx(mean - half), pytest.approx(mean + half))
    assert mean_over_seeds(VALUES).p == pytest.approx(ttest_1samp(VALUES, 0).pvalue)


def test_a_comparison_of_folds_says_so_and_leaves_other_tests_out() -> None:
    found = compare_runs(fold_runs("bert", 0.7 + 0 * VALUES), fold_runs("ssa", 0.7 + VALUES))
    assert found.over == "folds"
    assert found.p == pytest.approx(float(mean_over_seeds(VALUES, overlap=1 / 9).p))
    assert math.isnan(found.p_sign_flip)
    assert "10 folds" in found.sentence
    assert "seeds" not in found.sentence
    said = (
        "Folds share most of their training rows; interval and p come from the corrected resampled t test "
        "(Nadeau and Bengio 2003)."
    )
    assert found.notes == (said,)
    plain = mean_over_seeds(VALUES)
    assert found.high - found.low > float(plain.high - plain.low)
    detectable = compare_runs(
        Runs("bert", "rte", "accuracy", dict(enumerate(0.7 + 0 * VALUES))),
        Runs("ssa", "rte", "accuracy", dict(enumerate(0.7 + VALUES))),
    ).minimum_detectable_effect
    wider = math.sqrt((1 / 10 + 1 / 9) / (1 / 10))
    assert found.minimum_detectable_effect == pytest.approx(detectable * wider, rel=1e-3)
    mean, expected = summarise(fold_runs("bert", 0.7 + VALUES)), mean_over_seeds(0.7 + VALUES, overlap=1 / 9)
    assert (mean.low, mean.high, mean.over) == (pytest.approx(expected.low), pytest.approx(expected.high), "folds")
    two = compare_runs(fold_runs("bert", VALUES[:2], folds=2), fold_runs("ssa", VALUES[4:6] + 0.2, folds=2))
    assert two.p == pytest.approx(float(mean_over_seeds(VALUES[4:6] + 0.2 - VALUES[:2], overlap=1.0).p))
    assert two.notes[0].startswith("Folds share most")
    assert math.isnan(two.p_sign_flip)
    (alike,) = compare_all([fold_runs("bert", 0.5 + 0 * VALUES), fold_runs("ssa", 0.75 + 0 * VALUES)], "bert")
    assert math.isnan(alike.p)
    assert not alike.shown
    assert "the same on all 10 folds" in alike.sentence
    with pytest.raises(ValueError, match="expected the same number of folds, or none"):
        compare_runs(fold_runs("bert", VALUES), Runs("ssa", "rte", "accuracy", dict(enumerate(VALUES, start=1))))


# Runs by seed, collapsed ones, and the summary of a method.


def runs(scores: dict[int, float | None], **settings) -> Runs:
    return Runs("bert", "rte", "accuracy", scores, **settings)


def answers(seeds: int, examples: int = 50) -> dict[int, np.ndarray]:
    return {seed: numpy_generator("test-runs", seed).random(examples) < 0.7 for seed in range(seeds)}


def test_a_run_no_better_than_the_majority_guess_has_collapsed_and_is_counted_in() -> None:
    scores = {1: 0.53, 2: 0.52, 3: 0.31, 4: 0.5200000000000001}
    assert runs(scores, majority_score=0.52).collapsed() == [2, 3, 4]
    assert runs(scores).collapsed() == []
    assert runs({1: 0.4, 2: 0.9, 3: 1.2}, majority_score=0.9, greater_is_better=False).collapsed() == [2, 3]
    # An undefined score is the guess's where that is known.
    scores = {2: None, 1: 0.4, 3: math.nan}
    known, unknown = runs(scores, majority_score=0.0), runs(scores)
    assert (known.seeds(), [known.score(seed) for seed in (1, 2, 3)]) == ([1, 2, 3], [0.4, 0.0, 0.0])
    assert unknown.seeds() == [1]
    assert known.collapsed() == unknown.collapsed() == [2, 3]
    found = compare_runs(
        scored("bert", [0.61, 0.62, 0.64], majority_score=0.52), scored("ssa", [0.66, 0.52, 0.67], majority_score=0.52)
    )
    assert found.difference == pytest.approx((0.05 - 0.10 + 0.03) / 3)
    said = "1 of 3 runs of ssa score no better than a constant answer, or have no defined score (seed 1)."
    assert found.notes[0] == said


def test_example_values_come_by_seed_or_not_at_all_and_fit_their_score() -> None:
    rows = answers(3)
    found = runs({seed: row.mean() for seed, row in rows.items()}, examples=rows)
    values = found.example_values([2, 0])
    assert values.tolist() == [rows[2].tolist(), rows[0].tolist()]
    assert found.example_values([0, 7]) is None
    assert found.example_values([]) is None
    assert runs({0: 0.5}).example_values([0]) is None
    assert runs({0: None}, examples={0: np.full(9, np.nan)}, majority_score=0.0).example_values([0]) is None
    two = runs({1: 0.5}, examples={1: np.array([1.0, 0.0])}).example_values([1])
    assert two.tolist() == [[1.0, 0.0]]
    large, small = np.float32([70_000.01, 70_000.03]), np.float32([1e-7, -1e-7])  # in single precision
    assert runs({1: 70_000.02}, examples={1: large}).example_values([1]) is not None
    assert runs({1: 5e-7}, examples={1: small}).example_values([1]) is not None
    for bad in (np.ones(1), np.ones((1, 1)), np.ones((2, 3))):
        with pytest.raises(ValueError, match="expected the same .N,. for all seeds"):
            runs({1: 1.0}, examples={1: bad}).example_values([1])
    with pytest.raises(ValueError, match=r"bert on rte \(accuracy\): example values have shapes \[\(3,\), \(4,\)\]"):
        runs({1: 1.0, 2: 1.0}, examples={1: np.ones(3), 2: np.ones(4)}).example_values([1, 2])
    said = (
        r"bert on rte \(accuracy\), seed 1: the example values have the mean 0.25, but the score is 0.5; for a metric "
        "that is not a mean over examples pass its jackknife_values"
    )
    with pytest.raises(ValueError, match=said):
        runs({1: 0.5}, examples={1: np.array([1, 0, 0, 0])}).example_values([1])


def test_a_summary_has_the_t_interval_the_wider_one_with_examples_or_none() -> None:
    scores = {1: 0.71, 2: 0.74, 3: 0.70, 4: 0.52}
    found = summarise(runs(scores, majority_score=0.52))
    low, high = stats.ttest_1samp(list(scores.values()), 0).confidence_interval(0.95)
    assert (found.method, found.task, found.metric) == ("bert", "rte", "accuracy")
    assert found.mean == pytest.approx(0.6675)
    assert found.sd == pytest.approx(np.std(list(scores.values()), ddof=1))
    assert [found.low, found.high] == pytest.approx([low, high])
    assert (found.over, found.seeds, found.examples, found.collapsed) == ("seeds", 4, None, (4,))
    rows = answers(4)
    scores = {seed: float(row.mean()) for seed, row in rows.items()}
    found = summarise(runs(scores, examples=rows))
    known = mean_over_seeds_and_examples(np.stack([rows[seed] for seed in range(4)]))
    assert [found.low, found.high] == pytest.approx([known.low, known.high])
    assert (found.over, found.examples) == ("seeds and examples", 50)
    plain = summarise(runs(scores))
    assert found.high - found.low > plain.high - plain.low
    with np.errstate(all="raise"):  # no spread is computed of one value
        one, none = summarise(runs({3: 0.7}, examples={3: np.array([1] * 7 + [0] * 3)})), summarise(runs({3: None}))
    assert (one.mean, one.seeds, none.seeds) == (0.7, 1, 0)
    assert np.isnan([one.sd, one.low, one.high, none.mean, none.sd, none.low]).all()


# Friedman's test and Nemenyi's difference.


def rank(scores: np.ndarray, names: tuple[str, ...] | None = None, **settings) -> Ranking:
    names = names or tuple("abcdefghij"[: np.asarray(scores).shape[1]])
    return rank_methods(scores, names, generator=numpy_generator("test-ranks"), **settings)


def test_methods_are_sorted() -> None:
    """Twelve tasks: `d` is always last, `a` always first but once, and `b` and `c` take turns."""
    scores = np.array([[0.9, 0.8, 0.7, 0.1], [0.9, 0.7, 0.8, 0.1]] * 6)
    scores[0] = [0.8, 0.9, 0.7, 0.1]
    found = rank(scores[:, [3, 1, 0, 2]], ("d", "b", "a", "c"))
    assert found.methods == ("a", "b", "c", "d")
    assert found.mean_ranks == pytest.approx((13 / 12, 29 / 12, 30 / 12, 4.0))
    assert found.statistic == pytest.approx(stats.friedmanchisquare(*scores.T).statistic, rel=1e-12)
    assert found.p == 1 / 10_001
    assert found.critical_difference == pytest.approx(1.354, abs=1e-3)  # 2.569 sqrt(4 x 5 / (6 x 12))
    assert rank(scores, alpha=0.1).critical_difference == critical_difference(4, 12, alpha=0.1) < 4 / 3


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (10, 3.164)])
def test_the_critical_difference_has_the_papers_quantiles(methods: int, q: float) -> None:
    assert critical_difference(methods, 12) == pytest.approx(q * (methods * (methods + 1) / 72) ** 0.5, rel=5e-4)
    # Demsar's section 3.2.2: 4 methods on 14 data sets, 1.25 at 0.05 and 1.12 at 0.10.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, alpha=0.1) == pytest.approx(1.12, abs=0.005)


def test_p_is_exact_for_few_tasks() -> None:
    """Where there are no more orders than permutations to draw, p is the share of all orders."""
    scores = np.array([[0.1, 0.2, 0.3], [0.2, 0.1, 0.3], [0.1, 0.2, 0.3]])
    seen, total = 0, 0
    for orders in itertools.product(itertools.permutations((1, 2, 3)), repeat=3):
        sums = np.sum(orders, axis=0)
        seen += ((sums - 6) ** 2).sum() >= ((np.array([4, 5, 9]) - 6) ** 2).sum()
        total += 1
    assert rank(scores).p == pytest.approx(seen / total, rel=1e-12)
    assert rank(scores, permutations=total - 1).p == pytest.approx(seen / total, abs=0.08)
    two = rank(np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.2]]))  # two tasks cannot show anything
    assert (two.mean_ranks, two.p) == ((1.0, 2.0, 3.0), pytest.approx(1 / 6, rel=1e-12))
    # Of two methods it is the sign test; scipy's own takes three methods or more.
    two = rank(np.array([[0.9, 0.5]] * 7 + [[0.5, 0.9]]))
    assert two.p == pytest.approx(stats.binomtest(1, 8).pvalue, rel=1e-12)
    assert two.statistic == pytest.approx((7 - 1) ** 2 / 8)
    ties = rank(np.full((5, 3), 0.1) + np.array([[0.0], [0.1], [0.2], [0.3], [0.4]]))
    assert (ties.statistic, ties.p) == (0.0, 1.0)


def test_p_is_near_chi_square_for_many_tasks() -> None:
    scores = numpy_generator("many-tasks").normal(size=(80, 4)) + np.array([0.0, 0.1, 0.2, 0.3])
    found, known = rank(scores), stats.friedmanchisquare(*scores.T)
    assert 0.01 < known.pvalue < 0.9
    assert found.statistic == pytest.approx(known.statistic, rel=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=0.02)


def test_drawn_orders_are_those_of_the_generator() -> None:
    scores = numpy_generator("drawn-orders").normal(size=(6, 5))
    ranks = stats.rankdata(-scores, axis=1)
    orders = numpy_generator("test-ranks").permuted(np.broadcast_to(ranks, (1000, 6, 5)), axis=2)
    distances = ((orders.sum(axis=1) - 18) ** 2).sum(axis=1)
    as_far = int((distances >= ((ranks.sum(axis=0) - 18) ** 2).sum() - 1e-9).sum())
    assert rank(scores, permutations=1000).p == (1 + as_far) / 1001


def test_where_smaller_is_better_ranks_turn_task_by_task() -> None:
    scores = np.tile([[0.9, 0.5, 0.1]], (12, 1))
    assert rank(scores).methods == ("a", "b", "c")
    assert rank(scores, greater_is_better=False).methods == ("c", "b", "a")
    assert rank(scores, greater_is_better=[True, False] * 6).mean_ranks == (2.0, 2.0, 2.0)


@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_neither_the_order_of_tasks_nor_a_tasks_level_matters(seed: int, shift: float) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 5, size=(6, 4)) / 10
    settings = {"permutations": 50}
    before = rank(scores, **settings)
    after = rank(scores[generator.permutation(6)] + shift * generator.random((6, 1)), **settings)
    assert (after.methods, after.mean_ranks) == (before.methods, before.mean_ranks)
    assert after.statistic == pytest.approx(before.statistic, rel=1e-9)


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scores have shape \(1, 3\) for 3 methods; expected \(tasks, methods\)"):
        rank(np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"shape \(4, 3\) for 2 methods"):
        rank(np.ones((4, 3)), ("a", "b"))
    with pytest.raises(ValueError, match="a score is missing or not finite; leave out its task or its method"):
        rank(np.array([[0.1, np.nan], [0.2, 0.3]]))
