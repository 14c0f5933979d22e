"""The question of a report and its answer in words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Verdicts, compare_methods
from attentune.report.contents import _open_sentence, answer_of, make_report, question_of
from attentune.report.document import Table
from attentune.report.load import collect
from attentune.report.tables import ranking_tables
from helpers.made_records import Run, answers, predictions, write_comparison, write_record


def verdicts_of(folder: Path, chances: dict[str, float], **options: Any) -> Verdicts:
    write_comparison(folder, chances, **options)
    return compare_methods(collect([str(folder)]).runs, "bert")


def interval(low: float, high: float) -> str:
    return f"95 % interval {100 * low:.1f} to {100 * high:.1f}"


def test_a_shown_lead_is_told_with_its_interval(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85})
    (one,) = found.comparisons
    assert question_of(found) == "Which of 2 models is best for rte?"
    assert answer_of(found) == (
        f"good is best for rte: accuracy {100 * one.method_mean:.1f}, {100 * one.difference:.1f} points above bert"
        f" ({interval(one.low, one.high)}): shown.",
    )


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


def test_models_that_may_be_as_good_are_named(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "same": 0.6, "alike": 0.6})
    _, first, _, last = answer_of(found)
    assert first.endswith(" may be as good.")
    assert last == "None of the 2 differences to bert is shown."


def test_equal_models_have_no_lead(tmp_path: Path) -> None:
    labels, given = ["no", "yes"] * 4, ["no", "yes"] * 3 + ["yes", "no"]
    for method, seed in ((method, seed) for method in ("bert", "same") for seed in (1, 2)):
        write_record(tmp_path, Run("rte", None, method, seed), predictions(labels, given, ["no", "yes"]), score=0.75)
    found = compare_methods(collect([str(tmp_path)]).runs)
    assert answer_of(found)[0] == "bert and same are equally good for rte: accuracy 75.0."


def test_an_error_is_better_if_it_is_smaller(tmp_path: Path) -> None:
    for method, scores in {"bert": (0.52, 0.5, 0.48), "good": (0.31, 0.3, 0.29)}.items():
        for seed, score in enumerate(scores, start=1):
            write_record(tmp_path, Run("prices", None, method, seed), None, metric="mean_absolute_error", score=score)
    (answer,) = answer_of(compare_methods(collect([str(tmp_path)]).runs))
    assert answer.startswith("good is best for prices: mean absolute error 0.3, 0.2 below bert (95 % interval 0.1")
    assert answer.endswith("): shown.")


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
    assert isinstance(ranking, Table)
    assert isinstance(baselines, Table)
    assert ([row[0] for row in ranking.rows], [row[1] for row in baselines.rows]) == (
        ["good", "bert"],
        ["constant answer"],
    )
    chosen = make_report(collect([str(tmp_path)]), "majority")
    assert "majority" not in " ".join(chosen.answer)
    assert not any("majority" in cell for row in ranking.rows for cell in row)


def test_models_at_the_floor_are_not_called_best(tmp_path: Path) -> None:
    labels, given = ["no", "yes", "no"], ["no", "no", "no"]
    for method in ("bert", "same"):
        for seed in (1, 2):
            rows = predictions(labels, given, ["no", "yes"])
            write_record(tmp_path, Run("rte", None, method, seed), rows, score=2 / 3)
    first = answer_of(compare_methods(collect([str(tmp_path)]).runs))[0]
    assert first.startswith(
        "No model is shown to learn rte: the best, bert, reaches accuracy 66.7, a constant answer 66.7"
    )


def test_collapsed_runs_of_the_best_model_are_told(tmp_path: Path) -> None:
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
    assert isinstance(table, Table)
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
