"""The rows that methods get wrong, and what a report on one run shows."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from attentune.data.doctor_report import Finding
from attentune.errors import CheckpointError
from attentune.report.analysis import compare_methods
from attentune.report.load import TaskTexts, collect
from attentune.report.overview.rows import task_rows
from attentune.report.overview.run import confusions, run_details
from attentune.report.sections.contents import make_report
from attentune.report.writing import render_html
from helpers.made_records import Run, predictions, write_record

NAMES = ("no", "yes")
LABELS = ["no", "yes", "no", "yes", "no", "yes"]
# Row 0 is always right, row 1 never; row 4 is right with "b" only.
GIVEN = {"a": ["no", "no", "no", "yes", "yes", "yes"], "b": ["no", "no", "no", "yes", "no", "yes"]}
TEXTS = TaskTexts({f"r{number}": (f"text {number}", "second" if number == 4 else None) for number in range(6)})


def score(given: list[str]) -> float:
    return sum(label == one for label, one in zip(LABELS, given, strict=True)) / len(LABELS)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for method, given in GIVEN.items():
        for seed in (1, 2):
            rows = predictions(LABELS, given, NAMES)
            write_record(tmp_path, Run("rte", None, method, seed), rows, score=score(given))
    return tmp_path


def test_rows_are_found_with_their_texts_and_who_is_right(two: Path) -> None:
    verdicts = compare_methods(collect([str(two)]).runs)
    (found,) = task_rows(verdicts, {"rte": TEXTS})
    assert found.counts == (
        "4 of 6 rows are right in all 4 runs, 1 in none.",
        "1 rows differ most: right in all seeds of one method and in none of another.",
    )
    ((hard), (apart)) = (found.hard[0], found.apart[0])
    assert (hard.id, hard.text, hard.label, hard.given, hard.who) == ("r1", ("text 1",), "yes", "no", "")
    assert (apart.id, apart.text, apart.given) == ("r4", ("text 4", "second"), "yes (2), no (2)")
    assert apart.who == "most often right: b (2 of 2 seeds); least often: a (0 of 2 seeds)"
    (without,) = task_rows(verdicts, {})
    assert without.hard[0].text == ()


def test_runs_on_other_rows_are_not_compared_by_row(two: Path) -> None:
    rows = [["id", "label", "prediction", "p_no", "p_yes"], ["other", "no", "no", "0.5", "0.5"]]
    rows.append(["another", "yes", "yes", "0.5", "0.5"])
    write_record(two, Run("rte", None, "a", 3), rows, score=1.0)
    assert task_rows(compare_methods(collect([str(two)]).runs), {}) == ()


def test_regression_has_its_largest_errors(tmp_path: Path) -> None:
    for method, given in {"a": ["1", "2", "9"], "b": ["1", "2.5", "4"]}.items():
        rows = [["id", "label", "prediction"], *([f"r{n}", str(n + 1), one] for n, one in enumerate(given))]
        write_record(
            tmp_path,
            Run("stsb", None, method, 1),
            rows,
            metric="mean_absolute_error",
            score=2.0 if method == "a" else 0.5,
        )
    (found,) = task_rows(compare_methods(collect([str(tmp_path)]).runs), {})
    assert (found.hard[0].id, found.hard[0].label) == ("r2", "3")
    assert found.apart[0].who == "nearest: b (4); farthest: a (9)"


def one_run(folder: Path, count: int = 40) -> Path:
    """Write a run whose predictions have probabilities; rows of even number are right."""
    header = ["id", "label", "prediction", "p_no", "p_yes"]
    rows = []
    for number in range(count):
        sure = 0.55 + 0.01 * (number % 40)
        given = "yes" if number % 4 < 2 else "no"
        label = given if number % 2 == 0 else {"yes": "no", "no": "yes"}[given]
        shares = (1 - sure, sure) if given == "yes" else (sure, 1 - sure)
        rows.append([f"r{number}", label, given, *(f"{share:.6f}" for share in shares)])
    scored = [{"step": 4 * n, "epoch": n, "validation": {"accuracy": 0.4 + 0.05 * n}} for n in (1, 2)]
    write_record(folder, Run("rte", None, "bert", 1), [header, *rows], score=0.5, scored=scored, warnings=["Beware."])
    return folder


def test_a_run_has_curves_classes_calibration_lengths_and_findings(tmp_path: Path) -> None:
    one_run(tmp_path)
    verdicts = compare_methods(collect([str(tmp_path)]).runs)
    texts = {f"r{number}": (" ".join(["word"] * (1 + number)), None) for number in range(40)}
    finding = Finding("warning", "leak", "validation", "validation: leaked.", "Remove it.")
    (run,) = run_details(verdicts, {"rte": TaskTexts(texts, (finding,))})
    assert [chart.title for chart in run.curves] == ["Training loss", "Validation accuracy"]
    assert run.curves[1].description == "Validation accuracy by step; the best is 50."
    assert [(one.name, one.rows, one.recall) for one in run.classes] == [("no", 20, "50.0"), ("yes", 20, "50.0")]
    assert run.calibration is not None
    assert run.calibration_note == (
        "Expected calibration error 24.5 points: the model is 74.5 % sure on average and right in 50.0 %, so it is more"
        " confident than it should be."
    )
    assert run.lengths is not None
    assert next(mark.name for mark in run.lengths.marks).startswith("1 to ")
    assert run.lengths.marks[0].value == "50.0 %"
    assert [row.id for row, _ in run.wrong][:2] == ["r39", "r37"]
    assert run.wrong[0][1] == 94
    assert (run.findings, run.warnings) == ((finding,), ("Beware.",))
    ((task, (matrix,)),) = confusions(verdicts)
    assert (task, matrix.shares) == ("rte", ((50, 50), (50, 50)))


def test_without_texts_there_are_no_lengths_and_without_probabilities_no_calibration(two: Path, tmp_path: Path) -> None:
    one_run(tmp_path / "one")
    (run,) = run_details(compare_methods(collect([str(tmp_path / "one")]).runs), {})
    assert run.lengths is None
    assert run.findings is None
    assert run.calibration is not None
    # The helper's probabilities are all alike.
    write_record(tmp_path / "flat", Run("rte", None, "a", 1), predictions(LABELS, GIVEN["a"], NAMES), score=4 / 6)
    (run,) = run_details(compare_methods(collect([str(tmp_path / "flat")]).runs), {})
    assert run.calibration is None
    assert run_details(compare_methods(collect([str(two)]).runs), {}) == ()


def test_recorded_explanations_are_shown_with_their_rows(two: Path) -> None:
    tokens = [{"text": "text", "start": 0, "end": 4, "score": 0.5}, {"text": "1", "start": 5, "end": 6, "score": -0.25}]
    line = {"text": "text 1", "pair": None, "method": "gradient", "label": "no", "probability": 0.9, "prediction": "no"}
    line |= {
        "signed": True,
        "passes": 2,
        "seconds": 0.1,
        "level": "word",
        "unit": "change of the log-odds of bad",
        "tokens": tokens,
    }
    (two / "explanations.jsonl").write_text(json.dumps(line) + "\n")
    data = dataclasses.replace(collect([str(two)]), texts={"rte": TEXTS})
    page = render_html(make_report(data))
    (marked,) = re.findall(r'<p class="marked">.*?</p>', page, re.DOTALL)
    assert re.sub(r"<[^>]*>", "", marked) == "text 1"
    assert 'title="+0.5"' in marked
    assert 'class="t against"' in marked
    assert "words by gradient for no: red speaks for it, blue with dashes against it" in page
    (two / "explanations.jsonl").write_text('{"text": "text 1"}\n')
    with pytest.raises(
        CheckpointError, match=r"explanations.jsonl, line 1: holds no explanation \('tokens'\). Make the"
    ):
        collect([str(two)])
