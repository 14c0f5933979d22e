"""Problems in texts that the doctor detects, inserted into small data."""

from __future__ import annotations

import time

import numpy as np
import pytest

from attentune.data.doctor import examine
from attentune.data.doctor_report import full_lines
from attentune.seeding import numpy_generator
from helpers.samples import distinct, find, make_rows, make_task


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


def test_texts_that_lost_their_encoding_are_warned_of() -> None:
    good = ["schön", "naïve façade, 5 € für „alles“", "日本 хорошо", "so fine", "Ã", "Â", "cafÃ"]
    bad = ["das ist sehr schÃ¶n, naïve", "itâ€™s fine", "so f\ufffdne"]
    report = examine(make_task({"train": make_rows(good + bad, [0, 1] * 5, lines=True)}))
    (finding,) = find(report, "encoding")
    assert finding.level == "warning"
    assert finding.message == "train: 3 rows with characters of a wrong encoding, such as 'schÃ¶n,'."
    assert [example.split()[1] for example in finding.examples] == ["r7", "r8", "r9"]
    pairs = make_rows(["a", "b"], [0, 1], ["x", "schÃ¶n"])
    assert len(find(examine(make_task({"train": pairs})), "encoding")) == 1


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
    assert finding.message == "train: 10.0 % of the rows have more than 90 tokens and will be truncated."
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


def test_the_time_grows_as_the_rows_do() -> None:
    def seconds(rows: int) -> float:
        """Processor time, since the tests may share their cores."""
        rng = numpy_generator("test-doctor-speed")
        texts = [" ".join(map(str, row)) for row in rng.integers(0, 30_000, size=(rows, 10)).tolist()]
        labels = rng.integers(0, 2, size=rows).tolist()
        splits = {"train": make_rows(texts, labels), "validation": make_rows(texts[:900], labels[:900])}
        task, lengths = make_task(splits), np.full(rows, 20)
        began = time.process_time()
        report = examine(task, token_lengths={"train": lengths})
        assert report.splits["validation"].found_in_train == 900
        return time.process_time() - began

    few, many = (min(seconds(rows) for _ in range(2)) for rows in (8_000, 64_000))
    assert many < 3 * 8 * few
