"""Time and memory of `attentune auto`, planned before they are spent.

`SpeedModel` predicts how long a member takes, `make_plan` chooses folds and updates, `Schedule` which member is next.
Numbers only: neither PyTorch nor scipy is imported.
"""

import bisect
import itertools
import math
import os
import re
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attentune.automl.portfolio import Member
from attentune.errors import ConfigError
from attentune.execution.executor import Slots, default_slots, usable_cores
from attentune.runs.records import CUSTOM_TASK, RecordStore, Run, RunRecord
from attentune.training.prepare import ADAPTATION_UPDATES, PROBED_ROWS, default_batch_size, default_epochs

# In a baseline's run folder: the baseline fitted on all rows.
REFIT_FOLDER = "all"
# Above this number of rows one held-out part is scored instead of folds: it is large enough for a narrow interval.
HOLDOUT_ROWS = 20_000
# With a held-out part: its share, and the most rows it has.
HOLDOUT_SHARE, MAX_HELD_ROWS = 0.2, 4_000
# The numbers of folds to choose from; 1 is a held-out part.
FOLD_CHOICES = (5, 3, 2, 1)
# The share of the time that the baselines and the first fine-tuned member may take. All folds of one member are worth
# more than one held-out part of many: a mean of five models, each trained on four fifths, and choices on all rows.
_CORE_SHARE = 0.7
# The same where one model is to learn from the members: further ones would serve it less.
_ONLY_CORE_SHARE = 0.9
# The first member with an adapted encoder is planned for too if the adaptation takes at most this share of the time:
# the plan may then need this much of it, as a later member can do with fewer updates.
_ADAPTATION_SHARE, _WITH_ADAPTED = 0.2, 1.15
# Shares of the updates that a fine-tuned member has in each fold when time is short. Close to each other, so that a
# second less does not cost a third of the updates.
_SHARES = (0.5, 0.45, 0.4, 0.36, 0.33)
# The fewest updates of a fine-tuned member when time is short.
FEWEST_UPDATES = 50
# Seconds for loading, splitting and tokenising rows in a worker, and for scikit-learn, per row.
_ROW_S, _TFIDF_ROW_S, _LINEAR_ROW_S = 2e-5, 3e-4, 4e-4
# A linear model takes longer in proportion to the labels beyond these; on sparse features it is fitted otherwise then.
_LABELS_OF_LINEAR, _LABELS_OF_TFIDF = 20, 50
# The seconds in which a load is measured, and from which on it is sure; and the largest.
_LOAD_S, _SURE_LOAD_S, _MOST_LOAD = 0.5, 5.0, 20.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
SHORTEST_S = 10.0


def parse_duration(text: str | float) -> float:
    """Parse a time such as "90s", "10m", "1h", "1h30m" or a number of seconds."""
    cleaned = str(text).strip().lower().replace(" ", "")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", cleaned)
    if parts and "".join(number + unit for number, unit in parts) == cleaned:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    else:
        raise ConfigError(f"time_limit: got {str(text)!r}, expected a time such as 90s, 10m, 1h or 1h30m.")
    if seconds < SHORTEST_S:
        raise ConfigError(
            f"time_limit: got {str(text)!r}, expected at least {SHORTEST_S:g}s: loading an encoder takes some seconds."
        )
    return seconds


@dataclass(frozen=True)
class EncoderSpeed:
    """Measurements of a timed probe of an encoder in one worker."""

    train_tokens_per_s: float  # tokens of training rows, without padding, that the preset `bert` trains on per second
    predict_tokens_per_s: float  # tokens that are predicted per second
    overhead_s: float  # seconds for loading the encoder and saving the model
    memory_bytes: int = 0  # the peak memory of the worker
    disk_bytes: int = 0  # the size of a run folder
    frozen_rows: int | None = None  # how many of the training rows the frozen baselines encode at most; None for all
    load: float = 1.0  # by how much other processes slowed the probe down


@dataclass(frozen=True)
class BudgetPlan:
    """How rows and time are used; the work of each fold."""

    folds: int  # the number of folds; 1 for one held-out part
    train_rows: int  # rows that a fold trains on
    held_rows: int  # rows of a fold that are predicted
    updates: int  # optimiser updates of a fine-tuned member
    batch_size: int  # rows of an update
    tokens_per_row: float  # mean tokens of a row after truncation
    notes: tuple[str, ...] = ()  # sentences on what was limited


@dataclass
class SpeedModel:
    """Predicts the seconds of runs; each finished run corrects the predictions that follow."""

    encoders: dict[str, EncoderSpeed]  # the measured speed of each encoder
    labels: int = 1  # the number of labels, on which the time of linear models depends
    # The measured over the predicted seconds of each finished run, by the member's name, kind and encoder.
    ratios: dict[tuple[str, str, str | None], list[float]] = field(default_factory=dict)
    load: float = 1.0  # the newest measured load of the machine

    def seconds(self, member: Member, plan: BudgetPlan) -> float:
        """Predict the seconds of one fold of a member."""
        ratio = self.correction(member)
        return self._uncorrected(member, plan, self.load) * (1.0 if ratio is None else ratio)

    def observe(self, member: Member, plan: BudgetPlan, seconds: float, load: float | None = None) -> None:
        """Record the measured seconds of one fold, and the load, which counts in full from five seconds on."""
        load, key = self.load if load is None else load, (member.name, member.kind, member.encoder)
        self.ratios.setdefault(key, []).append(seconds / max(self._uncorrected(member, plan, load), 1e-3))
        self.load += min(1.0, seconds / _SURE_LOAD_S) * (load - self.load)

    def ending_seconds(self, member: Member, plan: BudgetPlan) -> float:
        """Predict the seconds that a fold of a fine-tuned member takes after its last update, as the probe ran."""
        speed = self.encoders[member.encoder or ""]
        return speed.overhead_s + plan.held_rows * plan.tokens_per_row / speed.predict_tokens_per_s

    def tokens_per_s(self, member: Member) -> float:
        """Predict the tokens that a fine-tuned member trains on per second, as the probe ran."""
        return self.encoders[member.encoder or ""].train_tokens_per_s / member.cost

    def correction(self, member: Member) -> float | None:
        """Return the member's own ratio if one of its folds is finished, else that of its kind and encoder, if any."""
        own = self.ratios.get((member.name, member.kind, member.encoder))
        if own is not None or member.is_baseline:  # each baseline has a cost of its own
            return None if own is None else statistics.median(own)
        alike = [
            statistics.median(ratios) for key, ratios in self.ratios.items() if key[1:] == (member.kind, member.encoder)
        ]
        return statistics.median(alike) if alike else None

    def _uncorrected(self, member: Member, plan: BudgetPlan, load: float) -> float:
        """Predict the seconds of one fold at a load, before what finished runs correct."""
        free_s, probed_s = self._parts(member, plan)
        measured = self.encoders[member.encoder].load if member.encoder is not None else 1.0
        return load * (free_s + probed_s / measured)

    def _parts(self, member: Member, plan: BudgetPlan) -> tuple[float, float]:
        """Return the seconds of one fold that constants of a free machine predict, and those that the probe does."""
        rows = plan.train_rows + plan.held_rows
        labels = max(1.0, self.labels / (_LABELS_OF_TFIDF if member.encoder is None else _LABELS_OF_LINEAR))
        if member.is_baseline and member.encoder is None:
            return 0.2 + rows * (0.0 if member.method == "majority" else _TFIDF_ROW_S * labels), 0.0
        speed = self.encoders[member.encoder or ""]
        row_s = plan.tokens_per_row / speed.predict_tokens_per_s
        if member.is_baseline:
            # Texts are encoded once for all folds and the fit on all rows; each has its part of that.
            encoded = min(plan.train_rows, speed.frozen_rows or plan.train_rows)
            texts = plan.held_rows * plan.folds if plan.folds > 1 else plan.held_rows + encoded
            return 0.2 + (encoded + plan.held_rows) * _LINEAR_ROW_S * labels, texts * row_s / (plan.folds + 1)
        tokens = plan.updates * plan.batch_size * plan.tokens_per_row
        epochs = math.ceil(plan.updates * plan.batch_size / max(1, plan.train_rows))
        probed = min(plan.train_rows, PROBED_ROWS) if member.probed else 0
        predicted = epochs * member.passes * plan.train_rows + probed
        train_s = tokens / self.tokens_per_s(member) + predicted * row_s + self.ending_seconds(member, plan)
        return rows * _ROW_S + probed * _LINEAR_ROW_S * labels, train_s


@dataclass(frozen=True)
class PlanRequest:
    rows: int
    tokens_per_row: float  # mean tokens of a row after truncation
    members: Sequence[Member]
    speed: SpeedModel
    seconds: float  # the time for training
    jobs: int
    batch_size: int | None = None  # the settings of a user, if there are any
    epochs: float | None = None
    folds: int | None = None
    later_runs: float = 0.0  # how many folds of a fine-tuned member take as long as what follows

    def sized(self, folds: int, share: float) -> BudgetPlan:
        rows, batch = self.rows, self.batch_size or default_batch_size(self.rows, self.tokens_per_row)
        held = rows // folds if folds > 1 else min(MAX_HELD_ROWS, max(1, int(rows * HOLDOUT_SHARE)))
        train = rows - held
        passes = default_epochs(train, batch) if self.epochs is None else self.epochs
        updates = max(1, math.ceil(passes * train / batch))
        updates = max(min(updates, FEWEST_UPDATES), round(updates * share))
        if folds == 1 and rows > HOLDOUT_ROWS:
            train = min(train, max(HOLDOUT_ROWS - held, updates * batch))
        return BudgetPlan(folds, train, held, updates, batch, self.tokens_per_row)

    def options(self) -> list[tuple[int, float]]:
        """Return numbers of folds and shares of the updates, best first."""
        if self.rows > HOLDOUT_ROWS and self.folds is None:
            counts, options = [], [(1, 1.0)]
        else:
            counts = [count for count in FOLD_CHOICES if self.rows >= 4 * count] if self.folds is None else [self.folds]
            options = [(counts[0], 1.0), *itertools.product(counts, _SHARES)]
        if self.epochs is not None:
            return [(count, 1.0) for count in dict.fromkeys(count for count, _ in options)]
        last, share = options[-1]
        lower = [share * 0.8**power for power in range(1, 60)]
        if next((member.probed for member in self.members if not member.is_baseline), False):
            # What starts at a linear probe needs rows more than updates: three folds before two or a held-out part.
            many = [(count, part) for part in lower[:9] for count in counts if count > 2]
            place = next((place for place, (count, _) in enumerate(options) if count < 3), len(options))
            options = [*options[:place], *many, *options[place:]]
        return [*options, *((last, part) for part in lower)]


def make_plan(request: PlanRequest) -> BudgetPlan:
    """Choose the number of folds, of rows and of updates.

    The first one is taken at which the baselines and the first fine-tuned member need at most 70 % of the time,
    and together with the first member whose encoder is adapted at most 115 % (if the adaptation takes at most 20 %):
    five folds; five with half to a third of the updates; so three folds; five and three with fewer and fewer, at
    least 50, if the member starts at a linear probe; two folds and one held-out part, at last with fewer updates
    too. If no fine-tuned member fits at all, the baselines have five folds where these fit. Above 20,000 rows one part
    is held out from the start, and no more rows are used than the updates read.
    """
    fine_tuned = [member for member in request.members if not member.is_baseline][:1]
    core = [member for member in request.members if member.is_baseline] + fine_tuned
    adapted = [member for member in request.members if member.adapted][:1]
    core_share = _CORE_SHARE if request.later_runs == 0 else _ONLY_CORE_SHARE
    plan = first = request.sized(*request.options()[0])
    left = request.seconds
    for count, share in request.options():
        plan = request.sized(count, share)
        left = request.seconds - sum(request.later_runs * request.speed.seconds(one, plan) for one in fine_tuned)
        needed = [request.speed.seconds(member, plan) for member in core for _ in range(plan.folds)]
        adapting = replace(plan, updates=ADAPTATION_UPDATES)
        more = [request.speed.seconds(member, part) for member in adapted for part in (adapting, *[plan] * plan.folds)]
        is_long = bool(more) and more[0] <= _ADAPTATION_SHARE * left
        total = time_needed([*needed, *more], request.jobs) if is_long else 0.0
        if time_needed(needed, request.jobs) <= core_share * left and total <= _WITH_ADAPTED * left:
            break
    else:
        # Not even one fine-tuned member fits: the baselines get the best scores that the time allows.
        if fine_tuned and request.speed.seconds(fine_tuned[0], plan) * plan.folds > left:
            note = "Time is too short for fine-tuned members; only baselines are tried."
            needed = [request.speed.seconds(member, first) for member in core[:-1] for _ in range(first.folds)]
            plan = first if time_needed(needed, request.jobs) <= core_share * request.seconds else plan
            return replace(plan, notes=(note, *_notes(plan, first, request.rows)))
    return replace(plan, notes=tuple(_notes(plan, first, request.rows)))


def _notes(plan: BudgetPlan, wanted: BudgetPlan, rows: int) -> Iterator[str]:
    """Yield sentences on what the plan limits."""
    if plan.folds == 1 and rows > HOLDOUT_ROWS:
        yield f"{plan.held_rows:,} of more than {HOLDOUT_ROWS:,} rows are held out to score on; there are no folds."
    elif plan.folds == 1:
        yield f"Time is short: {plan.held_rows:,} rows are held out to score on, instead of {wanted.folds} folds."
    elif plan.folds < wanted.folds:
        yield f"Time is short: {plan.folds} folds instead of {wanted.folds}."
    if plan.updates < 0.9 * wanted.updates:
        yield f"Time is short: fine-tuned members train for {plan.updates:,} updates instead of {wanted.updates:,}."
    if plan.train_rows + plan.held_rows < rows:
        yield (
            f"{plan.train_rows:,} of the other {rows - plan.held_rows:,} rows are trained on: as many as"
            f" {plan.updates:,} updates read."
        )


class LoadMeter:
    """Measures by how much other processes slow this thread down, from its creation on."""

    def __init__(self) -> None:
        self._began = self._seconds()

    def load(self) -> float:
        """Return the seconds that the thread worked or waited for a core, over those that it worked."""
        worked_s, waited_s = (now - before for now, before in zip(self._seconds(), self._began, strict=True))
        return min(max(1.0, 1 + waited_s / max(worked_s, 1e-6)), _MOST_LOAD)

    @staticmethod
    def _seconds() -> tuple[float, float]:
        try:
            worked_ns, waited_ns, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
            return worked_ns / 1e9, waited_ns / 1e9
        except (OSError, ValueError):  # not Linux: what it waits for disks counts too
            return time.thread_time(), time.perf_counter() - time.thread_time()


def load_now() -> float:
    """Measure the load of the machine by a thread that counts for half a second."""
    meter, began = LoadMeter(), time.perf_counter()
    while time.perf_counter() - began < _LOAD_S:
        pass
    return meter.load()


def time_needed(remaining: Sequence[float], jobs: int) -> float:
    """Return the time that tasks of these lengths take with this number of workers; no task is split."""
    return max([sum(remaining) / max(1, jobs), *remaining], default=0.0)


def worker_slots(jobs: int | None, *, use_cpu: bool) -> Slots:
    """Return the number of workers, and of threads of each: OMP_NUM_THREADS at most."""
    slots = default_slots([{"training.use_cpu": use_cpu}], jobs)
    if slots.threads is None:
        return slots
    cores, most = usable_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return replace(slots, threads=max(1, min(cores // slots.count, int(most) if most.isdigit() else cores)))


# The fewest updates of a further fine-tuned member, as a share of the plan's.
_FEWEST_SHARE = 0.5
# The share of its updates after which a late fold may end early, and of the plan's with which a begun member goes on.
# Its learning rate has not fallen to zero by then, so the model is worse than a planned one, but its predictions out of
# fold tell how good it is; without them it is lost.
_EARLIEST_SHARE = 0.25
# Lowered updates are to end within this share of the time left; a started member is given up when even the fewest
# updates need more than this multiple of it.
_FILLED, _PATIENCE = 0.95, 1.2
# The share of the time left that a fine-tuned member may take by a prediction that no finished run has corrected.
_UNCORRECTED = 0.85


# The number of the run that adapts a member's encoder, before its folds, and of a baseline's only one.
FIRST = 0
WEIGHTS_FILE = "model.safetensors"


@dataclass
class MemberState:
    """A member and its runs: one for each fold, from 1; a baseline has one, number 0, for all of them.

    If time is left at the end, one more run, with the next number, trains on the rows of all folds.
    """

    member: Member
    store: RecordStore
    seed: int  # that of its run 0
    folds: tuple[int, ...]
    waiting: list[int] = field(default_factory=list)  # runs that have not started; 0 first
    running: set[int] = field(default_factory=set)
    records: dict[int, RunRecord] = field(default_factory=dict)  # of finished runs
    updates: int = 0  # the updates of its next folds, if they are fewer than the plan's; else 0
    note: str = ""  # why the member was left out; empty if it was not

    @property
    def parts(self) -> tuple[int, ...]:
        """The runs whose models are delivered."""
        return (FIRST,) if self.member.is_baseline else self.folds

    @property
    def whole(self) -> int:
        """The run on the rows of all folds."""
        return len(self.folds) + 1

    @property
    def done(self) -> list[int]:
        return [part for part in self.parts if part in self.records]

    @property
    def has_predictions(self) -> bool:
        """Whether all rows have an out-of-fold prediction."""
        return len(self.done) == len(self.parts)

    @property
    def is_complete(self) -> bool:
        """Whether all rows have an out-of-fold prediction and the files for delivery exist."""
        is_baseline = self.member.is_baseline
        return self.has_predictions and (is_baseline or all((one / WEIGHTS_FILE).is_file() for one in self.folders()))

    @property
    def is_started(self) -> bool:
        return bool(self.running or self.records)

    @property
    def seconds(self) -> float:
        return sum(self.records[part].wall_seconds for part in self.done)

    def run(self, number: int) -> Run:
        return Run(CUSTOM_TASK, None, self.member.name, self.seed + number)

    def start(self) -> Run:
        """Return the next waiting run, which is running from now on."""
        number = self.waiting.pop(0)
        self.running.add(number)
        return self.run(number)

    def run_folders(self) -> list[Path]:
        """Return the folders of the runs that have predicted rows."""
        return [self.store.run_folder(self.run(part)) for part in self.done]

    def folders(self) -> list[Path]:
        """Return the folders to deliver: the baseline fitted on all rows, if it is, else the models of all runs."""
        if not self.member.is_baseline:
            on_all = [self.store.run_folder(self.run(self.whole))] if self.whole in self.records else []
            return [*self.run_folders(), *on_all]
        folder = self.store.run_folder(self.run(FIRST))
        whole = folder / REFIT_FOLDER
        return [whole] if whole.is_dir() else [folder / f"fold-{fold}" for fold in self.folds]


@dataclass
class Schedule:
    plan: BudgetPlan  # folds, rows and updates
    speed: SpeedModel  # predicts and learns the seconds of folds
    has_fixed_updates: bool = False  # whether a user has set the epochs, which are then kept
    free_bytes: int | None = None  # the disk space for new folds of fine-tuned members; None if it is not limited
    states: list[MemberState] = field(default_factory=list)  # the members, in the order in which they are tried
    preferred: Collection[str] = ()  # encoders whose first fine-tuned member may have fewer updates, to be an early one

    def updates_of(self, state: MemberState) -> int:
        return state.updates or self.plan.updates

    def seconds(self, state: MemberState, updates: int | None = None) -> float:
        """Predict the seconds of one fold of a member, with its updates or others."""
        return self.speed.seconds(state.member, replace(self.plan, updates=updates or self.updates_of(state)))

    def remaining(self, state: MemberState, updates: int | None = None) -> list[float]:
        """Predict the seconds of each task of a member that is running or, with these updates, waiting."""
        seconds = self.seconds(state, updates)
        if state.member.is_baseline:
            return [seconds * (len(state.folds) + 1)] if state.waiting or state.running else []
        adaptation = [self.seconds(state, ADAPTATION_UPDATES)] if FIRST in state.waiting else []
        folds = len(state.waiting) - len(adaptation)
        return [*adaptation, *[seconds] * folds, *[self.seconds(state) / 2] * len(state.running)]

    def fewest_updates(self, state: MemberState) -> int | None:
        """Return the updates after which a member's fold may end early when it is late; None if they are fixed."""
        return None if self.has_fixed_updates else math.ceil(_EARLIEST_SHARE * self.updates_of(state))

    def next_member(self, left_s: float, workers: int, *, only_baselines: bool = False) -> MemberState | None:
        """Return the member whose next fold is to be trained; None if none fits into the time left.

        Members that are begun come first, then the first one that fits, then the first that fits with fewer updates: at
        least 50 if it starts at a linear probe, then half of the plan's. A member whose encoder is adapted, for which
        the plan keeps time, and the first one of a preferred encoder (down to a third) may have fewer at their turn.
        With `only_baselines` new fine-tuned members wait.
        """
        begun = [state for state in self.states if state.is_started and not state.note]
        ready = [state for state in begun if state.waiting and FIRST not in state.running]
        if ready:
            return ready[0]
        others = [part for state in begun for part in self.remaining(state)]
        new = [one for one in self._not_begun() if one.member.is_baseline or not only_baselines]
        new = [one for one in new if self._has_disk_space(one)]
        to_begin = {*self.preferred} - {str(state.member.encoder) for state in self._fine_tuned()}
        for state in new:
            if time_needed([*others, *self.remaining(state)], workers) <= self._safe(state, left_s):
                return state
            share = _SHARES[-1] if state.member.encoder in to_begin and state.member.probed else _FEWEST_SHARE
            is_due = state.member.adapted or share < _FEWEST_SHARE
            if is_due and self._lower_updates(state, left_s, workers, others, share):
                return state
        # Asked again later: the prediction may change.
        tries = sorted(((one, 0.0 if one.member.probed else _FEWEST_SHARE) for one in new), key=lambda pair: pair[1])
        return next((one for one, share in tries if self._lower_updates(one, left_s, workers, others, share)), None)

    def last_try(self, left_s: float) -> MemberState | None:
        """Return the cheapest baseline that has not begun: predictions may be of a busier machine."""
        waiting = [state for state in self._not_begun() if state.member.is_baseline and left_s > 0]
        return min(waiting, key=lambda state: sum(self.remaining(state)), default=None)

    def _not_begun(self) -> list[MemberState]:
        return [state for state in self.states if state.waiting and not state.is_started and not state.note]

    def _safe(self, state: MemberState, left_s: float) -> float:
        """Return the part of the time left that predictions of a member may fill."""
        is_safe = state.member.is_baseline or self.speed.correction(state.member) is not None
        return left_s if is_safe else _UNCORRECTED * left_s

    def _has_disk_space(self, state: MemberState) -> bool:
        """Whether the disk has room for a new member's folds, beside those that are begun; if not, leave it out."""
        if self.free_bytes is None or state.member.is_baseline:
            return True
        needed = [self._disk_bytes(one) for one in (*self._fine_tuned(), state)]
        if sum(needed) <= self.free_bytes:
            return True
        state.note = (
            f"left out: its folds need about {needed[-1] / 1e6:,.0f} MB of disk space,"
            f" {max(0, self.free_bytes - sum(needed[:-1])) / 1e6:,.0f} MB are left"
        )
        return False

    def _disk_bytes(self, state: MemberState) -> int:
        folders = len(state.folds) + state.member.adapted
        return folders * self.speed.encoders[state.member.encoder or ""].disk_bytes

    def give_up_late_members(self, left_s: float, workers: int) -> None:
        """Have begun members that cannot end in time go on with fewer updates, or give them up for cheaper ones."""
        for state in self.states:
            if state.note or not state.waiting or not state.done or state.member.is_baseline:
                continue
            needed_s = time_needed(self.remaining(state), workers)
            if needed_s <= left_s or self._lower_updates(state, left_s, workers):
                continue
            if needed_s > _PATIENCE * max(left_s, 0.0):
                state.note = (
                    f"given up: its other folds need about {needed_s:.0f} s, {max(left_s, 0.0):.0f} s were left"
                )

    def _fine_tuned(self) -> list[MemberState]:
        """Return the fine-tuned members that are begun."""
        return [one for one in self.states if one.is_started and not one.member.is_baseline]

    def _lower_updates(
        self,
        state: MemberState,
        left_s: float,
        workers: int,
        others: Sequence[float] = (),
        share: float = _FEWEST_SHARE,
    ) -> bool:
        """Lower the updates of a fine-tuned member so that its waiting folds fit into the time left, if they can.

        The first fine-tuned member of one preferred encoder may have as few as 50, others the given share of the
        plan's; with share 0, 50.
        """
        planned = self.updates_of(state)
        if state.member.is_baseline or self.has_fixed_updates:
            return False

        def needed_s(updates: int) -> float:
            return time_needed([*others, *self.remaining(state, updates)], workers)

        has_rivals = bool(self._fine_tuned()) or len(self.preferred) > 1
        share = _EARLIEST_SHARE if state.done else share  # folds that are finished would be lost
        fewest = math.ceil(share * self.plan.updates) if has_rivals and share else FEWEST_UPDATES
        counts = range(min(fewest, planned), planned + 1)
        fitting = bisect.bisect_right(counts, _FILLED * self._safe(state, left_s), key=needed_s)
        if not fitting or counts[fitting - 1] == planned:
            return False
        state.updates = counts[fitting - 1]
        return True
