"""The expected time of runs that have not started: each method is trained on a few rows first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attentune.config import Config, load_config, to_flat
from attentune.data.dataset import TextRows
from attentune.data.load import load_data
from attentune.data.tokenization import encode_rows
from attentune.execution.executor import default_slots
from attentune.models.build import load_tokenizer
from attentune.runs.grid import Run, RunGrid
from attentune.runs.progress import RunTimes, group_of
from attentune.runs.records import RecordStore
from attentune.training.defaults import default_batch_size, default_epochs
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train

# Rows and passes of the timed run of each method, and rows whose tokens are counted.
_TIMED_ROWS, _TIMED_EPOCHS, _COUNTED_ROWS = 128, 2, 500


@dataclass(frozen=True)
class RowSize:
    """The size of the training rows: their number and their mean length in tokens."""

    rows: int
    mean_tokens: float


@dataclass(frozen=True)
class PlannedRuns:
    """The runs of a task, size and method."""

    task: str
    size: str  # the number of training rows as text
    method: str
    runs: int  # the number of runs
    done: int  # how many of them are recorded
    seconds: float  # the expected time of one of them
    is_measured: bool  # whether that is the time of recorded runs, rather than predicted from a short one

    @property
    def hours(self) -> float:
        """The expected time of those that are left, of one after the other."""
        return (self.runs - self.done) * self.seconds / 3600


def size_of(config: Config, train_size: int | None) -> RowSize:
    """Return the size of the training rows of a configuration."""
    rows = load_data(config.data, seed=0, splits=("train",)).splits["train"]
    return size_of_rows(rows, config, len(rows) if train_size is None else min(train_size, len(rows)))


def size_of_rows(rows: TextRows, config: Config, count: int) -> RowSize:
    """Return the size of `count` of these rows, whose mean length is that of a sample."""
    step = max(1, len(rows) // _COUNTED_ROWS)
    tokenizer = load_tokenizer(config.model)
    lengths = encode_rows(rows.take(range(0, len(rows), step)), tokenizer, max_length=config.data.longest_row).lengths
    return RowSize(count, float(lengths.mean()))


def epochs_of(settings: Mapping[str, Any], size: RowSize) -> float:
    """Return the number of passes over the rows that a run with these flat settings makes."""
    batch = int(settings.get("training.per_device_train_batch_size") or default_batch_size(size.rows, size.mean_tokens))
    steps, given = settings.get("training.max_steps"), settings.get("training.num_train_epochs")
    if isinstance(steps, int) and steps > 0:
        return steps * batch / size.rows
    return float(given if given is not None else default_epochs(size.rows, batch))


def seconds_per_token(settings: Mapping[str, Any], preset: str | None = None) -> float:
    """Train a few rows; return the seconds that a token takes in one pass, with its token labels.

    It uses as many threads as a run of a comparison, which is one on a CPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            **settings,
            "data.max_train_samples": _TIMED_ROWS,
            "data.max_eval_samples": _TIMED_ROWS,
            "training.num_train_epochs": _TIMED_EPOCHS,
            "training.max_steps": -1,
            "training.eval_strategy": "no",
            "training.baselines": "none",
            "training.output_dir": f"{folder}/run",
        }
        config = load_config(preset=preset, overrides=overrides)
        size = size_of(config, _TIMED_ROWS)
        before = torch.get_num_threads()
        torch.set_num_threads(default_slots([overrides]).threads or before)
        try:
            facts = train(config, display=ProgressDisplay(quiet=True), with_baselines=False).train
        finally:
            torch.set_num_threads(before)
    return (facts["seconds"] + facts.get("label_seconds", 0.0)) / (_TIMED_EPOCHS * size.rows * size.mean_tokens)


def planned_runs(folder: Path, grid: RunGrid, info: Callable[[str], None]) -> list[PlannedRuns]:
    """Predict the time of a comparison's runs, from its records or else from short runs on this machine.

    Scores on validation rows and loading are not counted in predictions, so whole runs take somewhat longer.
    """
    record_store, times = RecordStore(folder), RunTimes()
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in grid.runs:
        groups.setdefault(group_of(run), []).append(run)
        if record_store.has(run):
            times.add(record_store.load(run))
    sizes: dict[tuple[str, str], RowSize] = {}
    token_s: dict[str, float] = {}
    planned = []
    for group, runs in groups.items():
        task, size, method = group
        done = sum(record_store.has(run) for run in runs)
        seconds, is_measured = times.of_group(group), True
        if seconds is None:
            config, is_measured = grid.config(runs[0], folder), False
            if config.baseline is not None:
                seconds = 0.0
            else:
                if (task, size) not in sizes:
                    sizes[task, size] = size_of(config, runs[0].train_size)
                if method not in token_s:
                    info(f"timing {method} on {_TIMED_ROWS} rows of {grid.task_name(task)}")
                    token_s[method] = seconds_per_token(grid.configs[method][task])
                rows = sizes[task, size]
                seconds = rows.rows * rows.mean_tokens * token_s[method] * epochs_of(to_flat(config), rows)
        planned.append(PlannedRuns(grid.task_name(task), size, method, len(runs), done, seconds, is_measured))
    return planned
