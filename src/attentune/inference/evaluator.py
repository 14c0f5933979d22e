"""`Evaluator`: predict and score the splits of a task; `ModelEvaluator` does so with one model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from accelerate import Accelerator
from torch import Tensor, nn

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features
from attentune.errors import NonFiniteLossError
from attentune.inference.scoring import predict_logits
from attentune.metrics.metrics import score_predictions

_SHOWN_ROWS = 8


@dataclass(kw_only=True)
class Evaluator(ABC):
    """Predicts and scores splits; the latest logits are kept, so that they can be written without a second pass."""

    splits: Mapping[str, TextRows]  # the rows of each split
    label_space: LabelSpace
    metrics: Sequence[str]  # the names of the metrics, in order
    logits: dict[str, np.ndarray] = field(default_factory=dict)  # the latest logits (N, C) of each split

    @abstractmethod
    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Compute the (N, C) logits of a split; `predict` also checks and keeps them."""

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the tokens that are read of a row that is longer; 0 for a row that is read whole.

        Of an ensemble: as known after `predict`.
        """
        return np.zeros(len(self.splits[split]), dtype=np.int64)

    def predict(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Compute the (N, C) logits of a split."""
        self.logits[split] = self.compute_logits(split, progress)
        self._check_finite(split)
        return self.logits[split]

    def logits_of(self, split: str, *, reuse: bool, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Return the (N, C) logits of a split; with `reuse` those of the last call, if they exist."""
        return self.logits[split] if reuse and split in self.logits else self.predict(split, progress)

    def _check_finite(self, split: str) -> None:
        """Refuse logits with NaN or infinity."""
        bad = np.flatnonzero(~np.isfinite(self.logits[split]).all(axis=1))
        if len(bad):
            names = ", ".join(self.splits[split].ids[row] for row in bad[:_SHOWN_ROWS])
            raise NonFiniteLossError(
                f"{split}: the model's outputs are infinite or NaN for {len(bad):,} of {len(self.splits[split]):,} rows"
                f" ({names}{', ...' if len(bad) > _SHOWN_ROWS else ''}), so they cannot be scored: its weights are too"
                " large or damaged. Train with a lower --learning_rate or --precision fp32, or use another checkpoint."
            )

    def score(
        self, splits: Sequence[str], *, reuse: bool = False, progress: Callable[[int], None] | None = None
    ) -> dict[str, dict[str, float]]:
        """Predict splits and score those with labels; returns scores by split and metric."""
        scores = {}
        for split in splits:
            logits_NC = self.logits_of(split, reuse=reuse, progress=progress)
            labels = self.splits[split].labels
            if labels is not None and len(labels):
                scores[split] = score_predictions(self.metrics, labels, logits_NC, self.label_space)
        return scores


@dataclass(kw_only=True)
class ModelEvaluator(Evaluator):
    """Predicts and scores splits with one model."""

    model: nn.Module  # the model, on the device of the accelerator
    accelerator: Accelerator
    features: Mapping[str, Features]  # the tokens of each split
    pad_token_id: int
    batch_size: int | None  # rows per batch; None for batches by number of tokens
    encoded: Mapping[str, dict[int, Tensor]] = field(default_factory=dict)  # of a frozen encoder

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the maximum length of the model for longer rows, else 0."""
        config: Any = self.model.config
        return self.features[split].cut_lengths(config.max_seq_length)

    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Run the model over a split."""
        return predict_logits(
            self.model,
            self.features[split],
            pad_token_id=self.pad_token_id,
            batch_size=self.batch_size,
            accelerator=self.accelerator,
            encoded=self.encoded.get(split),
            progress=progress,
        )
