"""Generators that mask random tokens: SSA's token labels (`flip`), and its baseline BERT-m (`masked-rows`)."""

import numpy as np

from attentune.data.tokenization import Features
from attentune.nn.losses import NO_LABEL
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelGenerator, labelled_plan
from attentune.token_labels.plan import EpochPlan


def random_mask(features: Features, row: int, share: float, *key: int | str) -> np.ndarray:
    """Draw the positions of a row to mask: a random share of its non-special tokens, at least one if there is any.

    Source: SSA (Kou et al. 2020, section 3.1), which masks 30 %.
    """
    ordinary = features.non_special_positions(row)
    if share <= 0 or len(ordinary) == 0:
        return np.zeros(0, dtype=np.int64)
    count = min(max(1, round(share * len(ordinary))), len(ordinary))
    return np.sort(numpy_generator("mask", *key).choice(ordinary, size=count, replace=False))


def spread_copies(rows: int, ratio: float, *key: int | str) -> np.ndarray:
    """Choose rows for `ratio` x `rows` copies: each row floor(ratio) times, and a random subset once more."""
    whole, rest = divmod(round(ratio * rows), rows) if rows else (0, 0)
    extra = numpy_generator("copies", *key).choice(rows, size=rest, replace=False) if rest else np.zeros(0, np.int64)
    return np.sort(np.concatenate([np.repeat(np.arange(rows), whole), extra])).astype(np.int64)


def copy_numbers(copies: np.ndarray) -> np.ndarray:
    """Number the copies of each row from 0, given `spread_copies`, so that each gets a different mask."""
    return np.arange(len(copies)) - np.searchsorted(copies, copies, side="left")


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
