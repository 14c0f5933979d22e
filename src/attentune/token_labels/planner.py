"""Plans the epochs of a run: the label generators by name, and the plan in force."""

from collections.abc import Callable

import numpy as np

from attentune.config import LabelsConfig
from attentune.plugins import part_of
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.corruption import Corruption, copy_numbers, random_mask, spread_copies
from attentune.token_labels.flip import Flip
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
        """Return the arrays of the plan in force if it depends on the model, for a checkpoint."""
        return self.plan.tensors() if self.generator.needs_model and self.plan is not None else {}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Restore the plan; the inverse of `tensors`."""
        self.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        if self.plan is not None:
            self.plan.check(np.diff(self.generator.source.features.starts))
