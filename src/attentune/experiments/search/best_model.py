"""Trains the settings of a search's best trial on all training rows, as an ordinary run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from attentune.config import Config, load_config, to_flat
from attentune.errors import CheckpointError
from attentune.experiments.execution.executor import ExecutorOptions, make_executor
from attentune.results import RESULT_FILE, RunResult
from attentune.training.progress import ProgressDisplay
from attentune.training.signals import Interrupted, StopRequest, stop_on_signal

_POLL_S = 0.2


def train_best(
    config: Config, *, executor: ExecutorOptions, logs: Path, display: ProgressDisplay | None = None
) -> RunResult:
    """Train the best trial's settings, in `config.training.output_dir`.

    A finished run with these settings is kept, an interrupted one is resumed. A run with other settings, those of an
    earlier best trial, is replaced.

    Args:
        config: the best trial's settings.
        executor: where runs are executed. On this machine the run is trained in this process, with all of its cores.
        logs: the folder of the workers' logs.
        display: shows progress, if the run is trained in this process.

    Raises:
        AttentuneError: an error that the user can correct.
        Interrupted: a stop was requested and the run was saved.
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
    """Train in a worker of a cluster.

    Raises:
        Interrupted: a stop was requested.
    """
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
