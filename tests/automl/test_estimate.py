"""The estimate for new rows: chance for random labels, and intervals that cover the score on held-out rows."""

import numpy as np
import pytest
from scipy.stats import binom

from attentune.automl.fusion import Effort, FusionProblem, choose_effort, estimate_score, fit_fusion
from attentune.automl.thresholds import fit_thresholds
from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import METRICS, predictions_of
from attentune.stats.estimate import wilson_interval

BINARY = LabelSpace("classification", ("no", "yes"))
SIGNALS = (0.2, 0.5, 0.5, 0.0)
SINGLE = Effort(kinds=("single",))


def draw(count, generator, positive=0.3):
    """Labels and the logits of members of different quality, which all lean towards the first class."""
    labels = (generator.random(count) < positive).astype(np.int64)
    logits = {}
    for place, signal in enumerate(SIGNALS):
        second = signal * (2 * labels - 1) * 2 - 0.3 + generator.normal(size=count)
        logits[f"m{place}"] = np.column_stack([np.zeros(count), second])
    return logits, labels


def covered(runs, rows, metric, kinds, first_seed=0):
    """Count the runs whose interval has the delivered model's score on 10,000 new rows."""
    hits, gaps = 0, []
    for seed in range(first_seed, first_seed + runs):
        generator = np.random.default_rng(seed)
        logits, labels = draw(rows, generator)
        folds = np.arange(rows) % 4
        problem = FusionProblem(logits, labels, folds, BINARY, METRICS[metric], seed)
        found = estimate_score(problem, Effort(kinds=kinds), resamples=200)
        fitted = fit_fusion(problem, kinds)
        space = fit_thresholds(fitted.logits, labels, BINARY, metric=METRICS[metric], folds=folds).label_space
        new, truth = draw(10_000, generator)
        score = METRICS[metric].score(truth, predictions_of(fitted.fusion.apply(new), space))
        hits += found.low <= score <= found.high
        gaps.append(found.value - score)
    return hits, np.array(gaps)


@pytest.mark.integration
def test_the_interval_covers_the_score_on_new_rows():
    hits, gaps = covered(40, 150, "accuracy", ("single", "weights"))
    # A coverage of 0.93 has fewer hits than this once in a thousand times.
    assert hits >= binom.ppf(0.001, 40, 0.93)
    assert abs(gaps.mean()) < 3.5 * gaps.std() / np.sqrt(40) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "rows"), [("accuracy", 300), ("f1", 300), ("matthews_correlation", 600)])
def test_the_coverage_is_about_95_percent(metric, rows):
    hits, gaps = covered(150, rows, metric, ("single", "greedy", "weights", "linear"), first_seed=1000)
    assert binom.ppf(0.001, 150, 0.93) <= hits <= binom.ppf(0.999, 150, 0.97)
    assert abs(gaps.mean()) < 0.02


@pytest.mark.integration
def test_random_labels_have_a_chance_estimate():
    """Choosing the best of many members, kinds and thresholds does not make the estimate optimistic."""
    values = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, 120)
        logits = {f"m{i}": generator.normal(size=(120, 2)) for i in range(8)}
        metric = METRICS["matthews_correlation"]
        problem = FusionProblem(logits, labels, np.arange(120) % 4, BINARY, metric, seed)
        found = estimate_score(problem, Effort(kinds=("single", "weights")), resamples=10)
        values.append(found.value)
    assert abs(np.mean(values)) < 3.5 / np.sqrt(6 * 120)


@pytest.mark.parametrize(
    ("effort", "groups"),
    [
        pytest.param(Effort(), None, id="a fold", marks=pytest.mark.integration),
        # Few rows are divided into ten parts.
        pytest.param(SINGLE, np.arange(120) // 3, id="a group"),
    ],
)
def test_the_estimate_is_made_without_the_part_that_is_scored(effort, groups):
    """Changed labels of a fold or group leave its own nested predictions as they were."""
    logits, labels = draw(120, np.random.default_rng(1))
    folds, metric = np.arange(120) % 10 if groups is None else groups % 3, METRICS["f1"]
    inside = folds == 2 if groups is None else groups == 7
    changed = np.where(inside, 1 - labels, labels)
    first, second = (
        estimate_score(FusionProblem(logits, values, folds, BINARY, metric), effort, groups=groups, resamples=10)
        for values in (labels, changed)
    )
    np.testing.assert_array_equal(first.predictions[inside], second.predictions[inside])
    assert first.value == metric.score(labels, first.predictions)


def test_the_interval_is_wider_where_choices_vary():
    """A clear best member is chosen without any part; of two equal members with other scores it varies."""
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 2, 200)
    clear = {name: np.column_stack([np.zeros(200), 2 * labels - 1 + 0.8 * generator.normal(size=200)]) for name in "ab"}
    clear["b"] = generator.normal(size=(200, 2))
    folds, metric = np.arange(200) % 5, METRICS["accuracy"]
    found = estimate_score(FusionProblem(clear, labels, folds, BINARY, metric), SINGLE)
    plain = wilson_interval(round(found.value * 200), 200)
    np.testing.assert_allclose((found.low, found.high), plain)
    alike = {
        name: np.column_stack([np.zeros(200), 0.4 * (2 * labels - 1) + generator.normal(size=200)]) for name in "abc"
    }
    found = estimate_score(FusionProblem(alike, labels, folds, BINARY, metric), SINGLE)
    low, high = wilson_interval(round(found.value * 200), 200)
    assert found.low < low
    assert found.high > high


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (100, (4, None, None)),  # 2 s for all 4,000 rows, ten times for the estimate: all of it
        (15, (4, None, 3000)),  # a sample of the rows
        (1.2, (2, None, 1200)),  # without the kinds whose fits take long
        (0.001, (1, 5, 100)),
    ],
)
def test_fusing_and_estimating_are_cheapened_until_they_fit(seconds, expected):
    def seconds_of(kinds, rows):
        return rows * (5e-4 if "linear" in kinds else 1e-4)

    effort = choose_effort(seconds_of, rows=4000, folds=5, fuse_s=seconds, estimate_s=seconds)
    assert (len(effort.kinds), effort.parts) == expected[:2]
    assert effort.max_rows == pytest.approx(expected[2], rel=0.05) if expected[2] else effort.max_rows is None
    if seconds > 0.1:
        assert (effort.parts or 10) * effort.seconds <= seconds * 1.01
