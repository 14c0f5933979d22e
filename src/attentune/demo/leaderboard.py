"""The demo's leaderboard: each method's accuracy on the two test sets, with intervals, and the report page."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.demo.domains import NEW_DOMAIN, TRAIN_DOMAINS
from attentune.errors import ConfigError
from attentune.explain.explanation import Explanation
from attentune.report.charts import PointRow, rows_alt, rows_figure
from attentune.report.contents import counts_sentence, make_report
from attentune.report.document import Figure, Report, Section, Table
from attentune.report.explanations import effect_text, outcome_name, outcome_text, prediction_text, score_text
from attentune.report.load import RecordedRun, ReportData
from attentune.report.writing import check_report_file, write_report
from attentune.runs.records import Predictions, RunRecord
from attentune.stats.estimate import wilson_interval

# The two test sets, by the splits of a run: other sentences of the training domains, and those of a new domain.
HELD_OUT, FILMS = "held out", NEW_DOMAIN
# The baseline that gives one answer for all rows: a floor, which is in tables but not in figures.
CONSTANT = "majority"
TEST_SETS = {"validation": HELD_OUT, "test": FILMS}
NOTES = (
    f"held out: sentences about {' and '.join(TRAIN_DOMAINS)} that were not used in training; {FILMS}: a domain without"
    " training sentences.",
    "Accuracy with Wilson's 95 % interval, which covers the choice of the test sentences only. One seed: another seed"
    " can change the order.",
)


# Sections of a comparison's report that need several seeds or independent tasks.
_LEFT_OUT = ("Result", "Scores", "Further scores")


@dataclass(frozen=True)
class Score:
    """The accuracy on one test set."""

    correct: int  # the number of correctly predicted rows
    rows: int  # the number of rows

    @property
    def accuracy(self) -> float:
        return self.correct / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval."""
        return wilson_interval(self.correct, self.rows)


@dataclass(frozen=True)
class ScoredRun:
    """A finished run: a line of the leaderboard."""

    record: RunRecord
    predictions: dict[str, Predictions]  # by test set (`HELD_OUT`, `FILMS`)
    folder: Path  # the run folder

    @property
    def method(self) -> str:
        return self.record.run.method

    @functools.cached_property
    def scores(self) -> dict[str, Score]:
        return {
            name: Score(int(np.sum(part.labels_N == part.predictions_N)), len(part.ids))
            for name, part in self.predictions.items()
        }


def ranked(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Sort by the accuracy on the held-out sentences, best first; ties by that on the new domain."""
    return sorted(runs, key=lambda run: [-run.scores[name].accuracy for name in (HELD_OUT, FILMS)])


def cells(runs: Sequence[ScoredRun]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of the leaderboard, as they are shown."""
    header = ("method", HELD_OUT, "95 % interval", FILMS, "95 % interval", "seconds")
    rows = []
    for run in ranked(runs):
        scores = [run.scores[name] for name in (HELD_OUT, FILMS)]
        shown = [text for one in scores for text in (f"{one.accuracy:.3f}", "{:.3f} to {:.3f}".format(*one.interval))]
        rows.append((run.method, *shown, f"{run.record.wall_seconds:.0f}"))
    return header, rows


def demo_report(
    runs: Sequence[ScoredRun],
    explanation: Explanation,
    *,
    explained: str,
    title: str,
    baseline: str | None,
) -> Report:
    """Make the report: leaderboard, explained sentence, and a comparison's sections for both test sets."""
    report = make_report(ReportData((title,), tuple(task for run in runs for task in _as_tasks(run))), baseline)
    counts = counts_sentence([run.record for run in runs], tuple(TEST_SETS.values()), "test set")
    header, rows = cells(runs)
    leaderboard = Table("leaderboard", "Leaderboard", header, tuple(rows))
    lines = (
        (word.text, score_text(word.score, signed=explanation.signed), outcome_text(value, explanation))
        for word, value in zip(explanation.words, explanation.without or (), strict=True)
    )
    words = Table(
        "explained",
        f"Words by {explanation.method}",
        ("word", "score", outcome_name(explanation)),
        tuple(lines),
        notes=(effect_text(explanation), f"Scores: {explanation.unit}."),
    )
    prediction = f"{explanation.text} {explained}: {prediction_text(explanation)}."
    own = (
        Section("Leaderboard", (leaderboard, _figure(runs)), NOTES),
        Section("An explained sentence", (words,), (prediction,)),
    )
    others = tuple(section for section in report.sections if section.title not in _LEFT_OUT)
    # The last sentence of a comparison's report has the versions; the first counts a run for each test set.
    return dataclasses.replace(report, title=title, sentences=(counts, report.sentences[-1]), sections=(*own, *others))


def _figure(runs: Sequence[ScoredRun]) -> Figure:
    panels: dict[str, list[PointRow]] = {HELD_OUT: [], FILMS: []}
    for run in [run for run in ranked(runs) if run.method != CONSTANT] or runs:
        for name, points in panels.items():
            accuracy, (low, high) = 100 * run.scores[name].accuracy, run.scores[name].interval
            points.append(PointRow(run.method, (accuracy,), accuracy, 100 * low, 100 * high, runs.index(run)))
    return Figure(
        "leaderboard",
        "Accuracy on both test sets",
        "The score of the run and its 95 % interval (Wilson).",
        functools.partial(rows_figure, panels, x_label="accuracy (points)"),
        rows_alt(panels, "points"),
    )


def _as_tasks(run: ScoredRun) -> list[RecordedRun]:
    """Return the run as a comparison's report reads it, with each test set as a task of its own."""
    found = []
    for name, part in run.predictions.items():
        score = run.scores[name].accuracy
        scored = dataclasses.replace(
            run.record,
            run=dataclasses.replace(run.record.run, task=name),
            metric="accuracy",
            score=score,
            scores={"validation": {"accuracy": score}},
            scored=[],
        )
        found.append(RecordedRun(scored, part))
    return found


def write_page(report: Report, folder: Path) -> Path:
    """Write report.html, or report.md where Matplotlib is not installed; return the file."""
    file = folder / "report.html"
    try:
        check_report_file(file)
    except ConfigError:
        file = folder / "report.md"
    write_report(report, file)
    return file
