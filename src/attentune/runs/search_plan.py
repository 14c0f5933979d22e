"""The plan of a search: reads the records of runs, ends trials, and starts others."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.config import flatten
from attentune.errors import ConfigError
from attentune.runs.grid import Run, RunGrid
from attentune.runs.records import RecordStore, RunRecord
from attentune.runs.records import log_facts
from attentune.runs.worker import RunTask
from attentune.runs.selection import TrialOutcome, part_scores, prediction_loss
from attentune.runs.search_settings import TrialSettings
from attentune.runs.study import SearchStudy
from attentune.runs.trial import Rows, SearchTrainer
from attentune.results import SEARCH_FILE


@dataclass
class SearchPlan:
    """The runs of a search, as a `driver.Plan`.

    A trial's first seed is run first. If it is pruned or fails, the others are not run.
    """

    study: SearchStudy  # the trials
    settings: TrialSettings  # the settings of all trials
    rows: Rows  # the rows that they are trained and scored on
    seeds: Sequence[int]  # the seeds of each trial's runs

    def __post_init__(self) -> None:
        self.record_store = RecordStore(self.study.folder)
        self._grids: dict[str, RunGrid] = {}
        self._problems: dict[str, str] = {}
        self._trials: list[TrialOutcome] = []
        # Maps a trial to the seeds that may run now.
        self._wanted: dict[str, list[int]] = {}
        self._given: set[Run] = set()
        self._task = self.settings.task()

    @property
    def grid(self) -> RunGrid:
        """The runs that may start now, and those that are recorded."""
        runs: list[Run] = []
        for trial in self._trials:
            seeds = self._wanted[trial.name]
            runs += [run for run in self._runs(trial) if run.seed in seeds or self.record_store.has(run)]
        configs = {name: content for grid in self._grids.values() for name, content in grid.configs.items()}
        return RunGrid(tuple(runs), configs, {})

    @property
    def later(self) -> Sequence[Run]:
        """Runs of trials that have not been sampled yet, and further seeds of running trials."""
        known = set(self.grid.runs)
        further = [run for trial in self._running for run in self._runs(trial) if run not in known]
        missing = max(0, self.study.total - len(self._trials))
        return [*further, *(Run(self._task, None, "later", seed) for _ in range(missing) for seed in self.seeds)]

    @property
    def is_complete(self) -> bool:
        """Whether all trials have ended."""
        return not self._running and len(self._trials) >= self.study.total

    @property
    def _running(self) -> list[TrialOutcome]:
        return [trial for trial in self._trials if trial.status == "running"]

    def update_trials(self, running: Collection[Run]) -> None:
        """Read the records that are there, and end trials."""
        self._trials = self.study.trials()
        for trial in self._trials:
            self._wanted[trial.name] = []
            if trial.status == "running":
                self._update_trial(trial)
        if self.study.sampler_config.pruner != "none":
            for run in running:
                if run.seed == self.seeds[0]:
                    self._report(run.method, log_facts(self.record_store.run_folder(run))["scored"])
        self._trials = self.study.trials()

    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        """Process new records, and start trials so that `free` more runs can start; return the new runs."""
        self.update_trials(running)
        while self._waiting(running) < free and self.study.add():
            self.update_trials(running)
        new = [run for run in self.grid.runs if run not in self._given]
        self._given.update(new)
        return new

    def task(self, run: Run) -> RunTask:
        """Return what a worker needs to execute a run."""
        folder = str(self.study.folder.absolute())
        trainer = SearchTrainer(folder, self.rows, self.study.sampler_config, self.study.criterion, self.seeds[0])
        return RunTask(folder, SEARCH_FILE, run, self._grids[run.method].configs[run.method][run.task], trainer)

    def retry_failed(self) -> None:
        """Start failed trials again; the records of their failed runs are removed."""
        for trial in self.study.trials():
            if trial.status == "failed":
                for run in self._runs(trial):
                    if self.record_store.has(run) and self.record_store.load(run).status == "failed":
                        self.record_store.forget(run)
                self.study.retry(trial.name)

    def describe(self, run: Run) -> str:
        """Return a description of a run: its trial, the trial's values, and the seed if there are several."""
        point = next((trial.params for trial in self._trials if trial.name == run.method), {})
        seed = f", seed {run.seed}" if len(self.seeds) > 1 else ""
        return f"{run.method}, {point_text(point)}{seed}"

    def loss(self, trial: TrialOutcome) -> float | None:
        """Return a finished trial's mean loss on the scored rows; None where predictions have no probabilities."""
        records = [self.record_store.load(run) for run in self._runs(trial) if self.record_store.has(run)]
        losses = [prediction_loss(self._predictions(record)) for record in records if record.is_done]
        known = [loss for loss in losses if loss is not None]
        return statistics.fmean(known) if known else None

    def _update_trial(self, trial: TrialOutcome) -> None:
        """Store the results of a trial's new records, and end the trial if it has no more runs."""
        results = self.study.results(trial.name)
        for run in self._runs(trial):
            if run.seed not in results and self.record_store.has(run) and not self.record_store.lock(run).is_held():
                record = self.record_store.load(run)
                if not self._is_of(record, trial):  # the study was lost and its trials were sampled again
                    self.record_store.forget(run)
                    continue
                if run.seed == self.seeds[0]:
                    self._report(trial.name, record.scored)
                results[run.seed] = self._scored(record)
                self.study.note(trial.name, run.seed, results[run.seed])
        if trial.name in self._problems:
            results[self.seeds[0]] = _result("failed", message=self._problems[trial.name])
            self.study.note(trial.name, self.seeds[0], results[self.seeds[0]])
        first = results.get(self.seeds[0])
        wanted = [*self.seeds] if first is not None and first["status"] == "done" else [self.seeds[0]]
        if all(seed in results for seed in wanted):
            self._end(trial, [results[seed] for seed in wanted])
        else:
            self._wanted[trial.name] = wanted

    def _report(self, trial: str, scored: Sequence[Mapping[str, Any]]) -> None:
        """Store the scores during a trial's first run, by which other trials are pruned."""
        splits = [next(part for part in line.values() if isinstance(part, dict)) for line in scored]
        values = [scores.get(self.study.criterion.metric) for scores in splits]
        self.study.report(trial, {count: value for count, value in enumerate(values, 1) if value is not None})

    def _is_of(self, record: RunRecord, trial: TrialOutcome) -> bool:
        """Return whether the record's run has the trial's settings."""
        flat = self._grids[trial.name].configs[trial.name][self._task]
        recorded = flatten(record.config)
        return all(recorded.get(name) == flat[name] for name in trial.settings)

    def _end(self, trial: TrialOutcome, results: Sequence[dict[str, Any]]) -> None:
        statuses = [result["status"] for result in results]
        if all(status == "done" for status in statuses):
            value = self.study.criterion.value([score for result in results for score in result["scores"]])
            self.study.finish(trial.name, "done", value)
        else:
            self.study.finish(trial.name, "failed" if "failed" in statuses else "pruned")

    def _scored(self, record: RunRecord) -> dict[str, Any]:
        """Return the result of a run for the study."""
        if not record.is_done:
            error = record.error or {}
            message = str(error.get("message") or error.get("kind") or "")
            return _result(record.status, message=message, seconds=record.wall_seconds)
        criterion = self.study.criterion
        scores = [record.score]
        if criterion.rule == "three-parts":
            scores = [*part_scores(self._predictions(record), criterion.metric, self.rows.seed)]
        numbers = [score for score in scores if score is not None]
        if len(numbers) < len(scores) or criterion.value(numbers) is None:
            message = f"its {criterion.metric} is undefined, as that of constant predictions"
            return _result("failed", message=message, seconds=record.wall_seconds)
        return _result("done", scores=numbers, seconds=record.wall_seconds)

    def _predictions(self, record: RunRecord) -> str:
        """Return the predictions of the scored rows, as CSV text."""
        name = record.predictions[next(split for split in record.predictions if split.startswith("validation"))]
        return self.record_store.file(record.run).with_name(name).read_text(encoding="utf-8")

    def _runs(self, trial: TrialOutcome) -> tuple[Run, ...]:
        if trial.name not in self._grids:
            try:
                self._grids[trial.name] = self.settings.grid(trial.name, trial.settings, self.seeds)
            except ConfigError as error:  # each value is valid, but not their combination
                self._problems[trial.name] = " ".join(error.problems)
                self._grids[trial.name] = RunGrid((), {}, {})
        return self._grids[trial.name].runs

    def _waiting(self, running: Collection[Run]) -> int:
        """Return the number of runs that are neither recorded nor running."""
        open_runs = [run for run in self.grid.runs if not self.record_store.has(run)]
        return sum(run not in running and not self.record_store.lock(run).is_held() for run in open_runs)


def _result(status: str, *, scores: Sequence[float] = (), message: str = "", seconds: float = 0.0) -> dict[str, Any]:
    return {"status": status, "scores": [*scores], "message": message, "seconds": seconds}


def point_text(point: dict[str, Any]) -> str:
    """Format a point, such as "learning_rate 2e-05, beta 0.5"."""
    return ", ".join(f"{name.split('.')[-1]} {value_text(value)}" for name, value in point.items())


def value_text(value: Any) -> str:
    """Format a value; numbers get four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)
