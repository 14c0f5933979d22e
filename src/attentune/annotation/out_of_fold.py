"""Out-of-fold probabilities: of each row, from a model that has not seen it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.baselines.frozen import FrozenEncoder, FrozenLinear
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import DataError
from attentune.experiments.auto.folds import make_folds
from attentune.experiments.auto.out_of_fold import read_out_of_fold
from attentune.metrics.metrics import probabilities_of

FOLDS = 5
# Rows that are encoded between two calls of `progress`.
_CHUNK = 256


@dataclass(frozen=True)
class OutOfFold:
    """Probabilities of rows from models that have not seen them.

    Attributes:
        probabilities_NC: (N, C) float64; NaN in rows that no model predicts.
        source: what made them, in words.
    """

    probabilities_NC: np.ndarray
    source: str


@dataclass(frozen=True)
class LinearFolds:
    """A linear model on a frozen encoder for each fold, fitted on the rows of the other folds.

    Attributes:
        models: one per fold.
        fold_N: (N,) the fold of each row, an index of `models`.
    """

    models: tuple[FrozenLinear, ...]
    fold_N: np.ndarray

    def probabilities(self, rows: TextRows, label_space: LabelSpace) -> np.ndarray:
        """Predict the rows that the models were made for, each with the model that has not seen it: (N, C)."""
        found_NC = np.zeros((len(rows), label_space.num_labels))
        for number, model in enumerate(self.models):
            places = np.flatnonzero(self.fold_N == number)
            found_NC[places] = probabilities_of(model.logits(rows.take(places)), label_space)
        return found_NC


def fit_folds(
    rows: TextRows,
    label_space: LabelSpace,
    *,
    frozen: FrozenEncoder,
    seed: int,
    folds: int = FOLDS,
    progress: Callable[[int], None] | None = None,
) -> LinearFolds:
    """Fit frozen-linear on folds of labelled rows; rows with equal texts share a fold.

    Args:
        rows: the rows, at least two.
        label_space: the labels.
        frozen: the encoder.
        seed: draws the folds, and what the models draw.
        folds: the number of folds, if there are as many different texts.
        progress: called with the number of rows that were encoded.

    Raises:
        DataError: there are no labels, or fewer than two rows.
    """
    if rows.labels is None or len(rows) < 2:
        count = 0 if rows.labels is None else len(rows)
        raise DataError(f"{rows.source}: got {count} labelled rows, expected at least two.")
    for start in range(0, len(rows), _CHUNK):
        part = rows.take(range(start, min(start + _CHUNK, len(rows))))
        frozen.vectors((*part.texts, *(part.pairs or ())))
        if progress is not None:
            progress(len(part))
    numbers = np.unique(make_folds(rows, label_space, folds=folds, seed=seed), return_inverse=True)[1]
    models = tuple(
        FrozenLinear(frozen, seed=seed).fit(rows.take(np.flatnonzero(numbers != number)), label_space)
        for number in range(int(numbers.max()) + 1)
    )
    return LinearFolds(models, numbers)


def probabilities_of_run(folder: str | Path, rows: TextRows, label_space: LabelSpace) -> OutOfFold:
    """Read the out-of-fold probabilities of a run of `attentune auto`.

    Raises:
        CheckpointError: it has none, or they are of other rows or labels.
    """
    logits_NC = read_out_of_fold(folder, rows, label_space)
    probabilities_NC = np.full(logits_NC.shape, np.nan)
    there = ~np.isnan(logits_NC).any(axis=1)
    probabilities_NC[there] = probabilities_of(logits_NC[there], label_space)
    return OutOfFold(probabilities_NC, f"the out-of-fold predictions of {folder}")
