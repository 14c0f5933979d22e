"""Which member of `attentune auto` is trained next, and with how many updates, so that the time left is used.

Pure functions of the members' states and of the time left. A member that does not fit with the updates of the plan is
trained with fewer ones; one whose first folds took longer than predicted goes on with fewer. Only a member that does
not fit with half of the updates (a quarter, once some of its folds are finished) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attentune.automl.budget import (
    BudgetPlan,
    SpeedModel,
    fitting_updates,
    time_needed,
    with_fewer_updates,
)
from attentune.automl.members import REFIT_FOLDER
from attentune.automl.portfolio import Member
from attentune.runs.records import CUSTOM_TASK, RecordStore, Run, RunRecord
from attentune.training.prepare import ADAPTATION_UPDATES

# The fewest updates of a new member, as a share of the plan's.
_FEWEST_SHARE = 0.5
# The share of its updates after which a late fold may end early, and of the plan's with which a begun member goes on.
# Its learning rate has not fallen to zero by then, so the model is worse than a planned one, but its predictions out of
# fold tell how good it is; without them it is lost.
_EARLIEST_SHARE = 0.25
# Lowered updates are to end within this share of the time left; a started member is given up when even the fewest
# updates need more than this multiple of it.
_FILLED, _PATIENCE = 0.95, 1.2
# A baseline that seems to need up to this many times the time left is tried before that is left unused: predictions
# were measured when the machine may have been busier, and a baseline that does not end costs nothing else.
_LAST_TRY = 4.0
# The share of the time left that a fine-tuned member may take by a prediction that no finished run has corrected.
_UNCORRECTED = 0.85


# The number of the run that adapts a member's encoder, before its folds, and of a baseline's only one.
FIRST = 0
WEIGHTS_FILE = "model.safetensors"


@dataclass
class MemberState:
    """A member and its runs: one for each fold, from 1; a baseline has one, number 0, for all of them."""

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
    def done(self) -> list[int]:
        return [part for part in self.parts if part in self.records]

    @property
    def has_predictions(self) -> bool:
        """Whether all rows have an out-of-fold prediction."""
        return len(self.done) == len(self.parts)

    @property
    def is_complete(self) -> bool:
        """Whether all rows have an out-of-fold prediction and the files for delivery are there."""
        if not self.has_predictions:
            return False
        return self.member.is_baseline or all((folder / WEIGHTS_FILE).is_file() for folder in self.folders())

    @property
    def is_started(self) -> bool:
        return bool(self.running or self.records)

    @property
    def is_ready(self) -> bool:
        """Whether a worker can take its next run."""
        return bool(self.waiting) and FIRST not in self.running

    @property
    def seconds(self) -> float:
        return sum(self.records[part].wall_seconds for part in self.done)

    def run(self, number: int) -> Run:
        return Run(CUSTOM_TASK, None, self.member.name, self.seed + number)

    def run_folders(self) -> list[Path]:
        """Return the folders of the runs that have predicted rows."""
        return [self.store.run_folder(self.run(part)) for part in self.done]

    def folders(self) -> list[Path]:
        """Return the folders to deliver: the baseline fitted on all rows, if it is, else the models of all folds."""
        if not self.member.is_baseline:
            return self.run_folders()
        folder = self.store.run_folder(self.run(FIRST))
        whole = folder / REFIT_FOLDER
        return [whole] if whole.is_dir() else [folder / f"fold-{fold}" for fold in self.folds]


@dataclass
class Schedule:
    """The plan, the members and their speed."""

    plan: BudgetPlan  # folds, rows and updates
    speed: SpeedModel  # predicts and learns the seconds of folds
    has_fixed_updates: bool = False  # whether a user has set the epochs, which are then kept
    free_bytes: int | None = None  # the disk space for new folds of fine-tuned members; None if it is not limited
    states: list[MemberState] = field(default_factory=list)  # the members, in the order in which they are tried

    def updates_of(self, state: MemberState) -> int:
        """Return the updates of a member's next fold."""
        return state.updates or self.plan.updates

    def seconds(self, state: MemberState, updates: int | None = None) -> float:
        """Predict the seconds of one fold of a member, with its updates or others."""
        return self.speed.seconds(state.member, replace(self.plan, updates=updates or self.updates_of(state)))

    def remaining(self, state: MemberState, updates: int | None = None) -> list[float]:
        """Predict the seconds of each task of a member that is running or, with these updates, waiting."""
        seconds = self.seconds(state, updates)
        if state.member.is_baseline:
            return [seconds * (len(state.folds) + 1)] if state.waiting or state.running else []
        adaptation = [self.adaptation_seconds(state)] if FIRST in state.waiting else []
        folds = len(state.waiting) - len(adaptation)
        return [*adaptation, *[seconds] * folds, *[self.seconds(state) / 2] * len(state.running)]

    def ending_seconds(self, state: MemberState) -> float:
        """Predict the seconds of one fold of a fine-tuned member after its last update, at the speed of the probe."""
        return self.speed.ending_seconds(state.member, replace(self.plan, updates=self.updates_of(state)))

    def adaptation_seconds(self, state: MemberState) -> float:
        """Predict the seconds that the adaptation of a member's encoder takes."""
        return self.seconds(state, ADAPTATION_UPDATES)

    def fewest_updates(self, state: MemberState) -> int | None:
        """Return the updates after which a member's fold may end early when it is late; None if they are fixed."""
        return None if self.has_fixed_updates else math.ceil(_EARLIEST_SHARE * self.updates_of(state))

    def observe(self, state: MemberState, updates: int, seconds: float, load: float | None = None) -> None:
        """Learn from the measured seconds of one fold, and from the load of the machine meanwhile."""
        self.speed.observe(state.member, replace(self.plan, updates=updates), seconds, load)

    def next_member(self, left_s: float, workers: int) -> MemberState | None:
        """Return the member whose next fold is to be trained; None if none fits into the time left.

        Members that are begun come first, then the first one that fits, then the first that fits with fewer updates. A
        member whose encoder is adapted, for which the plan keeps time, may have fewer updates at its turn.
        """
        open_states = [state for state in self.states if not state.note]
        begun = [state for state in open_states if state.is_started]
        waiting = [state for state in begun if state.is_ready]
        if waiting:
            return waiting[0]
        others = [part for state in begun for part in self.remaining(state)]
        new = [state for state in open_states if not state.is_started and state.waiting and self._has_disk_space(state)]
        for state in new:
            if time_needed([*others, *self.remaining(state)], workers) <= self._safe(state, left_s):
                return state
            if state.member.adapted and self._lower_updates(state, left_s, workers, others):
                return state
        # Asked again later: the prediction may change.
        return next((state for state in new if self._lower_updates(state, left_s, workers, others)), None)

    def last_try(self, left_s: float) -> MemberState | None:
        """Return the cheapest baseline that has not begun, where nothing else fits into the time left."""
        waiting = [
            state
            for state in self.states
            if state.member.is_baseline and state.waiting and not state.note and not state.is_started
        ]
        cheapest = min(waiting, key=lambda state: sum(self.remaining(state)), default=None)
        if cheapest is None or sum(self.remaining(cheapest)) > _LAST_TRY * left_s:
            return None
        return cheapest

    def _safe(self, state: MemberState, left_s: float) -> float:
        """Return the part of the time left that predictions of a member may fill."""
        is_safe = state.member.is_baseline or self.speed.is_corrected(state.member)
        return left_s if is_safe else _UNCORRECTED * left_s

    def _has_disk_space(self, state: MemberState) -> bool:
        """Whether the disk has room for a new member's folds, beside those that are begun; if not, leave it out."""
        if self.free_bytes is None or state.member.is_baseline:
            return True
        begun = [one for one in self.states if one.is_started and not one.member.is_baseline]
        needed = [self._disk_bytes(one) for one in (*begun, state)]
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

    def lower_plan(self, left_s: float, workers: int) -> str | None:
        """Lower the plan's updates if no fine-tuned member has begun, and none fits into the time left any more.

        Baselines took longer than was predicted, or the machine has other work. Returns a note if they were lowered.
        """
        fine_tuned = [state for state in self.states if not state.member.is_baseline and not state.note]
        if self.has_fixed_updates or not fine_tuned or any(state.is_started for state in fine_tuned):
            return None

        def needed_s(updates: int) -> float:
            return time_needed(self.remaining(fine_tuned[0], updates), workers)

        plan = with_fewer_updates(self.plan, needed_s, self._safe(fine_tuned[0], left_s))
        if plan is None or plan == self.plan:
            return None
        self.plan = plan
        return plan.notes[-1]

    def _lower_updates(self, state: MemberState, left_s: float, workers: int, others: Sequence[float] = ()) -> bool:
        """Lower the updates of a fine-tuned member so that its waiting folds fit into the time left, if they can."""
        planned = self.updates_of(state)
        if state.member.is_baseline or self.has_fixed_updates:
            return False

        def needed_s(updates: int) -> float:
            return time_needed([*others, *self.remaining(state, updates)], workers)

        share = _EARLIEST_SHARE if state.done else _FEWEST_SHARE  # folds that are finished would be lost
        fewest = math.ceil(share * self.plan.updates)
        updates = fitting_updates(planned, needed_s, _FILLED * self._safe(state, left_s), fewest=fewest)
        if updates is None or updates >= planned:
            return False
        state.updates = updates
        return True
