"""What a command can tell of a mistake before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.config.parse import did_you_mean
from attentune.errors import CheckpointError, ConfigError, DataError


def add_best_flag(made: argparse.ArgumentParser, *, with_task: bool = False) -> None:
    """Add `--best`, and `--task` to a command that has no flags of data."""
    made.add_argument(
        "--best",
        action="store_true",
        help="RUN is the folder of a comparison or search: use its best run (by the mean validation score)",
    )
    if with_task:
        made.add_argument("--task", metavar="NAME", help="with --best: the task, if the comparison has several")


def use_best(parsed: Any, *, names_rows: bool = False) -> None:
    """With `--best`, replace `parsed.run` by the best run in that folder, and say on standard error which it is."""
    if not parsed.best:
        return
    from attentune.report.best_run import best_run, tasks_of

    name = "data.task" if "data.task" in vars(parsed) else "task"
    task = getattr(parsed, name)
    best = best_run(parsed.run, task)
    if task is not None and names_rows and len(tasks_of(parsed.run)) > 1:
        setattr(parsed, name, None)
    print(f"attentune: {best.sentence}", file=sys.stderr)
    parsed.run = str(best.folder)


# Files up to this size are read before PyTorch is imported, and again by the run: 0.1 s.
_READ_BYTES = 4_000_000
# Flags that name files of rows, and files to write.
_INPUTS = ("file", "input_file", "fix", "unlabeled_file", "data.train_file", "data.validation_file", "data.test_file")
_OUTPUTS = ("output_file", "errors_file", "figure_file")


def check_saved_run(run: str) -> None:
    """Check that there is a folder of this name, with a file of settings; the rest is checked when it is loaded."""
    folder = Path(run)
    expected = f"{run}: holds no config.json, expected the folder of a finished run (attentune train --output_dir ...)"
    if folder.is_dir():
        if not any(folder.glob("*.json")) and not (folder / "records").is_dir():
            raise CheckpointError(f"{expected}.")
        return
    if folder.exists():
        raise CheckpointError(f"{expected}; it is a file. The run comes first, then the file: RUN --input_file {run}")
    known = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
    raise CheckpointError(f"{expected}; there is no such folder.{did_you_mean(folder.name, known)}")


def check_named(parsed: Any) -> None:
    """Check the runs, the files of rows and the files to write that the flags of a command name."""
    values = vars(parsed)
    runs = values.get("runs") or [values.get("run")]
    for run in runs:
        if run is not None:
            check_saved_run(run)
    check_files_of_rows(values)


def check_files_of_rows(values: Mapping[str, Any]) -> None:
    """Check the files of rows, and that none is a file to write; both by the names of flags or settings."""
    if values.get("output_dir") is not None and values.get("input_file") is not None:
        return  # in shards: of several files, or of files elsewhere
    names = (values.get(name) for name in _INPUTS)
    files = _files(name for name in names if name not in (None, "-", "null", "none"))
    for name in _OUTPUTS:
        target = values.get(name)
        if target is not None and Path(target).expanduser().is_dir():
            raise ConfigError(f"--{name}: {target} is a folder, expected a file; choose another name.")
        if target is not None and any(_is_same(Path(target).expanduser(), file) for file in files):
            raise ConfigError(
                f"--{name}: got {target}, the file of the rows, which would be overwritten. Name another file."
            )


def check_columns(file: str | None, data: Any, *, keep: Sequence[str] = (), with_label: bool = False) -> None:
    """Check that a small file has the columns that the data settings name."""
    names = ["text_column", "text_pair_column", "id_column", *(["label_column"] if with_label else [])]
    named = [(str(column), f"--{name}") for name in names if (column := getattr(data, name)) is not None]
    named += [(column, "--keep_columns") for column in keep if column != "all"]
    if file in (None, "-") or not named:
        return
    from attentune.data.columns import require
    from attentune.data.files import read_table
    from attentune.data.text_formats import FileOptions

    if all(path.stat().st_size <= _READ_BYTES for path in _files([str(file)])):
        table = read_table(str(file), options=FileOptions.of(data))
        for column, flag in named:
            require(table.names, column, table.source, flag)


def _files(names: Iterable[str]) -> list[Path]:
    """Return the files of these names, but for folders of texts by class."""
    from attentune.data.files import is_class_folder
    from attentune.data.text_formats import check_file

    paths = (Path(name).expanduser() for name in names)
    return [check_file(path) for path in paths if not is_class_folder(path)]


def _is_same(path: Path, file: Path) -> bool:
    return path.exists() and path.samefile(file)


def check_output_folder(folder: str | None, marker: str, what: str) -> None:
    """Check that the folder of a comparison or search is new, empty, or that of one."""
    from attentune.io.files import storage_errors
    from attentune.runs.manifest import check_content

    path = Path(str(folder))
    if folder is not None and path.is_dir():
        with storage_errors(path):
            check_content(path, marker, what)


def check_command_folder(config: Config, command: str, marker: str, missing: str) -> None:
    """Check that the folder of `auto` or `train --adapt` is given, and new, empty or its own."""
    from attentune.training.run_folder import check_own_folder

    settings = config.training
    if settings.output_dir is None:
        raise ConfigError(f"training.output_dir: is missing; name {missing}")
    folder = Path(settings.output_dir)
    is_own = (folder / marker).exists()
    check_own_folder(folder, command, is_own=is_own, resume=settings.resume, overwrite=settings.overwrite_output_dir)


def check_before_run(config: Config) -> Config:
    """Check precision, encoder and data folder, before `training.prepare`; return the configuration to train with."""
    from attentune.training.run_folder import check_feasible, config_for_run

    config = config_for_run(config)
    check_feasible(config)
    _check_dataset_folder(config.data)
    return config


def check_data(data: Any, *, seed: int, allow_doubt: bool = False) -> None:
    """Read files that are small, and check that the others are there; data sets of the hub are left to the run.

    `allow_doubt` is that of `load_data`.
    """
    from attentune.data.load import load_data

    files = (data.train_file, data.validation_file, data.test_file, *(data.extra_train_files or ()))
    named = [name for name in files if name is not None]
    _check_dataset_folder(data)
    if data.dataset_name is not None or "-" in named:  # standard input is read once
        return
    found = _files(named)
    if data.task is not None:
        load_data(data, seed=seed, splits=("validation",))
    elif len(found) == len(named) and sum(path.stat().st_size for path in found) <= _READ_BYTES:
        load_data(data, seed=seed, allow_doubt=allow_doubt)


def _check_dataset_folder(data: Any) -> None:
    name = data.dataset_name
    if name is not None and name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise DataError(
            "there is no such folder. --dataset_name takes a folder, or a name on the Hugging Face hub; a file is given"
            " as in `attentune train FILE`.",
            path=name,
        )
