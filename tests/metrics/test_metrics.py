"""Metrics, their intervals and calibration against examples worked by hand and plain loops."""

import math
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.metrics.calibration import best_threshold, calibration_error, fit_temperature, negative_log_likelihood
from attentune.metrics.confusion import (
    CONFUSION_SCORES,
    bootstrap_confusion_interval,
    confusion_counts,
    confusion_score,
    scores_without_each,
)
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import (
    METRICS,
    choose_metric,
    predictions_of,
    probabilities_of,
    score_predictions,
    weighted_score,
)
from attentune.stats.estimate import bootstrap_interval

TWO, THREE = LabelSpace("classification", ("bad", "good")), LabelSpace("classification", ("a", "b", "c"))
STARS, SCORE = LabelSpace("ordinal", ("1", "2", "3", "4", "5")), LabelSpace("regression")
SETS = LabelSpace("multi_label", ("a", "b", "c"))

CLASSES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40)
NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40)


def score(name: str, labels: list, predictions: list) -> float:
    return METRICS[name].score(np.array(labels), np.array(predictions))


def plain_matthews(pairs: list[tuple[int, int]]) -> float:
    """Gorodkin's R_K from the confusion counts."""
    classes = range(5)
    count = {(i, j): sum(pair == (i, j) for pair in pairs) for i in classes for j in classes}
    total, right = len(pairs), sum(count[k, k] for k in classes)
    true = [sum(count[k, j] for j in classes) for k in classes]
    said = [sum(count[i, k] for i in classes) for k in classes]
    top = right * total - sum(t * s for t, s in zip(true, said, strict=True))
    below = math.sqrt(total**2 - sum(s * s for s in said)) * math.sqrt(total**2 - sum(t * t for t in true))
    return top / below if below else 0.0


def plain_pearson(one: list[float], other: list[float]) -> float:
    mean_1, mean_2 = math.fsum(one) / len(one), math.fsum(other) / len(other)
    together = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    square = math.fsum((a - mean_1) ** 2 for a in one) * math.fsum((b - mean_2) ** 2 for b in other)
    return together / math.sqrt(square) if square > 0 else math.nan


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1; ties share the mean of theirs."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def plain_kappa(pairs: list[tuple[int, int]]) -> float:
    observed = sum((t - p) ** 2 for t, p in pairs) / len(pairs)
    expected = sum((t - p) ** 2 for t, _ in pairs for _, p in pairs) / len(pairs) ** 2
    return 1 - observed / expected if expected else 1.0


def plain_f1(pairs: list[tuple[int, int]], k: int) -> float:
    hit = sum(t == p == k for t, p in pairs)
    miss = sum((t == k) != (p == k) for t, p in pairs)
    return 2 * hit / (2 * hit + miss) if hit else 0.0


# labels 1 1 1 0 0 0, predictions 1 1 0 0 0 1: 2 true positives, 1 false, 1 missed, 2 true negatives
HAND = ([1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("precision", *HAND, 2 / 3),
        ("recall", [1, 1, 1, 0], [1, 0, 0, 0], 1 / 3),
        ("precision", [1, 0], [0, 0], 0.0),
        ("balanced_accuracy", [0, 0, 0, 0, 1], [0, 0, 0, 1, 1], (3 / 4 + 1) / 2),
        ("balanced_accuracy", [0, 0], [2, 0], 1 / 2),
        ("f1_micro", [0, 0, 1, 2], [0, 1, 1, 2], 3 / 4),
        ("f1_weighted", [0, 0, 1, 2], [0, 1, 1, 2], (2 * 2 / 3 + 2 / 3 + 1) / 4),
        ("precision_macro", [0, 0, 1, 2], [0, 1, 1, 2], (1 + 1 / 2 + 1) / 3),
        ("recall_macro", [0, 0, 1, 2], [0, 1, 1, 2], (1 / 2 + 1 + 1) / 3),
        ("f1", [1, 1, 0], [0, 0, 0], 0.0),
        ("matthews_correlation", [1, 1, 0], [1, 1, 1], 0.0),
        ("matthews_correlation", [1, 1], [1, 1], 0.0),  # as GLUE has it: a single label says nothing
        ("quadratic_weighted_kappa", [0, 1, 4], [0, 4, 4], 1 - (9 / 3) / (67 / 9)),  # classes 2 and 3 never occur
        ("quadratic_weighted_kappa", [2, 2], [2, 2], 1.0),
        ("quadratic_weighted_kappa", [0, 0], [1, 1], 0.0),
    ],
)
def test_examples_worked_by_hand(name: str, labels: list, predictions: list, expected: float) -> None:
    assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9)


@given(CLASSES)
def test_metrics_of_classes_are_those_of_plain_loops(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = [t for t, _ in pairs], [p for _, p in pairs]
    seen = sorted({*labels, *predictions})
    plain = {
        "accuracy": sum(t == p for t, p in pairs) / len(pairs),
        "f1_macro": math.fsum(plain_f1(pairs, k) for k in seen) / len(seen),
        "matthews_correlation": plain_matthews(pairs),
        "quadratic_weighted_kappa": plain_kappa(pairs),
    }
    for name, expected in plain.items():
        assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9), name
    binary = [(t % 2, p % 2) for t, p in pairs]
    found = score("f1", [t for t, _ in binary], [p for _, p in binary])
    assert found == pytest.approx(plain_f1(binary, 1), abs=1e-9)


AVERAGED = {
    "f1": "binary",
    "precision": "binary",
    "recall": "binary",
    "f1_macro": "macro",
    "precision_macro": "macro",
    "recall_macro": "macro",
    "f1_micro": "micro",
    "f1_weighted": "weighted",
    "f1_samples": "samples",
}


@given(CLASSES)
def test_averages_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    classes = np.array(pairs).T
    sets = [values[:, None] >> np.arange(3) & 1 for values in classes]  # their binary digits
    for name, average in AVERAGED.items():
        function = getattr(metrics, f"{name.split('_')[0]}_score")
        given = {"binary": [classes % 2], "samples": [sets]}.get(average, [classes, sets])
        for labels, predictions in given:
            wanted = function(labels, predictions, average=average, zero_division=float(average == "samples"))
            assert METRICS[name].score(labels, predictions) == pytest.approx(wanted, abs=1e-12), name


@given(NUMBERS)
def test_correlations_and_errors_are_those_of_plain_loops(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = [t / 2 for t, _ in pairs], [p / 3 for _, p in pairs]
    plain = {
        "pearson": plain_pearson(labels, predictions),
        "spearmanr": plain_pearson(ranks(labels), ranks(predictions)),
        "mean_absolute_error": math.fsum(abs(t - p) for t, p in zip(labels, predictions, strict=True)) / len(pairs),
        "mean_squared_error": math.fsum((t - p) ** 2 for t, p in zip(labels, predictions, strict=True)) / len(pairs),
    }
    for name, expected in plain.items():
        assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("name", ["pearson", "spearmanr"])
@pytest.mark.parametrize(
    ("labels", "predictions"), [([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0]), ([], [])]
)
def test_a_constant_has_no_correlation(name: str, labels: list, predictions: list, recwarn) -> None:
    assert math.isnan(score(name, labels, predictions))
    for name in ("accuracy", "f1", "f1_macro", "matthews_correlation", "quadratic_weighted_kappa"):  # of one class
        assert math.isfinite(score(name, [0, 0, 0], [0, 0, 0]))
        assert math.isfinite(score(name, [0, 0, 0], [1, 1, 1]))
    assert not recwarn.list


def test_the_expected_value_is_the_class_nearest_to_the_mean_of_class_numbers() -> None:
    mean = replace(STARS, ordinal_prediction="expected-value")
    draw = np.random.default_rng(3)
    shares_NC = draw.dirichlet([0.4] * 5, size=200)
    logits_NC = np.log(np.maximum(shares_NC, 1e-30)).astype(np.float32) + draw.normal(size=(200, 1)).astype(np.float32)
    expected = []
    for shares in shares_NC:
        middle = math.fsum(number * share for number, share in enumerate(shares))
        expected.append(min(range(5), key=lambda number: abs(number - middle)))
    found = predictions_of(logits_NC, mean)
    assert found.dtype == np.int64
    assert found.tolist() == expected
    assert (found != predictions_of(logits_NC, STARS)).mean() > 0.2, "the two ways differ"
    split = np.full((2, 5), -np.inf)  # of two classes as near to the mean the higher one is predicted
    split[0, [1, 2]], split[1, [0, 4]] = 0.0, 0.0
    assert predictions_of(split, mean).tolist() == [2, 2]
    assert predictions_of(split, STARS).tolist() == [1, 0]
    assert predictions_of(np.array([[1.5], [-2.0]]), SCORE).tolist() == [1.5, -2.0]


def test_several_labels_have_probabilities_of_their_own() -> None:
    logits_NC = np.array([[0.0, math.log(3.0), -math.log(4.0)], [1000.0, -1000.0, 0.1]], dtype=np.float32)
    expected = np.array([[0.5, 0.75, 0.2], [1.0, 0.0, 1 / (1 + math.exp(-0.1))]])
    assert probabilities_of(logits_NC, SETS) == pytest.approx(expected, abs=1e-7)
    found = predictions_of(logits_NC, SETS)
    assert found.dtype == np.int64
    assert found.tolist() == [[1, 1, 0], [1, 0, 1]]


# Rows {a}, {a, b}, {}, {c}; predicted {a}, {a}, {b}, {c}: of a 2 of 2, of b 0 of 1 and 1 false, of c 1 of 1.
GOLD_SETS = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
SAID_SETS = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1_micro", 2 * 3 / (4 + 4)),
        ("f1_macro", (1 + 0 + 1) / 3),
        ("f1_weighted", (2 * 1 + 1 * 0 + 1 * 1) / 4),
        ("precision_macro", 2 / 3),
        ("recall_macro", 2 / 3),
        ("f1_samples", (1 + 2 / 3 + 0 + 1) / 4),
        ("subset_accuracy", 2 / 4),
        ("hamming_loss", 2 / 12),
    ],
)
def test_metrics_of_several_labels_worked_by_hand(name: str, expected: float) -> None:
    assert METRICS[name].score(GOLD_SETS, SAID_SETS) == pytest.approx(expected)
    assert choose_metric(name, ("f1_micro",), SETS).name == name


def test_scores_come_by_name_in_the_order_asked() -> None:
    logits_NC = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0]])
    scores = score_predictions(("f1", "accuracy"), np.array([0, 1, 0]), logits_NC, TWO)
    assert list(scores.items()) == [("f1", pytest.approx(2 / 3)), ("accuracy", pytest.approx(2 / 3))]
    scores = score_predictions(("pearson",), np.array([1.0, 2.0, 2.5]), np.array([[1.0], [2.0], [2.5]]), SCORE)
    assert scores == {"pearson": pytest.approx(1.0)}
    assert math.isnan(score_predictions(("pearson",), np.array([1.0, 2.0]), np.zeros((2, 1)), SCORE)["pearson"])


@pytest.mark.parametrize(
    ("wanted", "space", "name"),
    [
        (None, TWO, "matthews_correlation"),
        ("accuracy", TWO, "accuracy"),
        ("eval_f1", TWO, "f1"),
        ("f1_macro", THREE, "f1_macro"),
        ("quadratic_weighted_kappa", STARS, "quadratic_weighted_kappa"),
        ("spearmanr", STARS, "spearmanr"),
        ("eval_mean_squared_error", SCORE, "mean_squared_error"),
    ],
)
def test_the_metric_that_tells_the_best(wanted: str | None, space: LabelSpace, name: str) -> None:
    assert choose_metric(wanted, ("matthews_correlation", "accuracy"), space).name == name


@pytest.mark.parametrize(
    ("wanted", "space"),
    [("acuracy", TWO), ("accuracy", SCORE), ("f1", THREE), ("eval_loss", TWO), ("accuracy", SETS), ("f1_samples", TWO)],
)
def test_a_metric_that_does_not_fit_is_refused_and_those_that_do_are_named(wanted: str, space: LabelSpace) -> None:
    with pytest.raises(ConfigError, match=f"metric_for_best_model: got {wanted!r}, expected one of ") as caught:
        choose_metric(wanted, ("accuracy",), space)
    named = str(caught.value).split("expected one of ")[1].split(".")[0].split(", ")
    assert wanted not in named
    for name in named:
        assert choose_metric(name, ("accuracy",), space).name == name
    assert [name for name in METRICS if name not in named and _fits(name, space)] == []
    for wanted in ("macro_f1", "macro-F1", "f1_marco", "eval_macro_f1"):
        with pytest.raises(ConfigError, match="Did you mean 'f1_macro'"):
            choose_metric(wanted, ("accuracy",), THREE)


def _fits(name: str, space: LabelSpace) -> bool:
    try:
        choose_metric(name, ("accuracy",), space)
    except ConfigError:
        return False
    return True


def test_better_predictions_never_score_worse() -> None:
    """Each metric's direction is the right one: mending one prediction after the other leads to its best value."""
    plain = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    for name, metric in METRICS.items():
        labels = np.stack([plain, plain], axis=1) if metric.needs == "sets" else plain
        wrong, found = 1 - labels, []
        for mended in range(len(labels) + 1):
            found.append(metric.score(labels, np.concatenate([labels[:mended], wrong[mended:]])))
        sign = 1 if metric.greater_is_better else -1
        assert all(sign * (b - a) >= -1e-12 for a, b in pairwise(found)), name
        assert sign * (found[-1] - found[0]) > 0
    smaller = {name for name, metric in METRICS.items() if not metric.greater_is_better}
    assert smaller == {"hamming_loss", "mean_absolute_error", "mean_squared_error"}


# Intervals of scores, beside those of resampled rows, and calibration against plain loops and data of known truth.


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
    assert calibration_error(np.array([0.9, 0.9]), np.array([1, 0])) == pytest.approx(0.4)
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
    assert best_threshold(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 0, 1, 1])) == pytest.approx(0.25)
    assert best_threshold(np.array([0.1, 0.2]), np.array([1, 1])) == pytest.approx(0.05)


# Intervals of scores: from confusion counts they are those of resampled rows, and undefined ones are NaN.


RESAMPLES = 2000


def drawn(rows: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    labels = generator.integers(0, classes, rows)
    return labels, np.where(generator.random(rows) < 0.7, labels, generator.integers(0, classes, rows))


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted({*CONFUSION_SCORES} - {"accuracy"}))
def test_intervals_from_counts_are_those_of_resampled_rows(name: str) -> None:
    labels, predictions = drawn(classes=2 if name == "f1" else 3)
    value, low, high = score_interval(
        METRICS[name], labels, predictions, generator=np.random.default_rng(1), resamples=RESAMPLES
    )
    assert value == pytest.approx(METRICS[name].score(labels, predictions))
    wanted = bootstrap_interval(
        lambda drawn: METRICS[name].score(labels[drawn], predictions[drawn]),
        len(labels),
        generator=np.random.default_rng(2),
        resamples=RESAMPLES,
    )
    # Quantiles of 2,000 resamples have standard errors of about a twentieth of the interval's width.
    assert (low, high) == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))


def test_groups_are_resampled_whole() -> None:
    labels, predictions = drawn()
    groups = np.arange(len(labels)) // 30  # four groups say less than 120 rows
    generator = np.random.default_rng(1)
    _, low, high = score_interval(METRICS["f1_macro"], labels, predictions, generator=generator)
    _, wide_low, wide_high = score_interval(
        METRICS["f1_macro"],
        np.sort(labels),
        predictions[np.argsort(labels, kind="stable")],
        generator=generator,
        groups=groups,
    )
    assert wide_high - wide_low > high - low
    # What is no function of counts is resampled by rows.
    labels = generator.normal(size=80)
    value, low, high = score_interval(
        METRICS["pearson"], labels, labels + generator.normal(size=80), generator=generator
    )
    assert low < value < high


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_the_interval_of_an_accuracy_counts_groups(share: float) -> None:
    """Copies of rows say as little as the rows; all right ones still have an interval."""
    labels = np.ones(60, dtype=np.int64)
    predictions = (np.arange(60) < 60 * share).astype(np.int64)
    options = {"generator": np.random.default_rng(1)}
    alone = score_interval(METRICS["accuracy"], labels, predictions, **options)
    copies = [np.repeat(values, 4) for values in (labels, predictions, np.arange(60))]
    grouped = score_interval(METRICS["accuracy"], *copies[:2], groups=copies[2], **options)
    # The variance over groups divides by one group less.
    assert grouped == pytest.approx(alone, abs=0.002)
    # Groups of unlike rows count as rows, and no more; pairs of right ones as one. One pair changes next to nothing.
    pairs = score_interval(METRICS["accuracy"], labels, predictions, groups=np.arange(60) % 30, **options)
    half = score_interval(METRICS["accuracy"], labels[:30], predictions[:30], **options)
    assert pairs[1:] == pytest.approx((half if share == 1 else alone)[1:], abs=0.04)
    one = score_interval(METRICS["accuracy"], labels, predictions, groups=np.maximum(np.arange(60), 1), **options)
    assert one[1:] == pytest.approx(alone[1:], abs=0.005)


# Scores from sums of confusion counts: without each row, of resamples, and for hundreds of classes.


@pytest.mark.parametrize("metric", sorted(CONFUSION_SCORES))
@pytest.mark.parametrize(("rows", "classes"), [(9, 2), (40, 6), (40, 30)])
def test_scores_without_each_row_are_those_of_the_other_rows(metric, rows, classes):
    labels, predictions = drawn(rows, 2 if metric == "f1" else classes)
    found = scores_without_each(metric, labels, predictions)
    for row in range(rows):
        rest = np.arange(rows) != row
        assert found[row] == pytest.approx(METRICS[metric].score(labels[rest], predictions[rest]), abs=1e-12)


OF_SETS = ("f1_macro", "f1_micro", "f1_weighted", "f1_samples", "subset_accuracy", "hamming_loss")


@pytest.mark.parametrize(
    ("metric", "classes"),
    [*((one, n) for one in sorted(CONFUSION_SCORES) for n in (4, 30)), *((one, 0) for one in OF_SETS)],
)
def test_weighted_rows_score_like_repeated_ones(metric, classes):
    """With several labels a row too (0 classes here)."""
    generator = np.random.default_rng(1)
    labels, predictions = drawn(60, 2 if metric == "f1" else classes or 2)
    if not classes:
        labels, predictions = ((generator.random((60, 4)) < 0.3).astype(np.int64) for _ in range(2))
    chosen = generator.integers(0, 60, 60)
    score = weighted_score(metric, labels, predictions)
    wanted = METRICS[metric].score(labels[chosen], predictions[chosen])
    assert score(np.bincount(chosen, minlength=60) * 1.0) == pytest.approx(wanted, abs=1e-12)


def test_intervals_of_many_classes_are_those_of_all_cells():
    labels, predictions = drawn(400, 40)
    counts = confusion_counts(labels, predictions)
    low, high = bootstrap_confusion_interval("f1_macro", counts, np.random.default_rng(0), resamples=3000)
    resamples = np.random.default_rng(1).multinomial(400, counts.reshape(-1) / 400, size=3000).reshape(-1, 40, 40)
    wanted = np.quantile(confusion_score("f1_macro", resamples.astype(float)), [0.025, 0.975])
    assert (low, high) == pytest.approx(wanted, abs=0.1 * np.ptp(wanted))


@pytest.mark.parametrize("metric", ["f1_macro", "quadratic_weighted_kappa"])
def test_five_hundred_classes_need_little_memory(metric):
    labels, predictions = drawn(4000, 500)
    tracemalloc.start()
    scores_without_each(metric, labels, predictions)
    bootstrap_confusion_interval(metric, confusion_counts(labels, predictions), np.random.default_rng(0), resamples=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6  # a copy of the counts for each row would take 8 GB
