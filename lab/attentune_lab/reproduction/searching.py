"""The search of a recipe: settings for each method and task, chosen on held-out training rows before the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.execution.executor import ExecutorOptions
from attentune.report.document import Table
from attentune.runs.grid import Method, methods_from
from attentune.runs.progress import ComparisonProgress
from attentune.runs.search import search
from attentune.runs.space import Dimension, Space, load_space, space_from
from attentune_lab.reproduction.planning import EMBEDDED, Part
from attentune_lab.reproduction.recipe import NONE, Recipe, RecipeSearch

SEARCH_FOLDER = "search"


@dataclass(frozen=True)
class PlannedSearch:
    """A search of one method's settings on one task."""

    method: Method
    part: Part  # the task, with its settings
    space: Space  # the space, without the settings that the user has fixed
    settings: dict[str, Any]  # the settings of all trials, by dotted name
    trials: int  # the number of trials
    sampler: str  # "grid" for all points, else "random"

    @property
    def folder(self) -> str:
        return f"{self.part.trained_on}/{self.method.name}"


@dataclass(frozen=True)
class ChosenSettings:
    """The result of a search."""

    planned: PlannedSearch  # the search
    settings: dict[str, Any]  # the settings of the best trial that were searched, by dotted name
    metric: str  # the metric that ranked the trials
    value: float  # the ranking value of the best trial
    trials: int  # the number of finished trials


def plan_searches(
    recipe: Recipe,
    encoder: str,
    parts: Sequence[Part],
    overrides: Mapping[str, Any],
    wanted: str | int | None,
) -> list[PlannedSearch]:
    """Return the searches of a recipe, one for each method with a space and each task."""
    if recipe.search is None or wanted == NONE:
        return []
    methods = methods_from(recipe.methods, recipe.name)
    planned = []
    for part in parts:
        for name in recipe.search.spaces:
            space = _space(recipe.search, name, encoder, overrides)
            points = space.points() or []
            if not space.dimensions:
                continue
            method, varied = methods[name], {one for part in space.dimensions for one in part.setting_names}
            own = {**method.settings, **method.by_task.get(part.trained_on, {})}
            common = {**space.settings, **part.settings, **part.own, **own, **overrides}
            settings = {key: value for key, value in common.items() if key not in varied}
            settings["data.task"] = part.trained_on
            if part.train_size is not None:
                settings["data.max_train_samples"] = part.train_size
            trials = len(points) if not isinstance(wanted, int) else min(wanted, len(points))
            sampler = "grid" if trials == len(points) else "random"
            planned.append(PlannedSearch(method, part, space, settings, trials, sampler))
    return planned


def _space(chosen: RecipeSearch, method: str, encoder: str, overrides: Mapping[str, Any]) -> Space:
    given = chosen.spaces[method]
    space = load_space(given) if isinstance(given, str) else space_from({"space": given}, f"search: {method}")
    replaced = chosen.on_embedded if encoder == EMBEDDED else {}
    dimensions = tuple(
        Dimension(one.name, tuple(replaced[one.name])) if one.name in replaced else one
        for one in space.dimensions
        if not any(name in overrides for name in one.setting_names)
    )
    return Space(dimensions, None, space.settings)


def run_searches(
    planned: Sequence[PlannedSearch],
    folder: Path,
    *,
    choose: str,
    executor: ExecutorOptions | None,
    display: ComparisonProgress,
) -> list[ChosenSettings]:
    """Run all searches, or go on with them, and return the best settings of each."""
    chosen = []
    for number, one in enumerate(planned, start=1):
        display.info(f"search {number} of {len(planned)}: {one.method.name} on {one.part.trained_on}")
        result = search(
            folder / SEARCH_FOLDER / one.folder,
            space={"space": {part.name: list(part.choices) for part in one.space.dimensions}},
            sampler=one.sampler,
            trials=one.trials,
            choose=choose,
            preset=one.method.preset,
            overrides=one.settings,
            executor=executor,
            train_best=False,
            display=display,
        )
        best = result.best
        if best is None or best.value is None:
            raise ConfigError(
                f"{folder / SEARCH_FOLDER / one.folder}: no trial finished, so there are no settings to go on with."
                " Its records say why; --search none leaves the search out."
            )
        done = sum(trial.status == "done" for trial in result.trials)
        chosen.append(ChosenSettings(one, best.settings, result.criterion.metric, best.value, done))
    return chosen


def methods_with(recipe: Recipe, chosen: Sequence[ChosenSettings]) -> dict[str, Any]:
    """Return the recipe's methods with the chosen settings of each task."""
    methods = {name: dict(value or {}) for name, value in recipe.methods.items()}
    for one in chosen:
        method = methods[one.planned.method.name]
        by_task = {task: dict(values) for task, values in (method.get("tasks") or {}).items()}
        by_task[one.planned.part.trained_on] = {**by_task.get(one.planned.part.trained_on, {}), **one.settings}
        method["tasks"] = by_task
    return methods


def search_tables(chosen: Sequence[ChosenSettings], choose: str) -> tuple[Table, ...]:
    """Return the table of the chosen settings; none without a search."""
    if not chosen:
        return ()
    rows = tuple(
        (
            one.planned.part.trained_on,
            one.planned.method.name,
            f"{one.trials} of {len(one.planned.space.points() or ())}",
            f"{one.metric} {one.value:.4f}",
            ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in one.settings.items()),
        )
        for one in chosen
    )
    rule = "the mean score less its standard deviation over three parts" if choose == "three-parts" else "the score"
    note = (
        f"Chosen by {rule} of a fifth of the training rows, which the trials were not trained on, and by the loss where"
        " scores are equal. The runs above are trained on all training rows with these settings."
    )
    header = ("task", "method", "trials", "best", "settings")
    return (Table("search", "Chosen settings", header, rows, left=2, notes=(note,)),)
