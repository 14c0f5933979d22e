"""The interface of all baselines, and their files: `baseline.json` and `baseline.safetensors`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import load_file, save

from attentune.data.dataset import TASK_TYPES, LabelSpace, TextRows
from attentune.errors import CheckpointError, DataError
from attentune.io.files import read_json, write_bytes, write_text

BASELINE_FILE, WEIGHTS_FILE = "baseline.json", "baseline.safetensors"
FORMAT = 1


class Baseline(ABC):
    """A simple model of rows of texts or pairs, for every type of task."""

    name: ClassVar[str]  # its name in the registry

    def __init__(self) -> None:
        self.label_space: LabelSpace | None = None
        self.is_pair = False
        self.notes: tuple[str, ...] = ()

    def fit(self, rows: TextRows, label_space: LabelSpace) -> Self:
        """Fit the labels of rows, weighted by `rows.weights` if they have weights."""
        if rows.labels is None or len(rows) == 0:
            raise DataError(f"{rows.source}: got no labelled rows, expected at least one to fit {self.name} on.")
        self.label_space, self.is_pair = label_space, rows.pairs is not None
        self._fit(rows, rows.labels, label_space)
        return self

    def logits(self, rows: TextRows) -> np.ndarray:
        """Predict rows."""
        if self.label_space is None:
            raise ValueError(f"{self.name}: call fit first")
        if (rows.pairs is not None) != self.is_pair:
            kinds = ("single texts", "pairs of texts")
            raise DataError(f"{rows.source}: got {kinds[not self.is_pair]}, expected {kinds[self.is_pair]}.")
        if len(rows) == 0:
            return np.zeros((0, self.label_space.num_labels))
        return np.asarray(self._logits(rows), dtype=np.float64)

    def cut_lengths(self, rows: TextRows) -> np.ndarray:
        """Return (N,) the tokens that are read of a row that is longer; 0 for a row that is read whole."""
        return np.zeros(len(rows), dtype=np.int64)

    def save(self, folder: Path) -> None:
        """Write `baseline.json` and `baseline.safetensors` into an existing folder."""
        if self.label_space is None:
            raise ValueError(f"{self.name}: call fit first")
        arrays, settings = self._state()
        content = {
            "format": FORMAT,
            "name": self.name,
            "is_pair": self.is_pair,
            "label_space": asdict(self.label_space),
            "notes": list(self.notes),
            "settings": settings,
        }
        write_bytes(Path(folder) / WEIGHTS_FILE, save({key: np.ascontiguousarray(a) for key, a in arrays.items()}))
        write_text(Path(folder) / BASELINE_FILE, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a baseline of this class; `registry.load_baseline` loads any."""
        content = read_baseline_file(folder)
        try:
            if content["name"] != cls.name:
                raise ValueError(f"it holds {content['name']!r}, expected {cls.name!r}")
            arrays = load_file(Path(folder) / WEIGHTS_FILE)
            made = cls._restore(arrays, content["settings"])
            made.label_space = _label_space(content["label_space"])
            made.is_pair, made.notes = bool(content["is_pair"]), tuple(map(str, content["notes"]))
            made._check()
            return made
        except CheckpointError:
            raise
        except Exception as error:  # safetensors, JSON and NumPy each have their own
            raise _damaged(folder, error) from error

    @abstractmethod
    def _fit(self, rows: TextRows, labels: np.ndarray, label_space: LabelSpace) -> None: ...

    @abstractmethod
    def _logits(self, rows: TextRows) -> np.ndarray: ...

    @abstractmethod
    def _state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what `_restore` needs: arrays, and settings for JSON."""

    @classmethod
    @abstractmethod
    def _restore(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Self: ...

    @abstractmethod
    def _check(self) -> None:
        """Check that restored arrays fit together; raises ValueError."""


def read_baseline_file(folder: str | Path) -> dict[str, Any]:
    """Read the `baseline.json` of a folder."""
    try:
        content = read_json(Path(folder) / BASELINE_FILE)
        if not isinstance(content, dict) or not isinstance(content.get("name"), str):
            raise ValueError("it names no baseline")
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')!r}, expected {FORMAT}")
        return content
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error


def _damaged(folder: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{folder}: no baseline could be loaded: {type(error).__name__}: {str(error)[:300]}. Expected {BASELINE_FILE}"
        f" and {WEIGHTS_FILE} of a trained baseline; train it again, or use another copy."
    )


def _label_space(content: dict[str, Any]) -> LabelSpace:
    thresholds = content["thresholds"]
    space = LabelSpace(
        str(content["task_type"]),
        tuple(map(str, content["names"])),
        str(content["ordinal_prediction"]),
        None if thresholds is None else tuple(map(float, thresholds)),
    )
    if space.task_type not in TASK_TYPES or space.num_labels < 1:
        raise ValueError("its label space is invalid")
    return space
