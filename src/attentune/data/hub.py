"""Reader of Hugging Face datasets: from the hub, from a folder of `save_to_disk`, or from one of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.tables import Table, as_cell
from attentune.errors import ConfigError, DataError

_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}


def read_dataset(config: DataConfig) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Read the train, validation and test splits of a dataset, in that order."""
    name = config.dataset_name or ""
    splits = _load(name, config.dataset_config_name)
    used = {key: _our_name(key) for key in splits if _our_name(key)}
    if not used:
        raise DataError(
            f"its splits are {', '.join(splits)}, expected train, validation or test. Rename them, or save files"
            " and use --train_file.",
            path=name,
        )
    order = sorted(used, key=lambda key: ("train", "validation", "test").index((used[key] or "").split("_")[0]))
    tables = {used[key] or key: _table(splits[key], f"{name}, split {key}") for key in order}
    rest = [key for key in splits if key not in used]
    return tables, (f"Splits of {name} that are not used: {', '.join(rest)}.",) if rest else ()


def read_split(name: str, config_name: str | None, split: str) -> Table | None:
    """Read one split of a dataset as a whole; None if it has no such split."""
    splits = _load(name, config_name)
    key = split if split in splits else next((key for key in splits if _our_name(key) == split), None)
    return None if key is None else _table(splits[key], f"{name}, split {key}")


def _our_name(key: str) -> str | None:
    """Map the name of a split to ours, or None if it is not used; "validation_matched" and the like are kept."""
    head, _, tail = key.partition("_")
    ours = _SPLITS.get(head.lower())
    return ours if ours is None or not tail else f"{ours}_{tail}"


def _load(name: str, config_name: str | None) -> Mapping[str, Any]:
    import datasets

    folder = Path(name).expanduser()
    try:
        # A folder from save_to_disk has one of these files; other folders are loaded by load_dataset.
        if any((folder / file).is_file() for file in ("dataset_dict.json", "dataset_info.json", "state.json")):
            if config_name is not None:
                raise ConfigError("data.dataset_config_name: a data set from a folder has none. Leave it out.")
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(str(folder) if folder.is_dir() else name, config_name)
    except ConfigError:
        raise
    except Exception as error:
        # `datasets` raises many types of errors, also of its dependencies.
        reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        raise DataError(
            f"this data set cannot be loaded: {reason}. Check the name, the configuration (--dataset_config_name)"
            " and the connection; a folder has to hold the files of save_to_disk, or .csv, .jsonl or .parquet files.",
            path=name,
        ) from error
    splits = {"train": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    _check_separated(splits, folder, name)
    return splits


def _check_separated(splits: Mapping[str, Any], folder: Path, name: str) -> None:
    """Refuse .csv files that are not separated by commas, of which datasets makes columns of parts of texts."""
    files = sorted(folder.glob("**/*.csv")) if folder.is_dir() else []
    joined = [column for split in splits.values() for column in split.column_names if set(column) & set(";\t|")]
    if files and joined:
        raise DataError(
            f"its .csv files are not separated by commas, which datasets expects: the first column is {joined[0]!r}."
            f" Give the files themselves, whose separators are found: --train_file {files[0]}",
            path=name,
        )


def _check_whole(table: Any, source: str) -> None:
    """Check a table that was mapped to memory; wrong offsets would end the process."""
    import pyarrow as pa

    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"a file is damaged ({str(error)[:200]}). Save or load the data set again.", path=source
        ) from error


def _table(split: Any, source: str) -> Table:
    import datasets

    if len(split) == 0:
        raise DataError("holds no rows.", path=source)
    _check_whole(split.data, source)
    columns: dict[str, list[Any]] = {}
    class_names: dict[str, tuple[str, ...]] = {}
    for name, feature in split.features.items():
        if isinstance(feature, datasets.ClassLabel):
            names = tuple(feature.names)
            class_names[name] = names
            columns[name] = [None if value is None or value < 0 else names[value] for value in split[name]]
        elif isinstance(feature, datasets.Value):
            columns[name] = [as_cell(value) for value in split[name]]
        elif isinstance(getattr(feature, "feature", None), datasets.ClassLabel):
            class_names[name] = tuple(feature.feature.names)
            columns[name] = [[feature.feature.names[value] for value in values or ()] for values in split[name]]
        elif isinstance(getattr(feature, "feature", None), datasets.Value):
            columns[name] = [values if values is None else list(values) for values in split[name]]
        else:
            # Nested lists, images and the like are not decoded; they are an error only if a setting names them.
            columns[name] = [feature] * len(split)
    return Table(source, tuple(columns), columns, len(split), class_names=class_names)
