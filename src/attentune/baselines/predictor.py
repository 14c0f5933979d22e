"""Baselines as saved runs, which `Predictor.load` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.baselines.base import Baseline
from attentune.baselines.registry import load_baseline
from attentune.data.dataset import TaskData
from attentune.errors import ConfigError
from attentune.inference.predictor import ModelPredictor, Predictor, TextsRead, saved_config
from attentune.inference.scoring import Evaluator


@dataclass(frozen=True)
class BaselinePredictor(Predictor):
    """A saved baseline. It has one precision, so that settings of precision and batches are ignored."""

    baseline: Baseline

    @property
    def kind(self) -> str:
        """The name of the baseline."""
        return f"{self.baseline.name} baseline"

    @property
    def is_pair(self) -> bool:
        """Whether the baseline was fitted to pairs of texts."""
        return self.baseline.is_pair

    def evaluator(self, data: TaskData, **training: Any) -> Evaluator:
        """Make an evaluator of the rows."""
        self._check_pairs(data)
        return BaselineEvaluator(
            splits=data.splits,
            label_space=self.label_space,
            metrics=data.metrics,
            baseline=self.baseline,
            read=self.read,
        )

    def predictor(self, data: TaskData, *, precision: str | None) -> Evaluator:
        """Make an evaluator of the rows, as `evaluator` does."""
        return self.evaluator(data)

    def single_model(self, purpose: str) -> ModelPredictor:
        """Refuse: a baseline is no fine-tuned encoder."""
        raise ConfigError(
            f"{purpose}: got {self.folder}, a {self.kind}, expected the run folder of a fine-tuned encoder. Train one:"
            " attentune train --preset bert --output_dir DIR"
        )


@dataclass(kw_only=True)
class BaselineEvaluator(Evaluator):
    """Predicts and scores splits with a baseline."""

    baseline: Baseline
    read: TextsRead  # counts the rows

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the maximum length of a frozen encoder for longer rows, else 0."""
        return self.baseline.cut_lengths(self.splits[split])

    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Predict a split at once."""
        logits_NC = self.baseline.logits(self.splits[split])
        self.read.add(self.cut_lengths(split))
        if progress is not None:
            progress(len(logits_NC))
        return logits_NC


def load_run(folder: Path) -> BaselinePredictor:
    """Load the run folder of a baseline."""
    baseline = load_baseline(folder)
    assert baseline.label_space is not None  # loaded baselines are fitted
    return BaselinePredictor(folder, saved_config(folder), baseline.label_space, baseline)
