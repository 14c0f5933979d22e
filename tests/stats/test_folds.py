"""The corrected resampled t test: its formula, and that it is right more often than the plain one."""

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from attentune.stats.compare import Runs, compare_all, compare_runs, summarise
from attentune.stats.estimate import mean_over_seeds

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
    assert all(math.isnan(p) for p in (found.p_seeds, found.p_sign_flip, found.p_wilcoxon, found.smallest_p))
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


def test_two_folds_are_compared_as_more_are() -> None:
    found = compare_runs(fold_runs("bert", VALUES[:2], folds=2), fold_runs("ssa", VALUES[4:6] + 0.2, folds=2))
    assert found.p == pytest.approx(float(mean_over_seeds(VALUES[4:6] + 0.2 - VALUES[:2], overlap=1.0).p))
    assert found.notes[0].startswith("Folds share most")
    assert math.isnan(found.p_sign_flip)


def test_folds_that_all_differ_alike_have_no_p() -> None:
    runs = [fold_runs("bert", 0.5 + 0 * VALUES), fold_runs("ssa", 0.75 + 0 * VALUES)]
    (found,) = compare_all(runs, "bert")
    assert math.isnan(found.p)
    assert not found.shown
    assert "the same on all 10 folds" in found.sentence


def test_folds_and_seeds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="expected the same number of folds, or none"):
        compare_runs(fold_runs("bert", VALUES), Runs("ssa", "rte", "accuracy", dict(enumerate(VALUES, start=1))))


def test_the_interval_of_a_mean_allows_for_the_overlap_too() -> None:
    found = summarise(fold_runs("bert", 0.7 + VALUES))
    expected = mean_over_seeds(0.7 + VALUES, overlap=1 / 9)
    assert (found.low, found.high) == (pytest.approx(float(expected.low)), pytest.approx(float(expected.high)))
    assert found.over == "folds"
