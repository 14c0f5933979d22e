"""The question of a report and its answer in words; rows that methods get wrong; what a report on one run shows."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Verdicts, compare_methods
from attentune.report.contents import _open_sentence, answer_of, make_report, question_of
from attentune.report.details import classes_section, cues_section, probabilities_section, rows_section
from attentune.report.document import NOTHING, Section, Table
from attentune.report.load import TaskTexts, collect
from attentune.report.tables import ranking_tables
from helpers.made_records import Run, answers, predictions, write_comparison, write_record


def verdicts_of(folder: Path, chances: dict[str, float], **options: Any) -> Verdicts:
    write_comparison(folder, chances, **options)
    return compare_methods(collect([str(folder)]).runs, "bert")


def interval(low: float, high: float) -> str:
    return f"95 % interval {100 * low:.1f} to {100 * high:.1f}"


def test_a_shown_lead_is_told_with_its_interval_and_errors_are_better_if_smaller(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85})
    (one,) = found.comparisons
    assert question_of(found) == "Which of 2 models is best for rte?"
    assert answer_of(found) == (
        f"good is best for rte: accuracy {100 * one.method_mean:.1f}, {100 * one.difference:.1f} points above bert"
        f" ({interval(one.low, one.high)}): shown.",
    )
    # An error is better if it is smaller.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    for method, scores in {"bert": (0.52, 0.5, 0.48), "good": (0.31, 0.3, 0.29)}.items():
        for seed, score in enumerate(scores, start=1):
            write_record(tmp_path, Run("prices", None, method, seed), None, metric="mean_absolute_error", score=score)
    (answer,) = answer_of(compare_methods(collect([str(tmp_path)]).runs))
    assert answer.startswith("good is best for prices: mean absolute error 0.3, 0.2 below bert (95 % interval 0.1")
    assert answer.endswith("): shown.")
    # Equal models have no lead.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-3"
    tmp_path.mkdir()
    labels, given = ["no", "yes"] * 4, ["no", "yes"] * 3 + ["yes", "no"]
    for method, seed in ((method, seed) for method in ("bert", "same") for seed in (1, 2)):
        write_record(tmp_path, Run("rte", None, method, seed), predictions(labels, given, ["no", "yes"]), score=0.75)
    found = compare_methods(collect([str(tmp_path)]).runs)
    assert answer_of(found)[0] == "bert and same are equally good for rte: accuracy 75.0."


def test_a_lead_over_the_next_best_model_is_not_one_over_a_worse_baseline(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.4, "alike": 0.8, "also": 0.8})
    nothing, first, second, third = answer_of(found)
    assert nothing.startswith("Nothing was learnt in 3 of 9 runs")
    assert all(one.shown for one in found.comparisons)
    assert first.startswith("also is best for rte: accuracy 7")
    assert " points above alike (" in first
    assert first.endswith("): not shown.")
    assert second.startswith("Not shown does not mean equal: with 3 seeds, a true difference has to be ")
    assert third.startswith("2 of 2 differences to bert are shown: ")
    # Models that may be as good are named.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    found = verdicts_of(tmp_path, {"bert": 0.6, "same": 0.6, "alike": 0.6})
    _, first, _, last = answer_of(found)
    assert first.endswith(" may be as good.")
    assert last == "None of the 2 differences to bert is shown."


def test_the_constant_answer_is_a_floor_and_no_finding(tmp_path: Path) -> None:
    chances = {"majority": 0.5, "bert": 0.8, "good": 0.85}
    write_comparison(tmp_path, chances, settings={"majority": {"baseline": "majority"}}, seeds=1)
    report = make_report(collect([str(tmp_path)]))
    found = compare_methods(collect([str(tmp_path)]).runs)
    assert (found.baseline, [one.method for one in found.comparisons]) == ("bert", ["good"])
    assert report.answer[0].startswith("good is best for rte: accuracy 8")
    assert report.answer[1:] == ("One seed cannot tell a better method from a lucky run.",)
    assert "majority" not in " ".join(report.answer)
    assert "; 2 trained models, 1 fitted baseline." in report.sentences[0]
    ranking, baselines = report.sections[0].parts[0], report.sections[0].parts[-1]
    assert ([row[0] for row in ranking.rows], [row[1] for row in baselines.rows]) == (
        ["good", "bert"],
        ["constant answer"],
    )
    chosen = make_report(collect([str(tmp_path)]), "majority")
    assert "majority" not in " ".join(chosen.answer)
    assert not any("majority" in cell for row in ranking.rows for cell in row)


def test_models_at_the_floor_are_not_called_best_and_collapsed_runs_are_told(tmp_path: Path) -> None:
    labels, given = ["no", "yes", "no"], ["no", "no", "no"]
    for method in ("bert", "same"):
        for seed in (1, 2):
            rows = predictions(labels, given, ["no", "yes"])
            write_record(tmp_path, Run("rte", None, method, seed), rows, score=2 / 3)
    first = answer_of(compare_methods(collect([str(tmp_path)]).runs))[0]
    assert first.startswith(
        "No model is shown to learn rte: the best, bert, reaches accuracy 66.7, a constant answer 66.7"
    )
    # Collapsed runs of the best model are told.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    labels = ["no", "yes"] * 10
    for method, right in {"bert": (0.8, 0.8, 0.8), "good": (1.0, 1.0, 0.5)}.items():
        for seed, share in enumerate(right, start=1):
            given = labels[: int(20 * share)] + [("yes", "no")[label == "yes"] for label in labels[int(20 * share) :]]
            rows = predictions(labels, given, ["no", "yes"])
            write_record(tmp_path, Run("rte", None, method, seed), rows, score=share)
    nothing, first, *_ = answer_of(compare_methods(collect([str(tmp_path)]).runs))
    assert nothing == ("Nothing was learnt in 1 of 6 runs, which are no better than a constant answer: good (1 of 3).")
    assert first.startswith("good is best for rte: accuracy 83.3, 3.3 points above bert (")
    assert first.endswith("): not shown.")


def test_models_that_predict_one_class_are_compared_with_none(tmp_path: Path) -> None:
    """The first preset predicts "yes" for all rows: its F1 is above that of the majority class."""
    labels = ["no", "no", "yes"] * 20
    for method, right in {"bert": None, "good": 0.95, "other": 0.85}.items():
        for seed in (1, 2, 3):
            given = ["yes"] * 60 if right is None else answers("rte", method, seed, right, labels, ["no", "yes"])
            truth, guess = (np.array([one == "yes" for one in column], dtype=int) for column in (labels, given))
            rows = predictions(labels, given, ["no", "yes"])
            score = METRICS["f1"].score(truth, guess)
            write_record(tmp_path, Run("rte", None, method, seed), rows, metric="f1", score=score)
    found = compare_methods(collect([str(tmp_path)]).runs)
    assert found.baseline == "good"
    assert [one.method for one in found.leads[0].others] == ["other"]
    first, second, *_ = answer_of(found)
    assert first.startswith("Nothing was learnt in 3 of 9 runs, which are no better than a constant answer: bert (3")
    assert second.startswith("good is best for rte: F1 ")
    (table,) = ranking_tables(found)
    assert table.rows[2][0] == "bert †"
    assert set(table.rows[2][2:6]) == {"-"}
    ends = [cell.summary for cell in found.cells if cell.method != "bert"]
    assert all(0 < one.low < one.mean < one.high < 1 for one in ends)


def test_of_many_tasks_those_are_counted_on_which_each_model_is_best(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85, "bad": 0.2}, tasks=("rte", "sst2", "cola"))
    assert question_of(found) == "Which of 3 models is best for 3 tasks?"
    nothing, first, last = answer_of(found)
    assert nothing.startswith("Nothing was learnt in 10 of 27 runs")
    assert first == "good is best on 3 of 3 tasks (shown on 3)."
    assert last.startswith("6 of 6 differences to bert are shown: ")


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ([1.7, 1.3], "With 2 seeds no difference can be shown."),
        ([1.7, 1.3, 0.4], "With 2 seeds no difference can be shown in most comparisons."),
        ([0.4, 0.5], ": with 2 seeds, a true difference has to be about 45.0 points (the median of these comparisons)"),
    ],
)
def test_what_two_seeds_cannot_show_is_said(tmp_path: Path, effects: list[float], said: str) -> None:
    (one,) = verdicts_of(tmp_path, {"bert": 0.6, "same": 0.6}, seeds=2).comparisons
    assert said in _open_sentence([replace(one, minimum_detectable_effect=effect) for effect in effects])


def with_baselines(folder: Path) -> None:
    labels = ["no", "yes"] * 20
    given = answers("rte", "bert", 1, 0.8, labels, ["no", "yes"])
    score = sum(a == b for a, b in zip(labels, given, strict=True)) / 40
    methods = [
        {"name": "majority", "score": 0.5, "low": 0.4, "high": 0.6},
        {"name": "tfidf-linear", "score": 0.7, "low": 0.62, "high": 0.77},
        {"name": "this model", "score": score, "low": 0.6, "high": 0.9},
    ]
    made = {"split": "validation", "metric": "accuracy", "rows": 40, "interval": "Wilson", "methods": methods}
    rows = predictions(labels, given, ["no", "yes"])
    write_record(folder, Run("rte", None, "bert", 1), rows, score=score, baselines=made)


def test_one_run_is_compared_with_its_best_baseline(tmp_path: Path) -> None:
    with_baselines(tmp_path)
    report = make_report(collect([str(tmp_path)]))
    assert report.question == "How good is bert for rte?"
    assert report.answer[0].startswith("bert is the only model for rte: accuracy ")
    assert report.answer[0].endswith("(95 % interval 60.0 to 90.0).")
    assert report.answer[1] == "The best baseline, TF-IDF + linear, reaches 70.0 (95 % interval 62.0 to 77.0)."
    (table,) = report.sections[0].parts
    assert [row[1] for row in table.rows] == ["constant answer", "TF-IDF + linear", "bert"]


def test_the_first_table_ranks_the_models_and_says_what_is_shown(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85, "same": 0.6, "bad": 0.2})
    (table,) = ranking_tables(found)
    (lead,) = found.leads
    assert [row[0] for row in table.rows] == ["good", *(one.method for one in lead.others), "bad †"]
    second = lead.others[0]
    low, high = -100 * second.high, -100 * second.low
    assert table.rows[1][3:6] == (f"{-100 * second.difference:.1f}", f"{low:.1f} to {high:.1f}", "yes")
    assert table.rows[-1][2:6] == ("-",) * 4


def test_collapsed_runs_are_in_no_mean_rank(tmp_path: Path) -> None:
    chances = {"bert": 0.7, "good": 0.85, "same": 0.7}
    write_comparison(tmp_path, chances, tasks=("rte", "sst2", "cola"))
    report = make_report(collect([str(tmp_path)]))
    parts = {part.name: part for section in report.sections for part in section.parts}
    assert "(cola, rte, sst2)" in parts["ranks"].notes[0]
    for method in chances:
        for seed in (1, 2, 3):
            rows = predictions(
                ["no", "yes", "no"], ["no" if method == "bert" else one for one in ("no", "yes", "no")], ["no", "yes"]
            )
            write_record(tmp_path, Run("cola", None, method, seed), rows, score=2 / 3 if method == "bert" else 1.0)
    report = make_report(collect([str(tmp_path)]))
    parts = {part.name: part for section in report.sections for part in section.parts}
    assert "(rte, sst2)" in parts["ranks"].notes[0]
    assert parts["ranks"].notes[1] == "Left out, since runs have collapsed: cola."


# The rows that methods get wrong, and what a report on one run shows.


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
    assert section.sentences[0] == (
        "rte: 4 of 6 rows are right in all 4 runs, 1 in none."
        " 1 rows differ most: right in all seeds of one model and in none of another."
    )
    found = tables_of(section)
    assert found["hard-rte"].rows == (("r1", "text 1", "yes", "no"),)
    who = "most often right: b (2 of 2 seeds); least often: a (0 of 2 seeds)"
    assert found["apart-rte"].rows == (("r4", "text 4 | second", "no", "yes (2), no (2)", who),)
    assert tables_of(rows_section(verdicts, {}))["hard-rte"].rows[0][1] == "-"
    # Runs on other rows are not compared by row.
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
    # With equal probabilities there is no calibration.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    one_run(tmp_path / "one")
    # The helper's probabilities are all alike.
    write_record(tmp_path / "flat", Run("rte", None, "a", 1), predictions(LABELS, GIVEN["a"], NAMES), score=4 / 6)
    for name, expected in {"one": ["calibration-rte", "confident-rte"], "flat": ["confident-rte"]}.items():
        verdicts = compare_methods(collect([str(tmp_path / name)]).runs)
        section = probabilities_section(verdicts, verdicts.cells[0], TaskTexts())
        assert [part.name for part in section.parts] == expected


def test_the_cues_of_a_task_are_shown_for_each_model_as_means_over_seeds(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "plain": 0.7, "robust": 0.7}, seeds=2)
    assert cues_section(found) is None
    values = {
        ("bert", 1): (0.5, 3.0),
        ("bert", 2): (0.3, 2.0),
        ("robust", 1): (0.0, 0.04),
        ("robust", 2): (0.02, -0.24),
    }
    for (method, seed), (decided, effect) in values.items():
        cue = {"text": "Felix", "label": "no", "rows": 1092, "effect": effect, "decided": decided}
        write_record(tmp_path, Run("rte", None, method, seed), None, cues=[cue])
    section = cues_section(compare_methods(collect([str(tmp_path)]).runs, "bert"))
    assert section is not None
    (table,) = section.parts
    assert isinstance(table, Table)
    assert table.header == ("cue", "goes with", "rows", "bert", "plain", "robust")
    assert table.rows == (("'Felix'", "no", "1,092", "40 % (+2.5)", NOTHING, "1 % (-0.1)"),)
