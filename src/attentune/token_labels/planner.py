"""Plans the epochs of a run: the label generators by name, and how they ask the model that is being trained."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from attentune.config import LabelsConfig
from attentune.data.tokenization import Features, pad_batch
from attentune.inference.scoring import score_rows, summed_over_processes
from attentune.plugins import part_of
from attentune.token_labels.attribution import Gradient, IntegratedGradients, Lime
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.corruption import Corruption, copy_numbers, random_mask, spread_copies
from attentune.token_labels.flip import Flip, LeaveOneOut, OriginalSSA, ProbabilityDrop
from attentune.token_labels.plan import EpochPlan


class MaskedRows(LabelGenerator):
    """Uses every training row once, and ratio x N randomly masked copies with their gold labels (data augmentation).

    Source: BERT-m, the augmentation baseline of SSA (Kou et al. 2020, section 4).
    """

    @property
    def samples_per_epoch(self) -> int:
        count = len(self.source.features)
        return count + round(self.settings.ratio * count)

    def plan(self, epoch: int) -> EpochPlan:
        count, key = len(self.source.features), (self.source.seed, epoch)
        copies = spread_copies(count, self.settings.ratio, *key)
        masks = [
            random_mask(self.source.features, int(row), self.settings.mask_share, *key, int(row), int(number))
            for row, number in zip(copies, copy_numbers(copies), strict=True)
        ]
        return EpochPlan(np.concatenate([np.arange(count), copies]), (None,) * count + tuple(masks))


GENERATORS: dict[str, Callable[[LabelsConfig, LabelSource], LabelGenerator]] = {
    "none": LabelGenerator,
    "masked-rows": MaskedRows,
    "corruption": Corruption,
    "flip": Flip,
    "released": OriginalSSA,
    "drop": ProbabilityDrop,
    "leave-one-out": LeaveOneOut,
    "gradient": Gradient,
    "integrated-gradients": IntegratedGradients,
    "lime": Lime,
}


def build_generator(settings: LabelsConfig, source: LabelSource) -> LabelGenerator:
    """Build the configured generator."""
    return part_of(GENERATORS, "attentune.label_generators", settings.generator)(settings, source)


class EpochPlanner:
    """Plans epochs with a label generator, and holds the plan in force."""

    def __init__(self, generator: LabelGenerator) -> None:
        self.generator = generator
        self.plan: EpochPlan | None = None

    def begin_epoch(self, epoch: int, on_rows: Callable[[int], None]) -> EpochPlan:
        """Plan an epoch (from 0); `on_rows` is called with the number of rows that the model has predicted."""
        with self.generator.source.scorer.watched(on_rows):
            self.plan = self.generator.plan(epoch)
        return self.plan

    def resume_epoch(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch that was interrupted.

        A plan that depends on the model came with the checkpoint; any other one is made again.
        """
        return self.generator.plan(epoch) if self.plan is None else self.plan

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold of the plan and the generator. All processes must call it together."""
        if not self.generator.needs_model:
            return {}
        return ({} if self.plan is None else self.plan.tensors()) | self.generator.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Restore the plan and the generator; the inverse of `tensors`."""
        self.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        if self.plan is not None:
            self.plan.check(np.diff(self.generator.source.features.starts))
        self.generator.restore(tensors)


class TrainingScorer:
    """Predicts training rows with the current weights, in evaluation mode.

    All processes must make the same calls; they share the work.
    """

    def __init__(
        self,
        *,
        model: Any,
        accelerator: Any,
        features: Features,
        pad_token_id: int,
        mask_token_id: int,
    ) -> None:
        self.model, self._accelerator, self._features = model, accelerator, features
        self._pad_token_id, self._mask_token_id = pad_token_id, mask_token_id
        self._on_rows: Callable[[int], None] | None = None

    @property
    def part(self) -> slice:
        """The slice of a list of rows that is this process's share."""
        return slice(self._accelerator.process_index, None, self._accelerator.num_processes)

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """Return (N, C) logits of training rows, with the tokens at the given positions masked."""
        return score_rows(
            self.model,
            self._features,
            pad_token_id=self._pad_token_id,
            accelerator=self._accelerator,
            rows=rows,
            masked=masked,
            mask_token_id=self._mask_token_id,
            progress=self.tick,
        ).logits_NC

    def inputs(self, row: int) -> dict[str, Tensor]:
        """Return a training row as a batch of one, on the model's device."""
        batch = pad_batch(self._features, [row], pad_token_id=self._pad_token_id)
        return {name: tensor.to(self._accelerator.device) for name, tensor in batch.inputs.items()}

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all processes."""
        return summed_over_processes(values, self._accelerator)

    @contextlib.contextmanager
    def watched(self, on_rows: Callable[[int], None]) -> Iterator[None]:
        """While the block runs, call `on_rows` with the number of predicted rows; it may raise to stop."""
        self._on_rows = on_rows
        try:
            yield
        finally:
            self._on_rows = None

    def tick(self, rows: int) -> None:
        """Report that this many rows have been predicted."""
        if self._on_rows is not None:
            self._on_rows(rows)
