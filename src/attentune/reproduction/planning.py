"""What is to be run of a recipe on the data at hand: tasks, rows and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.errors import DataError
from attentune.reproduction.recipe import Recipe

EMBEDDED = "embedded"
# The least that a part of a task has to train on and to be scored on.
_FEWEST = 64


@dataclass(frozen=True)
class Part:
    """One task of a recipe as it is run.

    Attributes:
        task: the recipe's.
        trained_on: the task in its place; the same where its data are at hand.
        train_size: rows to train on; None for all.
        settings: by dotted name, for all methods and tasks.
        own: the same for this task alone.
    """

    task: str
    trained_on: str
    train_size: int | None
    settings: dict[str, Any]
    own: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        encoder: its name or folder.
        parts: the tasks whose data are at hand.
        notes: what is not as the recipe has it.
    """

    encoder: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def plan(
    recipe: Recipe, encoder: str, *, data_dir: str | None, fraction: float, overrides: Mapping[str, Any] | None = None
) -> Plan:
    """MethodStyle which data are at hand, and how many rows to take.

    Args:
        recipe: the recipe.
        encoder: a model's name or folder; "embedded" is the default of all recipes.
        data_dir: where the data are; else what ATTENTUNE_DATA names.
        fraction: of each task's training and validation rows.
        overrides: settings that go before the recipe's.

    Raises:
        DataError: the data of no task are at hand.
        ConfigError: settings that cannot be used.
    """
    common = {"model.name_or_path": encoder, **recipe.settings}
    common |= recipe.on_embedded if encoder == EMBEDDED else {}
    if data_dir is not None:
        common["data.data_dir"] = data_dir
    notes = [] if encoder == recipe.encoder else [f"The encoder is {encoder}; the paper's is {recipe.encoder}."]
    parts = []
    missing: DataError | None = None
    for task in recipe.tasks:
        for candidate in (task, *([recipe.instead[task]] if task in recipe.instead else [])):
            given = dict(overrides or {})
            own = {name: value for name, value in recipe.task_settings.get(task, {}).items() if name not in given}
            try:
                size, taken = _rows(candidate, {**common, **own, **given}, fraction)
            except DataError as error:
                missing = error
                continue
            parts.append(Part(task, candidate, size, common | given, own | taken))
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


def _rows(task: str, settings: Mapping[str, Any], fraction: float) -> tuple[int | None, dict[str, Any]]:
    """Rows to train on, and the settings that cut the rows to score."""
    config = load_config(overrides={**settings, "data.task": task})
    whole = load_data(config.data, seed=0, splits=("train", "validation"))
    if fraction >= 1:
        return None, {}
    sizes = {split: len(rows) for split, rows in whole.splits.items()}
    scored = max(size for split, size in sizes.items() if split.startswith("validation"))
    return _share(sizes["train"], fraction), {"data.max_eval_samples": _share(scored, fraction)}


def _share(rows: int, fraction: float) -> int:
    return min(rows, max(_FEWEST, math.ceil(fraction * rows)))
