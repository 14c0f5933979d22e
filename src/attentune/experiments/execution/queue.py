"""The queue of a comparison's runs: an Optuna study whose trials are the runs.

By default the study is a journal file in the comparison's folder, for the processes of one machine; a database URL
shares it between machines. The records on disk determine which runs are done; the study, which ones wait or run.

The run of a killed worker is queued again. On this machine its lock shows that the worker is gone (the kernel frees
it), on other machines Optuna's heartbeats. If a run has several trials, the oldest live one counts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from attentune.experiments.comparison.fingerprints import check_unchanged
from attentune.experiments.comparison.grid import Run
from attentune.experiments.comparison.manifest import LOCATION_SETTINGS, Methods, check_same, merge, queue_lock
from attentune.experiments.comparison.record_store import RecordStore
from attentune.experiments.execution.queue_storage import (
    StorageConfig,
    open_storage,
    queue_storage_errors,
    without_warnings,
)
from attentune.io.locks import FileLock

# Outcomes after which a run is not repeated.
_SCORED = ("done", "pruned")
_ALIVE = (TrialState.WAITING, TrialState.RUNNING)


class _RecordedFailure(Exception):
    """A run failed and was recorded."""


@dataclass
class QueueStatus:
    """The status of a comparison's runs.

    Attributes:
        recorded: runs with a record in this folder.
        elsewhere: runs recorded in another folder, mapped to that folder.
        running: runs in progress, here or on another machine.
        waiting: queued runs.
        duplicates: runs that were executed twice, mapped to the place of the second execution.
    """

    recorded: list[Run] = field(default_factory=list)
    elsewhere: dict[Run, str] = field(default_factory=dict)
    running: list[Run] = field(default_factory=list)
    waiting: list[Run] = field(default_factory=list)
    duplicates: dict[str, str] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether every run is recorded somewhere."""
        return not self.running and not self.waiting


class RunQueue:
    """Gives each run of a comparison to one worker."""

    def __init__(self, storage_config: StorageConfig) -> None:
        """Open the study, or create it.

        Raises:
            ConfigError: the URL cannot be used.
            StorageError: the storage cannot be reached, read or written to.
        """
        self.storage_config = storage_config
        self.record_store = RecordStore(Path(storage_config.folder))
        self._lock = queue_lock(Path(storage_config.folder))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with queue_storage_errors(self.storage_config):
            self._study = optuna.create_study(
                study_name=storage_config.study,
                storage=open_storage(storage_config),
                sampler=optuna.samplers.RandomSampler(seed=0),
                load_if_exists=True,
            )

    def register_settings(self, methods: Methods, data_fingerprints: Mapping[str, str] | None = None) -> None:
        """Store the methods' settings and the data fingerprints in a shared study, for other machines to check.

        Raises:
            CheckpointError: the study has other settings of the same methods, or other data or encoders.
        """
        if self.storage_config.storage is None:
            return
        with queue_storage_errors(self.storage_config):
            facts, where = self._study.user_attrs, f"the study {self.storage_config.study!r}"
            known = {
                name.removeprefix("method "): json.loads(value)
                for name, value in facts.items()
                if name.startswith("method ")
            }
            check_same(known, methods, where, free=LOCATION_SETTINGS)
            check_unchanged(facts, data_fingerprints or {}, where)
            for name in data_fingerprints or {}:
                self._study.set_user_attr(name, (data_fingerprints or {})[name])
            merged = merge(known, methods)
            for name in methods:
                self._study.set_user_attr(f"method {name}", json.dumps(merged[name]))

    def refill(self, runs: Sequence[Run], *, retry_failed: bool = False) -> QueueStatus:
        """Queue each run that is neither recorded, running nor waiting, those of killed workers included.

        Args:
            runs: the comparison's runs.
            retry_failed: also queue runs that another folder has recorded as failed.
        """
        with queue_storage_errors(self.storage_config), self._lock:
            without_warnings(fail_stale_trials, self._study)
            trials: dict[str, list[FrozenTrial]] = {}
            for trial in self.trials():
                trials.setdefault(trial.user_attrs.get("run", ""), []).append(trial)
            queue_status = QueueStatus(duplicates=self._duplicates())
            for run in runs:
                self._update_status(run, trials.get(run.name, []), queue_status, retry_failed)
            for trial in trials.get("", []):
                self._fail_if_lost(trial, is_held=False)
        return queue_status

    def _update_status(
        self, run: Run, trials: list[FrozenTrial], queue_status: QueueStatus, retry_failed: bool
    ) -> None:
        """Add a run to its list in `queue_status`; queue it if it is in none."""
        is_held = self.record_store.lock(run).is_held()
        alive = [trial for trial in trials if trial.state in _ALIVE and not self._fail_if_lost(trial, is_held=is_held)]
        done = next(self._elsewhere(trials, _SCORED if retry_failed else (*_SCORED, "failed")), None)
        if self.record_store.has(run) and not is_held:
            queue_status.recorded.append(run)
        elif is_held or any(trial.state == TrialState.RUNNING for trial in alive):
            queue_status.running.append(run)
        elif alive:
            queue_status.waiting.append(run)
        elif done is not None:
            queue_status.elsewhere[run] = done
        else:
            self.enqueue(run.name, {"task": run.task, "size": run.size, "method": run.method, "seed": run.seed})
            queue_status.waiting.append(run)

    def run_next(self, runs: dict[str, Run], execute: Callable[[Run], str]) -> bool:
        """Execute one of these runs if one is waiting; return False if none is.

        Args:
            runs: by name; other waiting runs are left to the commands that queued them.
            execute: executes the run and returns "done", "pruned", "failed", or "duplicate" if another process
                recorded it in the meantime.
        """
        with queue_storage_errors(self.storage_config), contextlib.ExitStack() as held:
            held.enter_context(self._lock)
            if not any(trial.user_attrs.get("run") in runs for trial in self.trials(TrialState.WAITING)):
                return False
            taken: list[Trial] = []
            try:
                self._study.optimize(
                    lambda trial: self._run_trial(trial, runs, execute, held, taken),
                    n_trials=1,
                    catch=(_RecordedFailure,),
                )
            except (ValueError, UpdateFinishedTrialError):
                if not taken or self._state(taken[0]) in _ALIVE:
                    raise
                # This worker's heartbeats were missing, so another worker was given the run.
                self._note_duplicate(taken[0].user_attrs["run"])
        return True

    def _run_trial(
        self,
        trial: Trial,
        runs: dict[str, Run],
        execute: Callable[[Run], str],
        held: contextlib.ExitStack,
        taken: list[Trial],
    ) -> float:
        """Execute the run of this trial while holding the run's lock; release `held`, the queue's lock, first."""
        began = time.perf_counter()
        name = trial.user_attrs.get("run")
        run = runs.get(str(name))
        if run is None:  # another command's run, which it queues again
            raise optuna.TrialPruned
        lock = self.record_store.lock(run)
        if not lock.take(wait=False):
            raise optuna.TrialPruned
        with contextlib.closing(_ReleaseOnClose(lock)):
            # The host last: if the worker is killed in between, a stored host implies the other attributes.
            trial.set_user_attr("where", f"{platform.node()}:{Path(self.storage_config.folder).resolve()}")
            trial.set_user_attr("folder", self.storage_config.folder_id)
            trial.set_user_attr("host", platform.node())
            if self.record_store.has(run) or self._is_others(trial, str(name)):
                raise optuna.TrialPruned
            held.close()
            taken.append(trial)
            outcome = execute(run)
            if outcome == "duplicate":
                self._note_duplicate(str(name))
                raise optuna.TrialPruned
            trial.set_user_attr("outcome", outcome)
            if outcome == "failed":
                raise _RecordedFailure
        return time.perf_counter() - began

    def _is_others(self, trial: Trial, name: str) -> bool:
        """Return whether another trial of the run is done or alive and older: two machines may have queued it."""
        others = [other for other in self.trials() if other.user_attrs.get("run") == name]
        is_done = next(self._elsewhere(others, _SCORED), None) is not None
        return is_done or any(other.state in _ALIVE and other.number < trial.number for other in others)

    def _elsewhere(self, trials: list[FrozenTrial], outcomes: tuple[str, ...]) -> Iterator[str]:
        """Yield the other folders in which the run of these trials is recorded with one of these outcomes."""
        for trial in trials:
            facts = trial.user_attrs
            if facts.get("outcome") in outcomes and facts["folder"] != self.storage_config.folder_id:
                yield str(facts["where"])

    def enqueue(self, name: str, fixed: dict[str, Any]) -> None:
        """Add a waiting trial for this run, whose parameters are fixed to these values."""
        self._study.enqueue_trial(fixed, user_attrs={"run": name})

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in these states; all trials if none is given."""
        return self._study.get_trials(deepcopy=False, states=states or None)

    def _state(self, trial: Trial) -> TrialState:
        return next(other.state for other in self.trials() if other.number == trial.number)

    def _fail_if_lost(self, trial: FrozenTrial, *, is_held: bool) -> bool:
        """Return whether the trial's worker process is gone; if so, mark the trial as failed."""
        facts = trial.user_attrs
        if trial.state != TrialState.RUNNING or is_held:
            return False
        if self.storage_config.storage is None:
            is_lost = True
        elif "host" in facts:
            is_lost = (facts["host"], facts["folder"]) == (platform.node(), self.storage_config.folder_id)
        else:
            # Its worker died before the first heartbeat.
            began = trial.datetime_start or datetime.datetime.min
            is_lost = (datetime.datetime.now() - began).total_seconds() > self.storage_config.grace_s
        if is_lost:
            with contextlib.suppress(ValueError, UpdateFinishedTrialError):  # it has ended in the meantime
                self._study.tell(trial.number, state=TrialState.FAIL)
        return is_lost

    def _duplicates(self) -> dict[str, str]:
        facts = self._study.user_attrs.items()  # "twice " is the prefix in stored studies
        return {name.removeprefix("twice "): str(where) for name, where in facts if name.startswith("twice ")}

    def _note_duplicate(self, name: str) -> None:
        self._study.set_user_attr(f"twice {name}", f"{platform.node()}:{self.storage_config.folder}")


class _ReleaseOnClose:
    """Releases a lock when closed."""

    def __init__(self, lock: FileLock) -> None:
        self.close = lock.free
