"""Token labels from masking some of a sentence's tokens and comparing the prediction before and after."""

from typing import Any

import numpy as np

from attentune.nn.losses import NO_LABEL
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelGenerator, labelled_plan
from attentune.token_labels.corruption import copy_numbers, random_mask, random_spans, spread_copies
from attentune.token_labels.plan import EpochPlan

# The program goes on for as long as it takes, which may be for ever.
_MAX_PASSES = 20


class OriginalSSA(LabelGenerator):
    """Ever more samples whose masked copy kept its prediction (masked tokens 0, others 1), and originals (all 1).

    The training text itself is never masked; only its labels depend on the mask. An epoch has as many samples as there
    are rows: a share is drawn from the kept samples, the rest from the originals. The share is 0 in the first epoch and
    rises by `aug_ratio_each` after each one while it stays below 1: for 0.2 it is 0, 0.2, 0.4, 0.6, 0.8, 0.8 ...
    `double_ori` adds all originals once more, but not while the share is 0.

    Source: the released program of Kou et al. 2020 (aug_ratio_each, aug_threshold, rm_threshold, double_ori). Its
    label 1 for RoBERTa's second separator is a mistake and not reproduced.
    """

    needs_model = True

    @property
    def samples_per_epoch(self) -> int:
        return len(self.source.features) * (2 if self.settings.double_ori else 1)

    def samples_in_epoch(self, epoch: int) -> int:
        return len(self.source.features) if self.share_in_epoch(epoch) == 0 else self.samples_per_epoch

    def share_in_epoch(self, epoch: int) -> float:
        """Return the share of kept samples in an epoch, counted from 0."""
        share, each = 0.0, self.settings.aug_ratio_each
        for _ in range(epoch):
            if share + each >= 1.0:
                break
            share += each
        return share

    def plan(self, epoch: int) -> EpochPlan:
        source, count, share = self.source, len(self.source.features), self.share_in_epoch(epoch)
        chosen, masks, facts = self._kept_samples(epoch, int(count * share))
        originals = numpy_generator("originals", source.seed, epoch).permutation(count)[: count - len(chosen)]
        again = [np.arange(count)] if self.settings.double_ori and share > 0 else []
        rows = np.concatenate([chosen, np.sort(originals), *again]).astype(np.int64)
        # 1 at non-special tokens, no label at special ones; then 0 at masked tokens.
        labels = [np.where(source.features.special[source.features.row(int(row))], -1.0, 1.0) for row in rows]
        for places, row_labels in zip(masks, labels, strict=False):
            row_labels[places] = 0.0
        values = np.concatenate(labels or [np.zeros(0)]).astype(np.float32)
        return labelled_plan(self, epoch, rows, values, facts)

    def _kept_samples(self, epoch: int, wanted: int) -> tuple[np.ndarray, list[np.ndarray], dict[str, Any]]:
        """Draw samples that are predicted correctly and the same with a mask; also return masks and counts.

        The pool that they are drawn from is filled by passes over all rows, each with a new mask a row, until it has
        enough. A sample that another pass had already found counts once. Of the counts, `missing` is how many are short
        after the last pass, `kept_share` the share of masked copies that kept their prediction, and `kept_tokens` and
        `row_tokens` are mean lengths of the drawn samples and of all rows, without special tokens.
        """
        source = self.source
        facts: dict[str, Any] = {"probed": 0, "correct": 0, "flipped": 0}
        if wanted == 0:
            return np.zeros(0, dtype=np.int64), [], facts
        rows = np.arange(len(source.features))
        plain_NC = source.scorer.logits(rows)
        correct = rows[source.comparator.correct(plain_NC, source.gold)]
        facts |= {"probed": len(rows), "correct": len(correct), "passes": 0}
        pool: list[tuple[int, np.ndarray]] = []
        tried: set[tuple[int, bytes]] = set()
        while len(correct) and len(pool) < wanted and facts["passes"] < _MAX_PASSES:
            number = facts["passes"]
            spans = [self._spans(epoch, int(row), number) for row in correct]
            keys = [(row, places.tobytes()) for row, places in zip(correct.tolist(), spans, strict=True)]
            new = [place for place, key in enumerate(keys) if key not in tried]
            tried.update(keys)
            facts["passes"] += 1
            masked_RC = source.scorer.logits(correct[new], [spans[place] for place in new])
            is_same = source.comparator.same(plain_NC[correct[new]], masked_RC)
            pool += [(int(correct[place]), spans[place]) for place, same in zip(new, is_same, strict=True) if same]
            facts["flipped"] += int((~is_same).sum())
        drawn = numpy_generator("kept samples", source.seed, epoch).permutation(len(pool))[:wanted]
        chosen = [pool[place] for place in np.sort(drawn)]
        chosen_rows = np.array([row for row, _ in chosen], dtype=np.int64)
        tokens_N = np.add.reduceat(~source.features.special, source.features.starts[:-1]) if len(rows) else rows
        facts |= {
            "pool": len(pool),
            "kept": len(chosen),
            "missing": wanted - len(chosen),
            "kept_share": round(len(pool) / max(1, len(tried)), 4),
            "kept_tokens": round(float(tokens_N[chosen_rows].mean()), 2) if chosen else 0.0,
            "row_tokens": round(float(tokens_N.mean()), 2),
        }
        return chosen_rows, [places for _, places in chosen], facts

    def _spans(self, epoch: int, row: int, number: int) -> np.ndarray:
        """Return the positions to mask in a row, in a pass counted from 0."""
        return random_spans(
            self.source.features,
            row,
            chance=self.settings.aug_threshold,
            rm_threshold=self.settings.rm_threshold,
            key=(self.source.seed, epoch, row, *((number,) if number else ())),
        )


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
