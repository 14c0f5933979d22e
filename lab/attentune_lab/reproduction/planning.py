"""Planning of a reproduction: which tasks, rows and settings are run with the data that are available."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.errors import DataError
from attentune_lab.reproduction.recipe import Recipe, select_tasks

EMBEDDED = "embedded"
# The least number of rows to train on, and to score, when a fraction of the rows is used.
_FEWEST = 64


@dataclass(frozen=True)
class Part:
    """One task of a plan."""

    task: str  # the task in the recipe
    trained_on: str  # the task that is run: `task`, or its substitute if its data are not available
    train_size: int | None  # the number of training rows; None for all
    settings: dict[str, Any]  # settings for all methods and tasks, by dotted name
    own: dict[str, Any]  # settings for this task, by dotted name


@dataclass(frozen=True)
class Plan:
    """The tasks and settings of a reproduction."""

    encoder: str  # the name or folder of the encoder
    parts: tuple[Part, ...]  # the tasks whose data, or whose substitute's data, are available
    notes: tuple[str, ...]  # the differences from the recipe, one sentence each


def plan(
    recipe: Recipe,
    encoder: str,
    *,
    data_dir: str | None,
    tasks: Sequence[str] | None = None,
    fraction: float,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Determine which tasks have data, and how many rows of each to use."""
    wanted = select_tasks(recipe, tasks)
    common = {"model.name_or_path": encoder, **recipe.settings}
    common |= recipe.on_embedded if encoder == EMBEDDED else {}
    if data_dir is not None:
        common["data.data_dir"] = data_dir
    notes = [] if encoder == recipe.encoder else [f"The encoder is {encoder}; the recipe's is {recipe.encoder}."]
    if len(wanted) < len(recipe.tasks):
        notes.append(f"Of the recipe's {len(recipe.tasks)} tasks, {', '.join(wanted)} are run.")
    parts = []
    missing: DataError | None = None
    for task in wanted:
        for candidate in (task, *([recipe.instead[task]] if task in recipe.instead else [])):
            given = dict(overrides or {})
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
