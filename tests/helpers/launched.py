"""Runs that several processes train together, in tests of `execution.launch`.

`python -m helpers.launched FOLDER ENCODER` trains a long one, as a worker does that is to be killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attentune.config import Config, load_config
from attentune.errors import DataError
from attentune.execution.launch import train_in_processes
from attentune.results import RunResult
from attentune.training.run import train
from attentune.training.signals import StopRequest
from helpers.samples import settings

SHORT = {"training__per_device_train_batch_size": 4, "training__save_steps": 4, "training__num_train_epochs": 4}
LONG = {"training__num_train_epochs": 200}


def train_quietly(config: Config) -> RunResult:
    """Train, as a worker does."""
    return train(config, with_baselines=False)


def fail(config: Config) -> RunResult:
    raise DataError("no such rows", path="somewhere.csv", line=3)


def end_at_once(config: Config) -> RunResult:
    os._exit(7)


def config_of(folder: Path, encoder: Path, **changes: object) -> Config:
    """Return the settings of a run of 24 steps in folder/run."""
    return load_config(overrides=settings(folder, encoder, **{**SHORT, **changes}))


def launched(trainer, config: Config, stop: StopRequest | None = None) -> RunResult:
    """Train a run in two processes."""
    folder = Path(str(config.training.output_dir))
    return train_in_processes(trainer, (config,), folder=folder, processes=2, threads=1, stop=stop or StopRequest())


if __name__ == "__main__":
    from helpers.launched import train_quietly as trainer  # by the name that the processes import it by

    launched(trainer, config_of(Path(sys.argv[1]), Path(sys.argv[2]), **LONG))
