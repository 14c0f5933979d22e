"""The progress of many runs on standard error, and their expected time.

The time follows from finished runs, or for a plan from a short run of each method on this machine.
"""

from __future__ import annotations

import statistics
import tempfile
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attentune.config import Config, load_config, to_flat
from attentune.data.load import load_data
from attentune.execution.executor import default_slots
from attentune.runs.grid import RunGrid
from attentune.runs.records import RecordStore, Run, RunRecord
from attentune.training.prepare import default_batch_size, default_epochs

# The task, size and method of runs that differ in their seeds only.
Group = tuple[str, str, str]
# Settings that decide what is computed for a token.
_OF_A_TOKEN = ("model.", "labels.", "objective.", "training.precision", "training.freeze")
# Rows and passes of the timed run of each method, and rows whose tokens are counted.
_TIMED_ROWS, _TIMED_EPOCHS, _COUNTED_ROWS = 128, 2, 500


def group_of(run: Run) -> Group:
    """Return the task, size and method of a run."""
    return run.task, run.size, run.method


class RunTimes:
    """The expected seconds of runs, from those that are done.

    The estimate for a run is the (lower) median over the runs of its task, size and method, else over the trained runs
    of its task and size, else over all trained runs. A median, because the times of runs that were suspended with the
    machine are outliers.
    """

    def __init__(self) -> None:
        # Sorted, by task, size and method; by task and size; and of all trained runs.
        self._seconds: dict[tuple[str, ...], list[float]] = {}

    def add(self, record: RunRecord) -> None:
        """Learn from a finished run; failed ones say nothing."""
        if record.is_done:
            group = group_of(record.run)
            for key in [group] if record.config.get("baseline") else [group, group[:2], ()]:
                insort(self._seconds.setdefault(key, []), record.wall_seconds)

    def of_group(self, group: Group) -> float | None:
        """Return the median seconds of the runs of this task, size and method that are done; None if there is none."""
        return statistics.median_low(self._seconds[group]) if group in self._seconds else None

    def expected(self, group: Group) -> float | None:
        """Return the expected seconds of a run; None while only baselines are done, which take seconds."""
        known = next((key for key in (group, group[:2], ()) if key in self._seconds), None)
        return None if known is None else statistics.median_low(self._seconds[known])

    def left(self, waiting: Mapping[Group, int], running: Mapping[Run, float], workers: int) -> float | None:
        """Estimate the seconds that the remaining runs take; None if that of one of them is not known."""
        groups = {*(group for group, count in waiting.items() if count), *map(group_of, running)}
        expected = {group: self.expected(group) for group in groups}
        if not self._seconds or None in expected.values():
            return None
        seconds = sum(count * (expected[group] or 0.0) for group, count in waiting.items() if count)
        rest = [max(0.0, (expected[group_of(run)] or 0.0) - since) for run, since in running.items()]
        # One long run may outlast all others.
        return max([(seconds + sum(rest)) / max(1, workers), *rest])


def as_duration(seconds: float | None) -> str:
    """Format seconds, such as "about 2 h 5 min" or "about 40 s"; an empty string for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"about {seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60} min"


class ComparisonProgress:
    """Shows the progress of a comparison or search: a bar on a terminal, plain lines elsewhere."""

    unit = "runs"

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        # How a run is described in the bar and in a line; a search sets its own.
        self.task_name: Callable[[str], str] = str
        self.short: Callable[[Run], str] = lambda run: f"{run.method} on {self.task_name(run.task)}"
        self.long: Callable[[Run], str] = lambda run: f"{self.short(run)}, {run.size} rows, seed {run.seed}"

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is shown."""
        return self._console.quiet

    def info(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)

    def warning(self, text: str) -> None:
        """Print a warning above the bar."""
        self._console.print(f"warning: {text}", markup=False, style="yellow")

    def start(self, total: int) -> None:
        """Show the bar, if standard error is a terminal."""
        if not self._console.is_terminal or self._console.quiet:
            return
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed}/{task.total} " + self.unit),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, facts="", left="")
        self._bar.start()

    def update(self, done: int, total: int, *, failed: int, running: Sequence[Run], left: float | None) -> None:
        """Move the bar."""
        if self._bar is None or self._task is None:
            return
        names = [self.short(run) for run in running[:3]] + (["..."] if len(running) > 3 else [])
        facts = (f"{failed} failed  " if failed else "") + ("running: " + ", ".join(names) if names else "")
        time_left = "" if left is None else f"{as_duration(left)} left"
        self._bar.update(self._task, completed=done, total=total, facts=facts, left=time_left)

    def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
        """Print a line for a finished run."""
        what = self.long(record.run)
        if not record.is_done:
            reason = " ".join(str((record.error or {}).get("message", "")).split()) or (record.error or {}).get("kind")
            log = self.warning if record.status == "failed" else self.info
            log(f"{number} of {total}: {what}: {record.status}: {reason}")
            return
        score = "no score" if record.score is None else f"{record.metric} {record.score:.4f}"
        time_left = f"; {as_duration(left)} left" if left is not None and number < total else ""
        self.info(f"{number} of {total}: {what}: {score} ({record.wall_seconds:.0f} s{time_left})")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


# Before anything runs.


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
