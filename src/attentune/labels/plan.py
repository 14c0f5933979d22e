"""The plan of one epoch: its samples, each a training row with or without masked tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attentune.config import LabelsConfig
from attentune.data.features import Features
from attentune.labels.masking import random_mask, spread_copies


@dataclass(frozen=True)
class EpochPlan:
    """What one epoch trains on.

    Attributes:
        rows: (M,) the training row of each sample.
        masked: for each sample the places to mask, or None for none; None where no sample is masked.
    """

    rows: np.ndarray
    masked: tuple[np.ndarray | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class EpochContext:
    """What a planner may look at.

    Attributes:
        features: the training rows' tokens.
        seed: the run's seed.
        epoch: from 0.
    """

    features: Features
    seed: int
    epoch: int


def plain_rows(settings: LabelsConfig, context: EpochContext) -> EpochPlan:
    """Every training row once."""
    return EpochPlan(np.arange(len(context.features)))


def masked_rows(settings: LabelsConfig, context: EpochContext) -> EpochPlan:
    """Every training row once, and ratio x N randomly masked copies under their gold labels.

    Source: BERT-m, the augmentation baseline of SSA (Kou et al. 2020, section 4).
    """
    count = len(context.features)
    key = (context.seed, context.epoch)
    copies = spread_copies(count, settings.ratio, *key)
    # The number of a copy among those of its row, so that each has a mask of its own.
    numbers = np.arange(len(copies)) - np.searchsorted(copies, copies, side="left")
    masks = [
        random_mask(context.features, int(row), settings.mask_share, *key, int(row), int(number))
        for row, number in zip(copies, numbers, strict=True)
    ]
    return EpochPlan(np.concatenate([np.arange(count), copies]), (None,) * count + tuple(masks))


# One entry a generator, by the name it has in `labels.generator`.
PLANNERS: dict[str, Callable[[LabelsConfig, EpochContext], EpochPlan]] = {
    "none": plain_rows,
    "masked-rows": masked_rows,
}


def plan_epoch(settings: LabelsConfig, context: EpochContext) -> EpochPlan:
    """The plan of an epoch by the configured generator."""
    return PLANNERS[settings.generator](settings, context)


def samples_per_epoch(settings: LabelsConfig, rows: int) -> int:
    """How many samples each epoch has; known before training, for the schedule."""
    return rows + (round(settings.ratio * rows) if settings.generator == "masked-rows" else 0)
