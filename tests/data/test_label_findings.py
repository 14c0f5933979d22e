"""What the doctor says of the labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.doctor import examine
from attentune.data.doctor_report import full_lines
from attentune.metrics.metrics import METRICS
from attentune.stats.power import minimum_detectable_accuracy_difference, minimum_detectable_correlation_difference
from helpers.samples import distinct, find, make_rows, make_task


@pytest.mark.parametrize("train_labels", [[0, 0, 1], [1, 1, 0]])
@given(labels=st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_guess_scores_are_what_the_metrics_say(train_labels: list[int], labels: list[int]) -> None:
    splits = {
        "train": make_rows(["a", "b", "c"], train_labels),
        "validation": make_rows(distinct(len(labels)), labels),
    }
    asked = ("f1", "matthews_correlation", "f1_macro", "quadratic_weighted_kappa", "accuracy", "mean_absolute_error")
    split = examine(make_task(splits, metrics=asked)).splits["validation"]
    guess = train_labels[0]
    gold, guesses = np.array(labels), np.full(len(labels), guess)
    expected = {name: METRICS[name].score(gold, guesses) for name in asked}
    if len(set(labels)) == 1:
        expected["matthews_correlation"] = 0.0
    if guess == 0:
        expected["f1_all_positive"] = METRICS["f1"].score(gold, np.ones_like(gold))
    assert split.guess == ("no", "yes")[guess]
    assert split.guess_scores == pytest.approx(expected)
    assert list(split.guess_scores) == list(expected)


def test_the_guess_comes_from_the_split_itself_where_there_is_no_train() -> None:
    split = examine(make_task({"test": make_rows(distinct(3), [1, 0, 1])})).splits["test"]
    assert (split.guess, split.guess_scores) == ("yes", {"accuracy": pytest.approx(2 / 3)})


def test_more_than_two_classes_have_no_f1_here() -> None:
    rows = make_rows(distinct(4), [2, 2, 0, 1])
    task = make_task({"train": rows}, task_type="ordinal", names=("a", "b", "c"), metrics=("f1", "spearmanr"))
    split = examine(task).splits["train"]
    assert split.class_counts == {"a": 1, "b": 1, "c": 2}
    assert split.guess_scores == {"spearmanr": None, "accuracy": 0.5}


def test_regression_reports_the_spread_and_the_detectable_correlation() -> None:
    scores = list(np.linspace(0, 5, 60))
    splits = {"train": make_rows(distinct(2), [0.0, 5.0]), "validation": make_rows(distinct(60, "dev"), scores)}
    report = examine(make_task(splits, task_type="regression", metrics=("pearson",)))
    split = report.splits["validation"]
    assert split.scores is not None
    mean_guess_error = np.sqrt(np.mean((np.array(scores) - np.mean(scores)) ** 2))
    assert split.scores.std == pytest.approx(mean_guess_error)
    assert (split.scores.lowest, split.scores.highest, split.scores.mean) == (0.0, 5.0, pytest.approx(2.5))
    assert (split.class_counts, split.guess_scores) == (None, None)
    assert split.detectable_metric == "correlation"
    assert split.detectable_gap == pytest.approx(minimum_detectable_correlation_difference(60))
    assert any("always predicting the mean has an undefined correlation" in line for line in full_lines(report))


@pytest.mark.parametrize(("size", "warned"), [(3, True), (100, True), (1000, False)])
def test_small_evaluation_splits_are_warned_of(size: int, warned: bool) -> None:
    splits = {
        "train": make_rows(distinct(4), [0, 1, 0, 1]),
        "validation": make_rows(distinct(size, "dev"), [place % 2 for place in range(size)]),
    }
    report = examine(make_task(splits))
    gap = report.splits["validation"].detectable_gap
    assert gap == (None if size == 3 else pytest.approx(minimum_detectable_accuracy_difference(size)))
    assert report.splits["train"].detectable_metric is None
    assert [finding.split for finding in find(report, "small")] == (["validation"] if warned else [])
    if size == 100:
        assert find(report, "small")[0].message == (
            "validation: 100 rows will often miss differences below 8.8 points of accuracy."
        )


@pytest.mark.parametrize(("metric", "level"), [("accuracy", "warning"), ("matthews_correlation", "note")])
def test_imbalance_matters_most_where_accuracy_is_the_metric(metric: str, level: str) -> None:
    splits = {"validation": make_rows(distinct(1000), [1] * 900 + [0] * 100)}
    finding = find(examine(make_task(splits, metrics=(metric,))), "imbalance")[0]
    assert finding.level == level
    assert finding.message == "validation: 90.0 % of the rows are 'yes'; always predicting it has that accuracy."


def test_classes_without_rows_and_constant_labels() -> None:
    splits = {
        "train": make_rows(distinct(4), [0, 1, 0, 1]),
        "validation": make_rows(distinct(4, "dev"), [2, 1, 2, 1]),
        "test": make_rows(distinct(4, "test"), [2, 2, 2, 2]),
    }
    report = examine(make_task(splits, names=("a", "b", "c")))
    messages = {(f.split, f.level, f.message) for f in report.findings if f.kind in ("missing-class", "constant")}
    assert messages == {
        ("train", "warning", "train: no row has the label 'c'."),
        ("validation", "note", "validation: no row has the label 'a'."),
        ("test", "warning", "test: all rows have the label 'c'."),
    }
    scores = {"train": make_rows(distinct(2), [2.5, 2.5])}
    constant = find(examine(make_task(scores, task_type="regression")), "constant")
    assert constant[0].message == "train: all rows have the score 2.5."


@pytest.mark.parametrize(
    ("names", "counts", "told"),
    [
        (("Positive", "positive ", "negative"), (40, 30, 30), ["'Positive' (40 rows) and 'positive ' (30)"]),
        (("positive", "postive", "negative"), (60, 3, 40), ["'positive' (60 rows) and 'postive' (3)"]),
        (
            ("Positive", "postive", "positive", "negative"),
            (90, 1, 13, 60),
            ["'Positive' (90 rows), 'positive' (13) and 'postive' (1)"],
        ),
        (("negative", "positive"), (60, 4), []),  # opposites that are spelt alike
        (("positive", "postive", "negative"), (60, 30, 40), []),  # both are frequent
        (("class 10", "class 11"), (60, 1), []),
        (("bad", "bat"), (60, 1), []),
        (("acceptable", "unacceptable"), (60, 3), []),
    ],
)
def test_class_names_that_look_like_one_class(names, counts, told):
    labels = [place for place, count in enumerate(counts) for _ in range(count)]
    report = examine(make_task({"train": make_rows(distinct(len(labels)), labels)}, names=names))
    found = find(report, "alike-classes")
    assert [one.message for one in found] == [f"train: the labels {pair} look like one class." for pair in told]
    assert all(one.level == "warning" and names[0] in one.cure for one in found)
