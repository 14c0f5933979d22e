"""The overview of a report: everything that its page shows beside the tables and figures of `sections`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attentune.report.analysis import Verdicts
from attentune.report.document import format_interval, format_p, format_score, with_minus
from attentune.report.load import TaskTexts
from attentune.report.overview.answer import question_of
from attentune.report.overview.charts import PlaneChart
from attentune.report.overview.heatmap import HeatMap, heat_map
from attentune.report.overview.rows import TaskRows, task_rows
from attentune.report.overview.run import Confusion, RunDetails, confusions, run_details
from attentune.report.overview.tasks import TaskPanel, cost_charts, task_panels
from attentune.stats.verdict import Comparison

# Tables and figures of `sections` that the page shows in another form, by the beginnings of their names.
_REPLACED = ("verdicts", "differences", "advantage-", "seeds-", "confusion-")
_REPLACED_BY_RUNS = ("baselines", "spreads", "scores", "loss-")


@dataclass(frozen=True)
class VerdictRow:
    """One comparison as a row of the sortable table: cells as text, and the value to sort by (None: the text)."""

    cells: tuple[tuple[str, float | None], ...]
    tone: str
    sentence: str


@dataclass(frozen=True)
class Overview:
    """What only the page shows.

    Attributes:
        question: the title.
        warnings: what makes the answer doubtful.
        heat: methods by tasks; None without a comparison.
        panels: charts of each task.
        costs: training time against score.
        rows: the rows that methods get wrong, by task.
        verdicts: the comparisons.
        confusions: by task and method.
        runs: the details of the runs if there is one method only.
    """

    question: str
    warnings: tuple[str, ...]
    heat: HeatMap | None
    panels: tuple[TaskPanel, ...]
    costs: tuple[PlaneChart, ...]
    rows: tuple[TaskRows, ...]
    verdicts: tuple[VerdictRow, ...]
    confusions: tuple[tuple[str, tuple[Confusion, ...]], ...]
    runs: tuple[RunDetails, ...]

    def replaces(self, name: str) -> bool:
        """Return whether the page shows this table or figure in another form."""
        return name.startswith(_REPLACED) or (bool(self.runs) and name.startswith(_REPLACED_BY_RUNS))


def make_overview(verdicts: Verdicts, texts: Mapping[str, TaskTexts], *, warnings: tuple[str, ...]) -> Overview:
    """Make the overview.

    Args:
        verdicts: the comparisons.
        texts: the validation rows by task, where they are known.
        warnings: what makes the answer doubtful.
    """
    return Overview(
        question_of(verdicts),
        warnings,
        heat_map(verdicts),
        task_panels(verdicts) if verdicts.comparisons else (),
        cost_charts(verdicts),
        task_rows(verdicts, texts),
        tuple(_verdict_row(one) for one in sorted(verdicts.comparisons, key=lambda one: not one.shown)),
        confusions(verdicts),
        run_details(verdicts, dict(texts)),
    )


VERDICT_HEADER = (
    "task", "method", "verdict", "method's mean", "baseline's mean", "difference", "95 % CI", "p", "p after Holm",
    "smallest difference found", "seeds",
)  # fmt: skip
# Shorter names for narrow windows.
SHORT_LABELS = {
    "method's mean": "mean", "baseline's mean": "baseline", "p after Holm": "p (Holm)",
    "smallest difference found": "smallest",
}  # fmt: skip


def _verdict_row(one: Comparison) -> VerdictRow:
    verdict = ("better" if one.difference > 0 else "worse") if one.shown else "not shown"
    effect = "> 100" if one.greater_is_better and one.minimum_detectable_effect > 1 else None
    cells: tuple[tuple[str, float | None], ...] = (
        (one.task, None),
        (one.method, None),
        (verdict, None),
        (format_score(one.method_mean, one.metric), one.method_mean),
        (format_score(one.baseline_mean, one.metric), one.baseline_mean),
        (with_minus(format_score(one.difference, one.metric, sign=True)), one.difference),
        (with_minus(format_interval(one.low, one.high, one.metric)), one.low),
        (format_p(one.p), one.p),
        (format_p(one.p_holm), one.p_holm),
        (effect or format_score(one.minimum_detectable_effect, one.metric), one.minimum_detectable_effect),
        (str(one.seeds), float(one.seeds)),
    )
    return VerdictRow(cells, verdict if one.shown else "", f"{one.sentence}.")
