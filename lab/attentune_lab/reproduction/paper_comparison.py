"""Tables that compare the scores of a reproduction with the published ones."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from attentune.report.document import Section, Table
from attentune.runs.records import RunRecord
from attentune_lab.reproduction.recipe import AVERAGES, AX, BETWEEN, NO_TASK, RATIO, SECONDS, TEST, Published, Recipe

# The tasks that are averaged. MNLI counts once, with its matched and mismatched rows; AX is a diagnostic set.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
# WNLI's dev rows contradict its training rows, so papers count the majority class on its test rows instead of a model.
WNLI_SCORE = 0.651
# By split and metric.
Scores = Mapping[str, Mapping[str, float | None]]
_NONE = "-"
_SPREAD = (
    "Here: the mean over seeds, and after +- the standard deviation (n - 1), of the validation rows. Several metrics of"
    " a task are in its own order, with / between; - was not run."
)
_Here = Callable[[str, str], str]


def score_section(
    recipe: Recipe,
    records: Sequence[RunRecord],
    tasks: Mapping[str, str],
    ax_scores: Mapping[str, Sequence[float]] | None = None,
) -> Section | None:
    """Return a section that compares the reproduced scores with the published ones."""
    published = recipe.published
    if published is None:
        return None
    if published.layout == "methods":
        same = {row: row for row in published.rows}
        return _section(published, same, lambda row, column: _scores(_of(records, column, row), published), (_SPREAD,))
    columns = [title for title in published.columns if title not in NO_TASK]
    places = dict(zip(columns, recipe.tasks, strict=True))

    def here(method: str, column: str) -> str:
        of_method = [record for record in records if record.run.method == method]
        if column in (SECONDS, RATIO):
            complete = len(tasks) == len(recipe.tasks)
            seconds = _seconds(of_method, complete)
            if column == SECONDS or seconds is None:
                return _NONE if seconds is None else f"{seconds:.0f}"
            baseline = _seconds([one for one in records if one.run.method == _baseline(method, recipe)], complete)
            return _NONE if baseline is None else f"{seconds / baseline:.3f}"
        if column == AX:
            values = [published.scale * value for value in (ax_scores or {}).get(method, ())]
            return _mean(values, 1) if values else _NONE
        if column in AVERAGES:
            return _average(of_method, published)
        return _scores([record for record in of_method if record.run.task == tasks.get(places[column])], published)

    return _section(published, {row: method_of_row(row, recipe) for row in published.rows}, here, (_SPREAD,))


def count_section(recipe: Recipe, counts: Mapping[str, Mapping[str, int]]) -> Section:
    """Return a section that compares the reproduced parameter counts with the published ones, by method and task."""
    published = recipe.published
    assert published is not None
    places = dict(zip(published.columns, recipe.tasks, strict=True))
    same = {row: row for row in published.rows}
    return _section(published, same, lambda row, column: _parameters(counts[row][places[column]]))


def _section(published: Published, methods: Mapping[str, str], here: _Here, notes: tuple[str, ...] = ()) -> Section:
    shown = {title: method for title, method in methods.items() if method != TEST}
    several = len(set(shown.values())) < len(shown)
    rows: list[tuple[str, ...]] = []
    for title, entries in published.rows.items():
        rows.append((title, "published", *(_NONE if entry is None else entry for entry in entries)))
        if not several and methods[title] != TEST:
            rows.append(("", "reproduced", *(here(methods[title], column) for column in published.columns)))
    if several:
        for name in dict.fromkeys(shown.values()):
            rows.append((name, "reproduced", *(here(name, column) for column in published.columns)))
    table = Table(
        "paper-comparison", "Published and reproduced", ("", "", *published.columns), tuple(rows), left=2, notes=notes
    )
    return Section("Comparison with the paper", (table,))


def _parameters(count: int) -> str:
    """Return a count as the poster prints it: thousands in full, millions as 0.59M."""
    return f"{count} param" if count < 1e5 else f"{count / 1e6:.2f}M param"


def method_of_row(row: str, recipe: Recipe) -> str:
    """Return the method of a published row; in tables with several encoders, the row's title ends in the method.

    A row with scores of test rows has no method, but `TEST`.
    """
    if row.endswith(TEST):
        return TEST
    return row if row in recipe.methods else row.rsplit(BETWEEN, 1)[-1]


def _of(records: Sequence[RunRecord], column: str, row: str) -> list[RunRecord]:
    return [one for one in records if one.run.method == f"{column}{BETWEEN}{row}"]


def _scores(records: Iterable[RunRecord], published: Published) -> str:
    done = [record for record in records if record.is_done]
    parts = []
    for split, metric in _shown(done[0], published.metric) if done else []:
        values = [record.scores[split][metric] for record in done]
        known = [published.scale * value for value in values if value is not None]
        parts.append(_mean(known, 1 if published.scale > 1 else 3))
    return "/".join(parts) or _NONE


def _shown(record: RunRecord, metric: str | None) -> list[tuple[str, str]]:
    """Return the split and metric of each score in a cell.

    Without `metric`, these are all metrics of a single validation split, or the first metric of each of several.
    """
    splits = [split for split in record.scores if split.startswith("validation")]
    if metric is not None:
        return [(split, metric) for split in splits]
    if len(splits) > 1:
        return [(split, next(iter(record.scores[split]))) for split in splits]
    return [(split, name) for split in splits for name in record.scores[split]]


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return "nan"
    spread = f" +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def task_score(scores: Scores) -> float:
    """Return the mean of a task's metrics over its validation splits; NaN without any, or if one is undefined."""
    scored = [by_name for split, by_name in scores.items() if split.startswith("validation")]
    values = [math.nan if value is None else value for by_name in scored for value in by_name.values()]
    return statistics.fmean(values) if values else math.nan


def glue_average(by_task: Mapping[str, Scores]) -> tuple[float, tuple[str, ...]] | None:
    """Average the scores of GLUE tasks, and return the averaged tasks too; None for fewer than two of them.

    Each task counts once, with the mean of its metrics (F1 and accuracy, Pearson and Spearman) and of its splits (MNLI
    matched and mismatched). With all eight tasks, WNLI is the ninth, as the majority class (65.1). Scores of WNLI and
    AX are not used.

    Source: GLUE (Wang et al., 2019), section 4; WNLI as in BERT (Devlin et al., 2019) and the papers that follow it.
    """
    tasks = tuple(task for task in GLUE_TASKS if task in by_task)
    if len(tasks) < 2:
        return None
    values = [task_score(by_task[task]) for task in tasks]
    return statistics.fmean([*values, WNLI_SCORE] if tasks == GLUE_TASKS else values), tasks


def _average(records: Iterable[RunRecord], published: Published) -> str:
    """Return the GLUE average, computed for each seed; with the number of tasks if some are missing."""
    by_seed: dict[int, dict[str, RunRecord]] = {}
    for record in records:
        if record.is_done:
            by_seed.setdefault(record.run.seed, {})[record.run.task] = record
    found = [glue_average({task: one.scores for task, one in of_seed.items()}) for of_seed in by_seed.values()]
    averages = [one for one in found if one is not None]
    # Seeds with fewer tasks than others, as in an unfinished comparison, would be averages of something else.
    most = max((tasks for _, tasks in averages), key=len, default=())
    values = [published.scale * value for value, tasks in averages if tasks == most]
    if not values:
        return _NONE
    return _mean(values, 1) + ("" if most == GLUE_TASKS else f" ({len(most)} tasks)")


def _baseline(method: str, recipe: Recipe) -> str:
    """Return the recipe's first method with the same regime, the part of its name after `BETWEEN`."""
    regime = method.rpartition(BETWEEN)[2]
    return next(name for name in recipe.methods if name.rpartition(BETWEEN)[2] == regime)


def _seconds(records: Sequence[RunRecord], complete: bool) -> float | None:
    """Return the training time summed over tasks, averaged over seeds; None if a task or a run is missing."""
    if not complete or not records or not all(record.is_done for record in records):
        return None
    by_seed: dict[int, float] = {}
    for record in records:
        by_seed[record.run.seed] = by_seed.get(record.run.seed, 0.0) + float(record.train["seconds"])
    return statistics.fmean(by_seed.values())
