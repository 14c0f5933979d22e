"""The runs of a comparison as they were kept: records, and the predictions beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.errors import CheckpointError
from attentune.experiments.comparison.records import RunRecord, record_file
from attentune.inference.predictions import values_of
from attentune.io.files import read_text

_MEND = "Delete the record and its predictions; the same command makes them again."


@dataclass(frozen=True)
class Predictions:
    """A `predictions` file.

    Attributes:
        ids: of the rows.
        names: the classes in the order of their ids; empty for regression.
        labels_N: (N,) class ids (int64) or scores (float64); with several labels a row (N, C) ones and zeros.
        predictions_N: the same.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    labels_N: np.ndarray
    predictions_N: np.ndarray


@dataclass(frozen=True)
class KeptRun:
    """A record and the files of its predictions, by split."""

    record: RunRecord
    files: dict[str, Path]

    @property
    def split(self) -> str | None:
        """The split that its score is of: the first of validation; None if it failed or has none."""
        return next((split for split in self.record.scores if split.startswith("validation")), None)

    def predictions(self) -> Predictions | None:
        """Those on the split of the score; None where the file is not there.

        Raises:
            CheckpointError: the file cannot be read.
        """
        file = None if self.split is None else self.files.get(self.split)
        return None if file is None or not file.is_file() else read_predictions(file)


def kept_in(folder: Path, records: Iterable[RunRecord]) -> list[KeptRun]:
    """These records of a comparison's folder with their files."""
    return [
        KeptRun(
            record,
            {split: record_file(folder, record.run).with_name(name) for split, name in record.predictions.items()},
        )
        for record in records
    ]


def read_predictions(file: Path) -> Predictions:
    """Read the labels and predictions of a `predictions` file.

    Raises:
        CheckpointError: it cannot be read, or has no labels.
    """
    try:
        if file.is_symlink():
            raise ValueError("it is a link")
        header, *rows = csv.reader(io.StringIO(read_text(file), newline=""))
        names = tuple(column.removeprefix("p_") for column in header[3:] if column.startswith("p_"))
        ids, labels, predictions = zip(*(row[:3] for row in rows), strict=True)
        if header[:3] not in (["id", "label", "prediction"], ["id", "labels", "predictions"]):
            raise ValueError(f"its columns are {', '.join(header[:3])}")
        several = header[1] == "labels"
        return Predictions(ids, names, *(values_of(texts, names, several=several) for texts in (labels, predictions)))
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise CheckpointError(f"{file}: holds no predictions with labels ({error}). {_MEND}") from error
