"""Holm's correction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attentune.stats.multiple_testing import holm

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def rejected_by_steps(p_values: list[float], alpha: float) -> list[bool]:
    """Holm step by step: the smallest against alpha / m, the next against alpha / (m - 1), until one fails."""
    rejected = [False] * len(p_values)
    for step, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if p_values[place] * (len(p_values) - step) > alpha:
            break
        rejected[place] = True
    return rejected


def test_it_is_statsmodels() -> None:
    # From statsmodels 0.15.0: multipletests(..., method="holm")[1]
    found = holm(np.array([0.01, 0.04, 0.03, 0.005, 0.6]))
    assert found == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.6], rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(p_values=P_VALUES, alpha=st.sampled_from([0.01, 0.05, 0.5]))
def test_it_rejects_what_the_steps_reject(p_values: list[float], alpha: float) -> None:
    assert (holm(np.array(p_values)) <= alpha).tolist() == rejected_by_steps(p_values, alpha)


@settings(deadline=None, max_examples=60)
@given(p_values=P_VALUES, data=st.data())
def test_it_never_lowers_a_p_keeps_their_order_and_does_not_ask_for_it(p_values: list[float], data) -> None:
    found = holm(np.array(p_values))
    assert (found >= np.array(p_values)).all()
    assert (found <= np.minimum(1, len(p_values) * np.array(p_values))).all()
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    shuffle = data.draw(st.permutations(range(len(p_values))))
    assert holm(np.array(p_values)[shuffle]).tolist() == found[shuffle].tolist()


def test_comparisons_that_could_not_be_made_do_not_count() -> None:
    found = holm(np.array([math.nan, 0.01, math.nan, 0.04]))
    assert np.isnan(found[[0, 2]]).all()
    assert found[[1, 3]].tolist() == [0.02, 0.04]
    assert holm(np.array([])).tolist() == []
