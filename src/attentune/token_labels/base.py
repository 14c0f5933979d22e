"""The interfaces of token labels: generators that plan each epoch, and the scorer through which they use the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.config import LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features, TokenWords
from attentune.inference.scoring import score_rows
from attentune.metrics.metrics import predictions_of
from attentune.seeding import numpy_generator
from attentune.token_labels.plan import EpochPlan, TokenLabels, shuffled


@dataclass(frozen=True)
class PredictionComparator:
    """Compares predictions: whole sets of labels, or scores up to a tolerance (Kou et al. 2020, section 3.1)."""

    label_space: LabelSpace  # the labels or scores to predict
    tolerance: float = 0.3  # regression: predictions that differ by at most this are equal, on the task's scale

    def correct(self, logits_NC: np.ndarray, gold_N: np.ndarray) -> np.ndarray:
        return self._agree(predictions_of(logits_NC, self.label_space), gold_N)

    def same(self, logits_NC: np.ndarray, others_NC: np.ndarray) -> np.ndarray:
        return self._agree(predictions_of(logits_NC, self.label_space), predictions_of(others_NC, self.label_space))

    def _agree(self, first_N: np.ndarray, second_N: np.ndarray) -> np.ndarray:
        if self.label_space.task_type == "regression":
            return np.abs(first_N - second_N) <= self.tolerance
        alike = first_N == second_N
        return alike.all(axis=1) if self.label_space.is_multilabel else alike


@dataclass(kw_only=True)
class TrainingScorer:
    """Predicts training rows with the current weights, in evaluation mode; all processes must make the same calls."""

    model: Any
    accelerator: Any
    features: Features
    pad_token_id: int
    mask_token_id: int
    on_rows: Callable[[int], None] | None = None  # called with the number of predicted rows; it may raise to stop

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """Return (N, C) logits of training rows, with the tokens at the given positions masked."""
        return score_rows(
            self.model,
            self.features,
            pad_token_id=self.pad_token_id,
            accelerator=self.accelerator,
            rows=rows,
            masked=masked,
            mask_token_id=self.mask_token_id,
            progress=self.on_rows,
        ).logits_NC


@dataclass(frozen=True)
class LabelSource:
    """What a generator works on."""

    features: Features  # the training rows' tokens
    gold: np.ndarray  # (N,) class ids or scores of the training rows
    comparator: PredictionComparator  # decides which predictions are correct or have changed
    scorer: TrainingScorer  # runs the model
    mask_token_id: int  # replaces masked tokens
    seed: int  # the run's seed
    words: Callable[[], TokenWords] | None = None  # returns the words of the training rows; None if not known


class LabelGenerator:
    """Plans the samples and token labels of each epoch; this base class uses every training row once, without labels.

    It has no state: plans are functions of the model, the seed, the epoch and the rows.
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
