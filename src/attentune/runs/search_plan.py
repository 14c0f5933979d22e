"""The runs of a search: the rows that they see, when one is pruned, and which trials start and end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import Config, flatten
from attentune.data.dataset import TaskData
from attentune.data.load import load_data
from attentune.data.splits import split_rows, stratified_folds, stratified_sample
from attentune.errors import ConfigError, DataError
from attentune.metrics.metrics import METRICS
from attentune.results import SEARCH_FILE, RunResult
from attentune.runs.driver import Plan
from attentune.runs.grid import RunGrid
from attentune.runs.records import (
    Predictions,
    RecordStore,
    Run,
    RunRecord,
    log_facts,
    read_predictions,
    read_probabilities,
)
from attentune.runs.search_settings import SamplerConfig, SelectionCriterion, TrialSettings
from attentune.runs.space import Space
from attentune.runs.study import SearchStudy, TrialOutcome
from attentune.runs.worker import RunTask
from attentune.training.callbacks import Scores, TrainingCallback
from attentune.training.run_folder import Pruned
from attentune.training.callbacks import TrainingState

PARTS = 3
_SMALLEST = 1e-6  # probabilities are written with six decimals


@dataclass(frozen=True)
class Rows:
    """The rows that a search trains on and scores."""

    score_on: str = "train"  # "train" scores on held-out training rows; "dev", on the task's validation rows
    share: float = 0.2  # the share of the training rows that is held out
    seed: int = 42  # the seed of the split and of subsamples

    def load(self, config: Config) -> TaskData:
        """Load the rows: the same for every trial and seed, without extra files, which `train` adds."""
        data_config = replace(config.data, extra_train_files=None, extra_train_weights=None)
        if self.score_on == "dev":
            return load_data(data_config, seed=self.seed, splits=("train", "validation"))
        data = load_data(data_config, seed=self.seed, splits=("train",))
        train = data.splits["train"]
        if train.labels is None or len(train) < 2:
            raise DataError(f"{data.name}: has {len(train)} labelled training rows, so none can be cut to score on.")
        remaining, held_out, kept = split_rows(train, self.share, self.seed, "search")
        scored, limit = train.take(held_out), config.data.max_eval_samples
        if limit is not None and limit < len(scored):
            scored = scored.take(stratified_sample(scored.labels, limit, self.seed, "part", "search"))
        note = (
            f"Trials are scored on {len(scored)} of the {len(train)} training rows, cut from them (search_share"
            f" {self.share:g}, stratified, seed {self.seed}), and trained on {len(remaining)}. Dev is not looked"
            f" at.{kept}"
        )
        return replace(data, splits={"train": train.take(remaining), "validation": scored}, notes=(*data.notes, note))


@dataclass(frozen=True)
class SearchTrainer:
    """Trains the runs of a search in a worker process."""

    folder: str  # the search's folder
    rows: Rows
    sampling: SamplerConfig
    criterion: SelectionCriterion
    first_seed: int  # the seed whose runs may be pruned

    def __call__(self, run: Run, config: Config) -> RunResult:
        from attentune.training.run import train

        may_prune = self.sampling.pruner != "none" and run.seed == self.first_seed
        callbacks = [PruningCallback(self, run.method, config)] if may_prune else []
        return train(config, data=self.rows.load(config), callbacks=callbacks, with_baselines=False)


class PruningCallback(TrainingCallback):
    """Raises `Pruned` after a validation score that is worse than those of other trials."""

    def __init__(self, trainer: SearchTrainer, trial: str, config: Config) -> None:
        self._trainer, self._trial, self._config = trainer, trial, config
        self._scores: dict[int, float] = {}

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        trainer, metric = self._trainer, self._trainer.criterion.metric
        score = next(iter(scores.values()))[metric]
        # The number of scores so far, including those before the run was resumed.
        count = state.epoch + (state.step_in_epoch > 0)
        if self._config.training.eval_strategy == "steps":
            count = -(-state.step // (self._config.training.eval_steps or 1))
        if score is None:
            return
        self._scores[count] = score
        if is_last:
            return
        # Opened each time, as other trials go on.
        study = SearchStudy(Path(trainer.folder), Space(), trainer.sampling, trainer.criterion, read_only=True)
        if study.is_worse(self._trial, self._scores):
            times = "once" if count == 1 else f"{count} times"
            raise Pruned(f"{metric} {score:.4f} when scored {times}, worse than others by then")


@dataclass
class SearchPlan(Plan):
    """The runs of a search.

    A trial's first seed is run first. If it is pruned or fails, the others are not run.
    """

    study: SearchStudy
    settings: TrialSettings
    rows: Rows
    seeds: Sequence[int]  # the seeds of each trial's runs

    def __post_init__(self) -> None:
        self.record_store = RecordStore(self.study.folder)
        self._grids: dict[str, RunGrid] = {}
        self._problems: dict[str, str] = {}
        self._trials: list[TrialOutcome] = []
        # Maps a trial to the seeds that may run now.
        self._wanted: dict[str, list[int]] = {}
        self._results: dict[Run, dict[str, Any]] = {}
        self._given: set[Run] = set()
        self._task = self.settings.task()

    @property
    def runs(self) -> list[Run]:
        """The runs that may start now, and those that are recorded."""
        return [
            run
            for trial in self._trials
            for run in self._runs(trial)
            if run.seed in self._wanted[trial.name] or self.record_store.has(run)
        ]

    @property
    def later(self) -> Sequence[Run]:
        """Runs of trials that have not been sampled yet, and further seeds of running trials."""
        known = set(self.runs)
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
        if self.study.sampling.pruner != "none":
            for run in running:
                if run.seed == self.seeds[0]:
                    self._report(run.method, log_facts(self.record_store.run_folder(run))["scored"])
        self._trials = self.study.trials()

    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        """Process new records, and start trials so that `free` more runs can start; return the new runs."""
        self.update_trials(running)
        while self._count_waiting(running) < free and self.study.add():
            self.update_trials(running)
        new = [run for run in self.runs if run not in self._given]
        self._given.update(new)
        return new

    def task(self, run: Run) -> RunTask:
        """Return what a worker needs to execute a run."""
        folder = str(self.study.folder.absolute())
        trainer = SearchTrainer(folder, self.rows, self.study.sampling, self.study.criterion, self.seeds[0])
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
        values = ", ".join(f"{name.split('.')[-1]} {value_text(value)}" for name, value in point.items())
        return f"{run.method}, {values}" + (f", seed {run.seed}" if len(self.seeds) > 1 else "")

    def loss(self, trial: TrialOutcome) -> float | None:
        """Return a finished trial's mean loss on the scored rows; None where predictions have no probabilities."""
        records = [self.record_store.load(run) for run in self._runs(trial) if self.record_store.has(run)]
        losses = [prediction_loss(self._predictions_file(record)) for record in records if record.is_done]
        known = [loss for loss in losses if loss is not None]
        return statistics.fmean(known) if known else None

    def _update_trial(self, trial: TrialOutcome) -> None:
        """Take in the trial's new records, and end it if it has no more runs."""
        results = {run.seed: result for run in self._runs(trial) if (result := self._result(run, trial)) is not None}
        if trial.name in self._problems:
            results[self.seeds[0]] = _result("failed", message=self._problems[trial.name])
        first = results.get(self.seeds[0])
        wanted = [*self.seeds] if first is not None and first["status"] == "done" else [self.seeds[0]]
        if not all(seed in results for seed in wanted):
            self._wanted[trial.name] = wanted
            return
        ended = [results[seed] for seed in wanted]
        statuses = {result["status"] for result in ended}
        scores = [score for result in ended for score in result["scores"]]
        status = "failed" if "failed" in statuses else "pruned" if "pruned" in statuses else "done"
        self.study.finish(
            trial.name,
            status,
            self.study.criterion.value(scores) if status == "done" else None,
            scores=scores,
            seconds=sum(result["seconds"] for result in ended),
            message=next((result["message"] for result in ended if result["message"]), ""),
        )

    def _result(self, run: Run, trial: TrialOutcome) -> dict[str, Any] | None:
        """Return the result of a run of the trial: status, scores, seconds and message; None if it is not recorded."""
        if not self.record_store.has(run) or self.record_store.lock(run).is_held():
            return None
        if run not in self._results:
            record = self.record_store.load(run)
            if not self._is_of(record, trial):  # the study was lost and its trials were sampled again
                self.record_store.forget(run)
                return None
            if run.seed == self.seeds[0]:
                self._report(trial.name, record.scored)
            self._results[run] = self._scored(record)
        return self._results[run]

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

    def _scored(self, record: RunRecord) -> dict[str, Any]:
        if not record.is_done:
            error = record.error or {}
            message = str(error.get("message") or error.get("kind") or "")
            return _result(record.status, message=message, seconds=record.wall_seconds)
        criterion = self.study.criterion
        scores = [record.score]
        if criterion.rule == "three-parts":
            predictions = read_predictions(self._predictions_file(record))
            scores = [*part_scores(predictions, criterion.metric, self.rows.seed)]
        numbers = [score for score in scores if score is not None]
        if len(numbers) < len(scores) or criterion.value(numbers) is None:
            message = f"its {criterion.metric} is undefined, as that of constant predictions"
            return _result("failed", message=message, seconds=record.wall_seconds)
        return _result("done", scores=numbers, seconds=record.wall_seconds)

    def _predictions_file(self, record: RunRecord) -> Path:
        """Return the file with the predictions of the scored rows."""
        name = record.predictions[next(split for split in record.predictions if split.startswith("validation"))]
        return self.record_store.file(record.run).with_name(name)

    def _runs(self, trial: TrialOutcome) -> tuple[Run, ...]:
        if trial.name not in self._grids:
            try:
                self._grids[trial.name] = self.settings.grid(trial.name, trial.settings, self.seeds)
            except ConfigError as error:  # each value is valid, but not their combination
                self._problems[trial.name] = " ".join(error.problems)
                self._grids[trial.name] = RunGrid((), {}, {})
        return self._grids[trial.name].runs

    def _count_waiting(self, running: Collection[Run]) -> int:
        """Return the number of runs that are neither recorded nor running."""
        return sum(
            not self.record_store.has(run) and run not in running and not self.record_store.lock(run).is_held()
            for run in self.runs
        )


def _result(status: str, *, scores: Sequence[float] = (), message: str = "", seconds: float = 0.0) -> dict[str, Any]:
    return {"status": status, "scores": [*scores], "message": message, "seconds": seconds}


def part_scores(predictions: Predictions, metric: str, *key: int | str) -> list[float]:
    """Return the metric on each of three stratified parts of the rows."""
    labels, predicted = predictions.labels_N, predictions.predictions_N
    return [METRICS[metric].score(labels[rows], predicted[rows]) for rows in stratified_folds(labels, PARTS, *key)]


def prediction_loss(file: Path) -> float | None:
    """Return the mean cross-entropy of a run's predictions; None without probabilities, as of scores."""
    labels, probabilities_NC = read_predictions(file).labels_N, read_probabilities(file)
    if not probabilities_NC.size:
        return None
    likely_NC = probabilities_NC.clip(_SMALLEST, 1 - _SMALLEST)
    if labels.ndim == 1:
        return float(-np.log(likely_NC[np.arange(len(labels)), labels]).mean())
    return float(-np.log(np.where(labels == 1, likely_NC, 1 - likely_NC)).mean())


def value_text(value: Any) -> str:
    """Format a value; numbers get four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)
