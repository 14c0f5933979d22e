"""The trials of a search: which are started, on which rows they train, when one is pruned, and how they are ranked.

`search.json` lists the points that were sampled; how a trial ended follows from the records of its runs. So a killed
command loses nothing, and a sample depends only on the seed and the earlier trials, not on the process.
"""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attentune.config import Config, to_flat
from attentune.data.dataset import TaskData
from attentune.data.load import load_data
from attentune.data.splits import split_rows, stratified_folds, stratified_sample
from attentune.errors import ConfigError, DataError
from attentune.metrics.metrics import METRICS
from attentune.results import SEARCH_FILE, RunResult
from attentune.runs.driver import Plan, RunTask
from attentune.runs.records import Predictions, RecordStore, Run, RunRecord, log_facts, read_predictions
from attentune.runs.search_settings import Dimension, Search
from attentune.seeding import derive_key, numpy_generator
from attentune.training.callbacks import Scores, TrainingCallback, TrainingState
from attentune.training.run_folder import Pruned

if TYPE_CHECKING:
    import optuna

PARTS = 3
# By status, best first, the name of Optuna's state.
_STATES = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL", "running": "RUNNING"}


@dataclass(frozen=True)
class TrialOutcome:
    name: str  # "trial-0001" and so on
    params: dict[str, Any]  # the point of the space: the values of settings, by dotted name
    status: str = "running"  # "done", "pruned", "failed" or "running"
    scores: tuple[float, ...] = ()  # the scores of each seed, or of each seed's parts
    value: float | None = None  # the ranking value; None if the trial is not done or its score is undefined
    seconds: float = 0.0  # the wall time of all its runs
    message: str = ""  # why it failed, or its score when it was pruned

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


# Optuna: samples in memory, given the trials so far. Imported here only, as the workers do not need it.


def next_point(search: Search, trials: Sequence[TrialOutcome]) -> dict[str, Any] | None:
    """Sample the point of another trial; None if there are enough."""
    tried, points = {_key(trial.params) for trial in trials}, search.space.points()
    left = None if points is None else [point for point in points if _key(point) not in tried]
    if left == [] or len(trials) >= (search.options.trials or math.inf):
        return None
    key = ("search", str(search.options.sampler), search.seed, len(trials))
    if search.options.sampler != "grid":
        drawn = optuna_study(search, trials, _sampler(search, derive_key(*key) % 2**32))
        params = drawn.ask({part.name: _distribution(part) for part in search.space.dimensions}).params
        if left is None or _key(params) not in tried:
            return params
    assert left is not None  # a grid, or a repeated point, which would score the same
    return left[int(numpy_generator(*key).integers(len(left)))]


def optuna_study(
    search: Search, trials: Sequence[TrialOutcome], sampler: optuna.samplers.BaseSampler | None = None
) -> optuna.Study:
    """Return the trials as an Optuna study; a ValueError or KeyError if a point is none of the space."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if search.greater_is_better else "minimize", sampler=sampler)
    distributions = {part.name: _distribution(part) for part in search.space.dimensions}
    for trial in trials:
        study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState[_STATES[trial.status]],
                value=trial.value,
                params=trial.params,
                distributions=distributions,
            )
        )
    return study


def _sampler(search: Search, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    if search.options.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=search.options.startup, constant_liar=True)


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if isinstance(dimension.low, int) and isinstance(dimension.high, int):
        return IntDistribution(dimension.low, dimension.high, log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)


# The runs: their rows, and pruning.


def rows_of(search: Search, config: Config) -> TaskData:
    """Load the rows: the same for every trial and seed, without extra files, which `train` adds."""
    data_config = replace(config.data, extra_train_files=None, extra_train_weights=None)
    if search.options.score_on == "dev":
        return load_data(data_config, seed=search.seed, splits=("train", "validation"))
    data = load_data(data_config, seed=search.seed, splits=("train",))
    train = data.splits["train"]
    if train.labels is None or len(train) < 2:
        raise DataError(f"{data.name}: has {len(train)} labelled training rows, so none can be cut to score on.")
    remaining, held_out, kept = split_rows(train, search.options.search_share, search.seed, "search")
    scored, limit = train.take(held_out), config.data.max_eval_samples
    if limit is not None and limit < len(scored):
        scored = scored.take(stratified_sample(scored.labels, limit, search.seed, "part", "search"))
    note = (
        f"Trials are scored on {len(scored)} of the {len(train)} training rows, cut from them (search_share"
        f" {search.options.search_share:g}, stratified, seed {search.seed}), and trained on {len(remaining)}. Dev is"
        f" not looked at.{kept}"
    )
    return replace(data, splits={"train": train.take(remaining), "validation": scored}, notes=(*data.notes, note))


@dataclass(frozen=True)
class TrialTrainer:
    """Trains the runs of a search in a worker process."""

    folder: str  # the search's folder
    search: Search

    def __call__(self, run: Run, config: Config) -> RunResult:
        from attentune.training.run import train

        may_prune = self.search.options.pruner != "none" and run.seed == self.search.seed
        callbacks = [PruningCallback(self, run, config)] if may_prune else []
        return train(config, data=rows_of(self.search, config), callbacks=callbacks, with_baselines=False)


class PruningCallback(TrainingCallback):
    """Raises `Pruned` after a validation score that is worse than those of other trials."""

    def __init__(self, trainer: TrialTrainer, run: Run, config: Config) -> None:
        self._search, self._run, self._config = trainer.search, run, config
        self._store = RecordStore(Path(trainer.folder))

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        metric = self._search.metric
        score = next(iter(scores.values()))[metric]
        if score is None or is_last:
            return
        # The number of scores so far, including those before the run was resumed.
        count = state.epoch + (state.step_in_epoch > 0)
        if self._config.training.eval_strategy == "steps":
            count = -(-state.step // (self._config.training.eval_steps or 1))
        own = self._scores(log_facts(self._store.run_folder(self._run))["scored"]) | {count: score}
        # Read each time, as other trials go on.
        others = replace(self._run, method="trial-*").name
        records = [RunRecord.load(file) for file in self._store.folder.glob(f"records/{others}.json")]
        finished = [self._scores(record.scored) for record in records if record.is_done]
        startup, greater_is_better = self._search.options.startup, self._search.greater_is_better
        if is_worse(own, finished, startup=startup, greater_is_better=greater_is_better):
            times = "once" if count == 1 else f"{count} times"
            raise Pruned(f"{metric} {score:.4f} when scored {times}, worse than others by then")

    def _scores(self, scored: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Return the scores during a run by their number, from its log."""
        splits = [next(part for part in line.values() if isinstance(part, dict)) for line in scored]
        values = [scores.get(self._search.metric) for scores in splits]
        return {count: value for count, value in enumerate(values, 1) if value is not None}


def is_worse(
    own: Mapping[int, float], finished: Sequence[Mapping[int, float]], *, startup: int, greater_is_better: bool
) -> bool:
    """Return whether a run's best score so far is worse than the median of the finished runs' scores at this point.

    The median stopping rule of Google Vizier (Golovin et al. 2017), as Optuna's `MedianPruner` has it.
    """
    last = max(own)
    others = [scores[last] for scores in finished if last in scores]
    if len(finished) < startup or not others:
        return False
    median = statistics.median(others)
    return max(own.values()) < median if greater_is_better else min(own.values()) > median


# The trials.


class SearchPlan(Plan):
    """The runs of a search. The first seed of a trial runs first; if it is pruned or fails, the others do not run."""

    def __init__(self, folder: Path, search: Search, points: list[dict[str, Any]], save: Callable[[], None]) -> None:
        self.folder, self.search, self.record_store = folder, search, RecordStore(folder)
        self._points, self._save = points, save
        self._task = search.task
        # By trial, its settings by dotted name; or a message: each value is valid, but not their combination.
        self._settings: dict[str, dict[str, Any] | str] = {}
        self._ended: dict[str, TrialOutcome] = {}
        self._given: set[Run] = set()
        self.trials: list[TrialOutcome] = []
        self._update()

    def _update(self) -> None:
        self.trials = [self._outcome(f"trial-{number:04d}", point) for number, point in enumerate(self._points, 1)]

    @property
    def runs(self) -> list[Run]:
        """The runs that may start now, and those that are recorded."""
        return [
            run
            for trial in self.trials
            for run in self._runs(trial)
            if run in self._wanted(trial) or self.record_store.has(run)
        ]

    @property
    def later(self) -> Sequence[Run]:
        """Runs of trials that have not been sampled yet, and further seeds of running trials."""
        known = set(self.runs)
        running = [trial for trial in self.trials if trial.status == "running"]
        further = [run for trial in running for run in self._runs(trial) if run not in known]
        missing = range(max(0, self._total - len(self.trials)))
        return [*further, *(Run(self._task, None, "later", seed) for _ in missing for seed in self.search.seeds)]

    @property
    def is_complete(self) -> bool:
        return len(self._ended) == len(self.trials) >= self._total

    @property
    def _total(self) -> int:
        points = self.search.space.points()
        limits = (self.search.options.trials, None if points is None else len(points))
        return min(number for number in limits if number is not None)

    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        """Process new records, and start trials so that `free` more runs can start; return the new runs."""
        self._update()
        while self._count_waiting(running) < free and (point := next_point(self.search, self.trials)) is not None:
            self._points.append(point)
            self._save()
            self._update()
        new = [run for run in self.runs if run not in self._given]
        self._given.update(new)
        return new

    def task(self, run: Run) -> RunTask:
        folder, settings = str(self.folder.absolute()), self._settings[run.method]
        assert isinstance(settings, dict)
        return RunTask(folder, SEARCH_FILE, run, settings, TrialTrainer(folder, self.search))

    def retry_failed(self) -> None:
        for trial in self.trials:
            for run in self._runs(trial) if trial.status == "failed" else ():
                if self.record_store.has(run) and self.record_store.load(run).status == "failed":
                    self.record_store.forget(run)
                    self._ended.pop(trial.name, None)
        self._update()

    def describe(self, run: Run) -> str:
        point = next((trial.params for trial in self.trials if trial.name == run.method), {})
        values = ", ".join(f"{name.split('.')[-1]} {value_text(value)}" for name, value in point.items())
        return f"{run.method}, {values}" + (f", seed {run.seed}" if len(self.search.seeds) > 1 else "")

    def _outcome(self, name: str, point: dict[str, Any]) -> TrialOutcome:
        if name in self._ended:
            return self._ended[name]
        trial = TrialOutcome(name, point)
        runs = self._runs(trial)
        if isinstance(problem := self._settings[name], str):
            ended = replace(trial, status="failed", message=problem)
        else:
            records = []
            for run in runs:
                if not self.record_store.has(run) or self.record_store.lock(run).is_held():
                    return trial
                records.append(self.record_store.load(run))
                if not records[0].is_done:
                    break
            ended = self._scored(trial, records)
        self._ended[name] = ended
        return ended

    def _scored(self, trial: TrialOutcome, records: Sequence[RunRecord]) -> TrialOutcome:
        trial = replace(trial, seconds=sum(record.wall_seconds for record in records))
        scores: list[float | None] = []
        for record in sorted(records, key=lambda record: record.status != "failed"):
            if not record.is_done:
                error = record.error or {}
                message = str(error.get("message") or error.get("kind") or "")
                return replace(trial, status=record.status, message=message)
        for record in records:
            if self.search.options.choose == "three-parts":
                file = self.record_store.file(record.run).with_name(record.predictions[record.split or ""])
                scores += part_scores(read_predictions(file), self.search.metric, self.search.seed)
            else:
                scores.append(record.score)
        numbers = [score for score in scores if score is not None]
        value = self.search.value(numbers) if len(numbers) == len(scores) else None
        if value is None:
            message = f"its {self.search.metric} is undefined, as that of constant predictions"
            return replace(trial, status="failed", message=message)
        return replace(trial, status="done", scores=tuple(numbers), value=value)

    def _runs(self, trial: TrialOutcome) -> tuple[Run, ...]:
        if trial.name not in self._settings:
            try:
                self._settings[trial.name] = to_flat(self.search.config(trial.params))
            except ConfigError as error:
                self._settings[trial.name] = " ".join(error.problems)
        if isinstance(flat := self._settings[trial.name], str):
            return ()
        return tuple(Run(self._task, flat["data.max_train_samples"], trial.name, seed) for seed in self.search.seeds)

    def _wanted(self, trial: TrialOutcome) -> Sequence[Run]:
        """Return the runs of a trial that may start: the first, and the others once it is done."""
        runs = self._runs(trial)
        if trial.status != "running":
            return ()
        return runs if self.record_store.has(runs[0]) and not self.record_store.lock(runs[0]).is_held() else runs[:1]

    def _count_waiting(self, running: Collection[Run]) -> int:
        return sum(
            not self.record_store.has(run) and run not in running and not self.record_store.lock(run).is_held()
            for run in self.runs
        )


def ranked(trials: Sequence[TrialOutcome], *, greater_is_better: bool) -> list[TrialOutcome]:
    """Sort trials: best first, those without a value last."""

    def key(trial: TrialOutcome) -> tuple[bool, float]:
        if trial.value is None:
            return True, [*_STATES].index(trial.status)
        return False, -trial.value if greater_is_better else trial.value

    return sorted(trials, key=key)


def part_scores(predictions: Predictions, metric: str, *key: int | str) -> list[float]:
    labels, predicted = predictions.labels_N, predictions.predictions_N
    return [METRICS[metric].score(labels[rows], predicted[rows]) for rows in stratified_folds(labels, PARTS, *key)]


def value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)
