"""The sign-flip test and Wilcoxon's, against scipy and plain loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.paired_tests import sign_flip_p, sign_flip_test, signed_ranks, smallest_p, wilcoxon_test

# Differences of accuracies on 200 rows: with ties and zeros, as they are.
DIFFERENCES = st.lists(st.integers(-20, 20).map(lambda count: count / 200), min_size=1, max_size=8).map(np.array)


def sign_flip_by_loop(differences: list[float]) -> float:
    seen = abs(sum(differences))
    as_far = total = 0
    for signs in itertools.product((1, -1), repeat=len(differences)):
        flipped = abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
        as_far += flipped >= seen - 1e-9
        total += 1
    return as_far / total


@given(differences=DIFFERENCES)
def test_the_sign_flip_test_is_a_loop_over_all_signs(differences: np.ndarray) -> None:
    assert sign_flip_test(differences) == sign_flip_by_loop(differences.tolist())


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_sign_flip_test_is_scipys_paired_permutation_test(seeds: int) -> None:
    first, second = numpy_generator("test-flip", seeds).normal(size=(2, seeds))
    known = stats.permutation_test(
        (second, first),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=2**seeds,
        vectorized=True,
    )
    found = sign_flip_test(second - first)
    assert found == pytest.approx(known.pvalue, rel=1e-12)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_wilcoxon_is_scipys_exact_one_without_ties(seeds: int) -> None:
    differences = numpy_generator("test-wilcoxon", seeds).normal(0.3, size=seeds)
    known = stats.wilcoxon(differences, method="exact")
    assert wilcoxon_test(differences) == pytest.approx(known.pvalue, rel=1e-12)


@given(differences=DIFFERENCES)
def test_wilcoxon_with_ties_and_zeros_goes_through_all_signs_of_the_ranks(differences: np.ndarray) -> None:
    kept = [value for value in differences.tolist() if value != 0]
    sizes = sorted(abs(value) for value in kept)
    ranks = []
    for value in kept:
        places = [place + 1 for place, size in enumerate(sizes) if size == abs(value)]
        ranks.append((1 if value > 0 else -1) * sum(places) / len(places))
    assert wilcoxon_test(differences) == (sign_flip_by_loop(ranks) if ranks else 1.0)


def test_the_smallest_rank_counts() -> None:
    assert wilcoxon_test(np.array([0.1, -0.2, 0.3])) == 0.75


def test_sixteen_differences_are_gone_through_and_more_are_drawn() -> None:
    for count in (16, 17):
        differences = numpy_generator("test-sixteen").normal(0.3, 1.0, size=count)
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=8)))
        rest = np.array(list(itertools.product((1.0, -1.0), repeat=count - 8)))
        sums = (signs @ differences[:8])[:, None] + (rest @ differences[8:])[None, :]
        exact = float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9))
        assert (sign_flip_test(differences) == exact) == (count == 16)
        drawn = [wilcoxon_test(differences, generator=numpy_generator("drawn", one)) for one in range(3)]
        assert (len(set(drawn)) == 1) == (count == 16)
    assert (smallest_p(0), smallest_p(17), smallest_p(40)) == (1.0, 2 / 65_537, 2 / 65_537)


def test_ties_are_found_through_rounding() -> None:
    # 0.3 - 0.2, 0.2 - 0.1 and 0.1 are three different floating-point numbers.
    assert signed_ranks(np.array([0.3 - 0.2, 0.1 - 0.2, 0.1, 0.0])).tolist() == [2.0, -2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("seeds", "floor"), [(1, 1.0), (3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125), (10, 2 / 1024)]
)
def test_p_has_a_floor(seeds: int, floor: float) -> None:
    for test in (sign_flip_test, wilcoxon_test):
        assert test(np.linspace(0.1, 0.2, seeds)) == smallest_p(seeds) == floor


def test_a_zero_flips_nothing_and_raises_the_floor() -> None:
    assert sign_flip_test(np.array([0.1, 0.2, 0.0, 0.3])) == 0.25
    assert sign_flip_test(np.zeros(4)) == wilcoxon_test(np.zeros(4)) == 1.0


@given(differences=DIFFERENCES, data=st.data())
def test_order_and_sign_do_not_matter(differences: np.ndarray, data: st.DataObject) -> None:
    shuffled = np.array(data.draw(st.permutations(differences.tolist())))
    for test in (sign_flip_test, wilcoxon_test):
        assert test(shuffled) == test(-differences) == test(differences)


def test_many_seeds_are_drawn_from_and_are_near_the_exact_p() -> None:
    differences = numpy_generator("test-many").normal(0.45, 1.0, size=20)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=10)))
    halves = (signs @ differences[:10])[:, None] + (signs @ differences[10:])[None, :]
    exact = float(np.mean(np.abs(halves) >= abs(differences.sum()) - 1e-9))
    found = sign_flip_test(differences)
    assert 0.01 < exact < 0.5
    assert found == pytest.approx(exact, abs=5 * (exact * (1 - exact) / 65_536) ** 0.5)
    assert found == sign_flip_test(differences)
    assert found != sign_flip_test(differences, generator=numpy_generator("other"))
    assert sign_flip_test(np.ones(40)) == smallest_p(40)


def test_many_data_sets_at_once_give_what_each_gives_alone() -> None:
    values = numpy_generator("test-stack").normal(size=(4, 2, 5))
    together = sign_flip_p(values)
    assert together.shape == (4, 2)
    for place in np.ndindex(4, 2):
        assert together[place] == sign_flip_test(values[place])


def test_sums_that_differ_by_rounding_are_ties() -> None:
    """0.1 + 0.2 - 0.3 is 5.6e-17 in floating point: p is 1, since the sum is zero."""
    for unit in (1e-8, 1.0, 1e8):
        assert sign_flip_test(unit * np.array([0.1, 0.2, -0.3])) == 1.0


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [[1.0, 2.0]]])
def test_what_is_no_row_of_numbers_is_refused(bad: list) -> None:
    for test in (sign_flip_test, wilcoxon_test):
        with pytest.raises(ValueError, match="expected one finite number per seed, for at least one seed"):
            test(np.array(bad))
