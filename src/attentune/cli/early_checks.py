"""What a command that trains can tell of a mistake before PyTorch is imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.config.parse import did_you_mean
from attentune.errors import CheckpointError
from attentune.results import RESULT_FILE

# Files up to this size are read before PyTorch is imported, and again by the run: 0.1 s.
_READ_BYTES = 4_000_000


def check_saved_run(run: str) -> None:
    """Check that there is a folder of this name; whether it holds a run is checked when it is loaded.

    Raises:
        CheckpointError: there is none.
    """
    folder = Path(run)
    if folder.exists():
        return
    known = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
    raise CheckpointError(
        f"{run}: holds no config.json, expected the folder of a finished run (attentune train --output_dir ...); there"
        f" is no such folder.{did_you_mean(folder.name, known)}"
    )


def check_run(config: Config) -> Config:
    """Check the run folder and the data of a run; return the configuration to train with.

    Raises:
        AttentuneError: the run folder cannot be used, or the data cannot be read.
    """
    from attentune.training.run_folder import check_folder, check_writable, config_for_run

    config = config_for_run(config)
    if config.data.tasks is not None:
        return config
    check_folder(config)
    folder = Path(str(config.training.output_dir))
    if not (config.training.resume and (folder / RESULT_FILE).is_file()):
        check_writable(config)
        check_data(config.data, seed=config.training.seed)
    return config


def check_data(data: Any, *, seed: int) -> None:
    """Read files that are small, and check that the others are there; data sets of the hub are left to the run.

    Raises:
        AttentuneError: a file is missing or broken, or its columns or labels cannot be read.
    """
    from attentune.data.load import load_data
    from attentune.data.readers.folders import is_class_folder
    from attentune.data.readers.streams import check_file

    if data.dataset_name is not None:
        return
    named = (data.train_file, data.validation_file, data.test_file, *(data.extra_train_files or ()))
    paths = [Path(path).expanduser() for path in named if path is not None]
    files = [check_file(path) for path in paths if not is_class_folder(path)]
    if data.task is not None:
        load_data(data, seed=seed, splits=("validation",))
    elif len(files) == len(paths) and sum(path.stat().st_size for path in files) <= _READ_BYTES:
        load_data(data, seed=seed)
