"""The rows that methods get wrong, and what a report on one run shows."""

import dataclasses
from pathlib import Path

import pytest

from attentune.report.analysis import compare_methods
from attentune.report.contents import make_report
from attentune.report.details import classes_section, model_section, rows_section
from attentune.report.document import Section, Table
from attentune.report.load import TaskTexts, collect
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


def tables_of(section: Section | None) -> dict[str, Table]:
    return {part.name: part for part in (section.parts if section else ()) if isinstance(part, Table)}


def test_rows_are_found_with_their_texts_and_who_is_right(two: Path) -> None:
    verdicts = compare_methods(collect([str(two)]).runs)
    section = rows_section(verdicts, {"rte": TEXTS})
    assert section is not None
    assert section.sentences[0] == (
        "rte: 4 of 6 rows are right in all 4 runs, 1 in none."
        " 1 rows differ most: right in all seeds of one model and in none of another."
    )
    found = tables_of(section)
    assert found["hard-rte"].rows == (("r1", "text 1", "yes", "no"),)
    who = "most often right: b (2 of 2 seeds); least often: a (0 of 2 seeds)"
    assert found["apart-rte"].rows == (("r4", "text 4 | second", "no", "yes (2), no (2)", who),)
    assert tables_of(rows_section(verdicts, {}))["hard-rte"].rows[0][1] == "-"


def test_runs_on_other_rows_are_not_compared_by_row(two: Path) -> None:
    rows = [["id", "label", "prediction", "p_no", "p_yes"], ["other", "no", "no", "0.5", "0.5"]]
    rows.append(["another", "yes", "yes", "0.5", "0.5"])
    write_record(two, Run("rte", None, "a", 3), rows, score=1.0)
    assert rows_section(compare_methods(collect([str(two)]).runs), {}) is None


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
    found = tables_of(rows_section(compare_methods(collect([str(tmp_path)]).runs), {}))
    assert found["hard-stsb"].rows[0][:3] == ("r2", "-", "3")
    assert found["apart-stsb"].rows[0][-1] == "nearest: b (4); farthest: a (9)"


def test_of_many_classes_the_worst_and_the_most_confused_are_listed(tmp_path: Path) -> None:
    names = [f"c{number:02}" for number in range(30)]
    labels = names * 4
    given = [names[(index % 30 + (index % 30 < 6 and index < 60)) % 30] for index in range(120)]
    right = sum(a == b for a, b in zip(labels, given, strict=True)) / 120
    write_record(tmp_path, Run("big", None, "bert", 1), predictions(labels, given, names), score=right)
    section = classes_section(compare_methods(collect([str(tmp_path)]).runs))
    found = tables_of(section)
    assert list(found) == ["classes-big", "confused-big"]
    assert len(found["classes-big"].rows) == 20
    assert found["classes-big"].rows[0] == ("c01", "4", "50.0", "50.0", "50.0")
    assert [row[:2] for row in found["confused-big"].rows] == [(names[n], names[n + 1]) for n in range(6)]
    assert found["confused-big"].rows[0][2:] == ("2", "50.0")


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


def test_a_run_has_curves_classes_calibration_and_errors(tmp_path: Path) -> None:
    one_run(tmp_path)
    texts = {f"r{number}": (" ".join(["word"] * (1 + number)), None) for number in range(40)}
    report = make_report(dataclasses.replace(collect([str(tmp_path)]), texts={"rte": TaskTexts(texts)}))
    parts = {part.name: part for section in report.sections for part in section.parts}
    assert {"loss-rte", "validation-rte", "calibration-rte", "confusion-rte"} <= set(parts)
    lines = parts["validation-rte"].draw().axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[pytest.approx(45.0), pytest.approx(50.0)]]
    assert [(row[0], row[1], row[3]) for row in parts["classes-rte"].rows] == [
        ("no", "20", "50.0"),
        ("yes", "20", "50.0"),
    ]
    assert parts["calibration-rte"].caption == (
        "Expected calibration error 24.5 points: the model is 74.5 % sure on average and right in 50.0 %, so it is more"
        " confident than it should be."
    )
    assert [row[0] for row in parts["confident-rte"].rows][:2] == ["r39", "r37"]
    assert parts["confident-rte"].rows[0][-1] == "94 %"
    assert report.warnings == ("rte, bert, seed 1: Beware.",)


def test_with_equal_probabilities_there_is_no_calibration(tmp_path: Path) -> None:
    one_run(tmp_path / "one")
    # The helper's probabilities are all alike.
    write_record(tmp_path / "flat", Run("rte", None, "a", 1), predictions(LABELS, GIVEN["a"], NAMES), score=4 / 6)
    for name, expected in {"one": ["calibration-rte", "confident-rte"], "flat": ["confident-rte"]}.items():
        verdicts = compare_methods(collect([str(tmp_path / name)]).runs)
        section = model_section(verdicts, verdicts.cells[0], TaskTexts())
        assert section is not None
        assert [part.name for part in section.parts] == expected
