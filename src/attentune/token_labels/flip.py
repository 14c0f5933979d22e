"""Token labels from masking some of a sentence's tokens and comparing the prediction before and after."""

import numpy as np

from attentune.nn.losses import NO_LABEL
from attentune.token_labels.base import LabelGenerator, labelled_plan
from attentune.token_labels.corruption import copy_numbers, random_mask, spread_copies
from attentune.token_labels.plan import EpochPlan


class Flip(LabelGenerator):
    """Labels tokens 1 if masking them changed the prediction, 0 if it did not.

    Before each epoch but the first, ratio x N copies of the sentences are masked at random. Only those of sentences
    that are predicted correctly give labels; a token that is masked in several copies gets the mean.

    Source: SSA (Kou et al. 2020, section 3.1).
    """

    needs_model = True

    def plan(self, epoch: int) -> EpochPlan:
        settings, source, key = self.settings, self.source, (self.source.seed, epoch)
        features, comparator = source.features, source.comparator
        every_row = np.arange(len(features))
        if epoch == 0:
            return EpochPlan(every_row, facts={"reason": "no labels exist before the first epoch ends"})
        copies = spread_copies(len(features), settings.ratio, *key)
        probed, place = np.unique(copies, return_inverse=True)
        plain_RC = source.scorer.logits(probed)
        is_used = comparator.correct(plain_RC, source.gold[probed])[place]
        rows, numbers = copies[is_used], copy_numbers(copies)[is_used]
        masks = [
            random_mask(features, int(row), settings.mask_share, *key, int(row), int(number))
            for row, number in zip(rows, numbers, strict=True)
        ]
        is_flipped = ~comparator.same(plain_RC[place[is_used]], source.scorer.logits(rows, masks))
        flips, probes = np.zeros((2, len(features.ids)))
        for row, positions, flipped in zip(rows, masks, is_flipped, strict=True):
            flips[features.starts[row] + positions] += flipped
            probes[features.starts[row] + positions] += 1
        values = np.full(len(flips), NO_LABEL, dtype=np.float32)
        np.divide(flips, probes, out=values, where=probes > 0, casting="same_kind")
        facts = {"probed": len(copies), "correct": len(rows), "flipped": int(is_flipped.sum())}
        return labelled_plan(self, epoch, every_row, values, facts)
