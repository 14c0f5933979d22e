"""The question of a report and its answer in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attentune.report.analysis import Verdicts, compare_methods
from attentune.report.load import collect
from attentune.report.overview.answer import _open_sentence, answer_of, question_of
from attentune.report.overview.heatmap import heat_map
from attentune.report.sections.contents import make_report
from helpers.made_records import Run, answers, predictions, write_comparison, write_record


def verdicts_of(folder: Path, chances: dict[str, float], **options: Any) -> Verdicts:
    write_comparison(folder, chances, **options)
    return compare_methods(collect([str(folder)]).runs, "bert")


def test_a_shown_difference_is_told_with_its_interval(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85})
    (one,) = found.comparisons
    low, high = 100 * one.low, 100 * one.high
    assert question_of(found) == "Is good better than bert on rte?"
    assert answer_of(found) == (
        f"Yes: good is better on rte by {100 * one.difference:.1f} points (95 % CI {low:.1f} to {high:.1f}).",
    )


def test_several_differences_are_counted_and_the_rest_is_left_open(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85, "bad": 0.2, "same": 0.6}, tasks=("rte", "sst2"))
    assert question_of(found) == "Is any of 3 methods better than bert on 2 tasks?"
    first, second = answer_of(found)
    assert first.startswith("Yes in 2 of 6 comparisons: good is better on ")
    assert "; bad is worse on " in first
    assert second.startswith("For the other 2 no difference is shown, which does not mean that there is none: with 3")
    assert second.endswith("points (the median of these comparisons) to be found four times in five.")


def test_no_difference_is_not_told_as_equality(tmp_path: Path) -> None:
    one = verdicts_of(tmp_path / "one", {"bert": 0.6, "same": 0.6})
    assert answer_of(one)[0].startswith("No difference is shown: same scores 5")
    assert answer_of(one)[0].endswith("and a gap of this size can be chance.")
    assert answer_of(one)[1].startswith(
        "This does not mean that there is none: with 3 seeds, a true difference has to be "
    )
    two = verdicts_of(tmp_path / "two", {"bert": 0.6, "same": 0.6, "alike": 0.6})
    assert answer_of(two)[0] == "No: none of the 2 differences to bert is shown."
    assert answer_of(two)[1].startswith("This does not mean that there is none: with 3 seeds, a true difference")
    worse = verdicts_of(tmp_path / "worse", {"bert": 0.8, "bad": 0.2, "same": 0.8})
    assert answer_of(worse)[0].startswith("No method is shown to be better, and bad is worse on rte by ")
    assert answer_of(worse)[1].startswith("No difference is shown in the other comparison, which does not")


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ([1.7, 1.3], ": two seeds cannot show any difference."),
        ([1.7, 1.3, 0.4], ": two seeds cannot show any difference in most of these comparisons."),
        ([0.4, 0.5], ": with 2 seeds, a true difference has to be about 45.0 points (the median of these comparisons)"),
    ],
)
def test_what_two_seeds_cannot_show_is_said(tmp_path: Path, effects: list[float], said: str) -> None:
    (one,) = verdicts_of(tmp_path, {"bert": 0.6, "same": 0.6}, seeds=2).comparisons
    found = [replace(one, minimum_detectable_effect=effect) for effect in effects]
    assert said in _open_sentence(found, found)


def test_one_seed_answers_nothing(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.5, "good": 0.9}, seeds=1)
    assert answer_of(found)[0] == "Not answered: with one seed a better method cannot be told from a lucky run."
    assert answer_of(found)[1].startswith("The largest difference is that on rte: good scores ")


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
    overview = make_report(collect([str(tmp_path)])).overview
    assert overview is not None
    assert overview.question == "How good is bert on rte?"
    assert overview.answer[0].startswith("bert reaches accuracy ")
    assert overview.answer[0].endswith("(95 % CI 60.0 to 90.0).")
    assert overview.answer[1] == "The best baseline, TF-IDF + linear, reaches 70.0 (95 % CI 62.0 to 77.0)."
    (run,) = overview.runs
    assert run.floor is not None
    assert [mark.name for mark in run.floor.marks] == ["constant answer", "TF-IDF + linear", "bert"]


def test_the_heat_map_marks_what_is_shown_and_has_the_floor(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, {"bert": 0.6, "good": 0.85, "same": 0.6}, tasks=("rte", "sst2"))
    heat = heat_map(found)
    assert heat is not None
    assert heat.columns == (("rte", "accuracy"), ("sst2", "accuracy"))
    assert [row.name for row in heat.rows] == ["good", "same"]
    good, same = heat.rows[0].cells[0], heat.rows[1].cells[0]
    one = next(one for one in found.comparisons if (one.task, one.method) == ("rte", "good"))
    assert (good.text, good.tone, good.shown) == (f"+{100 * one.difference:.1f} ↑", "better", True)
    assert f"(95 % CI {100 * one.low:.1f} to {100 * one.high:.1f}), p after Holm" in good.tip
    assert good.tip.endswith("shown to be better.")
    assert not same.shown
    assert same.tip.endswith("not shown.")
    assert good.strength == pytest.approx(min(1.0, one.difference / (float(heat.end) / 100)), abs=0.006)
    (floor,) = heat.floor
    assert floor.name == "constant answer"
    assert 50.0 <= float(floor.cells[0].text) < 65.0
