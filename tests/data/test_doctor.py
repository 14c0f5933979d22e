"""Problems that the doctor detects, inserted into small data; and the report's order, lines and JSON."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from attentune.data.dataset import TextRows
from attentune.data.doctor import CHECKS, examine, full_lines, percent, summary_lines
from attentune.stats.power import minimum_detectable_accuracy_difference, minimum_detectable_correlation_difference
from helpers.samples import distinct, find, make_rows, make_task


def test_clean_data_has_no_findings():
    splits = {
        "train": make_rows(distinct(40), [0, 1] * 20),
        "validation": make_rows(distinct(1000, "dev"), [0, 1] * 500),
        "test": make_rows(distinct(10, "test")),
    }
    report = examine(make_task(splits), token_lengths={"train": np.full(40, 9)}, max_length=9)
    assert report.findings == ()
    assert [report.splits[name].found_in_train for name in splits] == [None, 0, 0]
    test = report.splits["test"]
    assert (test.class_counts, test.conflicts, test.detectable_metric) == (None, None, None)
    assert "Findings: none" in full_lines(report)


CASES = yaml.safe_load(Path(__file__).with_name("doctor.yaml").read_text(encoding="utf-8"))


def rows_of(split: str, texts: Any, labels: Any = None, pairs: Any = None) -> TextRows:
    texts = distinct(texts, split) if isinstance(texts, int) else texts
    labels = [label for label, count in labels.items() for _ in range(count)] if isinstance(labels, dict) else labels
    return make_rows(texts, labels, pairs, source=f"{split}.csv", lines=True)


@pytest.mark.parametrize("about", CASES)
def test_what_small_data_are_reported_to_have(about):
    case = CASES[about]
    splits = {split: rows_of(split, **rows) for split, rows in case["splits"].items()}
    task = {name: tuple(case[name]) for name in ("names", "metrics") if name in case}
    report = examine(make_task(splits, task_type=case.get("task_type", "classification"), **task))
    for split, values in case.get("report", {}).items():
        assert {name: getattr(report.splits[split], name) for name in values} == values
    for kind, wanted in case.get("findings", {}).items():
        for finding, fields in zip(find(report, kind), wanted, strict=True):
            found = {**vars(finding), "examples": list(finding.examples)}
            found["rows"] = [example.split()[1] for example in finding.examples]
            found["cure"] = fields.get("cure", "") if fields.get("cure", "") in finding.cure else finding.cure
            assert {name: found[name] for name in fields} == fields


def test_contradictions_in_few_rows_are_noted():
    rare = {"train": make_rows([*distinct(4000), "a", "a"], [0, 1] * 2001)}
    assert find(examine(make_task(rare)), "conflicts")[0].level == "note"


def test_token_lengths_and_the_share_that_is_cut():
    lengths = np.arange(1, 101)
    splits = {"train": make_rows(distinct(100), [0, 1] * 50)}
    report = examine(make_task(splits), token_lengths={"train": lengths}, max_length=90)
    expected = {"median": 50.5, "p95": pytest.approx(95.05), "longest": 100, "cut_share": 0.1}
    assert report.splits["train"].tokens == expected
    (finding,) = find(report, "cut")
    assert (finding.level, "Raise --max_length" in finding.cure) == ("warning", True)
    assert finding.message == "train: 10.0 % of the rows have more than 90 tokens and will be truncated."
    assert finding.examples == ("row r99: 100 tokens", "row r98: 99 tokens", "row r97: 98 tokens")
    (mild,) = find(examine(make_task(splits), token_lengths={"train": lengths}, max_length=99), "cut")
    assert (mild.level, mild.examples) == ("note", ("row r99: 100 tokens",))


LANGUAGES = {
    "German": "Leider ist die Qualität sehr schlecht, das Produkt ist nach {} Tagen kaputt gegangen",
    "Spanish": "No me gustó la calidad del producto, se rompió después de {} días de uso",
    "Dutch": "De film was erg goed en de acteurs ook, ik heb hem al {} keer gezien",
    "Japanese": "この製品は{}日で壊れてしまいました。お勧めしません",
}


@pytest.mark.parametrize(
    ("text", "count", "is_told"),
    [
        *((text, 20, True) for text in LANGUAGES.values()),
        (LANGUAGES["German"], 8, False),
        ("the film was very good and I saw it {} times", 20, False),
        ("Good product, works for {} days", 20, False),
        ("{}", 20, False),
    ],
)
def test_texts_that_are_not_english_are_told_where_the_encoder_knows_english_only(text, count, is_told):
    task = make_task({"train": make_rows([text.format(number) for number in range(count)], [0, 1] * (count // 2))})
    found = find(examine(task, english_only=True), "language")
    assert [(one.level, "xlm-roberta" in one.cure) for one in found] == [("warning", True)] * is_told
    assert not find(examine(task), "language")


# Labels


def test_regression_reports_the_spread_and_the_detectable_correlation():
    scores = list(np.linspace(0, 5, 60))
    splits = {"train": make_rows(distinct(2), [0.0, 5.0]), "validation": make_rows(distinct(60, "dev"), scores)}
    report = examine(make_task(splits, task_type="regression"))
    split = report.splits["validation"]
    expected = {"mean": 2.5, "std": np.sqrt(np.mean((np.array(scores) - 2.5) ** 2)), "lowest": 0.0, "highest": 5.0}
    assert split.scores == pytest.approx(expected)
    assert (split.class_counts, split.guess, split.detectable_metric) == (None, None, "correlation")
    assert split.detectable_gap == pytest.approx(minimum_detectable_correlation_difference(60))
    assert any("always predicting the mean has an undefined correlation" in line for line in full_lines(report))


@pytest.mark.parametrize(("size", "warned"), [(3, True), (100, True), (1000, False)])
def test_small_evaluation_splits_are_warned_of(size, warned):
    labels = [place % 2 for place in range(size)]
    splits = {"train": make_rows(distinct(4), [0, 1, 0, 1]), "validation": make_rows(distinct(size, "dev"), labels)}
    report = examine(make_task(splits))
    gap = report.splits["validation"].detectable_gap
    assert gap == (None if size == 3 else pytest.approx(minimum_detectable_accuracy_difference(size)))
    assert report.splits["train"].detectable_metric is None
    found = find(report, "small")
    assert [finding.split for finding in found] == (["validation"] if warned else [])
    if size == 100:
        assert found[0].message == "validation: 100 rows will often miss differences below 8.8 points of accuracy."


# Differences from train

WORD_SHIFTS = ("length-shift", "vocabulary-shift")


def test_other_shares_of_labels_are_told_and_chance_is_not():
    def shifted(train: TextRows, test: TextRows, **task: Any) -> int:
        return len(find(examine(make_task({"train": train, "test": test}, **task)), "label-shift"))

    def drawn(generator: Any, count: int, share: float) -> TextRows:
        return make_rows(distinct(count, str(share)), (generator.random(count) < share).astype(int).tolist())

    draw = np.random.default_rng(0)
    assert shifted(drawn(draw, 800, 0.54), drawn(draw, 600, 0.68)) == 1
    first, second = (make_rows(distinct(800), draw.normal(mean, 1, 800).tolist()) for mean in (0.0, 0.7))
    assert shifted(first, second, task_type="regression") == 1
    assert not any(shifted(drawn(draw, 300, 0.5), drawn(draw, 60, 0.5)) for _ in range(60))


@pytest.mark.parametrize(
    ("words", "first", "told"),
    [
        (8, 0, []),
        (14, 0, ["length-shift"]),
        (8, 150, ["vocabulary-shift"]),
        (4, 400, ["length-shift", "vocabulary-shift"]),
    ],
)
def test_longer_texts_and_new_words_are_told(words, first, told):
    draw = np.random.default_rng(0)

    def drawn(count: int, words: int, first: int) -> TextRows:
        texts = [" ".join(f"w{number}" for number in draw.integers(first, first + 300, words)) for _ in range(count)]
        return make_rows(texts, draw.integers(2, size=count).tolist())

    report = examine(make_task({"train": drawn(800, 8, 0), "test": drawn(600, words, first)}))
    assert [finding.kind for finding in report.findings if finding.kind in WORD_SHIFTS] == told


# The report


def test_warnings_come_first_and_the_gravest_of_them_before_the_rest():
    splits = {
        "train": make_rows(["a", "a", "b", ""], [0, 1, 0, 1]),
        "validation": make_rows(["b", "c", "c"], [0, 1, 1]),
    }
    report = examine(make_task(splits))
    kinds = ["leak", "empty", "conflicts", "small", "duplicates", "duplicates"]
    assert [finding.kind for finding in report.findings] == kinds
    assert [finding.kind for finding in report.warnings] == kinds[:4]
    assert set(kinds) <= set(CHECKS)


def test_summary_is_brief_and_says_what_it_leaves_out():
    splits = {
        "train": make_rows(["a", "a", "b", "", "c"], [0, 1, 0, 1, 1]),
        "validation": make_rows(["b", "d", "e", "f"], [0, 1, 1, 1]),
    }
    report = examine(make_task(splits), token_lengths={"train": np.array([3, 3, 4, 2, 9])}, max_length=8)
    assert summary_lines(report) == [
        "toy: classification into 2 classes (no, yes); rows: train 5, validation 4",
        "train: median 3 tokens, 95 % have at most 8, the longest has 9; 20.0 % of the rows will be truncated",
        "train: classes: no 2 (40.0 %), yes 3 (60.0 %)",
        "validation: always predicting 'yes': accuracy 0.750",
        "validation: two models must differ by about 99.8 points of accuracy for a significant difference (80 % power)",
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
def test_missing_splits_rows_and_labels_do_no_harm(splits):
    report = examine(make_task(splits), token_lengths={name: np.full(len(rows), 5) for name, rows in splits.items()})
    assert 1 <= len(summary_lines(report)) <= 6
    assert full_lines(report)[0] == summary_lines(report)[0]


def test_full_lines_hold_every_finding_with_cure_and_rows_and_go_through_json():
    splits = {
        "train": make_rows(["a", "a", "b"], [0, 1, 0], lines=True),
        "validation": make_rows(["b", "c"], [0, 1]),
    }
    report = examine(make_task(splits), token_lengths={"train": np.array([1, 2, 3])})
    lines = full_lines(report)
    assert "  empty texts 0, duplicates 1, texts with different labels 1" in lines
    assert "  classes: no 2 (66.7 %), yes 1 (33.3 %)" in lines
    for finding in report.findings:
        place = lines.index(f"  {finding.level}: {finding.message}")
        assert lines[place + 1] == f"    {finding.cure}"
        assert lines[place + 2 : place + 2 + len(finding.examples)] == [f"      {row}" for row in finding.examples]
    assert lines[-1].startswith("Detectable differences: McNemar's test")
    told = json.loads(json.dumps(asdict(report), allow_nan=False))
    assert told["splits"]["train"]["tokens"]["longest"] == 3
    assert told["findings"][0]["kind"] == "leak"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.0 %"), (1e-5, "< 0.1 %"), (0.0005, "0.1 %"), (0.1234, "12.3 %"), (0.99999, "> 99.9 %"), (1, "100.0 %")],
)
def test_a_share_is_never_rounded_to_none_or_all(share, shown):
    assert percent(share) == shown
