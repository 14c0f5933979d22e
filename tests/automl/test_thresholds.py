"""Thresholds and the one-standard-error rule beside plain references; folds of groups; the leaderboard."""

import math
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
)

from attentune.automl.auto import rank_encoders
from attentune.automl.folds import make_folds
from attentune.automl.leaderboard import AutoResult, LeaderboardRow, card, estimate_sentence, leaderboard_cells, ranked
from attentune.automl.thresholds import (
    _ordered_probabilities,
    best_thresholds,
    can_have_thresholds,
    choose_simplest,
    fit_thresholds,
    paired_gain,
    utility,
)
from attentune.automl.work import AutoProgress, AutoSettings, AutoWork
from attentune.config import Config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import row_groups
from attentune.metrics.metrics import METRICS, predictions_of
from helpers.tiers import leading

BINARY = LabelSpace("classification", ("no", "yes"))
ORDERED = LabelSpace("ordinal", ("a", "b", "c", "d"))
SETS = LabelSpace("multi_label", ("a", "b", "c"))
SCORES = {
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "f1_macro": partial(f1_score, average="macro"),
    "quadratic_weighted_kappa": partial(cohen_kappa_score, weights="quadratic"),
    "mean_absolute_error": lambda *rows, **given: -mean_absolute_error(*rows, **given),
}


@given(
    st.sampled_from(["f1", "f1_macro", "matthews_correlation", "balanced_accuracy"]),
    st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=4, max_size=25),
)
def test_the_threshold_of_two_classes_has_the_best_expected_score(metric, drawn):
    """Each row stands for a row of either class, weighted by its calibrated probability."""
    labels, logits = np.array(drawn).T
    logits_NC = np.column_stack([np.zeros(len(labels)), logits / 2])
    (threshold,) = best_thresholds(logits_NC, labels, BINARY, METRICS[metric])
    if logits.std() == 0 or labels.std() == 0 or np.corrcoef(logits, labels)[0, 1] <= 1e-6:
        assert threshold == 0.5
        return
    inputs = ((logits - logits.mean()) / logits.std())[:, None]
    weights = LogisticRegression().fit(inputs, labels).predict_proba(inputs)
    shares_N = 1 / (1 + np.exp(-logits / 2))

    def expected(value):
        truth, predicted = np.repeat([0, 1], len(labels)), np.tile((shares_N >= value).astype(int), 2)
        return SCORES[metric](truth, predicted, sample_weight=weights.T.reshape(-1))

    assert expected(threshold) == pytest.approx(max(expected(value) for value in np.unique(shares_N)[1:]), abs=1e-3)


@pytest.mark.parametrize("metric", ["f1", "matthews_correlation"])
def test_thresholds_of_a_rare_class_are_kept_and_help_on_new_rows(metric):
    generator = np.random.default_rng(0)

    def draw(count):
        labels = (generator.random(count) < 0.15).astype(np.int64)
        return np.column_stack([np.zeros(count), 1.5 * labels - 2.5 + generator.normal(size=count)]), labels

    logits_NC, labels = draw(600)
    result = fit_thresholds(logits_NC, labels, BINARY, metric=METRICS[metric], folds=np.arange(600) % 5)
    assert result.label_space.thresholds is not None
    score = METRICS[metric].score
    assert score(labels, result.predictions) > score(labels, predictions_of(logits_NC, BINARY))
    assert "are used" in result.reason
    new_NC, new = draw(4000)
    assert score(new, predictions_of(new_NC, result.label_space)) > score(new, predictions_of(new_NC, BINARY)) + 0.05


def balanced(generator, rows=2200):
    """Good probabilities of balanced classes: a threshold near a half."""
    labels = generator.integers(0, 2, rows)
    return np.column_stack([np.zeros(rows), 2 * labels - 1 + generator.normal(size=rows)]), labels


def weak(generator, rows=3000):
    """By default nearly all rows are of the frequent class, although they are ranked better than by chance."""
    labels = (generator.random(rows) < 0.7).astype(np.int64)
    return np.column_stack([np.zeros(rows), 0.8 + 0.2 * labels + 0.4 * generator.normal(size=rows)]), labels


def ordered(generator, rows=4000):
    """True probabilities of five ordered classes."""
    hidden = 2 * generator.normal(size=rows)
    above_NK = 1 / (1 + np.exp(np.array([-2.0, -0.7, 0.7, 2.0]) - hidden[:, None]))
    shares_NC = -np.diff(np.column_stack([np.ones(rows), above_NK, np.zeros(rows)]), axis=1)
    return np.log(shares_NC), (generator.random(rows)[:, None] > shares_NC.cumsum(axis=1)[:, :-1]).sum(axis=1)


@pytest.mark.parametrize(
    ("draw", "space", "metric", "fitted", "seeds", "bounds"),
    [
        (balanced, BINARY, "matthews_correlation", 200, 20, (-0.015, 0.015)),
        (weak, BINARY, "matthews_correlation", 1000, 10, (0.07, 1)),
        # Cut points that follow the noise of few labels would lose more than 0.01.
        (ordered, LabelSpace("ordinal", tuple("abcde")), "accuracy", 200, 20, (-0.005, 1)),
    ],
)
def test_the_gain_of_thresholds_on_new_rows(draw, space, metric, fitted, seeds, bounds):
    gains, score = [], METRICS[metric].score
    for seed in range(seeds):
        logits_NC, labels = draw(np.random.default_rng(seed))
        known, new = slice(None, fitted), slice(fitted, None)
        folds = np.arange(fitted) % 5
        found = fit_thresholds(logits_NC[known], labels[known], space, metric=METRICS[metric], folds=folds).label_space
        scores = [score(labels[new], predictions_of(logits_NC[new], one)) for one in (found, space)]
        gains.append(scores[0] - scores[1])
    assert bounds[0] < np.mean(gains) < bounds[1]


def test_thresholds_that_do_not_help_are_not_kept_and_random_labels_have_chance_scores():
    kept = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, (200, 3))
        logits_NC = 2 * labels - 1 + generator.normal(size=(200, 3))
        result = fit_thresholds(logits_NC, labels, SETS, metric=METRICS["f1_micro"], folds=np.arange(200) % 5)
        kept += result.label_space.thresholds is not None
        if result.label_space.thresholds is None:
            assert np.array_equal(result.predictions, (logits_NC > 0).astype(int))
    assert kept <= 8
    # Thresholds that were fitted on a row's own label would be better than chance.
    scores = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels, logits_NC = generator.integers(0, 2, 100), generator.normal(size=(100, 2))
        metric = METRICS["matthews_correlation"]
        result = fit_thresholds(logits_NC, labels, BINARY, metric=metric, folds=np.arange(100) % 5)
        scores.append(metric.score(labels, result.predictions))
    assert np.mean(scores) < 3 / np.sqrt(20 * 100)


@pytest.mark.parametrize("metric", ["f1_macro", "f1_micro"])
def test_thresholds_of_label_sets(metric):
    generator = np.random.default_rng(1)
    labels = (generator.random((500, 3)) < 0.3).astype(np.int64)
    logits_NC = 2.0 * labels - 2.5 + generator.normal(size=(500, 3))
    result = fit_thresholds(logits_NC, labels, SETS, metric=METRICS[metric], folds=np.arange(500) % 5)
    assert len(result.label_space.thresholds) == 3
    assert len(set(result.label_space.thresholds)) == (3 if metric == "f1_macro" else 1)
    score = METRICS[metric].score
    assert score(labels, result.predictions) > score(labels, predictions_of(logits_NC, SETS)) + 0.1


def test_cut_points_and_the_proportional_odds_model_of_ordered_classes():
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 4, 600)
    # Probabilities that lie too near to the middle: the mean class number is from 0.9 to 2.1.
    centers = 1.5 + (labels - 1.5) * 0.4 + 0.15 * generator.normal(size=600)
    logits_NC = -((np.arange(4) - centers[:, None]) ** 2)
    result = fit_thresholds(logits_NC, labels, ORDERED, metric=METRICS["accuracy"], folds=np.arange(600) % 5)
    cuts = result.label_space.thresholds
    assert len(cuts) == 3
    assert list(cuts) == sorted(cuts)
    assert (labels == result.predictions).mean() > (labels == predictions_of(logits_NC, ORDERED)).mean() + 0.1
    # The probabilities of ordered classes are those of a proportional odds model.
    generator = np.random.default_rng(4)
    means_N = generator.normal(size=20_000)
    above_NK = 1 / (1 + np.exp(-(1.7 * means_N[:, None] - np.array([-1.5, 0.2, 2.0]))))
    true_NC = -np.diff(np.column_stack([np.ones(20_000), above_NK, np.zeros(20_000)]), axis=1)
    labels = (generator.random(20_000)[:, None] > true_NC.cumsum(axis=1)[:, :-1]).sum(axis=1)
    found_NC = _ordered_probabilities(means_N, labels, 4)
    assert np.abs(found_NC - true_NC).max() < 0.02
    # A class without rows has no probability, and the others have the same.
    gap_NC = _ordered_probabilities(means_N, np.where(labels == 3, 4, labels), 5)
    assert not gap_NC[:, 3].any()
    assert gap_NC[:, [0, 1, 2, 4]] == pytest.approx(found_NC, abs=1e-3)
    assert _ordered_probabilities(-means_N, labels, 4) is None


@leading(
    "metric", ["f1_macro", "mean_absolute_error", "accuracy", "balanced_accuracy", "quadratic_weighted_kappa"], fast=2
)
@example([(0, 0)] * 5 + [(2, 1)])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-4, 4)), min_size=6, max_size=25))
def test_no_cut_point_of_ordered_classes_has_a_better_expected_score(metric, drawn):
    """Each row stands for a row of every class, weighted by its probability of the proportional-odds model."""
    labels, values = np.array(drawn).T
    space = LabelSpace("ordinal", ("a", "b", "c"))
    logits_NC = np.column_stack([-values / 2, np.zeros(len(values)), values / 2])
    shares_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    means_N = shares_NC @ np.arange(3)
    found = best_thresholds(logits_NC, labels, space, METRICS[metric])
    weights_NC = _ordered_probabilities(means_N, labels, 3)
    if weights_NC is None:
        assert found == (0.5, 1.5)
        return

    def expected(cuts):
        decided = sum((means_N >= cut).astype(int) for cut in cuts)
        truth, predicted, weights = np.repeat([0, 1, 2], len(labels)), np.tile(decided, 3), weights_NC.T.reshape(-1)
        rows = weights > 0  # none of a class without labels, which has no recall
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SCORES[metric](truth[rows], predicted[rows], sample_weight=weights[rows])

    best, values = expected(found), np.unique(means_N)
    candidates = [0.0, *(values[1:] + values[:-1]) / 2, 2.0]
    for first in (*candidates, found[0]):
        for second in (*candidates, found[1]):
            if first <= second and (first == found[0] or second == found[1]):
                assert expected((first, second)) <= best + 1e-6


def test_tasks_and_metrics_without_thresholds():
    assert not can_have_thresholds(BINARY, METRICS["accuracy"])
    assert not can_have_thresholds(LabelSpace("regression"), METRICS["pearson"])
    assert not can_have_thresholds(LabelSpace("classification", ("a", "b", "c")), METRICS["f1_macro"])
    scores_NC = np.arange(6.0)[:, None]
    space = LabelSpace("regression")
    result = fit_thresholds(scores_NC, scores_NC[:, 0], space, metric=METRICS["pearson"], folds=np.arange(6))
    assert (result.label_space, result.reason) == (space, "")


# Scores from confusion counts beside those of `METRICS`, and the one-standard-error rule.


def test_the_simplest_that_is_not_clearly_beaten():
    labels, constant = np.array([1.0, 2.0, 4.0]), np.zeros(3)
    assert utility(METRICS["mean_squared_error"], labels, constant) == -7.0
    assert utility(METRICS["pearson"], labels, constant) == -math.inf
    assert paired_gain(METRICS["pearson"], labels, constant, labels) == (math.inf, 0.0)
    assert paired_gain(METRICS["pearson"], labels, labels, constant) == (-math.inf, 0.0)
    # The simplest that is not clearly beaten.
    labels = np.zeros(100, dtype=np.int64)

    def right(count):
        return np.where(np.arange(100) < count, 0, 1)

    metric = METRICS["accuracy"]
    other = right(88)[::-1]  # 12 errors in other rows: the difference of 0.02 has a standard error of 0.047
    assert choose_simplest(metric, labels, [right(50), other, right(90)]) == 1
    assert choose_simplest(metric, labels, [right(50), right(80), right(90)]) == 2
    assert choose_simplest(metric, labels, [right(90), right(90)]) == 0


@leading("metric", ["accuracy", "pearson", "f1", "matthews_correlation", "quadratic_weighted_kappa"], fast=2)
def test_the_standard_error_is_that_of_a_paired_bootstrap(metric):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 400)
    base, other = (np.where(generator.random(400) < share, 1 - labels, labels) for share in (0.3, 0.2))
    if metric == "pearson":
        labels, base, other = labels * 1.0, base + generator.normal(size=400), other + generator.normal(size=400)
    gain, error = paired_gain(METRICS[metric], labels, base, other)
    score = METRICS[metric].score
    assert gain == pytest.approx(score(labels, other) - score(labels, base))
    draws = [generator.integers(0, 400, 400) for _ in range(400)]
    drawn = [score(labels[d], other[d]) - score(labels[d], base[d]) for d in draws]
    assert error == pytest.approx(np.std(drawn), rel=0.15)


# Folds of groups: no group is divided, classes are spread, and odd inputs get folds too.


def rows_of(texts, labels, pairs=None):
    texts = tuple(texts)
    return TextRows(tuple(map(str, range(len(texts)))), texts, pairs and tuple(pairs), np.array(labels), "rows")


def same_group(first, second):
    """Whether two rows are linked directly, written plainly."""
    clean = [[" ".join(text.split()).casefold() for text in row] for row in (first, second)]
    return clean[0][0] == clean[1][0] or (len(clean[0]) == 2 and sorted(clean[0]) == sorted(clean[1]))


TEXT = st.sampled_from(["a", "A ", "b", " b", "c", "d e", "D  E", "f", "g", "h", "i", "j"])


@given(st.lists(st.tuples(TEXT, TEXT, st.integers(0, 2)), min_size=2, max_size=40), st.integers(2, 5), st.booleans())
def test_linked_rows_share_a_fold_and_every_fold_has_rows(drawn, folds, is_pair):
    texts, pairs, labels = zip(*drawn, strict=True)
    rows = rows_of(texts, labels, pairs if is_pair else None)
    group_N = row_groups(rows)
    fold_N = make_folds(rows, LabelSpace("classification", ("x", "y", "z")), folds=folds, seed=1)
    assert set(fold_N) == set(range(min(folds, group_N.max() + 1)))
    assert all(len(set(fold_N[group_N == group])) == 1 for group in range(group_N.max() + 1))
    # Plain closure of the links.
    cells = [(text, pair) if is_pair else (text,) for text, pair in zip(texts, pairs, strict=True)]
    reached = list(range(len(cells)))
    for _ in cells:
        for i, first in enumerate(cells):
            for j, second in enumerate(cells):
                if same_group(first, second):
                    reached[i] = reached[j] = min(reached[i], reached[j])
    if np.bincount(reached).max() <= max(1, len(cells) / 2):
        assert all(
            (group_N[i] == group_N[j]) == (reached[i] == reached[j]) for i in range(len(cells)) for j in range(i)
        )


@pytest.mark.parametrize("count", [20, 101])
def test_classes_of_single_rows_differ_by_at_most_one(count):
    labels = np.random.default_rng(0).integers(0, 3, count)
    fold_N = make_folds(
        rows_of(map(str, range(count)), labels), LabelSpace("ordinal", ("x", "y", "z")), folds=5, seed=2
    )
    for label in range(3):
        counts = np.bincount(fold_N[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(fold_N)) <= 2


def test_classes_scores_and_label_sets_are_spread():
    generator = np.random.default_rng(1)
    texts = [f"premise {n}" for n in generator.integers(0, 60, 300)]
    labels = generator.integers(0, 2, 300)
    fold_N = make_folds(rows_of(texts, labels, map(str, range(300))), BINARY, folds=5, seed=0)
    for label in (0, 1):
        shares = np.bincount(fold_N[labels == label], minlength=5) / (labels == label).sum()
        assert np.abs(shares - 0.2).max() < 0.03
    # Scores and label sets are spread.
    scores = np.random.default_rng(2).exponential(size=200)
    fold_N = make_folds(rows_of(map(str, range(200)), scores), LabelSpace("regression"), folds=4, seed=0)
    assert np.ptp([np.median(scores[fold_N == fold]) for fold in range(4)]) < 0.2
    sets = (np.random.default_rng(3).random((200, 3)) < [0.5, 0.2, 0.06]).astype(np.int64)
    fold_N = make_folds(
        rows_of(map(str, range(200)), sets), LabelSpace("multi_label", ("x", "y", "z")), folds=4, seed=0
    )
    for label in range(3):
        counts = np.bincount(fold_N[sets[:, label] == 1], minlength=4)
        assert counts.max() - counts.min() <= 1 + 0.1 * counts.mean()
    # A class with fewer rows than folds.
    labels = np.array([1] * 2 + [0] * 38)
    fold_N = make_folds(rows_of(map(str, range(40)), labels), BINARY, folds=5, seed=0)
    assert len(set(fold_N[:2])) == 2
    assert np.ptp(np.bincount(fold_N)) <= 1
    # The seed decides.
    rows = rows_of(map(str, range(50)), np.arange(50) % 2)
    first, again, other = (make_folds(rows, BINARY, folds=5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nearly_equal_texts_share_a_fold_and_a_group_of_most_rows_is_divided():
    texts = [f"RT @user{row}: the match tonight was decided by goal {row // 4} in the last minute" for row in range(8)]
    texts = [text.replace("goal", f"goal by {'Ada' if row < 4 else 'Bo'}") for row, text in enumerate(texts)]
    others = [f"something else {word} entirely" for word in "abcdefghijklmnop"]
    rows = rows_of([*texts, *others], np.arange(24) % 2)
    fold_N = make_folds(rows, BINARY, folds=4, seed=0)
    assert len(set(fold_N[:8])) == 1
    pairs = rows_of(
        ["q", *others[:3]] * 2, [0, 1] * 4, ["the cat sat on the mat today", "b", "c", "d", "e", "f", "g", "h"]
    )
    swapped = rows_of(["a b c d e f", "g h"], [0, 1], ["g h", "a b c d e x"])
    assert row_groups(pairs)[0] == row_groups(pairs)[4]
    assert len(set(row_groups(swapped))) == 2  # one group would be all rows
    # A group of most rows is divided.
    labels = np.arange(30) % 2
    # One premise for 28 rows: pairs are linked by both texts only.
    rows = rows_of(["p"] * 28 + ["q", "q"], labels, ["same", "same", *map(str, range(28))])
    group_N = row_groups(rows)
    assert group_N[0] == group_N[1]
    assert group_N.max() + 1 == 28
    # One text for 28 rows: they are not linked.
    assert row_groups(rows_of(["p"] * 28 + ["q", "q"], labels)).max() + 1 == 29
    assert np.ptp(np.bincount(make_folds(rows_of(["p"] * 30, labels), BINARY, folds=5, seed=0))) == 0


# The leaderboard: order, cells, and the sentence on new rows.


ROWS = [
    LeaderboardRow("majority", "baseline", "majority", score=0.5, low=0.4, high=0.6, seconds=0.1),
    LeaderboardRow("sesame", "fine-tuned", "sesame", status="left out", note="no time"),
    LeaderboardRow(
        "bert",
        "fine-tuned",
        "bert",
        score=0.8,
        low=0.7,
        high=0.9,
        seconds=12.34,
        bytes=90_000_000,
        weight=1,
    ),
]
ESTIMATE = {"metric": "accuracy", "value": 0.79, "low": 0.7, "high": 0.86, "rows": 100, "method": "nested folds"}


def test_the_leaderboard_and_its_card():
    assert [row.name for row in ranked(ROWS, METRICS["accuracy"])] == ["bert", "majority", "sesame"]
    assert [row.name for row in ranked(ROWS, METRICS["mean_absolute_error"])] == ["majority", "bert", "sesame"]
    # Cells show score interval seconds and size.
    cells = leaderboard_cells(ROWS)
    assert cells[2] == ("bert", "0.8000", "0.7000 to 0.9000", "12.3", "90.0", "delivered")
    assert cells[1] == ("sesame", "-", "", "0.0", "0.0", "no time")
    fusion = LeaderboardRow("fusion", "fusion", "linear", weight=1.0, note="with thresholds")
    parts = [LeaderboardRow(name, "baseline", name, weight=weight) for name, weight in (("a", 0.996), ("b", 0.004))]
    uses = [cells[-1] for cells in leaderboard_cells([fusion, *parts])]
    assert uses == ["delivered, with thresholds", "in the fusion, weight 1", "in the fusion, weight 0.004"]
    # The estimate names its interval and method.
    sentence = (
        "Estimate for new rows: accuracy 0.7900 (95 % interval 0.7000 to 0.8600), by nested folds. It holds for rows"
    )
    sentence += " of the same time and source; others are not covered."
    assert estimate_sentence(ESTIMATE) == sentence
    assert "no estimate for new rows: accuracy is undefined" in estimate_sentence({**ESTIMATE, "value": None})
    # The card has leaderboard scores and notes.
    scores, notes = {"test": {"accuracy": 0.81}}, ("3 folds instead of 5.",)
    result = AutoResult(Path("best"), "accuracy", ROWS, "bert is delivered.", ESTIMATE, scores, 9.0, notes=notes)
    text = card(result)
    for part in (
        "bert is delivered.",
        "| bert | 0.8000 |",
        "test rows, which chose no member: accuracy 0.8100",
        "- 3 folds",
    ):
        assert part in text


def test_the_limit_counts_from_the_command(capsys):
    work = AutoWork(Config(), AutoSettings(time_limit_s=90), AutoProgress(began=time.monotonic() - 60))
    assert work.left_s == pytest.approx(30, abs=1)
    work.display.left_s = lambda: 30.0
    work.display.say("training bert", "needs about 9 s, ")
    assert "training bert (needs about 9 s, about 30 s left)" in capsys.readouterr().err


def test_encoders_are_ranked_by_their_losses_and_of_equals_by_speed():
    generator = np.random.default_rng(0)
    base = generator.random(200)
    noise = [0.1 * generator.normal(size=200) for _ in range(3)]
    losses = {"small": base + 0.5, "base": base + 0.3 + noise[0], "other": base + 0.29 + noise[1], "bad": base + 2.0}
    speeds = {"small": 3000.0, "base": 400.0, "other": 500.0, "bad": 9000.0}
    # Without pairing, the spread of the rows would hide the differences.
    assert rank_encoders(losses, speeds) == [["other", "base"], ["small"], ["bad"]]
    # A lead that is no larger than its error makes equals, the faster one first.
    equals = {"base": base + noise[2] - 0.001, "small": base, "bad": base + 2.0}
    assert rank_encoders(equals, speeds) == [["small", "base"], ["bad"]]
    assert rank_encoders(equals, speeds, base + 0.1) == [["small", "base"], ["bad"]]
    # Where they are no better than without any text, they tell nothing: the larger encoder comes first.
    assert rank_encoders(equals, speeds, base + noise[1]) == [["base", "small", "bad"]]
