"""Hyper-parameter search: runs trials in parallel (grid, random or TPE), and trains a model with the best settings."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_flat, to_yaml
from attentune.data.dataset import data_name
from attentune.errors import CheckpointError, ConfigError
from attentune.runs.manifest import make_folder
from attentune.runs.progress import ComparisonProgress
from attentune.runs.driver import ComparisonStopped, Driver, only_driver
from attentune.execution.executor import ExecutorOptions
from attentune.execution import make_executor
from attentune.runs.search_plan import SearchPlan
from attentune.runs.selection import SelectionCriterion, TrialOutcome, ranked
from attentune.runs.search_setup import SearchOptions, open_search, set_up
from attentune.runs.space import Dimension
from attentune.runs.study import SearchStudy
from attentune.runs.trial import Rows
from attentune.io.files import write_text
from attentune.results import BEST_FOLDER, RESULT_FILE, SEARCH_FILE, TRIALS_FILE, WINNER_FILE, RunResult, to_json
from attentune.training.progress import ProgressDisplay
from attentune.training.signals import Interrupted, StopRequest, stop_on_signal

_POLL_S = 0.2


def train_best_settings(
    config: Config, *, executor: ExecutorOptions, logs: Path, display: ProgressDisplay | None = None
) -> RunResult:
    """Train the best trial's settings, in `config.training.output_dir`.

    A finished run with these settings is kept, an interrupted one is resumed. A run with other settings, those of an
    earlier best trial, is replaced.
    """
    config = _resumed_or_new(config)
    if executor.executor == "local":
        from attentune.training.train import train

        return train(config, display=display)
    _train_elsewhere(config, executor, logs)
    return RunResult.load(Path(str(config.training.output_dir)) / RESULT_FILE)


def _resumed_or_new(config: Config) -> Config:
    """Return the settings with `resume` if the folder holds a run with these settings, else with `overwrite`."""
    from attentune.training.run_folder import CONFIG_FILE, check_folder, config_for_run

    if not (Path(str(config.training.output_dir)) / CONFIG_FILE).is_file():
        return config
    resumed = replace(config, training=replace(config.training, resume=True))
    try:
        resumed = config_for_run(resumed)
        check_folder(resumed)
    except CheckpointError:
        return replace(config, training=replace(config.training, overwrite_output_dir=True))
    return resumed


def _train_elsewhere(config: Config, options: ExecutorOptions, logs: Path) -> None:
    """Train in a worker of a cluster."""
    folder, flat = str(config.training.output_dir), to_flat(config)
    workers = make_executor(options, logs, [flat])
    try:
        with stop_on_signal() as stop:
            (future,) = workers.submit(train_in_worker, [(flat,)])
            was_told = False
            while not future.done():
                if stop.requested and not was_told:
                    workers.request_stop()
                    was_told = True
                time.sleep(_POLL_S)
            if future.cancelled() or not future.result():
                raise Interrupted(folder, 0)
    finally:
        workers.shutdown()


def train_in_worker(flat: dict[str, object], *, stop: StopRequest) -> bool:
    """Train with these settings by dotted name; return False if a stop was requested and the run can be resumed."""
    from attentune.training.train import train

    if stop.requested:
        return False
    try:
        train(load_config(overrides=flat))
    except Interrupted:
        return False
    return True


__all__ = ["ComparisonStopped", "SearchResult", "search"]


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search."""

    task: str  # the task's name; for custom data that of the file or data set
    criterion: SelectionCriterion  # how trials are ranked
    rows: Rows  # the rows that they were scored on
    trials: list[TrialOutcome]  # best first, then the pruned and the failed ones
    config: Path | None  # the file with the best trial's settings; None if no trial is done
    importance: dict[str, float] | None  # the share of the ranking values' variance that each dimension explains
    importance_note: str = ""  # why there is no importance
    model: Path | None = None  # the run folder of the model that was trained with these settings; None if none was
    model_scores: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # that model's scores

    @property
    def best(self) -> TrialOutcome | None:
        """The best trial; None if none is done."""
        return self.trials[0] if self.trials and self.trials[0].value is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in self.trials]
        return {
            "task": self.task,
            "choice": {**dataclasses.asdict(self.criterion), "greater_is_better": self.criterion.greater_is_better},
            "rows": dataclasses.asdict(self.rows),
            "best": None if self.best is None else self.best.name,
            "config": None if self.config is None else str(self.config),
            "model": None if self.model is None else str(self.model),
            "model_scores": {split: dict(scores) for split, scores in self.model_scores.items()},
            "trials": trials,
            "importance": self.importance,
            "importance_note": self.importance_note,
        }


def search(
    output_dir: str | Path,
    *,
    space: str | Path | Mapping[str, Any] | None = None,
    vary: Sequence[Dimension] = (),
    sampler: str | None = None,
    trials: int | None = None,
    seeds: int = 1,
    choose: str = "score",
    k: float = 1.0,
    score_on: str = "train",
    search_share: float = 0.2,
    pruner: str | None = None,
    startup: int = 5,
    preset: str | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    executor: ExecutorOptions | None = None,
    retry_failed: bool = False,
    train_best: bool = True,
    display: ComparisonProgress | None = None,
) -> SearchResult:
    """Search for good settings, write the best as `config.yaml` in `output_dir`, and train a model with them in `best`.

    Finished trials are not repeated; interrupted ones resume from their last checkpoint, as does the model's training.

    Args:
        output_dir: the search's folder.
        space: the name of a paper's grid, a YAML file, or a mapping of settings to lists of values or {"low", "high",
            "step", "log"}; also {"space": that mapping, "preset": ..., "set": {...}}.
        vary: more dimensions; each replaces the space's dimension of the same setting.
        sampler: "grid", "random" or "tpe"; if None, grid if the space is finite, else tpe.
        trials: number of trials; if None, the whole grid, or 20. May be raised later.
        seeds: the number of runs of each trial, with the settings' seed and those after it.
        choose: "score", the mean over seeds; "three-parts", mean - k std over three stratified parts of the scored
            rows (after SSA, section 4.3; the formula is this library's).
        k: the weight of the standard deviation.
        score_on: "train" scores on held-out training rows, so that dev stays unseen; "dev" scores on dev.
        search_share: the share of the training rows that is held out.
        pruner: "none", "median" or "halving", on the first seed's scores during training; if None, "median" with tpe,
            else "none".
        startup: the number of finished trials before TPE models them, and before the median pruner prunes.
        preset: the preset of all trials.
        config: a file of settings of all trials, as for `load_config`.
        overrides: settings of all trials by dotted name.
        jobs: number of runs at a time; if not given, one per core on a CPU, one per accelerator.
        executor: where runs are executed, if not on this machine.
        retry_failed: repeat trials that are recorded as failed.
        train_best: train a model with the best trial's settings on all training rows.
        display: shows progress.

    Raises:
        AttentuneError: an error that the user can correct. Errors of single trials are recorded instead.
        ComparisonStopped: a stop was requested (Ctrl-C or SIGTERM); workers have saved and exited.
        Interrupted: a stop was requested while the best trial's settings were trained; the run is saved.
    """
    options = SearchOptions(sampler, trials, seeds, choose, k, score_on, search_share, pruner, startup)
    setup = set_up(space, vary, options, preset=preset, file=config, overrides=overrides or {})
    where = executor or ExecutorOptions(jobs=jobs)
    where.check()
    pruner = setup.sampler_config.pruner
    if where.processes_per_run > 1 and pruner != "none":
        raise ConfigError(
            f"--processes_per_run: got {where.processes_per_run}, but the pruner {pruner} stops only runs of one"
            " process. Add --pruner none."
        )
    display, folder = display or ComparisonProgress(), Path(output_dir)
    for note in setup.notes:
        display.info(note)
    make_folder(folder, SEARCH_FILE, "search")
    with only_driver(folder):
        open_search(folder, setup.content)
        study = SearchStudy(folder, setup.space, setup.sampler_config, setup.criterion)
        plan = SearchPlan(study, setup.settings, setup.rows, setup.seeds)
        if retry_failed:
            plan.retry_failed()
        plan.update_trials(())
        if not plan.is_complete:
            display.short = display.long = plan.describe
            workers = make_executor(where, folder / "logs", [to_flat(setup.base)])
            with stop_on_signal() as stop:
                Driver(plan, plan.record_store, workers, display, options=where).run(stop)
        result = _result(plan, folder)
        if not train_best or result.config is None:
            return result
        display.info(f"training the settings of {result.trials[0].name} on all training rows")
        best = _best_config(plan, result.trials[0], folder)
        trained = train_best_settings(
            best, executor=where, logs=folder / "logs", display=ProgressDisplay(quiet=display.is_quiet)
        )
        result = dataclasses.replace(result, model=folder / BEST_FOLDER, model_scores=trained.scores)
        write_text(folder / TRIALS_FILE, to_json(result.to_dict()))
        return result


def _result(plan: SearchPlan, folder: Path) -> SearchResult:
    """Rank the trials, and write the settings of the best one and all results."""
    study = plan.study
    importance, why = study.importance()
    trials = ranked(study.trials(), study.criterion, loss=plan.loss)
    result = SearchResult(
        data_name(vars(plan.settings.config({}).data)), study.criterion, plan.rows, trials, None, importance, why
    )
    if result.best is not None:
        file = folder / WINNER_FILE
        write_text(file, to_yaml(_best_config(plan, result.best, folder)))
        result = dataclasses.replace(result, config=file)
    write_text(folder / TRIALS_FILE, to_json(result.to_dict()))
    return result


def _best_config(plan: SearchPlan, best: TrialOutcome, folder: Path) -> Config:
    """Return the settings of the best trial, for a run on all training rows in the search's folder."""
    run_settings = {"training.output_dir": os.fspath(folder / BEST_FOLDER), "training.seed": plan.rows.seed}
    return plan.settings.config({**best.settings, **run_settings})
