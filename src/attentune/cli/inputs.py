"""Runs, files, texts and executors that flags name: checked before PyTorch is imported (seconds), and read."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from attentune.cli.flags import check, config_from, overrides_of
from attentune.config import Config, DataConfig
from attentune.config.parse import did_you_mean, parse_section
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.execution.executor import ExecutorOptions
from attentune.results import RunResult

# Files up to this size are read before PyTorch is imported, and again by the run: 0.1 s.
_READ_BYTES = 4_000_000
# Flags that name files of rows, and files to write.
_INPUTS = (
    "file",
    "input_file",
    "unlabeled_file",
    "out_of_scope_file",
    "data.train_file",
    "data.validation_file",
    "data.test_file",
)
_OUTPUTS = ("output_file", "errors_file")


def executor_options(parsed: Any, problems: list[str]) -> ExecutorOptions:
    slurm = []
    for text in parsed.slurm:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            problems.append(f"--slurm: got {text!r}, expected NAME=VALUE such as partition=gpu.")
        else:
            slurm.append((name, yaml.safe_load(value) if value else ""))
    names = ("executor", "jobs", "ray_address", "cpus_per_run", "gpus_per_run")
    options = ExecutorOptions(**{name: getattr(parsed, name) for name in names}, slurm=tuple(slurm))
    try:
        options.check()
    except ConfigError as error:
        problems += error.problems
    return options


def check_saved_run(run: str) -> None:
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
    for run in values.get("runs") or [values.get("run")]:
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
        if (given := values.get(name)) is None:
            continue
        target = Path(given).expanduser()
        if target.is_dir():
            raise ConfigError(f"--{name}: {given} is a folder, expected a file; choose another name.")
        if any(target.exists() and target.samefile(file) for file in files):
            raise ConfigError(
                f"--{name}: got {given}, the file of the rows, which would be overwritten. Name another file."
            )


def output_ending(parsed: Any, known: Sequence[str], problems: list[str]) -> str:
    """Return the ending of --output_file; it must be one of `known` that suits --format, or none."""
    ending = Path(parsed.output_file or "").suffix.lower()
    fit = [one for one in known if parsed.format is None or (one == ".jsonl") == (parsed.format == "json")]
    if ending and ending not in fit:
        given = f" with --format {parsed.format}" if ending in known else ""
        expected = f"a name that ends in {', '.join(fit)}{given}"
        problems.append(f"--output_file: got {parsed.output_file}, expected {expected}.")
    return ending


def check_columns(file: str | None, data: Any, *, keep: Sequence[str] = (), with_label: bool = False) -> None:
    """Check that a small file has the columns that the data settings name."""
    names = ["text_column", "text_pair_column", "id_column", *(["label_column"] if with_label else [])]
    named = [(str(column), f"--{name}") for name in names if (column := getattr(data, name)) is not None]
    named += [(column, "--keep_columns") for column in keep if column != "all"]
    if file in (None, "-") or not named:
        return
    from attentune.data.columns import require
    from attentune.data.files import read_table

    if all(path.stat().st_size <= _READ_BYTES for path in _files([str(file)])):
        table = read_table(str(file), config=data)
        for column, flag in named:
            require(table.names, column, table.source, flag)


def _files(names: Iterable[str]) -> list[Path]:
    """Return the files of these names, without folders of texts by class."""
    from attentune.data.files import is_class_folder
    from attentune.data.text_formats import check_file

    paths = (Path(name).expanduser() for name in names)
    return [check_file(path) for path in paths if not is_class_folder(path)]


def check_command_folder(config: Config, command: str, marker: str, missing: str) -> None:
    """Check that the folder of `auto` or `train --adapt` is given, and new, empty or its own."""
    from attentune.training.run_folder import check_own_folder

    settings = config.training
    if settings.output_dir is None:
        raise ConfigError(f"training.output_dir: is missing; name {missing}")
    folder = Path(settings.output_dir)
    is_own = (folder / marker).exists()
    check_own_folder(folder, command, is_own=is_own, resume=settings.resume, overwrite=settings.overwrite_output_dir)


def check_data(data: Any, *, seed: int, allow_doubt: bool = False) -> Any:
    """Read files that are small, and return their rows; check that the others exist. Data sets are left to the run."""
    from attentune.data.load import load_data

    files = (data.train_file, data.validation_file, data.test_file, *(data.extra_train_files or ()))
    named = [name for name in files if name is not None]
    check_dataset_folder(data)
    if data.dataset_name is not None or "-" in named:  # standard input is read once
        return None
    found = _files(named)
    if data.task is not None:
        return load_data(data, seed=seed, splits=("validation",))
    if len(found) == len(named) and sum(path.stat().st_size for path in found) <= _READ_BYTES:
        return load_data(data, seed=seed, allow_doubt=allow_doubt)
    return None


def check_dataset_folder(data: Any) -> None:
    """Check that the data set is a folder that exists, or has a name of the Hugging Face hub."""
    name = data.dataset_name
    if name is not None and name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise DataError(
            "there is no such folder. --dataset_name takes a folder, or a name on the Hugging Face hub; a file is given"
            " as in `attentune train FILE`.",
            path=name,
        )


def check_text_flags(parsed: Any, problems: list[str]) -> Any:
    """Check that exactly one source of texts is given, and return the data settings."""
    command = parsed.command
    named_data = {name for name in overrides_of(parsed, []) if name in ("data.task", "data.dataset_name")}
    sources = [name for name in ("text", "input_file") if getattr(parsed, name) not in (None, [])] + sorted(named_data)
    if len(sources) != 1:
        problems.append(
            f"{command}: got {' and '.join(sources) or 'no texts'}, expected one of --text, --input_file (- for"
            " standard input), --task, --dataset_name."
        )
    if parsed.text_pair and len(parsed.text_pair) != len(parsed.text):
        counts = f"Got {len(parsed.text_pair)} for {len(parsed.text)} texts"
        problems.append(f"--text_pair: goes with --text. {counts}, expected one for each.")
    data = config_from(parsed, problems).data
    if data.max_eval_samples is not None and data.task is None:
        check([f"--max_eval_samples: goes with --task; all rows of other sources are read by {command}."])
    return data


def read_file_rows(path: str, data: Any, saved: Any, *, quiet: bool = False) -> Any:
    """Read the rows to predict of a file, all at once, and tell how it was read."""
    from attentune.data.tables import WHOLE

    chunks = saved.chunks(path, data, limit=WHOLE)
    tell(() if quiet else chunks.notes)
    (rows,) = chunks.read()
    return rows


def text_chunks(parsed: Any, data: Any, saved: Any, limit: Any, *, keep_columns: Sequence[str] = ()) -> Any:
    from attentune.data.columns import extra_kind
    from attentune.data.dataset import TextRows
    from attentune.data.load import read_split
    from attentune.data.unlabelled import RowChunks

    if parsed.text:
        if saved.is_pair != bool(parsed.text_pair):
            wanted = "pairs: add --text_pair" if saved.is_pair else "single texts: leave out --text_pair"
            raise ConfigError(f"{parsed.run}: was trained on {wanted}.")
        if extra := [extra_kind(setting)[0] for setting in saved.config.data.extra_columns or ()]:
            tell([f"The run also reads the columns {', '.join(extra)}, which are missing here; --input_file has them."])
        ids = tuple(map(str, range(len(parsed.text))))
        return RowChunks.of(TextRows(ids, tuple(parsed.text), tuple(parsed.text_pair) or None, None, "--text"))
    if parsed.input_file is not None:
        return saved.chunks(parsed.input_file, data, limit=limit, keep_columns=keep_columns)
    if data.dataset_name is not None:
        # A split that the dataset has is read as a file is; others are made of train.
        table = read_split(data.dataset_name, data.dataset_config_name, parsed.split)
        if table is not None:
            return saved.chunks(table, data)
    return RowChunks.of(next(iter(saved.data(data, (parsed.split,)).splits.values())))


def texts_of_run(result: RunResult, split: str, reader: str) -> dict[str, tuple[str, str | None]]:
    """Read the texts of the rows that a run was scored on, by id; `reader` is what would show them, for errors."""
    from attentune.data.load import check_shown, load_data

    problems: list[str] = []
    config = parse_section(DataConfig, result.config.get("data", {}), "data", problems)
    check(problems)
    check_shown(config, reader)
    rows = load_data(config, seed=result.seed, splits=(split.split("_")[0],)).splits.get(split)
    if rows is None or rows.fingerprint() != result.data_fingerprint.get(split):
        raise DataError("the data files have other rows than those that the run was scored on.")
    return dict(zip(rows.ids, zip(rows.texts, rows.pairs or (None,) * len(rows), strict=True), strict=True))


def tell(notes: Iterable[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
