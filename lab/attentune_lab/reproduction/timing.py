"""The expected time of runs before they start: from recorded runs, else from a short run of each method."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_flat
from attentune.data.load import load_data
from attentune.errors import ConfigError
from attentune.execution.executor import default_slots
from attentune.runs.grid import RunGrid
from attentune.runs.progress import Group, RunTimes, group_of
from attentune.runs.records import RecordStore, Run
from attentune.runs.search import set_up
from attentune.runs.search_settings import SearchSettings
from attentune.runs.trials import TrialOutcome, next_point
from attentune.training.prepare import default_batch_size, default_epochs

# Settings that decide what is computed for a token.
_OF_A_TOKEN = ("model.", "labels.", "objective.", "training.precision", "training.freeze")
# Rows and passes of the timed run of each method, and rows whose tokens are counted.
_TIMED_ROWS, _TIMED_EPOCHS, _COUNTED_ROWS = 128, 2, 500


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


@dataclass(frozen=True)
class RowSize:
    """The size of the training rows: their number and their mean length in tokens."""

    rows: int
    mean_tokens: float


def size_of(config: Config, train_size: int | None) -> RowSize:
    """Return the size of the training rows of a configuration; the mean length is that of a sample."""
    from attentune.data.tokenization import encode_rows
    from attentune.models.build import load_tokenizer

    rows = load_data(config.data, seed=0, splits=("train",)).splits["train"]
    step = max(1, len(rows) // _COUNTED_ROWS)
    tokenizer = load_tokenizer(config.model)
    lengths = encode_rows(rows.take(range(0, len(rows), step)), tokenizer, max_length=config.data.longest_row).lengths
    return RowSize(len(rows) if train_size is None else min(train_size, len(rows)), float(lengths.mean()))


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
    import torch

    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run import train

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


def planned_runs(folder: Path, grid: RunGrid, info: Callable[[str], None], *, alike: bool = False) -> list[PlannedRuns]:
    """Predict the time of runs, from their records or else from short runs on this machine.

    Scores on validation rows and loading are not counted in predictions, so whole runs take somewhat longer. Methods
    that are `alike`, such as the trials of a search, take as long as those of them that are recorded or timed.
    """
    record_store, times = RecordStore(folder), RunTimes()
    groups: dict[Group, list[Run]] = {}
    for run in grid.runs:
        groups.setdefault(group_of(run), []).append(run)
    for record in record_store.records(grid.runs):
        times.add(record)
    sizes: dict[tuple[str, str], RowSize] = {}
    token_s: dict[tuple[Any, ...], float] = {}
    planned = []
    for group, runs in groups.items():
        task, size, method = group
        done = sum(record_store.has(run) for run in runs)
        seconds, is_measured = times.expected(group) if alike else times.of_group(group), True
        if seconds is None:
            config, flat = grid.config(runs[0], folder), grid.configs[method][task]
            seconds, is_measured = 0.0, False
            if config.baseline is None:
                if (task, size) not in sizes:
                    sizes[task, size] = size_of(config, runs[0].train_size)
                # What is computed for a token; methods that differ in their training only are timed once.
                key = (task, *(flat[name] for name in flat if name.startswith(_OF_A_TOKEN) and not alike))
                if key not in token_s:
                    info(f"timing {method} on {_TIMED_ROWS} rows of {grid.task_name(task)}")
                    token_s[key] = seconds_per_token(flat)
                rows = sizes[task, size]
                seconds = rows.rows * rows.mean_tokens * token_s[key] * epochs_of(to_flat(config), rows)
        planned.append(PlannedRuns(grid.task_name(task), size, method, len(runs), done, seconds, is_measured))
    return planned


def time_left(planned: Sequence[PlannedRuns], jobs: int) -> str:
    """Say how many runs are left, and how long they take with this many at a time."""
    runs, hours = sum(one.runs - one.done for one in planned), sum(one.hours for one in planned)
    # One long run may outlast all others.
    longest = max((one.seconds / 3600 for one in planned if one.done < one.runs), default=0.0)
    source = "the recorded runs" if all(one.is_measured for one in planned) else "short runs on this machine"
    return (
        f"{runs} runs are left, about {max(hours / jobs, longest):,.2f} hours with {jobs} at a time, by {source};"
        " loading and scoring come on top."
    )


def plan_search(output_dir: str | Path, settings: SearchSettings, info: Callable[[str], None]) -> list[PlannedRuns]:
    """Predict the time of a search's trials, sampled as if none had ended; a trial that is pruned takes less."""
    search, _ = set_up(settings)
    trials: list[TrialOutcome] = []
    while (point := next_point(search, trials)) is not None:
        trials.append(TrialOutcome(f"trial-{len(trials) + 1:04d}", point, search.space.settings_of(point)))
    grids = []
    for trial in trials:
        with contextlib.suppress(ConfigError):  # such a trial fails before it trains
            grids.append(search.grid(trial.name, trial.settings))
    runs = tuple(run for grid in grids for run in grid.runs)
    configs = {name: config for grid in grids for name, config in grid.configs.items()}
    return planned_runs(Path(output_dir), RunGrid(runs, configs, {}), info, alike=True)
