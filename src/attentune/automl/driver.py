"""`auto`: the best model for some rows within a time limit.

    rows -> probe of each encoder -> plan: folds, rows, updates      (`budget`)
    members on folds, in worker processes -> out-of-fold logits      (`portfolio`, `schedule`, `members`)
    fusion, thresholds, estimate                                     (`fusion`, `thresholds`, `estimate`)
    delivery: one model or an ensemble, as an ordinary run folder; leaderboard

`output_dir` is the delivered run folder. Its folder `auto` has the work: `plan.json`, `folds.safetensors`, the members'
folders and `leaderboard.json`. A call with `resume` goes on with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from attentune.automl.budget import (
    BudgetPlan,
    EncoderSpeed,
    SpeedModel,
    jobs_for_memory,
    load_now,
    make_plan,
    time_needed,
)
from attentune.automl.delivery import AutoFolder, AutoResult, Delivery, clear_folder
from attentune.automl.distill import TIME_MARGIN, training_runs
from attentune.automl.folds import make_folds
from attentune.automl.leaderboard import AutoProgress
from attentune.automl.members import (
    ADAPTATION,
    REFIT_FOLDER,
    FoldTask,
    MemberState,
    ProbeTask,
    TaskResult,
    WorkerSetup,
    adapted_encoder,
    fold_folder,
    held_out_logits,
    hold,
    is_finished,
    load_folds,
    run_task,
    save_folds,
    settings_of,
)
from attentune.automl.out_of_fold import OOF_FILE, PLAN_FILE, WORK_FOLDER
from attentune.automl.portfolio import Member, choose_members
from attentune.automl.schedule import Schedule
from attentune.automl.workers import WorkerPool
from attentune.config import Config
from attentune.config.parse import did_you_mean
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.doctor import examine
from attentune.data.doctor_report import summary_lines
from attentune.data.load import load_data
from attentune.data.splits import stratified_sample
from attentune.data.tokenization import encode_rows
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.execution.executor import MAX_KILLS, Slots, available_memory_bytes, default_slots, usable_cores
from attentune.io.files import read_json, storage_errors, write_text
from attentune.metrics.metrics import Metric, choose_metric, score_predictions
from attentune.models.build import EMBEDDED, load_tokenizer
from attentune.results import to_json
from attentune.training.adaptation import is_adapted
from attentune.training.defaults import ADAPTATION_UPDATES
from attentune.training.run_folder import check_own_folder, check_writable, locked_folder
from attentune.training.signals import StopRequest, stop_on_signal

FOLDS_FILE = "folds.safetensors"
DELIVERIES = ("best", "single")
_FORMAT = 1
_POLL_S = 0.2
# After a requested stop, workers have so long to save.
_SAVE_S = 1.5
# Kept for fusing, saving and scoring at the end: seconds, and a share of the limit.
_DELIVERY_S, _DELIVERY_SHARE = 3.0, 0.03
# The most that is kept for scoring validation and test rows.
_SCORING_SHARE = 0.1
# The share of the time that the probes of all encoders may take.
_PROBE_SHARE = 0.1
# A checkpoint of a fold is written about this often.
_CHECKPOINT_S = 120.0
# The share of the free disk space that folds may take; the rest is for checkpoints, the delivery and others.
_DISK_SHARE = 0.8
# Rows whose tokens are counted.
_COUNTED_ROWS = 2000
# Tried first among fine-tuned members of pairs where similarity decides.
_SIMILARITY_MEMBER = "bi-encoder-cosine"


def auto(
    config: Config,
    *,
    data: TaskData | None = None,
    time_limit_s: float = 600,
    folds: int | None = None,
    encoders: Sequence[str] = (),
    portfolio: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    deliver: str = "best",
    unlabeled_file: str | None = None,
    jobs: int | None = None,
    resume: bool = False,
    display: AutoProgress | None = None,
) -> AutoResult:
    """Train the portfolio on folds of the training rows within a time limit, and deliver the best model or ensemble.

    Validation and test rows are scored at the end; they choose nothing. With equal seeds every member is the same in
    every call; how many of them are trained depends on the speed of the machine.

    Args:
        config: from `load_config`; its `training.output_dir` becomes the run folder. Settings that differ from their
            defaults apply to all members.
        data: rows to use instead of those of `config.data`.
        time_limit_s: the time for everything, in seconds.
        folds: the number of folds; None to choose it by the time.
        encoders: the encoders to try; default: `config.model.name_or_path`.
        portfolio: names of members to try; default: all that fit the rows.
        exclude: names of members to leave out.
        deliver: "best", or "single" for one encoder that learns from the best.
        unlabeled_file: further texts, to adapt encoders to, and with "single" to learn from.
        jobs: worker processes; default: one per core on a CPU, else one.
        resume: go on with the work in the run folder, in the time that is left of the limit.
        display: shows progress; on standard error if None.

    Raises:
        AttentuneError: a mistake that the user can correct.
        KeyboardInterrupt: a second stop was requested; the work can be resumed.
    """
    run = _AutoRun(
        config=config,
        time_limit_s=time_limit_s,
        folds=folds,
        encoders=tuple(encoders) or (config.model.name_or_path,),
        deliver=deliver,
        unlabeled_file=unlabeled_file,
        jobs=jobs,
        resume=resume,
        display=display or AutoProgress(),
    )
    _check_options(run)
    with (
        _work_folder(run.folder, resume=resume, overwrite=config.training.overwrite_output_dir),
        stop_on_signal() as stop,
    ):
        try:
            run.load(data, portfolio, exclude, stop)
            run.train_members(stop)
            return run.deliver_best(stop)
        finally:
            run.close()


def _check_options(run: _AutoRun) -> None:
    """Check options that do not need the rows."""
    data, problems = run.config.data, []
    if run.config.training.output_dir is None:
        problems.append("training.output_dir: is missing; name the run folder: --output_dir best")
    if run.deliver not in DELIVERIES:
        near = did_you_mean(run.deliver, DELIVERIES)
        problems.append(f"--deliver: got {run.deliver!r}, expected best or single.{near}")
    if run.folds is not None and run.folds < 2:
        problems.append(f"folds: got {run.folds}, expected at least 2, or none to choose it by the time.")
    if run.jobs is not None and run.jobs < 1:
        problems.append(f"--jobs: got {run.jobs}, expected a whole number of at least 1.")
    given = {
        "data.tasks": data.tasks,
        "data.folds": data.folds,
        "data.extra_train_files": data.extra_train_files,
        "data.calibration_share": data.calibration_share,
        "data.calibration_file": data.calibration_file,
    }
    problems += [
        f"{name}: is not used by auto, which divides one task's training rows itself. Leave it out."
        for name, value in given.items()
        if value is not None
    ]
    if run.config.preset is not None:
        problems.append(
            f"preset: got {run.config.preset!r}, but auto tries many. Leave it out; --portfolio chooses members."
        )
    if problems:
        raise ConfigError(problems)
    check_writable(run.config)


@contextlib.contextmanager
def _work_folder(folder: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Create, empty or reopen the run folder, and lock it."""
    has_work = (folder / WORK_FOLDER).is_dir()
    if resume and not has_work:
        raise CheckpointError(
            f"{folder}: has no folder {WORK_FOLDER}, so there is no work to resume. Leave out --resume, or name the"
            " folder of an interrupted attentune auto."
        )
    check_own_folder(folder, "auto", is_own=has_work, resume=resume, overwrite=overwrite)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        if not resume:
            clear_folder(folder, keep=())
        with storage_errors(folder):
            (folder / WORK_FOLDER).mkdir(exist_ok=True)
        yield


@dataclass(kw_only=True)
class _AutoRun(AutoFolder):
    """One call of `auto`."""

    config: Config
    time_limit_s: float
    folds: int | None
    encoders: tuple[str, ...]
    deliver: str
    unlabeled_file: str | None
    jobs: int | None
    resume: bool
    display: AutoProgress
    began: float = field(default_factory=time.monotonic)
    spent_before_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    pool: WorkerPool | None = None
    unlabeled: TextRows | None = None
    stopped_at: float | None = None
    end_s: float = 0.0
    timed_members: int = 1
    is_ordered: bool = False
    data: TaskData = field(init=False)
    rows: TextRows = field(init=False)
    metric: Metric = field(init=False)
    members: tuple[Member, ...] = field(init=False)
    tokens_per_row: float = field(init=False)
    schedule: Schedule = field(init=False)
    folds_N: np.ndarray = field(init=False)

    @property
    def plan(self) -> BudgetPlan:
        return self.schedule.plan

    @property
    def states(self) -> list[MemberState]:
        """The members, in the order in which they are tried."""
        return self.schedule.states

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def spent_s(self) -> float:
        """The seconds spent so far, over all calls."""
        return self.spent_before_s + time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return self.time_limit_s - self.spent_s

    @property
    def training_left_s(self) -> float:
        """The seconds until training has to end."""
        return self.left_s - self._delivery_s()

    def _delivery_s(self) -> float:
        """Predict the seconds of what follows training: fusion, distillation, and scoring of other rows."""
        seconds = _DELIVERY_S + _DELIVERY_SHARE * self.time_limit_s
        if not hasattr(self, "schedule"):
            return seconds
        seconds += self.end_s
        scored_rows = sum(len(rows) for name, rows in self.data.splits.items() if name != "train")
        encoders = self.schedule.speed.encoders
        if scored_rows and encoders:
            slowest = min(speed.predict_tokens_per_s for speed in encoders.values())
            begun = [state for state in self.states if not state.member.is_baseline and state.is_started]
            fine_tuned = sum(len(state.folds) for state in begun if not state.note)
            scoring_s = scored_rows * self.tokens_per_row / slowest * (1 + fine_tuned) / self._cores()
            # Measured when the machine may have been busier; rows that then need more are not scored.
            seconds += min(scoring_s, _SCORING_SHARE * self.time_limit_s)
        return seconds + self._distillation_s(self.left_s - seconds)

    def _distillation_s(self, left_s: float) -> float:
        """Predict the seconds of distillation: as of the longest member, or of the first one if it fits before that."""
        fine_tuned = [state for state in self.states if not state.member.is_baseline and not state.note]
        done = [self.schedule.seconds(state) for state in fine_tuned if state.done]
        if done or not fine_tuned:
            return self._later_runs() * max(done, default=0.0)
        first_s = self._later_runs() * self.schedule.seconds(fine_tuned[0])
        folds_s = time_needed(self.schedule.remaining(fine_tuned[0]), self._cores())
        return first_s if first_s + folds_s <= left_s else 0.0

    def _later_runs(self) -> float:
        """Return how many folds of a member take as long as distillation."""
        return TIME_MARGIN * training_runs(self.data) if self.deliver == "single" else 0.0

    def _time_end(self) -> None:
        """Predict how long fusing and estimating take, to keep time for it; again for twice as many members."""
        complete = [state for state in self.states if state.is_complete]
        if len(complete) < 2 * self.timed_members:
            return
        self.timed_members = len(complete)
        self.end_s = self._delivery(StopRequest()).end_seconds(complete)

    def _delivery(self, stop: StopRequest) -> Delivery:
        return Delivery(
            config=self.config,
            data=self.data,
            metric=self.metric,
            folds_N=self.folds_N,
            states=self.states,
            notes=self.notes,
            seconds=lambda: self.spent_s,
            left_s=lambda: self.left_s,
            limit_s=self.time_limit_s,
            stop=stop,
            display=self.display,
            deliver=self.deliver,
            unlabeled=self.unlabeled,
        )

    def _cores(self) -> int:
        return self.pool.size if self.pool is not None else 1

    # Rows, probe and plan.

    def load(
        self, data: TaskData | None, portfolio: Sequence[str] | None, exclude: Sequence[str], stop: StopRequest
    ) -> None:
        """Read and check the rows, measure the encoders, and make or read the plan."""
        self.data = _load_rows(self.config, data)
        self.rows = self.data.splits["train"]
        self.metric = choose_metric(self.config.training.metric_for_best_model, self.data.metrics, self.space)
        self.members = choose_members(
            is_pair=self.data.is_pair,
            task_type=self.space.task_type,
            num_labels=self.space.num_labels,
            encoders=self.encoders,
            names=portfolio,
            exclude=exclude,
        )
        if self.unlabeled_file is not None:
            self.unlabeled = read_unlabelled(
                self.unlabeled_file, label_space=self.space, is_pair=self.data.is_pair, config=self.config.data
            )
        saved = self._saved_plan() if self.resume else None
        if saved is not None:
            self.spent_before_s = float(saved["seconds"])
        slots = self._slots()
        self.setup = WorkerSetup(
            data=replace(self.data, splits={"train": self.rows}),
            settings=settings_of(self.config),
            max_length=self.config.data.max_length,
            use_cpu=self.config.training.use_cpu,
            unlabeled=self.unlabeled,
        )
        self.pool = WorkerPool(self.setup, slots, self.work / "logs")
        known = {} if saved is None else {name: EncoderSpeed(**speed) for name, speed in saved["encoders"].items()}
        needed = [name for name in dict.fromkeys(m.encoder for m in self.members) if name is not None]
        probes = self._probes([name for name in needed if name not in known])
        if probes:
            self.pool.submit(probes[0])
        self._examine()
        speed = SpeedModel({**known, **self._probed(probes, stop)}, labels=self.space.num_labels)
        if saved is None:
            plan = self._make_plan(speed, slots.count)
            self.folds_N = _fold_numbers(self.rows, self.space, plan, self.seed)
            save_folds(self.work / FOLDS_FILE, self.folds_N)
        else:
            plan = BudgetPlan(**{**saved["plan"], "notes": tuple(saved["plan"]["notes"])})
            self.folds_N = load_folds(self.work / FOLDS_FILE)
        is_fixed = self.config.training.num_train_epochs is not None
        free = int(_DISK_SHARE * shutil.disk_usage(self.work).free) + self._bytes_of_members()
        self.schedule = Schedule(plan, speed, self.tokens_per_row, has_fixed_updates=is_fixed, free_bytes=free)
        self._limit_memory()
        self._save_plan()
        count = max(1, int(self.folds_N.max()))
        numbers = tuple(range(1, count + 1))
        for member in self.members:
            folder = self.work / "members" / member.name
            waiting = [fold for fold in numbers if not is_finished(fold_folder(folder, fold))]
            if member.adapted and waiting and not is_adapted(adapted_encoder(folder, member)):
                waiting.insert(0, ADAPTATION)
            state = MemberState(member, folder, numbers, waiting)
            if member.is_baseline and not waiting and not is_finished(folder / REFIT_FOLDER):
                state.waiting = list(numbers)
            self.states.append(state)
        self._announce()

    def _slots(self) -> Slots:
        """Return the number of workers, and of threads of each: OMP_NUM_THREADS at most."""
        slots = default_slots([{"training.use_cpu": self.config.training.use_cpu}], self.jobs)
        if slots.threads is None:
            return slots
        cores, most = usable_cores(), os.environ.get("OMP_NUM_THREADS", "")
        return replace(slots, threads=max(1, min(cores // slots.count, int(most) if most.isdigit() else cores)))

    def _probes(self, encoders: Sequence[str]) -> list[ProbeTask]:
        limit_s = max(3.0, _PROBE_SHARE * self.time_limit_s / max(1, len(encoders)))
        return [ProbeTask(name, str(self.work / f"probe-{number}"), limit_s) for number, name in enumerate(encoders)]

    def _probed(self, probes: Sequence[ProbeTask], stop: StopRequest) -> dict[str, EncoderSpeed]:
        """Run the probes, one after the other, so that they do not disturb each other."""
        assert self.pool is not None
        measured = {}
        for probe in probes:
            kills, result = 0, None
            while result is None:
                if not self.pool.running:
                    self.pool.submit(probe)
                ended: list[tuple[Any, TaskResult | None]] = []
                while not ended:
                    if stop.requested:
                        raise KeyboardInterrupt
                    ended = self.pool.wait(_POLL_S)
                result = ended[0][1]
                if result is None and (kills := kills + 1) >= MAX_KILLS:
                    raise _killed(probe.name)
            if result.speed is None:
                raise result.error or RuntimeError(f"{probe.name}: {result.message}")
            measured[probe.encoder] = result.speed
        return measured

    def _examine(self) -> None:
        """Count tokens and print the notes on the rows, while the probe runs."""
        places = np.unique(np.linspace(0, len(self.rows) - 1, min(len(self.rows), _COUNTED_ROWS)).astype(int))
        sample = self.rows.take(places)
        tokenizer = load_tokenizer(replace(self.config.model, name_or_path=self.encoders[0]))
        features = encode_rows(sample, tokenizer, max_length=self.config.data.longest_row)
        self.tokens_per_row = float(features.lengths.mean())
        settings, english = self.config.data, all(name == EMBEDDED for name in self.encoders)
        report = examine(self.data, max_length=settings.max_length, english_only=english)
        for line in (*self.data.notes, *summary_lines(report)):
            self.display.info(line)

    def _make_plan(self, speed: SpeedModel, size: int) -> BudgetPlan:
        return make_plan(
            rows=len(self.rows),
            tokens_per_row=self.tokens_per_row,
            members=self.members,
            speed=speed,
            seconds=max(1.0, self.training_left_s),
            jobs=size,
            batch_size=self.config.training.per_device_train_batch_size,
            epochs=self.config.training.num_train_epochs,
            folds=self.folds,
            later_runs=self._later_runs(),
        )

    def _limit_memory(self) -> None:
        """Use fewer workers if memory does not suffice for all."""
        assert self.pool is not None
        needed = max((speed.memory_bytes for speed in self.schedule.speed.encoders.values()), default=0)
        size = jobs_for_memory(self.pool.size, int(needed * 1.3), available_memory_bytes())
        if size < self.pool.size:
            note = (
                f"Memory suffices for {size} of {self.pool.size} workers, each of which needs about"
                f" {needed * 1.3 / 1e9:.1f} GB."
            )
            self.notes.append(note)
            self.display.info(note)
            self.pool.size = size

    def _announce(self) -> None:
        plan = self.plan
        self.notes += plan.notes
        for note in plan.notes:
            self.display.info(note)
        how = f"{plan.folds} folds" if plan.folds > 1 else f"{plan.held_rows:,} rows held out"
        self.display.info(
            f"{len(self.members)} members, {how}, {plan.updates} updates for fine-tuned ones,"
            f" {self._cores()} worker{'s' * (self._cores() > 1)}; {self.metric.name} decides."
        )

    def _bytes_of_members(self) -> int:
        """Return what the folds of earlier calls take."""
        return sum(file.stat().st_size for file in (self.work / "members").glob("*/fold-*/model.safetensors"))

    # The plan's file.

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for the work to be resumed."""
        settings = settings_of(self.config)
        settings.pop("model.name_or_path", None)
        return {
            "rows": self.rows.fingerprint(),
            "labels": dataclasses.asdict(self.space),
            "metric": self.metric.name,
            "settings": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
            "max_length": self.config.data.max_length,
        }

    def _save_plan(self) -> None:
        content = {
            "format": _FORMAT,
            "identity": self._identity(),
            "plan": dataclasses.asdict(self.plan),
            "tokens_per_row": self.tokens_per_row,
            "encoders": {name: dataclasses.asdict(speed) for name, speed in self.schedule.speed.encoders.items()},
            "seconds": round(self.spent_s, 3),
        }
        write_text(self.work / PLAN_FILE, to_json(content))

    def _saved_plan(self) -> dict[str, Any] | None:
        """Return the plan of the work to go on with; None if it was stopped before it had one."""
        file = self.work / PLAN_FILE
        if not file.is_file():
            return None
        try:
            saved = read_json(file)
            if saved["format"] != _FORMAT:
                raise ValueError(f"its format is {saved['format']!r}, expected {_FORMAT}")
            before, now = saved["identity"], json.loads(to_json(self._identity()))
            BudgetPlan(**{**saved["plan"], "notes": ()})
            float(saved["seconds"])
            dict(saved["encoders"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: cannot be read ({error}). Start again with --overwrite_output_dir."
            ) from error
        names = {"rows": "the rows", "labels": "the labels", "metric": "the metric", "settings": "the settings"}
        changed = [names.get(key, key) for key in now if before.get(key) != now[key]]
        if changed:
            raise CheckpointError(
                f"{self.folder}: cannot be resumed: {' and '.join(changed)} changed since it was begun. Put back what"
                " was there, or start again with --overwrite_output_dir. (Time limit, portfolio, encoders, jobs and"
                " delivery may change.)"
            )
        return saved

    # Training.

    def train_members(self, stop: StopRequest) -> None:
        """Train members in the order of the portfolio, while time is left."""
        assert self.pool is not None
        pool = self.pool
        self.display.start()
        self._put_similarity_first()
        while not stop.requested:
            self.schedule.give_up_late_members(self.training_left_s, self._cores())
            while pool.free and (state := self.schedule.next_member(self.training_left_s, self._cores())) is not None:
                pool.submit(self._task(state))
            if not pool.running and self._lower_plan():
                continue
            if not pool.running and (state := self._fits_now()) is not None:
                pool.submit(self._task(state))
            if not pool.running or self.training_left_s <= 0:
                break
            self._show()
            for ended, result in pool.wait(_POLL_S):
                self._ended(ended, result)
        if stop.requested:
            # The best so far is delivered while they save; `close` ends them.
            pool.request_stop()
            self.stopped_at = time.monotonic()
        else:
            # Workers stop at their deadline themselves; this ends those that are between two steps.
            for ended, result in pool.close(wait_s=max(2.0, min(10.0, 0.03 * self.time_limit_s))):
                self._ended(ended, result)
            if not any(state.is_complete for state in self.states):
                self._fit_fastest_here()
        for state in self.states:
            if state.is_complete and not (state.folder / OOF_FILE).is_file():
                self._complete(state)  # all folds of a baseline ended, but not its fit on all rows
            if state.note or state.is_complete:
                continue
            if len(state.done) == len(state.folds):
                state.note = "its weights were removed after an earlier delivery"
            elif stop.requested:
                state.note = "stopped"
            else:
                needed = time_needed(self.schedule.remaining(state), self._cores())
                state.note = f"no time: it needs about {needed:.0f} s more" if needed else "stopped as the time was up"
        self._save_plan()

    def _fit_fastest_here(self) -> None:
        """Fit the fastest baseline in this process: time is up and no member is ready, but there has to be a model."""
        baselines = [state for state in self.states if state.member.is_baseline and not state.note.startswith("failed")]
        if not baselines:
            return
        state = min(baselines, key=self.schedule.seconds)
        state.note, state.waiting = "", [fold for fold in state.folds if fold not in state.done]
        hold(self.setup)
        with contextlib.redirect_stdout(sys.stderr):  # results only go to standard output
            task = replace(self._task(state), deadline=math.inf)
            self._ended(task, run_task(task, stop=StopRequest()))
        note = f"No member was ready when the time was up; {state.member.name} was fitted after that."
        self.notes.append(note)
        self.display.warning(note)

    def _fits_now(self) -> MemberState | None:
        """Return a member that fits by the load of the machine now, where none did by the load measured before."""
        if self.training_left_s > 0 and any(state.waiting and not state.note for state in self.states):
            self.schedule.speed.load = load_now()
        state = self.schedule.next_member(self.training_left_s, self._cores())
        return self.schedule.last_try(self.training_left_s) if state is None else state

    def _task(self, state: MemberState) -> FoldTask:
        folds = tuple(state.waiting) if state.member.is_baseline else (state.waiting[0],)
        state.waiting = [fold for fold in state.waiting if fold not in folds]
        state.running |= set(folds)
        is_adaptation = folds == (ADAPTATION,)
        updates = ADAPTATION_UPDATES if is_adaptation else self.schedule.updates_of(state)
        seconds = max(self.schedule.seconds(state, updates), 1e-3)
        every = max(1, int(updates * min(1.0, _CHECKPOINT_S / seconds)))
        task = FoldTask(
            member=state.member,
            folds=folds,
            folder=str(state.folder),
            folds_file=str(self.work / FOLDS_FILE),
            updates=updates,
            batch_size=self.plan.batch_size,
            save_steps=every,
            deadline=time.time() + self.training_left_s,
        )
        # Folds that end early are of use if the others are trained now too; a resumed command does not repeat them.
        if is_adaptation or state.member.is_baseline or len(state.waiting) >= self._cores():
            return task
        return replace(
            task,
            fewest_updates=self.schedule.fewest_updates(state),
            ending_s=self.schedule.ending_seconds(state),
            tokens_per_s=self.schedule.speed.tokens_per_s(state.member),
        )

    def _lower_plan(self) -> bool:
        note = self.schedule.lower_plan(self.training_left_s, self._cores())
        if note is not None:
            self.notes.append(note)
            self.display.info(note)
        return note is not None

    def _ended(self, task: Any, result: TaskResult | None) -> None:
        state = next(state for state in self.states if state.member.name == task.member.name)
        state.running -= set(task.folds)
        if result is None:
            self._worker_was_killed(state, task)
        elif result.status == "failed":
            state.note, state.waiting = f"failed: {result.message}", []
            self.display.warning(f"{task.name}: {result.message}")
        elif result.status == "stopped":
            pass  # at the deadline, or on request; `train_members` says which
        elif not task.is_adaptation:
            if result.ended_at is not None:
                self.notes.append(
                    f"{task.name}: ended after {result.ended_at:,} of {task.updates:,} updates, as the time was up."
                )
            seconds = result.seconds / len(task.folds)
            self.schedule.observe(state, result.ended_at or task.updates, seconds, result.load)
            if state.is_complete:
                self._complete(state)
                self._put_similarity_first()
                self._time_end()
        self._save_plan()

    def _worker_was_killed(self, state: MemberState, task: FoldTask) -> None:
        """Have the task repeated, up to a number of kills."""
        if not state.note and self.training_left_s > 0:
            self.display.warning(f"{task.name}: its worker was killed")
        state.kills[task.folds] = state.kills.get(task.folds, 0) + 1
        if state.kills[task.folds] >= MAX_KILLS:
            state.note = f"failed: {_killed(task.name)}"
        else:
            state.waiting = sorted({*state.waiting, *task.folds})

    def _complete(self, state: MemberState) -> None:
        """Write a member's out-of-fold logits, and show its score."""
        if state.updates:
            self.notes.append(
                f"{state.member.name}: some folds were trained for {state.updates:,} of {self.plan.updates:,} updates,"
                " which fitted into the time left."
            )
        logits_NC = held_out_logits(state.folder, state.folds, len(self.rows))
        with storage_errors(state.folder):
            save_file({"logits": logits_NC}, state.folder / OOF_FILE)
        self.display.member_ended(
            state.member.name,
            metric=self.metric.name,
            score=self._score(logits_NC),
            seconds=state.seconds,
            left_s=self.left_s,
        )

    def _score(self, logits_NC: np.ndarray) -> Any:
        """Return the out-of-fold score of a member; None if it is undefined."""
        there = np.flatnonzero(self.folds_N > 0)
        assert self.rows.labels is not None
        labels = self.rows.labels[there]
        return score_predictions([self.metric.name], labels, logits_NC[there], self.space)[self.metric.name]

    def _put_similarity_first(self) -> None:
        """Try the cosine bi-encoder before other fine-tuned members if similarity is what the labels are about.

        That is so if the frozen cosine of the texts predicts the labels better than a linear model on TF-IDF features.
        """
        by_name = {state.member.name: state for state in self.states}
        states = [by_name.get("cosine"), by_name.get("tfidf-linear")]
        baselines = [state for state in states if state is not None and state.is_complete]
        if self.is_ordered or len(baselines) < 2:
            return
        self.is_ordered = True
        scores = [self._score(held_out_logits(state.folder, state.folds, len(self.rows))) for state in baselines]
        sign = 1 if self.metric.greater_is_better else -1
        cosine, tfidf = (-math.inf if score is None else sign * score for score in scores)
        if cosine > tfidf:
            self.states.sort(key=lambda state: not state.member.is_baseline and state.member.name != _SIMILARITY_MEMBER)

    def _show(self) -> None:
        assert self.pool is not None
        total = sum(len(state.folds) for state in self.states if not state.note)
        done = sum(len(state.done) for state in self.states if not state.note)
        self.display.update(done, total, running=[task.name for task in self.pool.running], left_s=self.left_s)

    def deliver_best(self, stop: StopRequest) -> AutoResult:
        """Deliver the best of the complete members."""
        if not any(state.is_complete for state in self.states):
            if stop.requested:
                raise KeyboardInterrupt
            reasons = "; ".join(f"{state.member.name}: {state.note}" for state in self.states[:5])
            raise ConfigError(
                f"no member was trained on all folds in {self.spent_s:.0f} s ({reasons}). Give more time with"
                " --time_limit and --resume, or a smaller encoder."
            )
        result = self._delivery(stop).run()
        self.display.stop()
        for note in result.notes[len(self.notes) :]:
            self.display.info(note)
        self._save_plan()
        return result

    def close(self) -> None:
        """End the workers and the display; after a requested stop, workers have a moment to save."""
        self.display.stop()
        if self.pool is not None:
            waited_s = math.inf if self.stopped_at is None else time.monotonic() - self.stopped_at
            self.pool.close(wait_s=max(0.0, _SAVE_S - waited_s))


def _load_rows(config: Config, data: TaskData | None) -> TaskData:
    """Return the rows: all labelled rows of train, and the validation and test rows, if any."""
    if data is None:
        wanted = ("train", "validation") if config.data.task is not None else None
        data = load_data(config.data, seed=config.training.seed, splits=wanted, cut_validation=False)
    train = data.splits.get("train")
    if train is None or train.labels is None or len(train) < 8:
        count = 0 if train is None or train.labels is None else len(train)
        raise DataError(
            f"{data.name}: got {count} labelled training rows, expected at least 8, some of each class, to divide into"
            " folds. Give more with --train_file."
        )
    return data


def _fold_numbers(rows: TextRows, space: LabelSpace, plan: BudgetPlan, seed: int) -> np.ndarray:
    """Return the (N,) fold of each row, from 1; 0 for rows that are only trained on, -1 for rows that are not used."""
    if plan.folds > 1:
        return np.unique(make_folds(rows, space, folds=plan.folds, seed=seed), return_inverse=True)[1] + 1
    count = min(len(rows), max(2, round(len(rows) / plan.held_rows)))
    numbers = make_folds(rows, space, folds=count, seed=seed)
    folds_N = (numbers == np.unique(numbers)[0]).astype(np.int64)
    trained = np.flatnonzero(folds_N == 0)
    if plan.train_rows < len(trained) and rows.labels is not None:
        kept = trained[stratified_sample(rows.labels[trained], plan.train_rows, seed, "auto train")]
        folds_N[np.setdiff1d(trained, kept)] = -1
    return folds_N


def _killed(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: its worker was killed {MAX_KILLS} times; if memory ran out, give fewer --jobs, a smaller encoder or a"
        " shorter --max_length"
    )
