"""The plan of one epoch: its samples, each a training row with optional masks and token labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from attentune.data.tokenization import Features
from attentune.errors import CheckpointError


@dataclass(frozen=True)
class TokenLabels:
    """The token labels of an epoch's samples, in one flat array."""

    values: np.ndarray  # (sum of lengths,) float32 from 0 to 1; `nn.losses.NO_LABEL` where a token has no label
    starts: np.ndarray  # (M + 1,) int64; sample n has values[starts[n]:starts[n + 1]]

    def sample(self, number: int) -> np.ndarray:
        return self.values[self.starts[number] : self.starts[number + 1]]

    def counts(self, samples: np.ndarray) -> tuple[int, int]:
        """Count the labelled tokens of these samples, and those labelled 0.5 or more."""
        parts = np.concatenate([self.sample(number) for number in samples] or [np.zeros(0, np.float32)])
        return int((parts >= 0).sum()), int((parts >= 0.5).sum())


@dataclass(frozen=True)
class EpochPlan:
    """The samples of one epoch."""

    rows: np.ndarray  # (M,) the training row of each sample
    masked: tuple[np.ndarray | None, ...] | None = None  # for each sample the positions to mask, or None
    token_labels: TokenLabels | None = None  # the labels of the samples' tokens; None if there are none
    facts: dict[str, Any] = field(default_factory=dict)  # counts to log, and `reason` if no token could be labelled
    features: Features | None = None  # the tokens of the samples, where they are not those of their rows

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, features: Features, samples: np.ndarray) -> tuple[Features, np.ndarray]:
        """Return what holds the tokens of these samples, and their places in it."""
        return (features, self.rows[samples]) if self.features is None else (self.features, samples)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays that `from_tensors` needs."""
        labels = self.token_labels
        return {"rows": self.rows} | ({} if labels is None else {"values": labels.values, "starts": labels.starts})

    @classmethod
    def from_tensors(cls, tensors: dict[str, np.ndarray]) -> EpochPlan:
        labels = TokenLabels(tensors["values"], tensors["starts"]) if "values" in tensors else None
        return cls(tensors["rows"], token_labels=labels)

    def check(self, lengths_N: np.ndarray) -> None:
        """Check that a loaded plan fits the training rows."""
        rows, labels, count = self.rows, self.token_labels, len(lengths_N)
        if rows.ndim != 1 or rows.dtype.kind != "i" or (len(rows) and not 0 <= rows.min() <= rows.max() < count):
            raise ValueError("the labels are of other rows")
        if labels is None:
            return
        starts = labels.starts
        if starts.dtype.kind != "i" or labels.values.shape != (int(starts[-1]),) or labels.values.dtype.kind != "f":
            raise ValueError("the labels are of another kind")
        if not np.array_equal(starts, np.concatenate([[0], np.cumsum(lengths_N[rows])])):
            raise ValueError("the labels are of other tokens")


def shuffled(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Permute the labels among the labelled tokens: an uninformative control."""
    mixed = values.copy()
    labelled = np.flatnonzero(values >= 0)
    mixed[labelled] = values[generator.permutation(labelled)]
    return mixed


LABELS_FILE = "labels.safetensors"


def save_labels(file: Path, tensors: dict[str, np.ndarray], *, train_fingerprint: str) -> None:
    save_file(tensors, file, metadata={"train_fingerprint": train_fingerprint})


def load_labels(file: Path) -> tuple[dict[str, np.ndarray], str]:
    """Load the arrays of a plan and the fingerprint of its training rows."""
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
        return load_file(file), metadata.get("train_fingerprint", "")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}. Use another copy, or train again.") from error
