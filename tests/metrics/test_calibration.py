"""Calibration against plain loops, worked examples and made-up data whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from attentune.metrics.calibration import best_threshold, calibration_error, fit_temperature, negative_log_likelihood

SHARES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(SHARES)
def test_the_error_is_that_of_a_plain_loop(pairs: list[tuple[float, bool]]) -> None:
    total = 0.0
    for k in range(15):
        own = [(p, was) for p, was in pairs if (k / 15 < p <= (k + 1) / 15) or (k == 0 and p == 0)]
        if own:
            mean_p, mean_was = math.fsum(p for p, _ in own) / len(own), sum(was for _, was in own) / len(own)
            total += len(own) / len(pairs) * abs(mean_p - mean_was)
    found = calibration_error(np.array([p for p, _ in pairs]), np.array([was for _, was in pairs]))
    assert found == pytest.approx(total, abs=1e-6) or any(abs(p * 15 - round(p * 15)) < 1e-9 for p, _ in pairs)


def test_errors_worked_by_hand() -> None:
    assert calibration_error(np.array([0.9, 0.9]), np.array([1, 0])) == pytest.approx(0.4)
    assert calibration_error(np.array([1.0, 0.0]), np.array([1, 0])) == 0.0
    assert calibration_error(np.array([1.0, 0.0]), np.array([0, 1])) == 1.0
    assert math.isnan(calibration_error(np.array([]), np.array([])))


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_made_up_logits_is_found(true_temperature: float) -> None:
    draw = np.random.default_rng(3)
    honest_NC = 2 * draw.standard_normal((20_000, 4))
    shares = softmax(honest_NC, axis=1)
    labels = (shares.cumsum(axis=1) < draw.random((len(shares), 1))).sum(axis=1)
    logits = (honest_NC * true_temperature).astype(np.float32)
    assert fit_temperature(logits, labels) == pytest.approx(true_temperature, rel=0.05)
    there = (draw.random(honest_NC.shape) < 1 / (1 + np.exp(-honest_NC))).astype(np.int64)
    assert fit_temperature(logits, there) == pytest.approx(true_temperature, rel=0.05)


def test_the_likelihood_is_never_worse_and_bounds_hold() -> None:
    draw = np.random.default_rng(5)
    for _ in range(30):
        logits = draw.standard_normal((12, 3)) * draw.uniform(0.1, 20)
        labels = draw.integers(0, 3, 12)
        temperature = fit_temperature(logits, labels)
        assert 0.05 <= temperature <= 20
        assert negative_log_likelihood(logits, labels, temperature) <= negative_log_likelihood(logits, labels)
    assert fit_temperature(np.zeros((4, 3)), np.array([0, 1, 2, 0])) == 1.0  # where none matters
    sure = np.array([[9.0, 0.0], [0.0, 9.0]])
    assert 0.05 <= fit_temperature(sure, np.array([0, 1])) < 0.3  # the loss is 0 to the last digit from there on
    assert fit_temperature(sure, np.array([1, 0])) == pytest.approx(20, rel=0.05)


def test_the_likelihood_written_out() -> None:
    logits = np.array([[1.0, 3.0], [0.5, -2.0]])
    parts = [-math.log(math.exp(1.5) / (math.exp(0.5) + math.exp(1.5))), -math.log(1 / (1 + math.exp(-1.25)))]
    assert negative_log_likelihood(logits, np.array([1, 0]), 2.0) == pytest.approx(sum(parts) / 2)
    sets = [-math.log(1 / (1 + math.exp(-z))) for z in (1.0, -3.0, -0.5, -2.0)]
    assert negative_log_likelihood(logits, np.array([[1, 0], [0, 1]])) == pytest.approx(sum(sets) / 4)


def f1_of(there: np.ndarray, said: np.ndarray) -> float:
    total = there.sum() + said.sum()
    return 2 * (there & said).sum() / total if total else 0.0


@given(st.lists(st.tuples(st.integers(0, 20).map(lambda k: k / 20), st.booleans()), min_size=1, max_size=30))
def test_no_other_threshold_has_a_higher_f1(pairs: list[tuple[float, bool]]) -> None:
    shares, there = np.array([p for p, _ in pairs]), np.array([was for _, was in pairs])
    found = best_threshold(shares, there)
    scores = {t: f1_of(there, shares >= t) for t in (found, 0.5, *shares, *(shares + 1e-6))}
    assert scores[found] == pytest.approx(max(scores.values()))
    if scores[0.5] == max(scores.values()):
        assert found == 0.5


def test_thresholds_worked_by_hand() -> None:
    assert best_threshold(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 0, 1, 1])) == pytest.approx(0.25)
    assert best_threshold(np.array([0.6, 0.7, 0.8]), np.array([0, 0, 1])) == pytest.approx(0.75)
    assert best_threshold(np.array([0.1, 0.9]), np.array([0, 0])) == 0.5
    assert best_threshold(np.array([0.1, 0.2]), np.array([1, 1])) == pytest.approx(0.05)
