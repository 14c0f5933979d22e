"""The demo's leaderboard: accuracies by test set, their intervals, the order of the lines."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from attentune.demo.leaderboard import FILMS, HELD_OUT, Score, ScoredRun, cells, ranked
from attentune.runs.records import Predictions, Run, RunRecord

RECORD = RunRecord(
    scores={}, train={}, best=None, config={}, seed=1, versions={}, data_fingerprint={},
    run=Run("own", None, "bert", 1), status="done", metric="accuracy", score=0.5, wall_seconds=12.4,
)  # fmt: skip


def predictions(ids: list[str], labels: list[int], predicted: list[int]) -> Predictions:
    return Predictions(tuple(ids), ("negative", "positive"), np.array(labels), np.array(predicted))


def run_of(method: str, held_out: int, films: int) -> ScoredRun:
    """A run with so many right predictions of 400 and 1,000."""
    parts = {
        name: predictions([str(row) for row in range(rows)], [1] * rows, [1] * right + [0] * (rows - right))
        for name, rows, right in ((HELD_OUT, 400, held_out), (FILMS, 1000, films))
    }
    record = dataclasses.replace(RECORD, run=Run("own", None, method, 1), wall_seconds=61.7)
    return ScoredRun(record, parts, Path(f"runs/{method}"))


@pytest.mark.parametrize(("correct", "rows"), [(0, 10), (10, 10), (370, 400), (899, 1000)])
def test_the_interval_is_wilson_s(correct: int, rows: int) -> None:
    score = Score(correct, rows)
    assert score.accuracy == correct / rows
    assert score.interval == pytest.approx(proportion_confint(correct, rows, method="wilson"), abs=1e-12)


def test_a_run_is_scored_on_both_test_sets() -> None:
    parts = {
        HELD_OUT: predictions(["products-1", "restaurants-3"], [0, 1], [0, 0]),
        FILMS: predictions(["films-2", "films-4", "films-9"], [1, 0, 1], [1, 0, 0]),
    }
    made = ScoredRun(RECORD, parts, Path("runs/bert"))
    assert (made.method, made.scores) == ("bert", {HELD_OUT: Score(1, 2), FILMS: Score(2, 3)})


def test_lines_are_ranked_by_held_out_accuracy_and_then_by_that_on_films() -> None:
    lines = [run_of("third", 300, 990), run_of("second", 380, 800), run_of("first", 380, 900)]
    assert [one.method for one in ranked(lines)] == ["first", "second", "third"]


def test_the_table_shows_accuracies_intervals_and_seconds() -> None:
    header, rows = cells([run_of("bert", 372, 899)])
    assert header == ("method", "held out", "95 % interval", "films", "95 % interval", "seconds")
    assert rows == [("bert", "0.930", "0.901 to 0.951", "0.899", "0.879 to 0.916", "62")]


def test_a_line_as_json_has_all_numbers() -> None:
    made = run_of("bert", 372, 899).to_dict()
    assert made["scores"][FILMS] == {"accuracy": 0.899, "interval": list(Score(899, 1000).interval), "rows": 1000}
    assert made["folder"] == "runs/bert"
    assert set(made) == {"method", "scores", "seconds", "folder"}
