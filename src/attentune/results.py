"""The record of a finished run (`run.json`), and its conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math
import platform
import subprocess
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from attentune.errors import CheckpointError
from attentune.io.files import read_json

_PACKAGES = ("attentune", "torch", "transformers", "tokenizers", "accelerate", "numpy", "safetensors")

# Files of a run folder: the record of the finished run, and its log.
RESULT_FILE, LOG_FILE = "run.json", "log.jsonl"
# Files of a search's folder: settings, ranked trials, best settings; and the run of the model with the best settings.
SEARCH_FILE, TRIALS_FILE, WINNER_FILE = "search.json", "trials.json", "config.yaml"
BEST_FOLDER = "best"
# The key in `data_fingerprint` for the training rows without those of extra files, if there are any.
ORIGINAL_TRAIN = "train without extra files"


@dataclass(frozen=True)
class RunResult:
    """The record of a finished run.

    Attributes:
        scores: metric values by split and metric name; None if undefined, such as the correlation of constants.
        train: seconds, tokens (without padding), tokens_per_second, peak_memory_bytes and more.
        best: the metric, value and step of the best validation score; None without scores.
        config: the complete configuration.
        seed: the seed of the run.
        versions: the versions of Python, the platform and the main packages.
        data_fingerprint: the SHA-256 of each split; with extra training files, also that of the training rows without
            them (`ORIGINAL_TRAIN`).
        notes: notes on the data and decisions made automatically.
        baselines: baselines fitted on the same rows, next to the model: `split`, `metric`, `rows`, `interval`, and for
            each of `methods` its name, score, interval and seconds; None if there are none.
        cues: how far the model decides by each cue of its training rows, see `training.cue_effects`.
        warnings: sentences on a model that predicts one class for nearly all rows, or is not better than a baseline.
    """

    scores: dict[str, dict[str, float | None]]
    train: dict[str, Any]
    best: dict[str, Any] | None
    config: dict[str, Any]
    seed: int
    versions: dict[str, str]
    data_fingerprint: dict[str, str]
    notes: list[str] = field(default_factory=list)
    baselines: dict[str, Any] | None = None
    cues: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the record as JSON; NaN becomes null."""
        return to_json(dataclasses.asdict(self))

    def metrics(self) -> dict[str, Any]:
        """Return the content of `metrics.json`: `train`, then each split's scores."""
        return {"train": self.train, **self.scores}

    @property
    def folder(self) -> Path:
        """The run folder, as it was named when the run began."""
        return Path(str(self.config["training"]["output_dir"]))

    def _repr_html_(self) -> str:
        """Show scores, baselines and warnings in a notebook."""
        scores = [(split, name, value) for split, part in self.scores.items() for name, value in part.items()]
        parts = [html_table(("split", "metric", "value"), scores)]
        if self.baselines is not None:
            rows = [(one["name"], one["score"], one["low"], one["high"]) for one in self.baselines["methods"]]
            parts.append(html_table(("method", self.baselines["metric"], "low", "high"), rows))
        return html_block(f"Run {self.folder}", parts, (*self.calibration_notes, *self.warnings))

    @property
    def calibration_notes(self) -> list[str]:
        """The notes on the calibration error, which scores do not have, and on texts that are rejected."""
        starts = ("Calibrated on ", "Expected calibration error", "Texts with ", "No text is rejected: ")
        return [note for note in self.notes if note.startswith(starts)]

    @classmethod
    def load(cls, file: str | Path) -> RunResult:
        """Read a run's `run.json`.

        Raises:
            CheckpointError: the file is missing or invalid.
        """
        try:
            content = read_json(file)
            check_fields(cls, content)
            return cls(**content)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{file}: is not the record of a finished run: {error}") from error


def check_fields(cls: type, content: Any) -> None:
    """Check the types of fields from an untrusted file; the constructor refuses missing and unknown ones."""
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


def html_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table for a notebook; it has the notebook's colours, light or dark."""

    def line(tag: str, cells: Iterable[Any]) -> str:
        texts = (f"{cell:.4f}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

    return f"<table>{line('th', header)}{''.join(line('td', row) for row in rows)}</table>"


def html_block(title: str, parts: Iterable[str], sentences: Iterable[str] = ()) -> str:
    """Return HTML parts for a notebook, below a title and above sentences, both of which are escaped."""
    below = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    return f"<div><p><strong>{html.escape(title)}</strong></p>{''.join(parts)}{below}</div>"


def to_json(value: Any) -> str:
    """Return indented JSON, with NaN and infinity as null, which every JSON parser accepts."""
    return json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def without_nan(value: Any) -> Any:
    """Return a copy of a nested value in which each NaN or infinity is None."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def commit() -> str | None:
    """Return the commit of this package: the one that it was built from, or that of the clone that it runs from."""
    folder = Path(__file__).parent
    if (folder / "commit.txt").is_file():
        return (folder / "commit.txt").read_text(encoding="utf-8")
    clone = folder.parent.parent
    if not (clone / ".git").exists():
        return None
    words = ("git", "-C", str(clone), "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*")
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that a result may depend on, and the commit."""
    installed = {"python": platform.python_version(), "platform": platform.platform()}
    if (known := commit()) is not None:
        installed["commit"] = known
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed
