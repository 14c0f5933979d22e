"""Labels from masking some of a sentence's tokens and looking at what becomes of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.labels.generator import LabelSource, RowLabelGenerator
from attentune.labels.masking import copy_numbers, random_mask, spread_copies
from attentune.labels.plan import LabelSums


@dataclass(frozen=True)
class Probed:
    """Masked copies of sentences that the model is right on, and its logits for both.

    Attributes:
        rows: (M,) the training row of each copy.
        masks: the places masked in each.
        plain_MC: logits of the sentence.
        masked_MC: logits of the copy.
        probed: how many copies were wanted.
        correct: how many of them are of sentences that the model is right on.
    """

    rows: np.ndarray
    masks: list[np.ndarray]
    plain_MC: np.ndarray
    masked_MC: np.ndarray
    probed: int
    correct: int


def probe_copies(source: LabelSource, ratio: float, mask_share: float, epoch: int) -> Probed:
    """Mask ratio x N sentences at random and predict them; those that the model is wrong on are passed over."""
    count, key = len(source.features), (source.seed, epoch)
    copies = spread_copies(count, ratio, *key)
    numbers = copy_numbers(copies)
    rows = np.unique(copies)
    logits_RC = source.probe.logits(rows)
    is_correct_N = np.zeros(count, dtype=bool)
    is_correct_N[rows] = source.judge.correct(logits_RC, source.gold[rows])
    is_used = is_correct_N[copies]
    copies, numbers = copies[is_used], numbers[is_used]
    masks = [
        random_mask(source.features, int(row), mask_share, *key, int(row), int(number))
        for row, number in zip(copies, numbers, strict=True)
    ]
    return Probed(
        rows=copies,
        masks=masks,
        plain_MC=logits_RC[np.searchsorted(rows, copies)],
        masked_MC=source.probe.logits(copies, masks),
        probed=len(is_used),
        correct=len(copies),
    )


class Flip(RowLabelGenerator):
    """1 for tokens whose masking turned the prediction, 0 for tokens whose masking did not.

    Source: SSA (Kou et al. 2020, section 3.2).
    """

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        found = probe_copies(source, settings.ratio, settings.mask_share, epoch)
        flipped_M = ~source.judge.same(found.plain_MC, found.masked_MC)
        sums = LabelSums(source.features.starts)
        for row, places, flipped in zip(found.rows, found.masks, flipped_M, strict=True):
            sums.add(int(row), places, float(flipped))
        return sums.means(), {"probed": found.probed, "correct": found.correct, "flipped": int(flipped_M.sum())}


class Drop(RowLabelGenerator):
    """The fall of the gold class's probability, spread evenly over the tokens that were masked."""

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        found = probe_copies(source, settings.ratio, settings.mask_share, epoch)
        flipped_M = ~source.judge.same(found.plain_MC, found.masked_MC)
        fall_M = source.judge.fall(found.plain_MC, found.masked_MC, source.gold[found.rows])
        sums = LabelSums(source.features.starts)
        for row, places, fall in zip(found.rows, found.masks, fall_M, strict=True):
            sums.add(int(row), places, float(fall) / max(1, len(places)))
        return sums.means(), {"probed": found.probed, "correct": found.correct, "flipped": int(flipped_M.sum())}
