"""The record of a run, to and from JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from attentune.errors import CheckpointError
from attentune.io.files import read_json

_PACKAGES = ("attentune", "torch", "transformers", "tokenizers", "accelerate", "numpy", "safetensors")

# The record of a finished run, and what it logged, in its folder.
RESULT_FILE, LOG_FILE = "run.json", "log.jsonl"
# Marks the folder of several finished tasks, each of which has a run folder in it.
TASKS_FILE = "tasks.json"
# What fingerprints call the rows of train without those of extra files, where there are some.
ORIGINAL_TRAIN = "train without extra files"


@dataclass(frozen=True)
class RunResult:
    """All that a finished run says of itself.

    Attributes:
        scores: by split, metric names and values; None where a metric is undefined (a correlation of constants).
        train: seconds, tokens (real ones, padding not counted), tokens_per_second, peak_memory_bytes and more.
        best: the best score on validation rows: metric, value, step; None without scores.
        config: the complete configuration.
        seed: the run's seed.
        versions: of Python, the platform and the packages that matter.
        data_fingerprint: a SHA-256 a split; with extra training rows also one of train without them
            (`ORIGINAL_TRAIN`).
        notes: what was decided for the user.
    """

    scores: dict[str, dict[str, float | None]]
    train: dict[str, Any]
    best: dict[str, Any] | None
    config: dict[str, Any]
    seed: int
    versions: dict[str, str]
    data_fingerprint: dict[str, str]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """JSON text; not-a-number becomes null."""
        return to_json(dataclasses.asdict(self))

    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`: `train`, then each split's scores."""
        return {"train": self.train, **self.scores}

    @classmethod
    def load(cls, file: str | Path) -> RunResult:
        """Read a run's `run.json`.

        Raises:
            CheckpointError: the file is missing or not such a record.
        """
        try:
            content = read_json(file)
            check_fields(cls, content)
            return cls(**content)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{file}: is not the record of a finished run: {error}") from error


def check_fields(cls: type, content: Any) -> None:
    """Check that a record's fields hold what they are declared to hold, since anyone may have written it.

    Raises:
        ValueError: one holds something else; what is missing or unknown is left to the record's own class.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, expected an object")
    hints = typing.get_type_hints(cls)
    for name, value in content.items():
        if name in hints and not _fits(value, hints[name]):
            raise ValueError(f"{name} holds a value of another kind ({repr(value)[:80]})")


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any or dataclasses.is_dataclass(hint):
        return True
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in (dict, Mapping):
        return isinstance(value, dict) and all(_fits(part, parts[1]) for part in value.values())
    if kind is list:
        return isinstance(value, list) and all(_fits(part, parts[0]) for part in value)
    return type(value) is kind


def to_json(value: Any) -> str:
    """Indented JSON with not-a-number as null: what every JSON reader takes."""
    return json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def without_nan(value: Any) -> Any:
    """The same nested value with None for each NaN or infinity."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """The versions of Python, of the platform and of the packages that a result may depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
