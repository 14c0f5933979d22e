"""What a search has to do next: takes in the records of runs, ends trials, and begins others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import flatten
from attentune.errors import ConfigError
from attentune.experiments.comparison.grid import Run, RunGrid
from attentune.experiments.comparison.manifest import LOCKS
from attentune.experiments.comparison.record_store import RecordStore, RunRecord
from attentune.experiments.execution.worker import WorkerTask
from attentune.experiments.search.selection import TrialOutcome, part_scores
from attentune.experiments.search.settings import TrialSettings
from attentune.experiments.search.study import SearchStudy
from attentune.experiments.search.trial import Rows, SearchTrainer
from attentune.io.locks import FileLock


@dataclass
class SearchPlan:
    """The runs of a search; see `conductor.Plan`.

    A trial's first seed is run first. Where it is pruned or fails, the others are not run.

    Attributes:
        study: its trials.
        settings: what is common to them.
        rows: what is trained on and scored.
        seeds: of each trial's runs.
        one_run: whether a worker ends after a run.
    """

    study: SearchStudy
    settings: TrialSettings
    rows: Rows
    seeds: Sequence[int]
    one_run: bool = True

    def __post_init__(self) -> None:
        self.record_store = RecordStore(Path(self.study.storage_config.folder))
        self._matrices: dict[str, RunGrid] = {}
        self._problems: dict[str, str] = {}
        self._trials: list[TrialOutcome] = []
        # By trial, the seeds that may be run by now.
        self._wanted: dict[str, list[int]] = {}
        self._lock = FileLock(Path(self.study.storage_config.folder) / LOCKS / "search")
        self._task = self.settings.task()

    @property
    def grid(self) -> RunGrid:
        """The runs that may be done by now, and those that are recorded."""
        runs: list[Run] = []
        for trial in self._trials:
            seeds = self._wanted[trial.name]
            runs += [run for run in self._runs(trial) if run.seed in seeds or self.record_store.has(run)]
        configs = {name: content for grid in self._matrices.values() for name, content in grid.configs.items()}
        return RunGrid(tuple(runs), configs, {})

    @property
    def later(self) -> Sequence[Run]:
        """Runs of trials that have not been drawn, and further seeds of those that have."""
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

    def advance(self, free: int, running: Collection[Run]) -> None:
        """Take in what has been recorded, and begin trials so that `free` more workers have something to do."""
        with self._lock:
            self._take_in_all()
            while self._waiting(running) < free and self.study.add():
                self._take_in_all()

    def task(self) -> WorkerTask:
        """The runs that are not recorded, and their settings."""
        grid = self.grid
        runs = [run for run in grid.runs if not self.record_store.has(run)]
        return WorkerTask(
            storage_config=dataclasses.asdict(self.study.storage_config),
            runs=[dataclasses.asdict(run) for run in runs],
            configs={run.method: grid.configs[run.method] for run in runs},
            one_run=self.one_run,
            trainer=f"{SearchTrainer.__module__}:{SearchTrainer.__name__}",
            trainer_options={
                "rows": dataclasses.asdict(self.rows),
                "sampler": dataclasses.asdict(self.study.draws),
                "criterion": dataclasses.asdict(self.study.choice),
                "first_seed": self.seeds[0],
            },
        )

    def retry_failed(self) -> None:
        """Begin failed trials again; their failed runs are forgotten."""
        with self._lock:
            for trial in self.study.trials():
                if trial.status == "failed":
                    for run in self._runs(trial):
                        if self.record_store.has(run) and self.record_store.load(run).status == "failed":
                            self.record_store.forget(run)
                    self.study.retry(trial.name)

    def describe(self, run: Run) -> str:
        """A run by its trial's values."""
        point = next((trial.params for trial in self._trials if trial.name == run.method), {})
        seed = f", seed {run.seed}" if len(self.seeds) > 1 else ""
        return f"{run.method}, {point_text(point)}{seed}"

    def _take_in_all(self) -> None:
        self._trials = self.study.trials()
        for trial in self._trials:
            self._wanted[trial.name] = []
            if trial.status == "running":
                self._take_in(trial)
        self._trials = self.study.trials()

    def _take_in(self, trial: TrialOutcome) -> None:
        """Note what is recorded of a trial, and end it where nothing more is to come."""
        results = self.study.results(trial.name)
        for run in self._runs(trial):
            if run.seed not in results and self.record_store.has(run) and not self.record_store.lock(run).is_held():
                record = self.record_store.load(run)
                if not self._is_of(record, trial):  # the study was lost, and drawn anew
                    self.record_store.forget(run)
                    continue
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

    def _is_of(self, record: RunRecord, trial: TrialOutcome) -> bool:
        """Whether the record is of a run with the trial's settings."""
        flat = self._matrices[trial.name].configs[trial.name][self._task]
        recorded = flatten(record.config)
        return all(recorded.get(name) == flat[name] for name in trial.settings)

    def _end(self, trial: TrialOutcome, results: Sequence[dict[str, Any]]) -> None:
        statuses = [result["status"] for result in results]
        if all(status == "done" for status in statuses):
            value = self.study.choice.value([score for result in results for score in result["scores"]])
            self.study.finish(trial.name, "done", value)
        else:
            self.study.finish(trial.name, "failed" if "failed" in statuses else "pruned")

    def _scored(self, record: RunRecord) -> dict[str, Any]:
        """What the study is to know of a run."""
        if not record.is_done:
            error = record.error or {}
            message = str(error.get("message") or error.get("kind") or "")
            return _result(record.status, message=message, seconds=record.wall_seconds)
        choice = self.study.choice
        scores = [record.score]
        if choice.rule == "three-parts":
            name = record.predictions[next(split for split in record.predictions if split.startswith("validation"))]
            text = self.record_store.file(record.run).with_name(name).read_text(encoding="utf-8")
            scores = [*part_scores(text, choice.metric, self.rows.seed)]
        numbers = [score for score in scores if score is not None]
        if len(numbers) < len(scores) or choice.value(numbers) is None:
            message = f"its {choice.metric} is undefined, as that of constant predictions"
            return _result("failed", message=message, seconds=record.wall_seconds)
        return _result("done", scores=numbers, seconds=record.wall_seconds)

    def _runs(self, trial: TrialOutcome) -> tuple[Run, ...]:
        if trial.name not in self._matrices:
            try:
                self._matrices[trial.name] = self.settings.grid(trial.name, trial.settings, self.seeds)
            except ConfigError as error:  # values that are right one by one, and wrong together
                self._problems[trial.name] = " ".join(error.problems)
                self._matrices[trial.name] = RunGrid((), {}, {})
        return self._matrices[trial.name].runs

    def _waiting(self, running: Collection[Run]) -> int:
        """Runs that nobody is at."""
        open_runs = [run for run in self.grid.runs if not self.record_store.has(run)]
        return sum(run not in running and not self.record_store.lock(run).is_held() for run in open_runs)


def _result(status: str, *, scores: Sequence[float] = (), message: str = "", seconds: float = 0.0) -> dict[str, Any]:
    return {"status": status, "scores": [*scores], "message": message, "seconds": seconds}


def point_text(point: dict[str, Any]) -> str:
    """ "learning_rate 2e-05, beta 0.5"."""
    return ", ".join(f"{name.split('.')[-1]} {value_text(value)}" for name, value in point.items())


def value_text(value: Any) -> str:
    """A value as it is shown: four digits of a number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)
