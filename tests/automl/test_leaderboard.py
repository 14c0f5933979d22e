"""The leaderboard: order, cells, and the sentence on new rows."""

import time
from pathlib import Path

import pytest

from attentune.automl.delivery import AutoResult, LeaderboardRow, card, estimate_sentence, leaderboard_cells, ranked
from attentune.automl.work import AutoProgress
from attentune.metrics.metrics import METRICS

ROWS = [
    LeaderboardRow("majority", "baseline", "majority", score=0.5, low=0.4, high=0.6, seconds=0.1),
    LeaderboardRow("sesame", "fine-tuned", "sesame", status="left out", note="no time"),
    LeaderboardRow(
        "bert",
        "fine-tuned",
        "bert",
        score=0.8,
        low=0.7,
        high=0.9,
        seconds=12.34,
        bytes=90_000_000,
        weight=1,
    ),
]
ESTIMATE = {"metric": "accuracy", "value": 0.79, "low": 0.7, "high": 0.86, "rows": 100, "method": "nested folds"}


def test_the_best_is_first_and_those_without_a_score_last():
    assert [row.name for row in ranked(ROWS, METRICS["accuracy"])] == ["bert", "majority", "sesame"]
    assert [row.name for row in ranked(ROWS, METRICS["mean_absolute_error"])] == ["majority", "bert", "sesame"]


def test_cells_show_score_interval_seconds_and_size():
    cells = leaderboard_cells(ROWS)
    assert cells[2] == ("bert", "0.8000", "0.7000 to 0.9000", "12.3", "90.0", "delivered")
    assert cells[1] == ("sesame", "-", "", "0.0", "0.0", "no time")
    fusion = LeaderboardRow("fusion", "fusion", "linear", weight=1.0, note="with thresholds")
    parts = [LeaderboardRow(name, "baseline", name, weight=weight) for name, weight in (("a", 0.996), ("b", 0.004))]
    uses = [cells[-1] for cells in leaderboard_cells([fusion, *parts])]
    assert uses == ["delivered, with thresholds", "in the fusion, weight 1", "in the fusion, weight 0.004"]


def test_the_estimate_names_its_interval_and_method():
    sentence = (
        "Estimate for new rows: accuracy 0.7900 (95 % interval 0.7000 to 0.8600), by nested folds. It holds for rows"
    )
    sentence += " of the same time and source; others are not covered."
    assert estimate_sentence(ESTIMATE) == sentence
    assert "no estimate for new rows: accuracy is undefined" in estimate_sentence({**ESTIMATE, "value": None})


def test_the_card_has_leaderboard_scores_and_notes():
    scores, notes = {"test": {"accuracy": 0.81}}, ("3 folds instead of 5.",)
    result = AutoResult(Path("best"), "accuracy", ROWS, "bert is delivered.", ESTIMATE, scores, 9.0, notes=notes)
    text = card(result)
    for part in (
        "bert is delivered.",
        "| bert | 0.8000 |",
        "test rows, which chose nothing: accuracy 0.8100",
        "- 3 folds",
    ):
        assert part in text


def test_the_limit_counts_from_the_command_and_each_step_has_its_seconds(capsys):
    display = AutoProgress(began=time.monotonic() - 60)
    display.left_s = lambda: 30.0
    display.doing("training", "bert", then="needs about 9 s, ")
    display.doing("training", "sesame")
    display.doing("fusing", "2 members")
    seconds = display.step_seconds()
    assert list(seconds) == ["starting", "training", "fusing"]
    assert seconds["starting"] == pytest.approx(60, abs=1)
    assert sum(seconds.values()) == pytest.approx(60, abs=1)
    assert "training bert (needs about 9 s, about 30 s left)" in capsys.readouterr().err
