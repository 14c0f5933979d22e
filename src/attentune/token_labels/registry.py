"""The label generators by name, the values of the setting `labels.generator`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attentune.config import LabelsConfig
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
