"""`auto`: the best model for some rows within a time limit.

    rows -> probe of each encoder -> plan: folds, rows, updates      (`budget`)
    members on folds, as runs of `runs.driver` -> out-of-fold logits (`portfolio`, `members`)
    fusion, thresholds, estimate                                     (`fusion`, `thresholds`)
    delivery: one model or an ensemble, as an ordinary run folder; leaderboard

`output_dir` is the delivered run folder. Its folder `auto` has the work, with which a call with `resume` goes on.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.budget import (
    FIRST,
    BudgetPlan,
    EncoderSpeed,
    MemberState,
    PlanRequest,
    Schedule,
    SpeedModel,
    load_now,
    make_plan,
    time_needed,
    worker_slots,
)
from attentune.automl.delivery import Delivery
from attentune.automl.distill import TIME_MARGIN, training_runs
from attentune.automl.folds import PLAN_FILE, fold_numbers, load_folds, save_folds
from attentune.automl.fusion import calibrated_losses
from attentune.automl.leaderboard import WORK_FOLDER, AutoResult
from attentune.automl.members import MemberTrainer, WorkerSetup, hold, probe, settings_of
from attentune.automl.portfolio import Member, choose_members
from attentune.automl.work import AutoProgress, AutoSettings, AutoWork
from attentune.baselines.linear import has_many_classes
from attentune.config import Config, to_flat
from attentune.data.columns import with_columns
from attentune.data.dataset import TaskData
from attentune.data.doctor import examine, summary_lines
from attentune.data.ignored_words import data_without_words, without_words
from attentune.data.load import load_data
from attentune.data.tokenization import encode_rows
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.execution.executor import MAX_KILLS, WorkerKilled
from attentune.execution.local import LocalExecutor
from attentune.io.files import read_json, storage_errors, write_text
from attentune.metrics.metrics import choose_metric, predictions_of
from attentune.models.build import EMBEDDED, load_tokenizer
from attentune.results import to_json
from attentune.runs.driver import ComparisonStopped, Driver, Plan, RunTask
from attentune.runs.progress import as_duration
from attentune.runs.records import RecordStore, Run, RunRecord
from attentune.training.prepare import ADAPTATION_UPDATES, check_rejection
from attentune.training.run_folder import StopRequest, check_own_folder, empty_folder, locked_folder, stop_on_signal

FOLDS_FILE = "folds.safetensors"
_FORMAT = 1
# What must be equal for the work to be resumed, beside settings, which are named as they are.
_NAMED = ("rows", "labels", "metric", "settings")
_POLL_S = 0.2
# Workers have so long to save when the time is up or a stop is requested: the best is delivered within two seconds.
_SAVE_S = 0.8
# Kept for fusing, saving and scoring at the end: seconds, and a share of the limit.
_DELIVERY_S, _DELIVERY_SHARE = 3.0, 0.03
# The most that is kept for scoring validation and test rows.
_SCORING_SHARE = 0.1
# The share of the time that the probes of all encoders may take.
_PROBE_SHARE = 0.1
# A further encoder is tried after all others if its frozen vectors, by which it is ranked, take more than this share.
_RANKING_SHARE = 0.2
# A checkpoint of a fold is written about this often.
_CHECKPOINT_S = 120.0
# The share of the free disk space that folds may take; the rest is for checkpoints, the delivery and others.
_DISK_SHARE = 0.8
# Memory of a worker beyond the peak of its encoder's probe.
_MEMORY_MARGIN = 1.3
# Rows whose tokens are counted.
_COUNTED_ROWS = 2000
# Tried first among fine-tuned members of pairs where similarity decides.
_SIMILARITY_MEMBER = "bi-encoder-cosine"


def auto(
    config: Config, *, data: TaskData | None = None, display: AutoProgress | None = None, **settings: Any
) -> AutoResult:
    """Train the portfolio on folds of the training rows within a time limit, and deliver the best model or ensemble.

    Validation and test rows are scored at the end; they choose no member. With equal seeds every member is the same in
    every call; how many of them are trained depends on the speed of the machine.

    Args:
        config: from `load_config`; its `training.output_dir` becomes the run folder. Settings that differ from their
            defaults apply to all members.
        data: rows to use instead of those of `config.data`.
        display: shows progress; on standard error if None.
        settings: what is tried, and how long: the attributes of `attentune.automl.work.AutoSettings`, such as
            `time_limit_s`, `portfolio` and `resume`.

    Raises:
        AttentuneError: a mistake that the user can correct.
        KeyboardInterrupt: a second stop was requested; the work can be resumed.
    """
    options = AutoSettings(**settings)
    options.check(config)
    work = _Training(config, options, display or AutoProgress())
    with stop_on_signal() as stop:
        members = work.read(data)  # before there is a folder, which a mistake would leave behind
        with _work_folder(work.folder, resume=options.resume, overwrite=config.training.overwrite_output_dir):
            try:
                work.prepare(members, stop)
                work.train_members(stop)
                return work.deliver(stop)
            finally:
                work.close()


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
            empty_folder(folder)
        with storage_errors(folder):
            (folder / WORK_FOLDER).mkdir(exist_ok=True)
        yield


@dataclass
class _Training(AutoWork, Plan):
    """Trains the members; as a `driver.Plan`, it starts their runs while time is left."""

    executor: LocalExecutor | None = None
    end_s: float = 0.0  # the seconds of fusing and estimating, by a trial
    timed_members: int = 1  # the members of that trial
    is_ordered: bool = False
    is_complete: bool = False
    late: tuple[str, ...] = ()  # encoders that are tried after all others, in their order
    setup: WorkerSetup = field(init=False)

    def __post_init__(self) -> None:
        self.store = RecordStore(self.work)
        self.display.left_s = lambda: self.left_s
        self.encoders = tuple(self.options.encoders) or (self.config.model.name_or_path,)

    # The time.

    @property
    def _before_delivery_s(self) -> float:
        """The seconds until the best is to be delivered."""
        return self.left_s - _DELIVERY_S - _DELIVERY_SHARE * self.options.time_limit_s

    @property
    def training_left_s(self) -> float:
        """The seconds until training has to end: what follows is fusion, distillation, and scoring of other rows."""
        left_s, schedule = self._before_delivery_s - self.end_s, self.schedule
        fine_tuned = [state for state in self.states if not state.member.is_baseline and not state.note]
        scored_rows = sum(len(rows) for name, rows in self.data.splits.items() if name != "train")
        if scored_rows and schedule.speed.encoders:
            slowest = min(speed.predict_tokens_per_s for speed in schedule.speed.encoders.values())
            passes = 1 + sum(len(state.folds) for state in fine_tuned if state.is_started)
            scoring_s = scored_rows * self.tokens_per_row / slowest * passes / self.workers
            # Measured when the machine may have been busier; rows that then need more are not scored.
            left_s -= min(scoring_s, _SCORING_SHARE * self.options.time_limit_s)
        if not self._later_runs or not fine_tuned:
            return left_s
        # Distillation takes as long as the longest member, or as the first one if it fits before that.
        done = [schedule.seconds(state) for state in fine_tuned if state.done]
        later_s = self._later_runs * max(done or [schedule.seconds(fine_tuned[0])])
        fits = later_s + time_needed(schedule.remaining(fine_tuned[0]), self.workers) <= left_s
        return left_s - later_s if done or fits else left_s

    @property
    def _later_runs(self) -> float:
        """How many folds of a member take as long as distillation."""
        return TIME_MARGIN * training_runs(self.data) if self.options.deliver == "single" else 0.0

    # Rows, probe and plan.

    def read(self, data: TaskData | None) -> tuple[Member, ...]:
        """Read and check the rows; return the members to try."""
        ignored = self.config.data.ignore_words
        self.data = data_without_words(_load_rows(self.config, data), ignored)
        if self.data.has_columns:  # with their kinds
            self.config = replace(self.config, data=with_columns(self.config.data, self.data.columns))
        check_rejection(self.space, self.config.training.reject)
        self.metric = choose_metric(self.config.training.metric_for_best_model, self.data.metrics, self.space)
        if self.options.unlabeled_file is not None:
            texts_only = replace(self.config.data, extra_columns=None)
            unlabeled = read_unlabelled(
                self.options.unlabeled_file, label_space=self.space, is_pair=self.data.is_pair, config=texts_only
            )
            self.unlabeled = without_words(unlabeled, ignored)
        members = choose_members(
            is_pair=self.data.is_pair,
            task_type=self.space.task_type,
            num_labels=self.space.num_labels,
            has_columns=self.data.has_columns,
            encoders=self.encoders,
            names=self.options.portfolio,
            exclude=self.options.exclude,
            has_unlabeled=self.unlabeled is not None,
        )
        if has_many_classes(self.space, is_pair=self.data.is_pair):  # the strongest baseline first
            members = tuple(sorted(members, key=lambda one: (not one.is_baseline, one.method == "tfidf-linear")))
        return members

    def prepare(self, members: Sequence[Member], stop: StopRequest) -> None:
        """Measure the encoders, and make or read the plan."""
        saved = self._saved_plan() if self.options.resume else None
        if saved is not None:
            self.spent_before_s = float(saved["seconds"])
        self.setup = WorkerSetup(
            data=replace(self.data, splits={"train": self.rows}), base=self.config, unlabeled=self.unlabeled
        )
        slots = worker_slots(self.options.jobs, use_cpu=self.config.training.use_cpu)
        self.executor = LocalExecutor(slots, self.work / "logs", reuse=True, initializer=hold, initargs=(self.setup,))
        self.workers = slots.count
        known = {} if saved is None else {name: EncoderSpeed(**speed) for name, speed in saved["encoders"].items()}
        needed = dict.fromkeys(one.encoder for one in members if one.encoder is not None and one.encoder not in known)
        most_s = _RANKING_SHARE * self.options.time_limit_s
        limit_s = max(3.0, _PROBE_SHARE * self.options.time_limit_s / max(1, len(needed)))
        # One after the other, so that they do not disturb each other.
        encoders = {name: self._probe(name, limit_s, self.executor, stop) for name in needed}
        self._examine()
        load = load_now() if not encoders else [*encoders.values()][-1].load
        speed = SpeedModel({**known, **encoders}, labels=self.space.num_labels, load=load)
        self.late = tuple(name for name in self.encoders[1:] if self._frozen_seconds(speed.encoders.get(name)) > most_s)
        members = sorted(members, key=lambda member: member.encoder in self.late)
        plan = self._plan(members, speed, saved)
        is_fixed = self.config.training.num_train_epochs is not None
        weights = self.work.glob("runs/*/*/*/*/model.safetensors")  # of earlier calls
        free = int(_DISK_SHARE * shutil.disk_usage(self.work).free) + sum(file.stat().st_size for file in weights)
        self.schedule = Schedule(plan, speed, is_fixed, free, self.states)
        size = self.executor.room(self.expected_bytes)
        if size < self.workers:
            each = f"{self.expected_bytes / 1e9:.1f} GB"
            self._say_notes([f"Memory suffices for {size} of {self.workers} workers, each of which needs {each}."])
            self.workers = size
        self._save_plan()
        self.states.extend(self._state(member) for member in members)
        self._say_notes(plan.notes)
        how = f"{plan.folds} folds" if plan.folds > 1 else f"{plan.held_rows:,} rows held out"
        self.display.info(
            f"{len(members)} members, {how}, {plan.updates} updates for fine-tuned ones,"
            f" {self.workers} worker{'s' * (self.workers > 1)}; {self.metric.name} decides."
        )

    def _probe(self, encoder: str, limit_s: float, executor: LocalExecutor, stop: StopRequest) -> EncoderSpeed:
        """Measure an encoder; examine the rows meanwhile."""
        self.display.say(f"measuring the speed of {Path(encoder).name}")
        for _ in range(MAX_KILLS):
            (future,) = executor.submit(probe, [(encoder, str(self.work / "probe"), limit_s)])
            self._examine()
            while not future.done():
                if stop.requested:
                    raise KeyboardInterrupt
                time.sleep(_POLL_S)
            with contextlib.suppress(WorkerKilled):
                return future.result()
        raise ConfigError(
            f"the speed of {encoder}: its worker was killed {MAX_KILLS} times; if memory ran out, give fewer --jobs, a"
            " smaller encoder or a shorter --max_length"
        )

    def _frozen_seconds(self, speed: EncoderSpeed | None) -> float:
        """Predict the seconds that the frozen vectors of all rows take, as the probe ran."""
        if speed is None:  # no member has this encoder
            return 0.0
        return (speed.frozen_rows or len(self.rows)) * self.tokens_per_row / speed.predict_tokens_per_s

    def _examine(self) -> None:
        """Count tokens and print the notes on the rows, once."""
        if self.tokens_per_row:
            return
        rows = np.unique(np.linspace(0, len(self.rows) - 1, min(len(self.rows), _COUNTED_ROWS)).astype(int))
        tokenizer = load_tokenizer(replace(self.config.model, name_or_path=self.encoders[0]))
        features = encode_rows(self.rows.take(rows), tokenizer, max_length=self.config.data.longest_row)
        self.tokens_per_row = float(features.lengths.mean())
        settings, english = self.config.data, all(name == EMBEDDED for name in self.encoders)
        report = examine(self.data, max_length=settings.max_length, english_only=english)
        for line in (*self.data.notes, *summary_lines(report)):
            self.display.info(line)

    def _plan(self, members: Sequence[Member], speed: SpeedModel, saved: dict[str, Any] | None) -> BudgetPlan:
        """Make the plan and the folds, or read those of an earlier call."""
        if saved is not None:
            self.folds_N = load_folds(self.work / FOLDS_FILE)
            return BudgetPlan(**{**saved["plan"], "notes": tuple(saved["plan"]["notes"])})
        request = PlanRequest(
            rows=len(self.rows),
            tokens_per_row=self.tokens_per_row,
            members=[member for member in members if member.encoder not in self.late],
            speed=speed,
            seconds=max(1.0, self._before_delivery_s),
            jobs=self.workers,
            batch_size=self.config.training.per_device_train_batch_size,
            epochs=self.config.training.num_train_epochs,
            folds=self.options.folds,
            later_runs=self._later_runs,
        )
        plan = make_plan(request)
        self.folds_N = fold_numbers(self.rows, self.space, plan, self.config.training.seed)
        save_folds(self.work / FOLDS_FILE, self.folds_N)
        return plan

    def _say_notes(self, notes: Sequence[str]) -> None:
        self.notes += notes
        for note in notes:
            self.display.info(note)

    def _state(self, member: Member) -> MemberState:
        """Return a member with the runs that earlier calls have finished; failed ones are repeated."""
        seed = self.config.training.seed + 1000 * member.seed
        folds = tuple(range(1, max(1, int(self.folds_N.max())) + 1))
        state = MemberState(member, self.store, seed, folds)
        for number in sorted({*state.parts, state.whole, *([FIRST] if member.adapted else [])}):
            run = state.run(number)
            record = self.store.load(run) if self.store.has(run) else None
            if record is None and number == state.whole:
                continue
            if record is not None and record.is_done:
                state.records[number] = record
                updates = record.config["training"]["max_steps"] if number in folds else 0
                if 0 < updates < self.schedule.plan.updates:  # as time was short
                    state.updates = updates
                continue
            if record is not None:
                self.store.forget(run)
            state.waiting.append(number)
        return state

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
            "--reject": self.config.training.reject is not None,
        }

    def _save_plan(self) -> None:
        content = {
            "format": _FORMAT,
            "identity": self._identity(),
            "plan": dataclasses.asdict(self.schedule.plan),
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
            before, now = saved["identity"], json.loads(to_json(self._identity()))
            if saved["format"] != _FORMAT:
                raise ValueError(f"its format is {saved['format']!r}, expected {_FORMAT}")
            BudgetPlan(**saved["plan"])
            _ = float(saved["seconds"]), dict(saved["encoders"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: cannot be read ({error}). Start again with --overwrite_output_dir."
            ) from error
        changed = [f"the {key}" if key in _NAMED else key for key in now if before.get(key) != now[key]]
        if changed:
            raise CheckpointError(
                f"{self.folder}: cannot be resumed: {' and '.join(changed)} changed since it was begun. Put back what"
                " was there, or start again with --overwrite_output_dir. (Time limit, portfolio, encoders, jobs and"
                " delivery may change.)"
            )
        return saved

    # Training: the plan of `runs.driver`.

    def train_members(self, stop: StopRequest) -> None:
        """Train members in the order of the portfolio, while time is left."""
        assert self.executor is not None
        self.display.short = self.display.long = self._name
        self._put_similarity_first()
        self._rank_encoders()
        try:
            Driver(self, self.store, self.executor, self.display, keep_runs=True).run(stop)
        except ComparisonStopped as stopped:
            if stopped.at_once:
                raise KeyboardInterrupt from None
        self._take_in()
        for state in self.states:
            if state.note or state.is_complete:
                continue
            if state.has_predictions:
                state.note = "its weights were removed after an earlier delivery"
            elif stop.requested:
                state.note = "stopped"
            else:
                needed = time_needed(self.schedule.remaining(state), self.workers)
                state.note = f"no time: it needs about {needed:.0f} s more" if needed else "stopped as the time was up"
        self._save_plan()

    @property
    def is_over(self) -> bool:
        return self.training_left_s <= 0

    @property
    def save_s(self) -> float:
        return _SAVE_S

    @property
    def expected_bytes(self) -> int:
        peaks = [speed.memory_bytes for speed in self.schedule.speed.encoders.values()]
        return int(_MEMORY_MARGIN * max(peaks, default=0))

    @property
    def later(self) -> Sequence[Run]:
        return [state.run(number) for state in self.states if not state.note for number in state.waiting]

    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        """Take in finished runs, and return those that start now."""
        self._take_in()
        started = sum(len(state.running) for state in self.states)
        self.schedule.give_up_late_members(self.training_left_s, self.workers)
        runs: list[Run] = []
        while started + len(runs) < self.workers:
            frozen = self._frozen()
            is_ranking = len(frozen) > 1 and any(one.running for one in frozen)
            state = self.schedule.next_member(self.training_left_s, self.workers, only_baselines=is_ranking)
            if state is None:
                break
            runs.append(self._start(state))
        if not runs and not started:
            if self.later and not self.is_over:
                self.schedule.speed.load = load_now()  # none fits by the load that was measured before
            left_s = self.training_left_s
            state = self.schedule.next_member(left_s, self.workers) or self._with_whole_model(left_s)
            state = state or self.schedule.last_try(left_s)
            runs += [] if state is None else [self._start(state)]
            self.is_complete = not runs
        return runs

    def _with_whole_model(self, left_s: float) -> MemberState | None:
        """Let the best fine-tuned member train on all rows, if nothing else fits into the time left."""
        plan, states = self.schedule.plan, []
        if self.options.deliver == "best" and plan.train_rows + plan.held_rows >= len(self.rows):
            states = [one for one in self.states if not one.member.is_baseline and one.is_complete and not one.note]
            states = [one for one in states if one.whole not in one.records and self.schedule.seconds(one) <= left_s]
        best = max(states, key=self.quality, default=None)
        if best is not None:
            best.waiting.append(best.whole)
            self.display.say(f"training {best.member.name} on all rows")
        return best

    def _start(self, state: MemberState) -> Run:
        if not state.is_started:
            needed_s = time_needed(self.schedule.remaining(state), self.workers)
            self.display.say(f"training {state.member.name}", f"needs {as_duration(needed_s)}, ")
        return state.start()

    def _of(self, run: Run) -> tuple[MemberState, int]:
        """Return the member of a run, and the run's number."""
        state = next(state for state in self.states if state.member.name == run.method)
        return state, run.seed - state.seed

    def _name(self, run: Run) -> str:
        state, number = self._of(run)
        if state.member.is_baseline:
            return state.member.name
        others = {FIRST: "adapting its encoder", state.whole: "all rows"}
        return f"{state.member.name}, {others.get(number, f'fold {number}')}"

    def task(self, run: Run) -> RunTask:
        state, number = self._of(run)
        member, is_fold = state.member, number != FIRST
        updates = self.schedule.updates_of(state) if is_fold or member.is_baseline else ADAPTATION_UPDATES
        seconds = max(self.schedule.seconds(state, updates), 1e-3)
        adapted = self.work / "encoders" / member.name / f"{Path(member.encoder or '').name}-adapted"
        settings = {"max_steps": updates, "save_steps": max(1, int(updates * min(1.0, _CHECKPOINT_S / seconds)))}
        if is_fold:
            settings["per_device_train_batch_size"] = self.schedule.plan.batch_size
        encoder = str(adapted) if is_fold and member.adapted else member.encoder
        preset = member.method if is_fold else None
        config = self.setup.config(replace(member, encoder=encoder), preset, **settings)
        trainer = MemberTrainer(
            member=member,
            folds=state.folds if member.is_baseline else (number,) if is_fold else (),
            folds_file=str(self.work / FOLDS_FILE),
            deadline=time.time() + self.training_left_s,
            encoder_folder=str(adapted),
        )
        # Folds that end early are of use if the others are trained now too; a resumed command does not repeat them.
        if is_fold and len(state.waiting) < self.workers:
            trainer = replace(
                trainer,
                fewest_updates=self.schedule.fewest_updates(state),
                ending_s=self.schedule.speed.ending_seconds(member, self.schedule.plan),
                tokens_per_s=self.schedule.speed.tokens_per_s(member),
            )
        return RunTask(str(self.work.absolute()), PLAN_FILE, run, to_flat(config), trainer)

    def _take_in(self) -> None:
        """Learn from the runs that have ended."""
        for state in self.states:
            for number in sorted(state.running):
                if self.store.has(state.run(number)):
                    state.running.remove(number)
                    self._ended(state, number, self.store.load(state.run(number)))

    def _ended(self, state: MemberState, number: int, record: RunRecord) -> None:
        if not record.is_done:
            state.note, state.waiting = f"failed: {(record.error or {}).get('message')}", []
            return
        state.records[number] = record
        if number in state.parts:
            updates, ended_at = int(record.config["training"]["max_steps"]), record.train.get("ended_at")
            if ended_at is not None:
                self.notes.append(
                    f"{self._name(record.run)}: ended after {ended_at:,} of {updates:,} updates, as the time was up."
                )
            seconds = record.wall_seconds / (len(state.folds) if state.member.is_baseline else 1)
            plan = replace(self.schedule.plan, updates=ended_at or updates)
            self.schedule.speed.observe(state.member, plan, seconds, record.train.get("load"))
            if state.is_complete:
                self._complete(state)
        self._save_plan()

    def _complete(self, state: MemberState) -> None:
        """Show the score of a member that has an out-of-fold prediction of all rows."""
        if state.updates:
            self.notes.append(
                f"{state.member.name}: some folds were trained for {state.updates:,} of"
                f" {self.schedule.plan.updates:,} updates, which fitted into the time left."
            )
        score = self.metric.score(self.labels, predictions_of(self.out_of_fold(state), self.space))
        shown = "undefined" if math.isnan(score) else f"{score:.4f}"
        self.display.say(f"{state.member.name}: {self.metric.name} {shown} out of fold", f"{state.seconds:.0f} s; ")
        self._put_similarity_first()
        if state.member.method == "frozen-linear":
            self._rank_encoders()
        # Predict how long fusing and estimating take, to keep time for it; again for twice as many members.
        complete = [state for state in self.states if state.is_complete]
        if len(complete) >= 2 * self.timed_members:
            self.timed_members = len(complete)
            self.end_s = Delivery(self, StopRequest()).end_seconds(complete)
        Delivery(self, StopRequest()).prepare(complete)

    def _put_similarity_first(self) -> None:
        """Try the cosine bi-encoder before other fine-tuned ones if the frozen cosine predicts better than TF-IDF."""
        by_name = {state.member.name: state for state in self.states}
        states = [by_name.get("cosine"), by_name.get("tfidf-linear")]
        baselines = [state for state in states if state is not None and state.is_complete]
        if self.is_ordered or len(baselines) < 2:
            return
        self.is_ordered = True
        cosine, tfidf = map(self.quality, baselines)
        if cosine > tfidf:
            self.states.sort(key=lambda state: not state.member.is_baseline and state.member.name != _SIMILARITY_MEMBER)

    def _frozen(self) -> list[MemberState]:
        """Return the members whose losses rank the encoders."""
        frozen = [state for state in self.states if state.member.method == "frozen-linear"]
        return [state for state in frozen if state.member.encoder not in self.late]

    def _rank_encoders(self) -> None:
        """Fine-tune the encoder first whose frozen vectors predict best; docs/auto.md has the rule."""
        frozen = self._frozen()
        if len(frozen) < 2 or not all(state.is_complete for state in frozen):
            return
        losses = {
            str(state.member.encoder): calibrated_losses(self.out_of_fold(state), self.labels, self.space)
            for state in frozen
        }
        speeds = {name: speed.train_tokens_per_s * speed.load for name, speed in self.schedule.speed.encoders.items()}
        majority = [one for one in self.states if one.member.name == "majority" and one.is_complete]
        nothing_N = [calibrated_losses(self.out_of_fold(one), self.labels, self.space) for one in majority]
        groups = rank_encoders(losses, speeds, *nothing_N)
        self.schedule.preferred = groups[0]
        ranked = [name for group in groups for name in group]
        places = {name: place for place, name in enumerate([*ranked, *self.late])}
        self.states.sort(key=lambda one: -1 if one.member.is_baseline else places[str(one.member.encoder)])
        # One member of each of the best encoders comes before further ones of the first.
        members = [[one for one in self.states if one.member.encoder == name] for name in groups[0]]
        firsts = [next(one for one in states if not one.member.is_baseline) for states in members]
        self.states.sort(key=lambda one: not one.member.is_baseline and one not in firsts)
        shown = ", ".join(f"{Path(name).name} {losses[name].mean():.4f}" for name in ranked)
        equal = f" They do not tell the first {len(firsts)} apart: a member of each comes first." * (len(firsts) > 1)
        self._say_notes(
            [f"Encoders are fine-tuned in this order, by the loss of their frozen vectors: {shown}.{equal}"]
        )

    # The end.

    def deliver(self, stop: StopRequest) -> AutoResult:
        if not any(state.is_complete for state in self.states):
            if stop.requested:
                raise KeyboardInterrupt
            reasons = "; ".join(f"{state.member.name}: {state.note}" for state in self.states[:5])
            raise ConfigError(
                f"no member was trained on all folds in {self.spent_s:.0f} s ({reasons}). Give more time: the same"
                " command with --resume and a longer --time_limit."
            )
        result = Delivery(self, stop).run()
        for note in result.notes[len(self.notes) :]:
            self.display.info(note)
        self._save_plan()
        return result

    def close(self) -> None:
        self.display.stop()
        if self.executor is not None:
            self.executor.shutdown(wait_s=0.0)


def rank_encoders(
    losses: Mapping[str, np.ndarray], tokens_per_s: Mapping[str, float], nothing_N: np.ndarray | None = None
) -> list[list[str]]:
    """Rank encoders by the (N,) losses of their frozen vectors on rows that the linear model was not fitted on.

    The first group has those that the best one does not beat by more than a standard error of the paired differences,
    the fastest first; the next group is made of the others in the same way. If the best is not better than `nothing_N`,
    the losses of a model that sees no text, the vectors tell nothing: all are one group, the slowest first.
    """
    groups: list[list[str]] = []
    rest = list(losses)
    while rest:
        best = losses[min(rest, key=lambda name: losses[name].mean())]
        if not groups and nothing_N is not None and not _is_behind(nothing_N, best):
            return [sorted(rest, key=lambda name: tokens_per_s[name])]
        equal = [name for name in rest if not _is_behind(losses[name], best)]
        groups.append(sorted(equal, key=lambda name: -tokens_per_s[name]))
        rest = [name for name in rest if name not in equal]
    return groups


def _is_behind(losses_N: np.ndarray, best_N: np.ndarray) -> bool:
    """Whether losses are above others by more than a standard error of the paired differences."""
    lag_N = losses_N - best_N
    return bool(lag_N.mean() > lag_N.std(ddof=1) / math.sqrt(len(lag_N)))


def _load_rows(config: Config, data: TaskData | None) -> TaskData:
    """Return the rows: all labelled rows of train, and the validation and test rows, if any."""
    if data is None:
        wanted = ("train", "validation") if config.data.task is not None else None
        settings = replace(config.data, validation_share=0.0)
        data = load_data(settings, seed=config.training.seed, splits=wanted)
    train = data.splits.get("train")
    if train is None or train.labels is None or len(train) < 8:
        count = 0 if train is None or train.labels is None else len(train)
        raise DataError(
            f"{data.name}: got {count} labelled training rows, expected at least 8, some of each class, to divide into"
            " folds. Give more with --train_file."
        )
    return data
