"""What a model card is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.config import Config
from attentune.data.custom import OWN_NAME
from attentune.data.dataset import TaskData
from attentune.metrics.metrics import Metric
from attentune.models.build import hub_name
from attentune.results import RunResult


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of.

    Attributes:
        config: the run's settings.
        data: its rows.
        metric: what tells the best model.
        result: the run's record.
        logits: (N, C) of each split that was predicted.
    """

    config: Config
    data: TaskData
    metric: Metric
    result: RunResult
    logits: Mapping[str, np.ndarray]


def data_name(facts: CardFacts) -> str:
    if facts.data.name != OWN_NAME:
        return facts.data.name
    named = facts.config.data.dataset_name or facts.config.data.train_file
    return dataset(facts) or ("own data" if named is None else Path(named).name)


def dataset(facts: CardFacts) -> str | None:
    """The data set's name on the hub, if that is where it is from."""
    named = facts.config.data.dataset_name
    return None if named is None else hub_name(named)


def encoder_name(facts: CardFacts) -> str:
    """A name on the hub, or of a folder no more than its last part."""
    name = facts.config.model.name_or_path
    return hub_name(name) or Path(name).name
