"""The rows that a loop trains on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attentune.data.tokenization import Features


@dataclass(frozen=True)
class TrainingRows:
    """What is trained on.

    Attributes:
        features: the rows' tokens.
        labels: (N,) class ids or scores.
        weights: (N,) float32, what each row's losses are multiplied with; None for 1.
        names: what a row is called in messages, by its number.
        pad_token_id: fills up shorter rows.
        mask_token_id: stands at masked places.
    """

    features: Features
    labels: np.ndarray
    names: Callable[[int], str]
    pad_token_id: int
    mask_token_id: int
    weights: np.ndarray | None = None
