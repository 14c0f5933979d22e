"""From scores of importance to labels, and the control that deals labels out again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from attentune.token_labels.plan import labels_from_scores, shuffled
from helpers.label_references import labels_of_scores


def labels(scores: list[float], ordinary: list[int] | None = None, *, top_share: float = 0.3, soft: bool = False):
    places = range(len(scores)) if ordinary is None else ordinary
    values = np.array(scores, dtype=np.float32)
    made = labels_from_scores(values, list(places), targets="soft" if soft else "hard", top_share=top_share)
    assert made.dtype == np.float32
    return made.tolist()


@pytest.mark.parametrize(
    ("scores", "top_share", "expected"),
    [
        ([5, 4, 3, 2, 1, 0], 0.3, [1, 1, -1, 0, 0, 0]),  # round(1.8) is 2; the bottom half is 3
        ([1, 2, 3, 4, 5], 0.2, [0, 0, -1, -1, 1]),  # the bottom half of five is 2
        ([1, 2, 3, 4, 5], 0.0, [0, 0, -1, -1, 1]),  # at least one
        ([1, 2, 3, 4], 0.5, [0, 0, 1, 1]),
        ([3, 1, 2], 0.5, [1, 0, 1]),  # round(1.5) is 2
        ([7], 0.3, [1]),  # one token has no bottom half
        ([0], 0.3, [-1]),
        ([2, 1], 0.3, [1, 0]),
        ([-1, -2, -3, -4], 0.5, [-1, -1, 0, 0]),  # nothing above 0: no token is important
        ([1, -2, -3, -4], 0.5, [1, -1, 0, 0]),
        ([2, 2, 2, 2], 0.3, [1, -1, 0, 0]),  # of equal scores the earlier counts as higher
        ([0, 0, 0, 0], 0.3, [-1, -1, 0, 0]),
        ([], 0.3, []),
    ],
)
def test_hard_labels_by_hand(scores: list[float], top_share: float, expected: list[float]) -> None:
    assert labels(scores, top_share=top_share) == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([4, 1, 0, -3], [1, 0.25, 0, 0]),
        ([-1, -2], [0, 0]),
        ([0, 0], [0, 0]),
        ([0.5], [1]),
        ([3, 3], [1, 1]),
        ([], []),
    ],
)
def test_soft_labels_by_hand(scores: list[float], expected: list[float]) -> None:
    assert labels(scores, soft=True) == expected


@pytest.mark.parametrize("soft", [False, True])
def test_special_tokens_neither_get_labels_nor_count(soft: bool) -> None:
    alone = labels([1.0, 4.0, 2.0, 0.5], soft=soft)
    assert labels([99.0, 1.0, 4.0, -99.0, 2.0, 0.5, 99.0], [1, 2, 4, 5], soft=soft) == [
        -1.0,
        *alone[:2],
        -1.0,
        *alone[2:],
        -1.0,
    ]
    assert labels([1.0, 2.0], [], soft=soft) == [-1.0, -1.0]


SCORES = nps.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


@pytest.mark.integration
@given(SCORES, st.floats(0, 0.5), st.booleans(), st.data())
def test_labels_from_any_scores(scores: np.ndarray, top_share: float, soft: bool, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, len(scores) - 1))))
    kept = scores.copy()
    made = labels_from_scores(scores, places, targets="soft" if soft else "hard", top_share=top_share)
    assert np.array_equal(scores, kept)
    assert made == pytest.approx(labels_of_scores(scores, places, soft=soft, top_share=top_share), abs=1e-6)
    assert (np.delete(made, places) == -1).all()
    if not soft:
        ones, zeros = (made == 1).sum(), (made == 0).sum()
        assert zeros == len(places) // 2
        assert ones <= max(1, round(top_share * len(places)))
        if ones and zeros:
            assert scores[made == 1].min() >= scores[made == 0].max()
            assert scores[made == 1].min() > 0
    elif places and scores[places].max() > 0:
        assert made.max() == 1
        assert made[places].min() >= 0


def test_shuffling_deals_every_label_to_every_labelled_place_alike() -> None:
    values = np.array([1.0, -1.0, 0.0, 0.0, -1.0, 0.0], dtype=np.float32)
    draws = np.array([shuffled(values, np.random.default_rng(seed)) for seed in range(2000)])
    assert (draws[:, [0, 2, 3, 5]] == 1).mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=0.05)
