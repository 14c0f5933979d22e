"""Each thing that the doctor looks for, planted in small data."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from attentune.data.doctor import DoctorReport, Finding, examine, full_lines, summary_lines
from attentune.data.doctor_report import FINDING_KINDS, percent
from attentune.data.rows import LabelSpace, TaskData, TextRows
from attentune.seeding import numpy_generator
from attentune.stats.power import smallest_detectable_accuracy_gap, smallest_detectable_correlation_gap


def make_rows(
    texts: Sequence[str],
    labels: Sequence[float] | None = None,
    pairs: Sequence[str] | None = None,
    *,
    source: str = "data.csv",
    lines: bool = False,
) -> TextRows:
    if labels is not None:
        labels = np.asarray(labels, dtype=np.float64 if any(isinstance(v, float) for v in labels) else np.int64)
    return TextRows(
        ids=tuple(f"r{place}" for place in range(len(texts))),
        texts=tuple(texts),
        pairs=None if pairs is None else tuple(pairs),
        labels=labels,
        source=source,
        lines=tuple(range(2, len(texts) + 2)) if lines else None,
    )


def make_task(
    splits: dict[str, TextRows],
    *,
    task_type: str = "classification",
    names: tuple[str, ...] = ("no", "yes"),
    metrics: tuple[str, ...] = ("accuracy",),
) -> TaskData:
    return TaskData("toy", LabelSpace(task_type, () if task_type == "regression" else names), metrics, splits)


def find(report: DoctorReport, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


def distinct(count: int, prefix: str = "text") -> list[str]:
    return [f"{prefix} {place}" for place in range(count)]


def test_clean_data_has_no_findings() -> None:
    splits = {
        "train": make_rows(distinct(40), [0, 1] * 20),
        "validation": make_rows(distinct(1000, "dev"), [0, 1] * 500),
        "test": make_rows(distinct(10, "test")),
    }
    report = examine(make_task(splits), token_lengths={"train": np.full(40, 9)}, max_length=9)
    assert report.findings == ()
    assert [report.splits[name].found_in_train for name in splits] == [None, 0, 0]
    assert report.splits["test"].class_counts is None
    assert report.splits["test"].conflicts is None
    assert report.splits["test"].detectable_metric is None
    assert "Findings: none" in full_lines(report)


def test_empty_texts_are_counted_once_and_not_as_duplicates_or_leaks() -> None:
    splits = {
        "train": make_rows(["", " \n\t", "a", "  "], [0, 1, 0, 1], lines=True),
        "validation": make_rows(["", "b"], [0, 1]),
    }
    report = examine(make_task(splits))
    train = report.splits["train"]
    assert (train.empty, train.duplicates, train.conflicts) == (3, 0, 0)
    assert report.splits["validation"].found_in_train == 0
    finding = find(report, "empty")[0]
    assert finding.level == "warning"
    assert finding.message == "train: 3 rows without any text."
    assert finding.examples == ("row r0 (data.csv:2)", "row r1 (data.csv:3)", "row r3 (data.csv:5)")
    assert find(report, "empty")[1].message == "validation: 1 row without any text."


def test_a_pair_with_one_empty_side_is_empty() -> None:
    splits = {"train": make_rows(["a", "b", "c"], [0, 1, 1], ["x", "", "z"])}
    assert examine(make_task(splits)).splits["train"].empty == 1


def test_duplicates_are_letter_for_letter_and_over_both_texts() -> None:
    single = {"train": make_rows(["a", "b", "a", "A", "a "], [0, 1, 0, 0, 0])}
    report = examine(make_task(single))
    assert report.splits["train"].duplicates == 1
    assert find(report, "duplicates")[0].examples == ("row r0 and row r2",)
    assert find(report, "duplicates")[0].level == "note"
    pairs = {"train": make_rows(["a", "a", "x"], [0, 1, 0], ["x", "y", "a"])}
    assert examine(make_task(pairs)).splits["train"].duplicates == 0


def test_contradictions_name_the_rows_that_differ() -> None:
    splits = {"train": make_rows(["a", "a", "b", "a", "b", "c"], [1, 1, 0, 0, 0, 1], source="t.tsv", lines=True)}
    report = examine(make_task(splits))
    assert report.splits["train"].conflicts == 1
    assert report.splits["train"].duplicates == 3
    finding = find(report, "conflicts")[0]
    assert finding.level == "warning"
    assert finding.message == "train: 1 text in more than one row, with labels that contradict each other."
    assert finding.examples == ("row r0 (t.tsv:2) and row r3 (t.tsv:5)",)


def test_a_contradiction_among_thousands_is_only_a_note() -> None:
    splits = {"train": make_rows([*distinct(4000), "a", "a"], [0, 1] * 2001)}
    assert find(examine(make_task(splits)), "conflicts")[0].level == "note"


def test_scores_contradict_only_when_far_apart() -> None:
    scores = [0.0, 5.0, 2.0, 2.5, 1.0, 4.5]
    splits = {"train": make_rows(["a", "b", "c", "c", "d", "d"], scores)}
    report = examine(make_task(splits, task_type="regression", metrics=("pearson",)))
    assert report.splits["train"].conflicts == 1
    assert find(report, "conflicts")[0].examples == ("row r4 and row r5",)


def test_leaks_ignore_white_space_and_case_but_not_words() -> None:
    splits = {
        "train": make_rows(["Good  film", "Bad film", "Straße"], [1, 0, 1], source="train.csv", lines=True),
        "validation": make_rows(
            [" good film\n", "good films", "STRASSE", "new"], [1, 1, 1, 0], source="dev.csv", lines=True
        ),
        "test": make_rows(["bad FILM"]),
    }
    report = examine(make_task(splits))
    assert report.splits["train"].found_in_train is None
    assert report.splits["validation"].found_in_train == 2
    assert report.splits["test"].found_in_train == 1
    first, second = find(report, "leak")
    assert first.level == "warning"
    assert first.message.startswith("validation: 2 rows also in train (50.0 %), white space and case ignored")
    assert first.examples == (
        "row r0 (dev.csv:2) and train row r0 (train.csv:2)",
        "row r2 (dev.csv:4) and train row r2 (train.csv:4)",
    )
    assert second.split == "test"


def test_a_pair_leaks_only_as_a_whole() -> None:
    splits = {
        "train": make_rows(["a", "b"], [0, 1], ["x", "y"]),
        "validation": make_rows(["A", "a", "b x"], [0, 1, 1], ["X", "y", "y"]),
    }
    assert examine(make_task(splits)).splits["validation"].found_in_train == 1


def test_examples_stop_at_three() -> None:
    texts = distinct(10)
    report = examine(make_task({"train": make_rows(texts, [0, 1] * 5), "validation": make_rows(texts, [0, 1] * 5)}))
    assert report.splits["validation"].found_in_train == 10
    assert len(find(report, "leak")[0].examples) == 3


def test_token_lengths_and_the_share_that_is_cut() -> None:
    lengths = np.arange(1, 101)
    splits = {"train": make_rows(distinct(100), [0, 1] * 50)}
    report = examine(make_task(splits), token_lengths={"train": lengths}, max_length=90)
    tokens = report.splits["train"].tokens
    assert tokens is not None
    assert (tokens.median, tokens.longest, tokens.cut_share) == (50.5, 100, 0.1)
    assert tokens.p95 == pytest.approx(95.05)
    finding = find(report, "cut")[0]
    assert finding.level == "warning"
    assert finding.message == "train: 10.0 % of the rows have more than 90 tokens and will be cut."
    assert "Raise --max_length" in finding.cure
    assert finding.examples == ("row r99: 100 tokens", "row r98: 99 tokens", "row r97: 98 tokens")
    mild = find(examine(make_task(splits), token_lengths={"train": lengths}, max_length=99), "cut")[0]
    assert (mild.level, mild.examples) == ("note", ("row r99: 100 tokens",))


def test_lengths_that_do_not_fit_the_rows_are_refused() -> None:
    splits = {"train": make_rows(["a", "b"], [0, 1])}
    with pytest.raises(
        ValueError, match=r"token_lengths\['train'\] has the shape \(3,\); expected one length a row: 2"
    ):
        examine(make_task(splits), token_lengths={"train": np.arange(3)})


@pytest.mark.parametrize("train_labels", [[0, 0, 1], [1, 1, 0]])
@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_guess_scores_are_what_the_metrics_say(train_labels: list[int], labels: list[int]) -> None:
    splits = {
        "train": make_rows(["a", "b", "c"], train_labels),
        "validation": make_rows(distinct(len(labels)), labels),
    }
    split = examine(make_task(splits, metrics=("f1", "matthews_correlation"))).splits["validation"]
    guess = train_labels[0]
    guesses = [guess] * len(labels)
    assert split.guess == ("no", "yes")[guess]
    expected = {
        "f1": f1_score(labels, guesses, zero_division=0),
        "matthews_correlation": matthews_corrcoef(labels, guesses) if len(set(labels)) > 1 else 0.0,
        "accuracy": accuracy_score(labels, guesses),
    }
    if guess == 0:
        expected["f1_all_positive"] = f1_score(labels, [1] * len(labels), zero_division=0)
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
    assert split.detectable_gap == pytest.approx(smallest_detectable_correlation_gap(60))
    assert any("always guessing the mean has no correlation (undefined)" in line for line in full_lines(report))


@pytest.mark.parametrize(("size", "warned"), [(3, True), (100, True), (1000, False)])
def test_small_evaluation_splits_are_warned_of(size: int, warned: bool) -> None:
    splits = {
        "train": make_rows(distinct(4), [0, 1, 0, 1]),
        "validation": make_rows(distinct(size, "dev"), [place % 2 for place in range(size)]),
    }
    report = examine(make_task(splits))
    gap = report.splits["validation"].detectable_gap
    assert gap == (None if size == 3 else pytest.approx(smallest_detectable_accuracy_gap(size)))
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
    assert finding.message == "validation: 90.0 % of the rows are 'yes'; always guessing it has that accuracy."


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


def test_warnings_come_first_and_the_gravest_of_them_before_the_rest() -> None:
    splits = {
        "train": make_rows(["a", "a", "b", ""], [0, 1, 0, 1]),
        "validation": make_rows(["b", "c", "c"], [0, 1, 1]),
    }
    report = examine(make_task(splits))
    assert [finding.kind for finding in report.findings] == [
        "leak", "empty", "conflicts", "small", "duplicates", "duplicates",
    ]  # fmt: skip
    assert [finding.kind for finding in report.warnings] == ["leak", "empty", "conflicts", "small"]
    assert {finding.kind for finding in report.findings} <= set(FINDING_KINDS)


def test_summary_is_brief_and_says_what_it_leaves_out() -> None:
    splits = {
        "train": make_rows(["a", "a", "b", "", "c"], [0, 1, 0, 1, 1]),
        "validation": make_rows(["b", "d", "e", "f"], [0, 1, 1, 1]),
    }
    report = examine(make_task(splits), token_lengths={"train": np.array([3, 3, 4, 2, 9])}, max_length=8)
    assert summary_lines(report) == [
        "toy: classification into 2 classes (no, yes); rows: train 5, validation 4",
        "train texts: median 3 tokens, 95 % have at most 8, the longest has 9; 20.0 % of the rows will be cut",
        "train: no 40.0 %, yes 60.0 %; always guessing 'yes' on validation: accuracy 0.750",
        "validation has 4 rows: two models must differ by about 99.8 points of accuracy to be told apart (80 % power)",
        "warning: validation: 1 row also in train (25.0 %), white space and case ignored: the score flatters what is "
        "learnt by heart.",
        "warning: train: 1 row without any text. (2 more: see `attentune doctor`)",
    ]


@pytest.mark.parametrize(
    "splits",
    [
        {},
        {"train": make_rows([], [])},
        {"test": make_rows(["a"])},
        {"validation": make_rows(["a"], [1])},
        {"train": make_rows(["a"]), "validation": make_rows([], [])},
    ],
)
def test_missing_splits_rows_and_labels_do_no_harm(splits: dict[str, TextRows]) -> None:
    report = examine(make_task(splits), token_lengths={name: np.full(len(rows), 5) for name, rows in splits.items()})
    assert 1 <= len(summary_lines(report)) <= 6
    assert full_lines(report)[0] == summary_lines(report)[0]


def test_full_lines_hold_every_finding_with_cure_and_rows() -> None:
    splits = {
        "train": make_rows(["a", "a", "b"], [0, 1, 0], lines=True),
        "validation": make_rows(["b", "c"], [0, 1]),
    }
    report = examine(make_task(splits))
    lines = full_lines(report)
    assert "  empty texts 0, duplicates 1, texts with different labels 1" in lines
    assert "  classes: no 2 (66.7 %), yes 1 (33.3 %)" in lines
    for finding in report.findings:
        place = lines.index(f"  {finding.level}: {finding.message}")
        assert lines[place + 1] == f"    {finding.cure}"
        assert lines[place + 2 : place + 2 + len(finding.examples)] == [f"      {row}" for row in finding.examples]
    assert lines[-1].startswith("Differences that can be told apart: McNemar's test at the 5 % level")


def test_report_goes_through_json() -> None:
    splits = {"train": make_rows(["a", "b", ""], [0, 1, 1]), "validation": make_rows(["a"], [1])}
    report = examine(make_task(splits, metrics=("pearson",)), token_lengths={"train": np.array([1, 2, 3])})
    told: dict[str, Any] = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert told["splits"]["train"]["tokens"]["longest"] == 3
    assert told["splits"]["validation"]["guess_scores"] == {"pearson": None, "accuracy": 1.0}
    assert told["findings"][0]["kind"] == "leak"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.0 %"), (1e-5, "< 0.1 %"), (0.0005, "0.1 %"), (0.1234, "12.3 %"), (0.99999, "> 99.9 %"), (1, "100.0 %")],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float, shown: str) -> None:
    assert percent(share) == shown


def test_a_large_task_takes_less_than_a_second() -> None:
    rng = numpy_generator("test-doctor-speed")
    texts = [" ".join(map(str, row)) for row in rng.integers(0, 30_000, size=(67_000, 10)).tolist()]
    labels = rng.integers(0, 2, size=67_000).tolist()
    splits = {"train": make_rows(texts, labels), "validation": make_rows(texts[:900], labels[:900])}
    task = make_task(splits)
    # Processor time: the tests may share their cores.
    started = time.process_time()
    report = examine(task, token_lengths={"train": np.full(67_000, 20)})
    assert time.process_time() - started < 1
    assert report.splits["validation"].found_in_train == 900
