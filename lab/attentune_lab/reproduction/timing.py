"""The expected time of a reproduction: each method is trained on a few rows of the first task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attentune.config import load_config
from attentune.execution.executor import ExecutorOptions, default_slots
from attentune.runs.grid import methods_from
from attentune.runs.progress import ComparisonProgress
from attentune.runs.timing import RowSize, epochs_of, seconds_per_token, size_of
from attentune_lab.reproduction.planning import Part
from attentune_lab.reproduction.recipe import Recipe
from attentune_lab.reproduction.searching import PlannedSearch

# A search trains on this share of the rows.
_SEARCH_SHARE = 0.8


@dataclass(frozen=True)
class TaskTime:
    """The planned work on one task."""

    task: str  # the task that is trained on
    rows: int  # the number of training rows
    trials: int  # the number of trials of all its searches
    runs: int  # the number of runs after them
    hours: float  # the expected time of all of these, of one run after the other


def expected_times(
    recipe: Recipe, parts: Sequence[Part], searches: Sequence[PlannedSearch], seeds: int, display: ComparisonProgress
) -> list[TaskTime]:
    """Predict the time of each task from short runs of each method on this machine.

    Scores on validation rows and loading are not counted, so whole runs take somewhat longer.
    """
    sizes = {part.trained_on: _size(part) for part in parts}
    token_s = {name: _token_seconds(recipe, name, parts[0], display) for name in recipe.methods}
    times = []
    for part in parts:
        size, seconds, trials = sizes[part.trained_on], 0.0, 0
        for name, method in methods_from(recipe.methods, recipe.name).items():
            own = {**part.settings, **part.own, **method.settings, **method.by_task.get(part.trained_on, {})}
            pass_s = size.rows * size.mean_tokens * token_s[name]
            seconds += seeds * pass_s * epochs_of(own, size)
            for one in searches:
                if (one.method.name, one.part.trained_on) == (name, part.trained_on):
                    points = one.space.points() or []
                    epochs = [epochs_of({**own, **one.settings, **point}, size) for point in points]
                    seconds += one.trials * _SEARCH_SHARE * pass_s * sum(epochs) / max(1, len(epochs))
                    trials += one.trials
        times.append(TaskTime(part.trained_on, size.rows, trials, seeds * len(recipe.methods), seconds / 3600))
    return times


def planned_jobs(parts: Sequence[Part], executor: ExecutorOptions | None) -> int:
    """Return the number of runs in parallel: those asked for, else those of this machine."""
    return default_slots([dict(parts[0].settings)], executor.jobs if executor is not None else None).count


def _size(part: Part) -> RowSize:
    config = load_config(overrides={**part.settings, **part.own, "data.task": part.trained_on})
    return size_of(config, part.train_size)


def _token_seconds(recipe: Recipe, name: str, part: Part, display: ComparisonProgress) -> float:
    """Return the seconds that a token takes in one pass, from a short run on the first task."""
    display.info(f"timing {name} on a few rows of {part.trained_on}")
    method = methods_from(recipe.methods, recipe.name)[name]
    own = {**part.settings, **part.own, **method.settings, **method.by_task.get(part.trained_on, {})}
    return seconds_per_token({**own, "data.task": part.trained_on}, method.preset)
