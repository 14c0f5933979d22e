"""Ours beside theirs: the table of a recipe with the published figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from attentune.experiments.comparison.records import RunRecord
from attentune.report.document import Section, Table
from attentune.reproduction.recipe import BETWEEN, SECONDS, Published, Recipe

_NONE = "-"
_SPREAD = (
    "Here: the mean over seeds, and after +- the standard deviation (n - 1), of the validation rows. Several metrics of"
    " a task are in its own order, with / between; - was not run."
)
_Here = Callable[[str, str], str]


def score_section(recipe: Recipe, records: Sequence[RunRecord], tasks: Mapping[str, str]) -> Section | None:
    """The published table and ours; None where the paper has no figures.

    Args:
        recipe: what was run.
        records: of its runs.
        tasks: by the recipe's task the one that was trained on in its place; tasks left out are missing.
    """
    published = recipe.published
    if published is None:
        return None
    if published.layout == "methods":
        same = {row: row for row in published.rows}
        return _section(published, same, lambda row, column: _scores(_of(records, column, row), published), (_SPREAD,))
    columns = [title for title in published.columns if title != SECONDS]
    places = dict(zip(columns, recipe.tasks, strict=True))

    def here(method: str, column: str) -> str:
        own = [record for record in records if record.run.method == method]
        if column == SECONDS:
            return _seconds(own, len(tasks) == len(recipe.tasks))
        return _scores([record for record in own if record.run.task == tasks.get(places[column])], published)

    return _section(published, {row: _method(row, recipe) for row in published.rows}, here, (_SPREAD,))


def count_section(recipe: Recipe, counts: Mapping[str, Mapping[str, int]]) -> Section:
    """The published numbers of parameters and ours, by method and task."""
    published = recipe.published
    assert published is not None
    places = dict(zip(published.columns, recipe.tasks, strict=True))
    same = {row: row for row in published.rows}
    return _section(published, same, lambda row, column: f"{counts[row][places[column]] / 1e6:.2f} M")


def _section(published: Published, methods: Mapping[str, str], here: _Here, notes: tuple[str, ...] = ()) -> Section:
    """The table. `methods` says of each published row which one here belongs to it; where several rows have the same,
    ours comes last."""
    several = len(set(methods.values())) < len(methods)
    rows: list[tuple[str, ...]] = []
    for title, entries in published.rows.items():
        rows.append((title, "published", *(_NONE if entry is None else entry for entry in entries)))
        if not several:
            rows.append(("", "here", *(here(methods[title], column) for column in published.columns)))
    if several:
        for name in dict.fromkeys(methods.values()):
            rows.append((name, "here", *(here(name, column) for column in published.columns)))
    table = Table("beside", "Published, and here", ("", "", *published.columns), tuple(rows), left=2, notes=notes)
    return Section("Beside the paper", (table,))


def _method(row: str, recipe: Recipe) -> str:
    """The method of a row; rows of several encoders end in it."""
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
    """Split and metric of each number that is shown: all of the only validation split, the first of several."""
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


def _seconds(records: Sequence[RunRecord], complete: bool) -> str:
    """Mean over seeds of the sum over tasks of what training took; nothing where a task or a run is missing."""
    if not complete or not records or not all(record.is_done for record in records):
        return _NONE
    by_seed: dict[int, float] = {}
    for record in records:
        by_seed[record.run.seed] = by_seed.get(record.run.seed, 0.0) + float(record.train["seconds"])
    return f"{statistics.fmean(by_seed.values()):.0f}"
