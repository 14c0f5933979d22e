"""`labels.safetensors`: the token labels in force, in a checkpoint and in a finished run's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from attentune.errors import CheckpointError

LABELS_FILE = "labels.safetensors"


def save_labels(folder: Path, tensors: dict[str, np.ndarray], *, train_fingerprint: str) -> None:
    """Write the file, with what tells the training rows that it belongs to."""
    save_file(tensors, folder / LABELS_FILE, metadata={"train_fingerprint": train_fingerprint})


def load_labels(folder: Path) -> tuple[dict[str, np.ndarray], str]:
    """The tensors, and the fingerprint of the training rows.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = folder / LABELS_FILE
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
        return load_file(file), metadata.get("train_fingerprint", "")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}. Use another copy, or train again.") from error
