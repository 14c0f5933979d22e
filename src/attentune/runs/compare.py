"""Runs a comparison: every combination of task, method, training size and seed, in parallel worker processes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.data.dataset import TaskData
from attentune.errors import AttentuneError, ConfigError
from attentune.execution import make_executor
from attentune.execution.executor import ExecutorOptions
from attentune.runs.driver import ComparisonStopped, Driver, FixedPlan, only_driver
from attentune.runs.grid import (
    DataFingerprints,
    Run,
    RunGrid,
    check_content,
    fingerprint_encoders,
    fingerprint_extra_rows,
    fingerprint_rows,
    make_folder,
    methods_named,
    open_comparison,
    plan_grid,
    rows_of_task,
)
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import MANIFEST_FILE, RecordStore, RunRecord, unpaired
from attentune.training.run_folder import check_feasible, stop_on_signal

__all__ = ["ComparisonStopped", "compare"]


@dataclass(frozen=True)
class CompareSettings:
    """The runs of a comparison.

    Attributes:
        presets: names of presets or of methods in `settings`; if not given, all of `settings`.
        settings: methods by name, {"preset": NAME, "set": {...}, "tasks": {TASK: {...}}}, or a YAML file of them.
        tasks: names of built-in tasks; None for the data of `config` and `overrides`.
        seeds: the number of seeds (1, 2, ...) or a list of them; 5 if not given. Subsampling, new weights and row order
            depend on the seed.
        folds: the number of folds for cross-validation: each method is trained on all folds but one and scored on the
            remaining one. `seeds` is then the number of repetitions with new folds, 1 if not given.
        train_sizes: numbers of training rows, None for all. The rows of a seed are the same for every preset.
        config: a YAML file of settings for all runs.
        overrides: settings for all runs by dotted name; they override `config` and the presets.
    """

    presets: Sequence[str] = ()
    settings: Mapping[str, Any] | str | Path | None = None
    tasks: Sequence[str] | None = None
    seeds: int | Sequence[int] | None = None
    folds: int | None = None
    train_sizes: Sequence[int | None] | None = None
    config: str | Path | None = None
    overrides: Mapping[str, Any] | None = None

    def grid(self) -> RunGrid:
        return plan_grid(
            tasks=self.tasks,
            methods=methods_named(self.presets, self.settings),
            seeds=_seeds(self.seeds, self.folds),
            train_sizes=self.train_sizes,
            file=self.config,
            overrides=dict(self.overrides or {}) | ({} if self.folds is None else {"data.folds": self.folds}),
        )


def compare(
    output_dir: str | Path,
    *,
    jobs: int | None = None,
    executor: ExecutorOptions | None = None,
    keep_runs: bool = False,
    keep_best: bool = False,
    retry_failed: bool = False,
    display: ComparisonProgress | None = None,
    **settings: Any,
) -> list[RunRecord]:
    """Train every preset on every task with every seed, and write one record for each run to `output_dir`.

    Recorded runs are not repeated; interrupted ones resume from their last checkpoint.

    Args:
        output_dir: the comparison's folder.
        jobs: number of runs at a time; if not given, one per core on a CPU, one per accelerator.
        executor: where runs are executed, if not on this machine.
        keep_runs: keep the run folders with their weights.
        keep_best: keep, of each preset on each task and size, the folder of the run with the best score.
        retry_failed: repeat runs that are recorded as failed.
        display: shows progress; on standard error if not given.
        settings: the runs: the attributes of `attentune.runs.compare.CompareSettings`, such as `presets`, `tasks`,
            `seeds` and `overrides`.

    Returns:
        The comparison's records in `output_dir`, failed runs included.

    Raises:
        AttentuneError: an error that the user can correct. Errors of single runs are recorded instead.
        ComparisonStopped: a stop was requested (Ctrl-C or SIGTERM); workers have saved and exited.
    """
    grid, options = CompareSettings(**settings).grid(), executor or ExecutorOptions(jobs=jobs)
    options.check()
    folder, display = Path(output_dir), display or ComparisonProgress()
    check_content(folder, MANIFEST_FILE, "comparison")
    display.task_name = grid.task_name
    record_store = RecordStore(folder)
    data_fingerprints = _check_inputs(grid, [run for run in grid.runs if not record_store.has(run)], display)
    make_folder(folder, MANIFEST_FILE, "comparison")
    with only_driver(folder):
        open_comparison(folder, grid, data_fingerprints)
        for run in grid.runs if retry_failed else ():
            if record_store.has(run) and not record_store.load(run).is_done:
                record_store.forget(run)
        if not all(record_store.has(run) for run in grid.runs):
            flat = [one for by_task in grid.configs.values() for one in by_task.values()]
            workers = make_executor(options, folder / "logs", flat)
            with stop_on_signal() as stop:
                Driver(FixedPlan(folder, grid), record_store, workers, display, keep_runs, keep_best).run(stop)
        for run in grid.runs:  # after killed commands
            record_store.tidy(run, keep=keep_runs, keep_best=keep_best)
        records = record_store.records(grid.runs)
        for text in unpaired(records):
            display.warning(f"{text}: were not trained and scored on the same rows, so they cannot be compared")
        return records


def _seeds(seeds: int | Sequence[int] | None, folds: int | None) -> list[int]:
    if folds is None:
        number = 5 if seeds is None else seeds
        return list(range(1, number + 1)) if isinstance(number, int) else list(number)
    if seeds is not None and not isinstance(seeds, int):
        raise ConfigError("seeds: with folds, seeds is the number of repetitions; give a number such as 2.")
    return list(range(1, folds * (seeds or 1) + 1))


def _check_inputs(grid: RunGrid, runs: Sequence[Run], display: ComparisonProgress) -> DataFingerprints:
    """Read the data and locate the encoders of these runs once, so that errors appear before the first run."""
    _check_feasible(grid, runs)  # without PyTorch
    problems: list[str] = []
    data_fingerprints: DataFingerprints = {}
    for task in dict.fromkeys(run.task for run in runs):
        task_runs = [run for run in runs if run.task == task]
        data = rows_of_task(grid.config(task_runs[0], Path(os.devnull)))
        data_fingerprints |= fingerprint_rows(task, data)
        by_method = {run.method: run for run in task_runs}
        configs = {method: grid.config(run, Path(os.devnull)) for method, run in by_method.items()}
        problems += [
            text
            for method, config in configs.items()
            for text in _misfits(f"{method} on {grid.task_name(task)}", config, data)
        ]
        data_fingerprints |= fingerprint_extra_rows(task, data, list(configs.values()))
        rows = len(data.splits["train"]) if "train" in data.splits else 0
        for size in sorted(
            {run.train_size for run in task_runs if run.train_size is not None and run.train_size > rows}
        ):
            display.warning(
                f"{grid.task_name(task)}: has {rows:,} rows to train on, so the size {size:,} is the same as all"
            )
    if problems:
        raise ConfigError(problems)
    from attentune.models.build import load_tokenizer  # imports PyTorch

    encoders = {}
    for run in runs:
        flat = grid.configs[run.method][run.task]
        if (name := (flat["model.name_or_path"], flat["model.revision"])) not in encoders:
            encoders[name] = grid.config(run, Path(os.devnull))
            load_tokenizer(encoders[name].model)
    return data_fingerprints | fingerprint_encoders(encoders.values())


def _check_feasible(grid: RunGrid, runs: Sequence[Run]) -> None:
    problems: dict[str, None] = {}
    for run in {(run.method, run.task): run for run in runs}.values():
        try:
            check_feasible(grid.config(run, Path(os.devnull)))
        except AttentuneError as error:
            problems[str(error)] = None
    if problems:
        raise ConfigError(list(problems))


def _misfits(name: str, config: Config, data: TaskData) -> list[str]:
    """Return why a method does not fit the rows of a task; nothing if it does."""
    from attentune.baselines.registry import baselines_for, misfit
    from attentune.models.head_settings import check_head

    if config.baseline is not None:
        if (reason := misfit(config.baseline, data)) is None:
            return []
        return [f"{name}: {reason}; expected one of {', '.join(baselines_for(data))}."]
    try:
        check_head(config.model, data.label_space, is_pair=data.is_pair)
    except ConfigError as error:
        return [f"{name}: {problem}" for problem in error.problems]
    return []
