"""What `auto` and its delivery share: the settings, the rows, the members and the time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.budget import MemberState, Schedule
from attentune.automl.folds import held_out_logits
from attentune.automl.leaderboard import WORK_FOLDER
from attentune.automl.thresholds import utility
from attentune.config import Config
from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.splits import row_groups
from attentune.errors import ConfigError
from attentune.metrics.metrics import Metric, predictions_of
from attentune.runs.progress import ComparisonProgress, as_duration
from attentune.runs.records import Run, RunRecord
from attentune.training.run_folder import check_writable

DELIVERIES = ("best", "single")


@dataclass(frozen=True)
class AutoSettings:
    """What `auto` tries, and how long.

    Attributes:
        time_limit_s: the time for everything, in seconds.
        folds: the number of folds; None to choose it by the time.
        encoders: the encoders to try; default: `config.model.name_or_path`.
        portfolio: names of members to try; default: all that fit the rows.
        exclude: names of members to leave out.
        deliver: "best", or "single" for one encoder that learns from the best.
        unlabeled_file: further texts, to adapt encoders to, and with "single" to learn from.
        jobs: worker processes; default: one per core on a CPU, else one.
        resume: go on with the work in the run folder, in the time that is left of the limit.
    """

    time_limit_s: float = 600
    folds: int | None = None
    encoders: Sequence[str] = ()
    portfolio: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    deliver: str = "best"
    unlabeled_file: str | None = None
    jobs: int | None = None
    resume: bool = False

    def check(self, config: Config) -> None:
        data, problems = config.data, []
        if config.training.output_dir is None:
            problems.append("training.output_dir: is missing; name the run folder: --output_dir best")
        if self.deliver not in DELIVERIES:
            near = did_you_mean(self.deliver, DELIVERIES)
            problems.append(f"--deliver: got {self.deliver!r}, expected best or single.{near}")
        if self.folds is not None and self.folds < 2:
            problems.append(f"folds: got {self.folds}, expected at least 2, or none to choose it by the time.")
        if self.jobs is not None and self.jobs < 1:
            problems.append(f"--jobs: got {self.jobs}, expected a whole number of at least 1.")
        unused = ("folds", "extra_train_files", "calibration_share", "calibration_file")
        problems += [
            f"data.{name}: is not used by auto, which divides one task's training rows itself. Leave it out."
            for name in unused
            if getattr(data, name) is not None
        ]
        if config.training.max_steps > 0:
            problems.append(
                f"training.max_steps: got {config.training.max_steps}, but auto chooses the updates of each member by"
                " the time. Leave it out; --num_train_epochs keeps a number of epochs."
            )
        if data.extra_columns and self.deliver == "single":
            problems.append("data.extra_columns: one encoder reads no columns. Leave out --deliver single, or these.")
        if config.preset is not None:
            problems.append(
                f"preset: got {config.preset!r}, but auto tries many. Leave it out; --portfolio chooses members."
            )
        if problems:
            raise ConfigError(problems)
        check_writable(config)


@dataclass
class AutoWork:
    """One call of `auto`."""

    config: Config  # of the whole command
    options: AutoSettings
    display: AutoProgress
    spent_before_s: float = 0.0  # by earlier calls
    notes: list[str] = field(default_factory=list)  # sentences on what was limited
    unlabeled: TextRows | None = None  # further texts
    states: list[MemberState] = field(default_factory=list)  # the members, in the order in which they are tried
    data: TaskData = field(init=False)
    metric: Metric = field(init=False)  # what decides
    folds_N: np.ndarray = field(init=False)  # the fold of each training row; see `folds.save_folds`
    tokens_per_row: float = 0.0  # of the training rows, on average
    schedule: Schedule = field(init=False)
    workers: int = 1  # runs at a time, for which memory suffices
    prepared: tuple[tuple[str, ...], Any] | None = None  # complete members, with their fusion and estimate
    intervals: dict[bytes, dict[str, Any]] = field(default_factory=dict)  # of the scores of out-of-fold predictions

    @property
    def folder(self) -> Path:
        return Path(str(self.config.training.output_dir))

    @property
    def work(self) -> Path:
        return self.folder / WORK_FOLDER

    @property
    def rows(self) -> TextRows:
        return self.data.splits["train"]

    @property
    def space(self) -> LabelSpace:
        return self.data.label_space

    @functools.cached_property
    def scored(self) -> np.ndarray:
        """The indices of the rows that some fold predicts."""
        return np.flatnonzero(self.folds_N > 0)

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """The groups of these rows; see `row_groups`."""
        return row_groups(self.rows.take(self.scored))

    @property
    def labels(self) -> np.ndarray:
        assert self.rows.labels is not None
        return self.rows.labels[self.scored]

    def out_of_fold(self, state: MemberState) -> np.ndarray:
        return held_out_logits(state.run_folders(), len(self.folds_N))[self.scored]

    def quality(self, state: MemberState) -> float:
        """Return a member's score, negated if lower is better; -inf if it is undefined."""
        return utility(self.metric, self.labels, predictions_of(self.out_of_fold(state), self.space))

    @property
    def spent_s(self) -> float:
        """The seconds spent so far, over all calls."""
        return self.spent_before_s + time.monotonic() - self.display.began

    @property
    def left_s(self) -> float:
        return self.options.time_limit_s - self.spent_s


class AutoProgress(ComparisonProgress):
    """Shows progress on standard error: a bar with the time left on a terminal, plain lines elsewhere."""

    unit = "folds"

    def __init__(self, *, quiet: bool = False, began: float | None = None) -> None:
        super().__init__(quiet=quiet)
        self.began = time.monotonic() if began is None else began  # the time limit counts from here
        self.left_s: Callable[[], float] = lambda: 0.0  # the time that is left of the limit

    def update(self, done: int, total: int, *, failed: int, running: Sequence[Run], left: float | None) -> None:
        super().update(done, total, failed=failed, running=running, left=max(self.left_s(), 0.0))

    def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
        """Say why a run failed; the score of a member is told when all of its folds have ended."""
        if not record.is_done:
            self.warning(f"{self.long(record.run)}: {(record.error or {}).get('message')}")

    def say(self, text: str, then: str = "") -> None:
        """Print a line with the time of day and the time left."""
        self.info(f"{time.strftime('%H:%M:%S')} {text} ({then}{as_duration(max(self.left_s(), 0.0))} left)")
