"""What a reproduction runs: tasks and rows by the data at hand, and searches of settings before the runs.

Settings are chosen for each method and task on held-out training rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.errors import ConfigError, DataError
from attentune.execution.executor import ExecutorOptions
from attentune.report.document import Table
from attentune.runs.grid import Method, methods_from
from attentune.runs.progress import ComparisonProgress
from attentune.runs.search import search
from attentune.runs.search_settings import Dimension, Space, space_from
from attentune_lab.reproduction.recipe import (
    EMBEDDED,
    NONE,
    Recipe,
    RecipeSearch,
    Request,
    load_recipe,
    select_tasks,
    with_task_settings,
)

# The least number of rows to train on, and to score, when a fraction of the rows is used.
_FEWEST = 64


@dataclass(frozen=True)
class Part:
    task: str  # the task in the recipe
    trained_on: str  # the task that is run: `task`, or its substitute if its data are not available
    train_size: int | None  # the number of training rows; None for all
    settings: dict[str, Any]  # settings for all methods and tasks, by dotted name
    own: dict[str, Any]  # settings for this task, by dotted name


@dataclass(frozen=True)
class Plan:
    encoder: str  # the name or folder of the encoder
    parts: tuple[Part, ...]  # the tasks whose data, or whose substitute's data, are available
    notes: tuple[str, ...]  # the differences from the recipe, one sentence each


def plan(recipe: Recipe, request: Request) -> Plan:
    """Determine which tasks have data, and how many rows of each to use."""
    encoder, fraction = request.encoder, request.fraction
    wanted = select_tasks(recipe, request.tasks)
    common = {"model.name_or_path": encoder, **recipe.settings}
    common |= recipe.on_embedded if encoder == EMBEDDED else {}
    if request.data_dir is not None:
        common["data.data_dir"] = request.data_dir
    notes = [] if encoder == recipe.encoder else [f"The encoder is {encoder}; the recipe's is {recipe.encoder}."]
    if len(wanted) < len(recipe.tasks):
        notes.append(f"Of the recipe's {len(recipe.tasks)} tasks, {', '.join(wanted)} are run.")
    parts = []
    missing: DataError | None = None
    for task in wanted:
        for candidate in (task, *([recipe.instead[task]] if task in recipe.instead else [])):
            given = dict(request.overrides)
            of_task = {name: value for name, value in recipe.task_settings.get(task, {}).items() if name not in given}
            try:
                size, taken = _rows(candidate, {**common, **of_task, **given}, fraction, recipe.train_size)
            except DataError as error:
                missing = error
                continue
            parts.append(Part(task, candidate, size, common | given, of_task | taken))
            if candidate != task:
                notes.append(f"The data of {task} are not at hand; {candidate} is trained on in its place.")
            break
        else:
            notes.append(f"The data of {task} are not at hand; it is left out.")
    if not parts:
        assert missing is not None
        raise missing
    if fraction < 1:
        notes.append(f"A part of the rows, {fraction:g} of each task's, is trained on and scored.")
    return Plan(encoder, tuple(parts), tuple(notes))


def _rows(
    task: str, settings: Mapping[str, Any], fraction: float, train_size: int | None
) -> tuple[int | None, dict[str, Any]]:
    """Return the number of training rows (None for all), and the settings that limit the rows to score."""
    config = load_config(overrides={**settings, "data.task": task})
    whole = load_data(config.data, seed=0, splits=("train", "validation"))
    sizes = {split: len(rows) for split, rows in whole.splits.items()}
    every = sizes["train"] if train_size is None else min(train_size, sizes["train"])
    if fraction >= 1:
        return None if every == sizes["train"] else every, {}
    scored = max(size for split, size in sizes.items() if split.startswith("validation"))
    return _share(every, fraction), {"data.max_eval_samples": _share(scored, fraction)}


def _share(rows: int, fraction: float) -> int:
    return min(rows, max(_FEWEST, math.ceil(fraction * rows)))


COMPARISON_FOLDER, SEARCH_FOLDER = "comparison", "search"


@dataclass(frozen=True)
class PlannedSearch:
    method: Method
    part: Part  # the task, with its settings
    space: Space  # the space, without the settings that the user has fixed
    settings: dict[str, Any]  # the settings of all trials, by dotted name
    trials: int  # the number of trials
    choose: str  # how trials are ranked

    @property
    def folder(self) -> str:
        return f"{self.part.trained_on}/{self.method.name}"

    @property
    def options(self) -> dict[str, Any]:
        """The settings of `attentune.runs.search`: all points of the space, or some at random."""
        return {
            "space": self.space.dimensions,
            "sampler": "grid" if self.trials == len(self.space.points() or ()) else "random",
            "trials": self.trials,
            "choose": self.choose,
            "preset": self.method.preset,
            "overrides": self.settings,
        }


@dataclass(frozen=True)
class ChosenSettings:
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
            method = methods[name]
            own = {**method.settings, **method.by_task.get(part.trained_on, {})}
            common = {**part.settings, **part.own, **own, **overrides}
            settings = {key: value for key, value in common.items() if key not in space.names}
            settings["data.task"] = part.trained_on
            if part.train_size is not None:
                settings["data.max_train_samples"] = part.train_size
            trials = len(points) if not isinstance(wanted, int) else min(wanted, len(points))
            planned.append(PlannedSearch(method, part, space, settings, trials, recipe.search.choose))
    return planned


def plan_lines(recipe: Recipe, planned: Plan, searches: Sequence[PlannedSearch], count: int) -> list[str]:
    """Return how many runs with this number of seeds are planned, in sentences."""
    tasks = ", ".join(
        f"{part.trained_on} ({'all' if part.train_size is None else f'{part.train_size:,}'} rows)"
        for part in planned.parts
    )
    runs = len(planned.parts) * len(recipe.methods) * count
    lines = [f"{runs} runs: {len(recipe.methods)} methods, {count} seeds, {tasks}."]
    if searches:
        trials = sum(one.trials for one in searches)
        lines.insert(0, f"{trials} trials of {len(searches)} searches first, each on four fifths of the training rows.")
    return lines


def _space(chosen: RecipeSearch, method: str, encoder: str, overrides: Mapping[str, Any]) -> Space:
    space = space_from(chosen.spaces[method], f"search: {method}")
    replaced = chosen.on_embedded if encoder == EMBEDDED else {}
    dimensions = tuple(
        Dimension(one.name, tuple(replaced[one.name])) if one.name in replaced else one
        for one in space.dimensions
        if one.name not in overrides
    )
    return Space(dimensions)


def run_searches(
    planned: Sequence[PlannedSearch],
    folder: Path,
    *,
    executor: ExecutorOptions | None,
    display: ComparisonProgress,
) -> list[ChosenSettings]:
    """Run all searches, or go on with them, and return the best settings of each."""
    chosen = []
    for number, one in enumerate(planned, start=1):
        display.info(f"search {number} of {len(planned)}: {one.method.name} on {one.part.trained_on}")
        result = search(
            folder / SEARCH_FOLDER / one.folder, executor=executor, train_best=False, display=display, **one.options
        )
        best = result.best
        if best is None or best.value is None:
            raise ConfigError(
                f"{folder / SEARCH_FOLDER / one.folder}: no trial finished, so there are no settings to go on with."
                " Its records say why; --search none leaves the search out."
            )
        done = sum(trial.status == "done" for trial in result.trials)
        chosen.append(ChosenSettings(one, best.params, result.search.metric, best.value, done))
    return chosen


def methods_with(recipe: Recipe, part: Part, chosen: Sequence[ChosenSettings]) -> dict[str, Any]:
    """Return the recipe's methods with the settings of a task, and with the chosen ones."""
    methods = with_task_settings(recipe.methods, {part.trained_on: part.own})
    for one in chosen:
        methods[one.planned.method.name]["tasks"][one.planned.part.trained_on] |= one.settings
    return methods


def search_tables(chosen: Sequence[ChosenSettings]) -> tuple[Table, ...]:
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
    rule = "the score"
    if chosen[0].planned.choose == "three-parts":
        rule = "the mean score less its standard deviation over three parts"
    note = (
        f"Chosen by {rule} of a fifth of the training rows, which the trials were not trained on, and by the loss where"
        " scores are equal. The runs above are trained on all training rows with these settings."
    )
    header = ("task", "method", "trials", "best", "settings")
    return (Table("search", "Chosen settings", header, rows, left=2, notes=(note,)),)


def comparison_of(recipe: Recipe, request: Request, part: Part, chosen: Sequence[ChosenSettings]) -> dict[str, Any]:
    """Return the settings of a task's comparison."""
    return {
        "settings": methods_with(recipe, part, chosen),
        "tasks": [part.trained_on],
        "train_sizes": [part.train_size],
        "overrides": part.settings,
        "seeds": request.seeds,
    }


def plan_reproduction(request: Request) -> list[str]:
    """Say which runs a recipe makes, without starting them."""
    recipe = load_recipe(request.name)
    if recipe.kind == "parameters":
        return ["Parameters are counted; nothing is trained."]
    planned = plan(recipe, request)
    searches = plan_searches(recipe, request.encoder, planned.parts, request.overrides, request.search)
    return [*planned.notes, *plan_lines(recipe, planned, searches, request.seed_count)]
