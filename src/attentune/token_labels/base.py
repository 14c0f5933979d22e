"""The interfaces of token labels: generators that plan each epoch, and the scorer through which they use the model."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from attentune.config import LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features, TokenWords
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.seeding import numpy_generator
from attentune.token_labels.plan import EpochPlan, TokenLabels, shuffled


@dataclass(frozen=True)
class PredictionComparator:
    """Compares predictions.

    In multi-label tasks a prediction is the whole set of labels.

    Source: SSA (Kou et al. 2020, section 3.1); the tolerance is its 0.3 for STS-B.
    """

    label_space: LabelSpace  # the labels or scores to predict
    tolerance: float = 0.3  # regression: predictions that differ by at most this are equal, on the task's scale
    score_range: float = 1.0  # regression: the highest minus the lowest training score, to normalise drops

    @property
    def correct_implies_same(self) -> bool:
        """Whether two correct predictions are always the same, as for classes but not for scores."""
        return self.label_space.task_type != "regression"

    def correct(self, logits_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """Return which predictions are correct, (N,) bool."""
        return self._agree(predictions_of(logits_NC, self.label_space), gold_N)

    def same(self, logits_NC: np.ndarray, others_NC: np.ndarray) -> np.ndarray:
        """Return which predictions are the same, (N,) bool."""
        return self._agree(predictions_of(logits_NC, self.label_space), predictions_of(others_NC, self.label_space))

    def drop(self, logits_NC: np.ndarray, masked_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        """Compute how far masking lowered the gold class's probability.

        In multi-label tasks it is the mean over labels of the drop in probability of the gold value; in regression the
        rise of the absolute error, divided by the range of the training scores.
        """
        if self.label_space.task_type == "regression":
            rise_N = np.abs(masked_NC[:, 0] - gold_N) - np.abs(logits_NC[:, 0] - gold_N)
            return np.clip(rise_N / max(self.score_range, 1e-12), 0.0, 1.0)
        before_NC, after_NC = (probabilities_of(each_NC, self.label_space) for each_NC in (logits_NC, masked_NC))
        if self.label_space.is_multilabel:
            drop_NC = np.where(gold_N == 1, before_NC - after_NC, after_NC - before_NC)
            return np.clip(drop_NC.mean(axis=1), 0.0, 1.0)
        places = np.arange(len(gold_N))
        return np.clip(before_NC[places, gold_N] - after_NC[places, gold_N], 0.0, 1.0)

    def _agree(self, first_N: np.ndarray, second_N: np.ndarray) -> np.ndarray:
        if self.label_space.task_type == "regression":
            return np.abs(first_N - second_N) <= self.tolerance
        alike = first_N == second_N
        return alike.all(axis=1) if self.label_space.is_multilabel else alike


class LabelScorer(Protocol):
    """Runs the model with its present weights on training rows, in evaluation mode.

    Every process must make the same calls.
    """

    @property
    def model(self) -> nn.Module:
        """The model, for generators that need its gradients."""

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """Predict training rows, with the tokens at the given positions masked: (N, C) logits, on all processes."""

    def inputs(self, row: int) -> dict[str, Tensor]:
        """Return a training row as a batch of one, on the model's device."""

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Sum an array over all processes."""

    @property
    def part(self) -> slice:
        """The slice of a list of rows that this process works on."""

    def watched(self, on_rows: Callable[[int], None]) -> AbstractContextManager[None]:
        """Call `on_rows` with the number of rows after each batch while the block runs; it may raise to stop."""

    def tick(self, rows: int) -> None:
        """Report rows that were processed by other means than `logits` to `on_rows`."""


@dataclass(frozen=True)
class LabelSource:
    """What a generator works on."""

    features: Features  # the training rows' tokens
    gold: np.ndarray  # (N,) class ids or scores of the training rows
    comparator: PredictionComparator  # decides which predictions are correct or have changed
    scorer: LabelScorer  # runs the model
    mask_token_id: int  # replaces masked tokens
    seed: int  # the run's seed
    words: Callable[[], TokenWords] | None = None  # returns the words of the training rows; None if not known


class LabelGenerator:
    """Plans the samples and token labels of each epoch; this base class uses every training row once, without labels.

    A generator may use the model only in `plan`, which is called before each epoch, and in `on_backward`. Its random
    choices are functions of (seed, epoch, row).
    """

    # Whether plans depend on the model, so that checkpoints must contain the current plan.
    needs_model = False

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        self.settings, self.source = settings, source

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples in most epochs; known before training, for the learning-rate schedule."""
        return len(self.source.features)

    def samples_in_epoch(self, epoch: int) -> int:
        """Return the number of samples in one epoch, counted from 0, if it differs between them."""
        return self.samples_per_epoch

    def plan(self, epoch: int) -> EpochPlan:
        """Make the plan of an epoch, counted from 0."""
        return EpochPlan(np.arange(len(self.source.features)))

    @contextlib.contextmanager
    def on_train(self) -> Iterator[None]:
        """Context around training: attach the hooks that `on_backward` reads, and remove them at the end."""
        yield

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        """Called after each backward pass with the batch's training rows, inputs and logits."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the state to save in a checkpoint, summed over processes."""
        return {}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Restore the state that `tensors` returned."""


class RowLabelGenerator(LabelGenerator, ABC):
    """A generator that uses every row once and labels its tokens. Subclasses define `label_rows`."""

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
        """Label all training tokens: (sum of lengths,) float32, and the counts to log."""


def labelled_plan(
    generator: LabelGenerator, epoch: int, rows: np.ndarray, values: np.ndarray, facts: dict[str, Any]
) -> EpochPlan:
    """Make a plan with these labels, shuffled if configured; its facts count the labels, or say why there are none."""
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
