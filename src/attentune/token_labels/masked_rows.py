"""Masked copies of training rows under their gold labels: augmentation without token labels."""

from __future__ import annotations

import numpy as np

from attentune.token_labels.base import LabelGenerator
from attentune.token_labels.masking import copy_numbers, random_mask, spread_copies
from attentune.token_labels.plan import EpochPlan


class MaskedRows(LabelGenerator):
    """Every training row once, and ratio x N randomly masked copies under their gold labels.

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
