"""Hyper-parameter search: runs trials in parallel (grid, random or TPE) and writes the best as a configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import to_flat, to_yaml
from attentune.errors import ConfigError
from attentune.experiments.comparison.manifest import make_folder
from attentune.experiments.comparison.progress import ComparisonProgress
from attentune.experiments.execution.driver import ComparisonStopped, Driver, only_driver
from attentune.experiments.execution.executor import ExecutorOptions, make_executor
from attentune.experiments.search.plan import SearchPlan
from attentune.experiments.search.selection import SelectionCriterion, TrialOutcome, ranked
from attentune.experiments.search.setup import (
    SEARCH_FILE,
    TRIALS_FILE,
    WINNER_FILE,
    SearchOptions,
    open_search,
    set_up,
)
from attentune.experiments.search.space import Dimension
from attentune.experiments.search.study import SearchStudy
from attentune.experiments.search.trial import Rows
from attentune.io.files import write_text
from attentune.results import to_json
from attentune.training.signals import stop_on_signal

__all__ = ["ComparisonStopped", "SearchResult", "search"]


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    Attributes:
        task: the task's name; "own" for custom data.
        criterion: how trials are ranked.
        rows: the rows that they were scored on.
        trials: best first, then the pruned and the failed ones.
        config: the file with the best trial's settings; None if no trial is done.
        importance: the share of the ranking values' variance that each dimension explains, or None.
        importance_note: why there is no importance.
    """

    task: str
    criterion: SelectionCriterion
    rows: Rows
    trials: list[TrialOutcome]
    config: Path | None
    importance: dict[str, float] | None
    importance_note: str = ""

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
    display: ComparisonProgress | None = None,
) -> SearchResult:
    """Search for good settings, and write the best as `config.yaml` in `output_dir`.

    Finished trials are not repeated; interrupted ones resume from their last checkpoint.

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
        display: shows progress.

    Raises:
        AttentuneError: an error that the user can correct. Errors of single trials are recorded instead.
        ComparisonStopped: a stop was requested (Ctrl-C or SIGTERM); workers have saved and exited.
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
        return _result(plan, folder)


def _result(plan: SearchPlan, folder: Path) -> SearchResult:
    """Rank the trials, and write the settings of the best one and all results."""
    study = plan.study
    importance, why = study.importance()
    trials = ranked(study.trials(), study.criterion)
    result = SearchResult(plan.settings.task(), study.criterion, plan.rows, trials, None, importance, why)
    if result.best is not None:
        file = folder / WINNER_FILE
        run_settings = {"training.output_dir": os.fspath(folder / "best"), "training.seed": plan.rows.seed}
        write_text(file, to_yaml(plan.settings.config({**result.best.settings, **run_settings})))
        result = dataclasses.replace(result, config=file)
    write_text(folder / TRIALS_FILE, to_json(result.to_dict()))
    return result
