"""The expected time of a reproduction: each method is trained on a few rows of the first task."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.data.tokenization import encode_rows
from attentune.experiments.comparison.methods import methods_from
from attentune.experiments.comparison.progress import ComparisonProgress
from attentune.experiments.execution.executor import ExecutorOptions, default_slots
from attentune.models.build import load_tokenizer
from attentune.reproduction.planning import Part
from attentune.reproduction.recipe import Recipe
from attentune.reproduction.searching import PlannedSearch
from attentune.training.defaults import default_batch_size, default_epochs
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train

# Rows and passes of the timed run of each method, and rows whose tokens are counted.
_TIMED_ROWS, _TIMED_EPOCHS, _COUNTED_ROWS = 128, 2, 500
# A search trains on this share of the rows.
_SEARCH_SHARE = 0.8


@dataclass(frozen=True)
class TaskTime:
    """The planned work on one task.

    Attributes:
        task: the task that is trained on.
        rows: the number of training rows.
        trials: the number of trials of all its searches.
        runs: the number of runs after them.
        hours: the expected time of all of these, of one run after the other.
    """

    task: str
    rows: int
    trials: int
    runs: int
    hours: float


@dataclass(frozen=True)
class _Size:
    rows: int
    mean_tokens: float


def expected_times(
    recipe: Recipe, parts: Sequence[Part], searches: Sequence[PlannedSearch], seeds: int, display: ComparisonProgress
) -> list[TaskTime]:
    """Predict the time of each task from short runs of each method on this machine.

    Scores on validation rows and loading are not counted, so whole runs take somewhat longer.

    Args:
        recipe: the recipe.
        parts: its tasks.
        searches: the planned searches.
        seeds: the number of seeds.
        display: told which method is timed.
    """
    sizes = {part.trained_on: _size(part) for part in parts}
    token_s = {name: _token_seconds(recipe, name, parts[0], display) for name in recipe.methods}
    times = []
    for part in parts:
        size, seconds, trials = sizes[part.trained_on], 0.0, 0
        for name, method in methods_from(recipe.methods, recipe.name).items():
            own = {**part.settings, **part.own, **method.settings, **method.by_task.get(part.trained_on, {})}
            pass_s = size.rows * size.mean_tokens * token_s[name]
            seconds += seeds * pass_s * _epochs(own, size)
            for one in searches:
                if (one.method.name, one.part.trained_on) == (name, part.trained_on):
                    points = one.space.points() or []
                    epochs = [_epochs({**own, **one.settings, **point}, size) for point in points]
                    seconds += one.trials * _SEARCH_SHARE * pass_s * sum(epochs) / max(1, len(epochs))
                    trials += one.trials
        times.append(TaskTime(part.trained_on, size.rows, trials, seeds * len(recipe.methods), seconds / 3600))
    return times


def planned_jobs(parts: Sequence[Part], executor: ExecutorOptions | None) -> int:
    """Return the number of runs in parallel: those asked for, else those of this machine."""
    return default_slots([dict(parts[0].settings)], executor.jobs if executor is not None else None).count


def _size(part: Part) -> _Size:
    config = load_config(overrides={**part.settings, **part.own, "data.task": part.trained_on})
    rows = load_data(config.data, seed=0, splits=("train",)).splits["train"]
    count = len(rows) if part.train_size is None else min(part.train_size, len(rows))
    step = max(1, len(rows) // _COUNTED_ROWS)
    tokenizer = load_tokenizer(config.model)
    lengths = encode_rows(rows.take(range(0, len(rows), step)), tokenizer, max_length=config.data.longest_row).lengths
    return _Size(count, float(lengths.mean()))


def _epochs(settings: Mapping[str, Any], size: _Size) -> float:
    batch = settings.get("training.per_device_train_batch_size") or default_batch_size(size.rows, size.mean_tokens)
    given = settings.get("training.num_train_epochs")
    return float(given if given is not None else default_epochs(size.rows, int(batch)))


def _token_seconds(recipe: Recipe, name: str, part: Part, display: ComparisonProgress) -> float:
    """Train one method on a few rows; return the seconds a token of a row takes in one pass, with its token labels."""
    display.info(f"timing {name} on {_TIMED_ROWS} rows of {part.trained_on}")
    method = methods_from(recipe.methods, recipe.name)[name]
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            **part.settings,
            **part.own,
            **method.settings,
            **method.by_task.get(part.trained_on, {}),
            "data.task": part.trained_on,
            "data.max_train_samples": _TIMED_ROWS,
            "data.max_eval_samples": _TIMED_ROWS,
            "training.num_train_epochs": _TIMED_EPOCHS,
            "training.eval_strategy": "no",
            "training.baselines": "none",
            "training.output_dir": f"{folder}/run",
        }
        config = load_config(preset=method.preset, overrides=overrides)
        size = _size(replace(part, train_size=_TIMED_ROWS))
        facts = train(config, display=ProgressDisplay(quiet=True), with_baselines=False).train
    return (facts["seconds"] + facts.get("label_seconds", 0.0)) / (_TIMED_EPOCHS * size.rows * size.mean_tokens)
