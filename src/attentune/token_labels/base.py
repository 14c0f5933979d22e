"""What makes the samples and token labels of each epoch: one interface, and a table of all that have it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from attentune.config import LabelsConfig
from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator
from attentune.token_labels.comparator import PredictionComparator
from attentune.token_labels.plan import EpochPlan, TokenLabels, shuffled


class Scorer(Protocol):
    """The model as it stands, in evaluation mode."""

    @property
    def model(self) -> nn.Module:
        """The model itself, for generators that need its gradients."""

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """(N, C) logits of training rows, with the tokens at the given places masked; processes share the work."""

    def inputs(self, row: int) -> dict[str, Tensor]:
        """A training row as a batch of one, on the model's device."""

    def summed(self, values: np.ndarray) -> np.ndarray:
        """The sum over all processes."""

    @property
    def part(self) -> slice:
        """Which of a list of rows is this process's share."""

    def watched(self, on_rows: Callable[[int], None]) -> AbstractContextManager[None]:
        """While the block runs, `on_rows` is told how many rows have been asked; what it raises ends the asking."""

    def tick(self, rows: int) -> None:
        """Say that this many rows have been asked by other means than `logits`."""


@dataclass(frozen=True)
class LabelSource:
    """What a generator works on.

    Attributes:
        features: the training rows' tokens.
        gold: (N,) class ids or scores of the training rows.
        comparator: says which predictions are right or have changed.
        scorer: asks the model.
        mask_token_id: stands at masked places.
        seed: the run's seed.
    """

    features: Features
    gold: np.ndarray
    comparator: PredictionComparator
    scorer: Scorer
    mask_token_id: int
    seed: int


class LabelGenerator:
    """Plans the epochs. This one takes every training row once and labels no token.

    A generator may look at the model only in `plan`, which is called before an epoch with the weights at its beginning,
    and in `on_backward`. Its choices are functions of (seed, epoch, row).
    """

    # Whether plans depend on the model, so that a checkpoint must carry the one in force.
    needs_model = False

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        self.settings, self.source = settings, source

    @property
    def samples_per_epoch(self) -> int:
        """How many samples each epoch has; known before training, for the schedule."""
        return len(self.source.features)

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch (from 0)."""
        return EpochPlan(np.arange(len(self.source.features)))

    @contextlib.contextmanager
    def on_train(self) -> Iterator[None]:
        """Around training: attach what `on_backward` reads, and remove it at the end."""
        yield

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        """After each backward pass: take what it says of these training rows."""

    def tensors(self) -> dict[str, np.ndarray]:
        """What a checkpoint must keep of it, summed over processes."""
        return {}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Put back what `tensors` gave."""


class RowLabelGenerator(LabelGenerator, ABC):
    """A generator that trains on every row once and labels tokens of it. Subclasses fill in `label_rows`."""

    needs_model = True

    def plan(self, epoch: int) -> EpochPlan:
        count = len(self.source.features)
        rows = np.arange(count)
        if epoch == 0:
            return EpochPlan(rows, facts={"reason": "no labels exist before the first epoch ends"})
        values, facts = self.label_rows(epoch)
        return labelled_plan(self, epoch, rows, values, facts)

    @abstractmethod
    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        """(sum of lengths,) labels of all training tokens, and what the log is to say."""


def labelled_plan(
    generator: LabelGenerator, epoch: int, rows: np.ndarray, values: np.ndarray, facts: dict[str, Any]
) -> EpochPlan:
    """A plan with these labels, shuffled if asked; its facts tell how many there are, and why if there are none."""
    if generator.settings.shuffle:
        values = shuffled(values, numpy_generator("shuffled labels", generator.source.seed, epoch))
    counts = {"ones": int((values >= 0.5).sum()), "zeros": int(((values >= 0) & (values < 0.5)).sum())}
    facts = {**facts, **counts}
    if not any(counts.values()):
        facts["reason"] = _why_none(facts)
        return EpochPlan(rows, facts=facts)
    starts = np.concatenate([[0], np.cumsum(generator.source.features.lengths[rows])]).astype(np.int64)
    return EpochPlan(rows, token_labels=TokenLabels(values, starts), facts=facts)


def _why_none(facts: dict[str, Any]) -> str:
    if facts.get("probed", 0) == 0:
        return "no sentence was probed: labels.ratio or labels.mask_share is too small for these rows"
    if facts.get("correct", 0) == 0:
        return "the model is not yet right on any of the sentences probed, and only those say which words matter"
    return "no token of the sentences that the model is right on was masked or could be labelled; see labels.mask_share"
