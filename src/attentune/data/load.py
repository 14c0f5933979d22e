"""One way to any data: a known task, a user's own files, or a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attentune.config.schema import DataConfig
from attentune.data.builtin import load_builtin
from attentune.data.calibration import CALIBRATION, with_calibration
from attentune.data.custom import load_custom, read_custom_files
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.extra import with_extra
from attentune.data.folds import splits_for_fold, with_fold
from attentune.data.readers.hub import read_dataset
from attentune.data.readers.unlabelled import read_unlabelled
from attentune.data.splits import stratified_sample
from attentune.errors import ConfigError

__all__ = ["load_data", "read_unlabelled"]

_WAYS = (
    "Data comes in one of three ways: a known task (--task NAME --data_dir FOLDER; `attentune tasks` lists them), own"
    " files (--train_file FILE, --validation_file, --test_file), or a Hugging Face data set (--dataset_name NAME)."
)
_COLUMN_SETTINGS = ("text_column", "text_pair_column", "label_column", "id_column", "label_names", "label_separator")


def load_data(
    config: DataConfig,
    *,
    seed: int,
    splits: Sequence[str] | None = None,
    label_space: LabelSpace | None = None,
) -> TaskData:
    """Read and check the rows of a task.

    Args:
        config: where the data is and how it is read. `max_train_samples` and `max_eval_samples` take a stratified
            part of train and of the validation splits; the rows of `extra_train_files` come on top of train.
        seed: decides the parts that are taken or cut; the same seed takes the same rows.
        splits: the splits wanted ("validation" includes "validation_matched" and its like, "calibration" is there if
            `config` asks for it); None gives all.
        label_space: the labels of a trained model: labels are mapped to them by name, for scoring other data with it.
            None finds them in the task or in the training rows.

    Returns:
        The rows a split, with sentences on all that was decided for the user.

    Raises:
        ConfigError: for settings that do not go together.
        DataError: for files that are missing or broken, with path and line.
        LabelError: for labels that are missing or unknown.
    """
    _check_source(config)
    wanted, splits = splits, None if splits is None else tuple(split for split in splits if split != CALIBRATION)
    splits = splits_for_fold(splits, config)
    if config.task is not None:
        data = load_builtin(config, splits, label_space)
    elif config.dataset_name is not None:
        tables, notes = read_dataset(config)
        data = load_custom(tables, config, seed=seed, splits=splits, label_space=label_space)
        data = replace(data, notes=notes + data.notes)
    else:
        tables = read_custom_files(config, splits, label_space)
        data = load_custom(tables, config, seed=seed, splits=splits, label_space=label_space)
    data = with_calibration(with_fold(data, config), config, seed)
    if wanted is not None:
        # What was read or cut to make the others.
        made = {name: rows for name, rows in data.splits.items() if {name, name.split("_")[0]} & set(wanted)}
        data = replace(data, splits=made)
    return with_extra(_take_parts(data, config, seed), config)


def _check_source(config: DataConfig) -> None:
    """Check that exactly one way is chosen, and that the other settings go with it.

    Raises:
        ConfigError: with all problems found.
    """
    files = [name for name in ("train_file", "validation_file", "test_file") if getattr(config, name) is not None]
    ways = [name for name in ("task", "dataset_name") if getattr(config, name) is not None] + files[:1]
    problems = []
    if len(ways) != 1:
        got = f"got {' and '.join(ways)} together" if ways else "got none"
        problems.append(f"data: {got}, expected one source. {_WAYS}")
    if config.data_dir is not None and config.task is None:
        problems.append("data.data_dir: is the folder of a known task, so it goes with --task.")
    if config.dataset_config_name is not None and config.dataset_name is None:
        problems.append("data.dataset_config_name: goes with --dataset_name.")
    if ways == ["task"]:
        problems += [
            f"data.{name}: is for own data; the task {config.task} names its own. Leave it out."
            for name in _COLUMN_SETTINGS
            if getattr(config, name) is not None
        ]
    if problems:
        raise ConfigError(problems)


def _take_parts(data: TaskData, config: DataConfig, seed: int) -> TaskData:
    taken: dict[str, TextRows] = {}
    notes = list(data.notes)
    for split, rows in data.splits.items():
        size = {"train": config.max_train_samples, "validation": config.max_eval_samples}.get(split.split("_")[0])
        if size is None or size >= len(rows):
            taken[split] = rows
            continue
        places = stratified_sample(rows.labels, size, seed, "part", split, num_rows=len(rows))
        taken[split] = rows.take(places)
        notes.append(f"Only {size} of the {len(rows)} rows of {split} are used (stratified, seed {seed}).")
    return replace(data, splits=taken, notes=tuple(notes))
