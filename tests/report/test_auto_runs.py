"""What a report tells of runs of `auto`, whose files are written here without training."""

import csv
from pathlib import Path

import pytest

from attentune.automl.leaderboard import AutoResult, LeaderboardRow
from attentune.config import Config, to_dict
from attentune.errors import CheckpointError
from attentune.metrics.rejection import Rejection
from attentune.report.contents import make_report
from attentune.report.document import Report, Table
from attentune.report.load import collect
from attentune.report.writing import render_latex, render_markdown
from attentune.results import RunResult, to_json
from helpers.made_records import predictions

ESTIMATE = {"metric": "accuracy", "value": 0.79, "low": 0.7, "high": 0.86, "rows": 100, "method": "nested folds"}
BEFORE, NOTE = "Texts with some score are rejected.", "Time is short: 3 folds."
REJECTION = Rejection("energy", 4.5, 0.05, rows=200, lost=0.045)
ROWS = [
    LeaderboardRow(
        "tfidf-linear", "baseline", "tfidf-linear", score=0.8, low=0.7, high=0.9, bytes=90_000_000, weight=1
    ),
    LeaderboardRow("bert", "fine-tuned", "bert", status="left out", note="no time: it needs about 3 s more"),
]
LABELS = ["no", "yes"] * 10


def write_run(folder: Path, *, right: int | None = None, split: str = "test", is_auto: bool = True) -> Path:
    """Write a run's folder; `right` of its 20 predicted rows are right."""
    scores = {} if right is None else {split: {"accuracy": right / 20, "f1_macro": 0.61}}
    train = {"seconds": 9.0, **({"estimate": ESTIMATE} if is_auto else {})}
    config = to_dict(Config())
    config["data"]["train_file"] = "rows.csv"
    record = RunResult(scores, train, None, config, 1, {}, {"train": "t", split: "s"})
    (folder / "auto").mkdir(parents=True)
    (folder / "run.json").write_text(record.to_json())
    if is_auto:
        reason, notes = "tfidf-linear is delivered.", (NOTE, BEFORE)
        result = AutoResult(folder, "accuracy", ROWS, reason, ESTIMATE, scores, 55.0, notes=notes, rejection=BEFORE)
        (folder / "auto/leaderboard.json").write_text(to_json(result.to_dict()))
        REJECTION.save(folder)
    if right is not None:
        given = [*LABELS[:right], *({"no": "yes", "yes": "no"}[label] for label in LABELS[right:])]
        with (folder / f"predictions_{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(predictions(LABELS, given, ("no", "yes")))
    return folder


def report_of(*folders: Path) -> tuple[Report, dict[str, Table]]:
    report = make_report(collect([str(folder) for folder in folders]))
    tables = [part for section in report.sections for part in section.parts if isinstance(part, Table)]
    return report, {table.name: table for table in tables}


def test_a_run_without_scored_rows_is_answered_by_its_estimate(tmp_path):
    report, tables = report_of(write_run(tmp_path / "best"))
    assert report.question == "How good is best for rows.csv?"
    (answer,) = report.answer
    assert answer.startswith(
        "best was scored on neither validation nor test rows. Estimate for new rows: accuracy 0.7900"
    )
    (section,) = [section for section in report.sections if section.title == "The model best for rows.csv"]
    # The threshold was chosen anew after the command.
    assert section.sentences[0] == "tfidf-linear is delivered."
    assert section.sentences[1] in answer
    assert section.sentences[2:] == (REJECTION.sentence(),)
    table = tables["leaderboard-rows-csv"]
    assert table.header == ("model", "use", "accuracy", "95 % interval", "seconds", "MB")
    assert table.rows == (
        ("tfidf-linear", "delivered", "0.8000", "0.7000 to 0.9000", "0.0", "90.0"),
        ("bert", "no time: it needs about 3 s more", "-", "", "0.0", "0.0"),
    )
    assert table.notes[1:] == (NOTE,)
    for text in (render_markdown(report, {}), render_latex(report, {})):
        assert "tfidf-linear is delivered." in text
        assert "4.5 are rejected as of no class" in text
        assert "0.7000 to 0.9000" in text
    assert ("rows.csv", "best", "9.0") in {row[:3] for row in tables["cost"].rows}
    assert "device" not in tables["cost"].header


def test_runs_of_auto_are_compared_on_their_test_rows(tmp_path):
    report, tables = report_of(write_run(tmp_path / "best", right=16))
    assert report.answer[0].startswith("best is the only model for rows.csv: accuracy 80.0 (95 % interval ")
    assert report.answer[-1] == "Scores are on test rows, as no run has validation rows."
    assert tables["further"].rows == (("rows.csv", "test", "macro F1", "61.0"),)
    assert [row[:2] for row in tables["classes-rows-csv"].rows] == [("no", "10"), ("yes", "10")]
    report, tables = report_of(tmp_path / "best", write_run(tmp_path / "worse", right=4))
    assert [row[:2] for row in tables["ranking-rows-csv-all"].rows] == [("best", "80.0"), ("worse †", "20.0")]
    assert {"leaderboard-rows-csv", "leaderboard-rows-csv-2"} <= tables.keys()


def test_test_rows_are_not_ranked_beside_validation_rows(tmp_path):
    trained = write_run(tmp_path / "trained", right=18, split="validation", is_auto=False)
    report, tables = report_of(write_run(tmp_path / "best", right=16), trained)
    assert [row[0] for row in tables["ranking-rows-csv-all"].rows] == ["trained"]
    assert report.answer[-1] == "Not ranked, without a score on such rows: best."
    assert ("rows.csv", "test", "accuracy", "80.0", "-") in tables["further"].rows
    assert [section.title for section in report.sections if "The model" in section.title] == [
        "The model best for rows.csv"
    ]
    assert "leaderboard-rows-csv" in tables


@pytest.mark.parametrize(
    "change", [("0.79", '"x"'), ('"seconds": 55.0', '"seconds": "x"'), ('"leaderboard"', '"x"'), ('"name"', '"x"')]
)
def test_a_damaged_leaderboard_is_told_with_its_file(tmp_path, change):
    file = write_run(tmp_path / "best") / "auto/leaderboard.json"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(CheckpointError, match=r"leaderboard\.json: is not the leaderboard"):
        report_of(tmp_path / "best")
