"""The order, the lines and the JSON of a report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attentune.data.dataset import TextRows
from attentune.data.doctor import examine
from attentune.data.doctor_report import FINDING_KINDS, full_lines, percent, summary_lines
from helpers.samples import make_rows, make_task


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
        "train texts: median 3 tokens, 95 % have at most 8, the longest has 9; 20.0 % of the rows will be truncated",
        "train: no 40.0 %, yes 60.0 %; always predicting 'yes' on validation: accuracy 0.750",
        "validation has 4 rows: two models must differ by about 99.8 points of accuracy for a significant difference "
        "(80 % power)",
        "warning: validation: 1 row also in train (25.0 %), white space and case ignored: memorised rows inflate "
        "the score.",
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
    assert lines[-1].startswith("Detectable differences: McNemar's test at the 5 % level")


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
