"""A comparison: every task, method, size and seed once, on as many processes as the machine has cores."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.experiments.comparison.fingerprints import (
    MadeFrom,
    encoders_made_from,
    extra_made_from,
    rows_made_from,
    rows_of_task,
)
from attentune.experiments.comparison.grid import Matrix, Run, plan_matrix
from attentune.experiments.comparison.manifest import methods_of, open_comparison
from attentune.experiments.comparison.methods import choose_methods, methods_from, read_methods
from attentune.experiments.comparison.progress import MatrixDisplay
from attentune.experiments.comparison.record_store import Ledger, RunRecord, unpaired
from attentune.experiments.execution.queue import RunQueue
from attentune.experiments.execution.queue_storage import HEARTBEAT_S, Place
from attentune.experiments.execution.scheduler import ComparisonStopped, Conductor, FixedPlan, default_jobs
from attentune.experiments.execution.worker import WorkerTask
from attentune.experiments.execution.worker_pool import Crew
from attentune.training.signals import stop_on_signal

__all__ = ["ComparisonStopped", "compare"]


def compare(
    output_dir: str | Path,
    *,
    presets: Sequence[str] = (),
    settings: Mapping[str, Any] | str | Path | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    folds: int | None = None,
    train_sizes: Sequence[int | None] | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    storage: str | None = None,
    study: str | None = None,
    jobs: int | None = None,
    keep_runs: bool = False,
    retry_failed: bool = False,
    heartbeat_s: int = HEARTBEAT_S,
    display: MatrixDisplay | None = None,
) -> list[RunRecord]:
    """Train every preset on every task with every seed, and keep one record a run in `output_dir`.

    Runs that are recorded are not done again; broken-off ones go on from their last checkpoint.

    Args:
        output_dir: the comparison's folder.
        presets: names of presets, or of methods in `settings`; if not given, all of `settings`.
        settings: methods by name, {"preset": NAME, "set": {...}, "tasks": {TASK: {...}}}, or a YAML file of them.
        tasks: known tasks; None for the data that `config` and `overrides` name.
        seeds: how many (1, 2, ...), or which; 5 if not given. The rows taken, fresh weights and order depend on the
            seed.
        folds: cross-validate: train is cut in this many parts, and each method is trained on all but one of them and
            scored on that one, for each of them. `seeds` is then how many times the rows are cut anew, 1 if not given.
        train_sizes: rows to train on, None for all. The rows of a seed are the same for every preset.
        config: a YAML file of settings for all.
        overrides: settings for all by dotted name; they go before `config` and the presets.
        storage: the URL of a database that several machines share; if not given, a file in `output_dir`.
        study: the comparison's name there (the folder's name if not given).
        jobs: worker processes; as many as cores on a CPU, one on an accelerator, if not given.
        keep_runs: keep the run folders with their weights.
        retry_failed: do runs again that are recorded as failed.
        heartbeat_s: seconds between signs of life to the database.
        display: where progress is shown; standard error if not given.

    Returns:
        The records of the comparison that are in `output_dir`, failed ones included.

    Raises:
        AttentuneError: anything that the user can mend, other than what fails in a single run.
        ComparisonStopped: a stop was asked for (Ctrl-C or SIGTERM); workers have saved and ended.
    """
    named = read_methods(settings) if isinstance(settings, (str, Path)) else methods_from(settings or {}, "settings")
    matrix = plan_matrix(
        tasks=tasks,
        methods=choose_methods(presets, named),
        seeds=_seeds(seeds, folds),
        train_sizes=train_sizes,
        file=config,
        overrides=dict(overrides or {}) | ({} if folds is None else {"data.folds": folds}),
    )
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs: got {jobs}, expected a whole number of at least 1.")
    folder, shown = Path(output_dir), display or MatrixDisplay()
    ledger = Ledger(folder)
    made_from = _check_inputs(matrix, [run for run in matrix.runs if not ledger.has(run)], shown)
    folder_id = open_comparison(folder, matrix, made_from)
    if retry_failed:
        _forget_failed(ledger, matrix.runs)
    name = "compare" if storage is None else study or folder.resolve().name
    place = Place(str(folder), folder_id, storage, name, heartbeat_s)
    queue = RunQueue(place)
    queue.agree(methods_of(matrix), made_from)
    if not all(ledger.has(run) for run in matrix.runs):
        cores, one_thread = default_jobs(flat for tasks in matrix.configs.values() for flat in tasks.values())
        fields = [dataclasses.asdict(run) for run in matrix.runs]
        task = WorkerTask(dataclasses.asdict(place), fields, matrix.configs, keep_runs, one_run=one_thread)
        crew = Crew(jobs or cores, folder / "logs", one_thread=one_thread)
        with stop_on_signal() as stop:
            Conductor(FixedPlan(matrix, task), queue, shown).run(crew, stop, retry_failed=retry_failed)
    return _records(queue, matrix, shown, keep_runs=keep_runs)


def _seeds(seeds: int | Sequence[int] | None, folds: int | None) -> list[int]:
    """The seeds of the runs; with folds one for each of them.

    Raises:
        ConfigError: a list of seeds with folds.
    """
    if folds is None:
        number = 5 if seeds is None else seeds
        return list(range(1, number + 1)) if isinstance(number, int) else list(number)
    if seeds is not None and not isinstance(seeds, int):
        raise ConfigError("seeds: with folds they say how many times the rows are cut anew; give a number, such as 2.")
    return list(range(1, folds * (seeds or 1) + 1))


def _check_inputs(matrix: Matrix, runs: Sequence[Run], display: MatrixDisplay) -> MadeFrom:
    """Read the data and look for the encoders of these runs once, so that what would fail them all is told at once.

    Returns:
        What the runs are made from.

    Raises:
        AttentuneError: they are not there or not as expected.
    """
    from attentune.models.build import load_tokenizer

    made_from: MadeFrom = {}
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        data = rows_of_task(matrix.config(own[0], Path(os.devnull)))
        made_from |= rows_made_from(task, data)
        methods = dict.fromkeys(run.method for run in own)
        firsts = [next(run for run in own if run.method == method) for method in methods]
        made_from |= extra_made_from(task, data, [matrix.config(run, Path(os.devnull)) for run in firsts])
        rows = len(data.splits["train"]) if "train" in data.splits else 0
        for size in sorted({run.train_size for run in own if run.train_size is not None and run.train_size > rows}):
            display.warn(f"{task}: has {rows:,} rows to train on, so the size {size:,} is the same as all")
    encoders = {}
    for run in runs:
        flat = matrix.configs[run.method][run.task]
        if (name := (flat["model.name_or_path"], flat["model.revision"])) not in encoders:
            encoders[name] = matrix.config(run, Path(os.devnull))
            load_tokenizer(encoders[name].model)
    return made_from | encoders_made_from(encoders.values())


def _forget_failed(ledger: Ledger, runs: Sequence[Run]) -> None:
    for run in runs:
        lock = ledger.lock(run)
        if ledger.has(run) and not ledger.load(run).is_done and lock.take(wait=False):
            ledger.forget(run)
            lock.free()


def _records(queue: RunQueue, matrix: Matrix, display: MatrixDisplay, *, keep_runs: bool) -> list[RunRecord]:
    """The records, and warnings of what is odd with them. What killed workers have left lying is tidied up."""
    standing = queue.refill(matrix.runs)
    for run in (*standing.recorded, *standing.elsewhere):
        lock = queue.ledger.lock(run)
        if lock.take(wait=False):
            queue.ledger.tidy(run, keep=keep_runs)
            lock.free()
    for name in standing.twice:
        display.warn(f"{name}: was done twice, at {standing.twice[name]} too; its first record counts")
    if standing.elsewhere:
        places = ", ".join(sorted(set(standing.elsewhere.values())))
        display.warn(
            f"{len(standing.elsewhere)} of {len(matrix.runs)} runs are recorded elsewhere ({places}) and not in these"
            " figures; copy that folder's records into this one's"
        )
    records = queue.ledger.records(matrix.runs)
    for text in unpaired(records):
        display.warn(f"{text}: were not trained and scored on the same rows, so they cannot be compared")
    return records
