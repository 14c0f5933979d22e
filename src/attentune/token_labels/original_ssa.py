"""The samples and labels of SSA's released program, which differ from those of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np

from attentune.seeding import numpy_generator
from attentune.token_labels.base import labelled_plan
from attentune.token_labels.masking import random_spans
from attentune.token_labels.plan import EpochPlan
from attentune.token_labels.training_pass import ReusesTrainingPredictions


class OriginalSSA(ReusesTrainingPredictions):
    """Ever more samples whose masked copy kept its prediction (masked tokens 0, others 1), and originals (all 1).

    The training text itself is never masked; only its labels depend on the mask.

    With classes and `reuse_predictions`, sentences that the last training pass predicted correctly are predicted with
    the mask only, and kept if that is correct. So a sentence is also kept if the model has unlearned it since but
    predicts it correctly when masked.

    Source: the released program of Kou et al. 2020 (aug_ratio_each, aug_threshold, rm_threshold, double_ori). Its
    label 1 for RoBERTa's second separator is a mistake and not reproduced.
    """

    needs_model = True

    @property
    def samples_per_epoch(self) -> int:
        return len(self.source.features) * (2 if self.settings.double_ori else 1)

    def plan(self, epoch: int) -> EpochPlan:
        source, count = self.source, len(self.source.features)
        share = min(1.0, epoch * self.settings.aug_ratio_each)
        chosen, masks, facts = self._kept_samples(epoch, round(share * count))
        self.reset_predictions()
        originals = numpy_generator("originals", source.seed, epoch).permutation(count)[: count - len(chosen)]
        parts = [chosen, np.sort(originals)] + ([np.arange(count)] if self.settings.double_ori else [])
        rows = np.concatenate(parts).astype(np.int64)
        # 1 at non-special tokens, no label at special ones; then 0 at masked tokens.
        labels = [np.where(source.features.special[source.features.row(int(row))], -1.0, 1.0) for row in rows]
        for places, row_labels in zip(masks, labels, strict=False):
            row_labels[places] = 0.0
        values = np.concatenate(labels or [np.zeros(0)]).astype(np.float32)
        return labelled_plan(self, epoch, rows, values, facts)

    def _kept_samples(self, epoch: int, wanted: int) -> tuple[np.ndarray, list[np.ndarray], dict[str, Any]]:
        """Find up to `wanted` rows that are predicted correctly with and without a mask; also return masks and counts.

        Rows are tried in a random order until there are enough, so the result does not depend on the batch size.
        """
        source, settings = self.source, self.settings
        is_assumed_correct_N = self.assumed_correct()
        order = numpy_generator("candidates", source.seed, epoch).permutation(len(source.features))
        chosen: list[int] = []
        masks: list[np.ndarray] = []
        facts = {"probed": 0, "correct": 0, "flipped": 0}
        begin = 0
        while len(chosen) < wanted and begin < len(order):
            # Slightly more than are missing, since most rows are kept.
            size = max(64, round(1.2 * (wanted - len(chosen))))
            rows = order[begin : begin + size]
            begin += size
            unsure = rows[~is_assumed_correct_N[rows]]
            plain_UC = source.scorer.logits(unsure)
            is_wrong = np.isin(rows, unsure[~source.comparator.correct(plain_UC, source.gold[unsure])])
            correct = rows[~is_wrong]
            spans = [
                random_spans(
                    source.features,
                    int(row),
                    chance=settings.aug_threshold,
                    rm_threshold=settings.rm_threshold,
                    key=(source.seed, epoch, int(row)),
                )
                for row in correct
            ]
            masked_RC = source.scorer.logits(correct, spans)
            if source.comparator.correct_implies_same:
                is_same = source.comparator.correct(masked_RC, source.gold[correct])
            else:
                is_same = source.comparator.same(plain_UC[~is_wrong], masked_RC)
            chosen += correct[is_same].tolist()
            masks += [places for places, same in zip(spans, is_same, strict=True) if same]
            facts["probed"] += len(rows)
            facts["correct"] += len(correct)
            facts["flipped"] += int((~is_same).sum())
        return np.array(chosen[:wanted], dtype=np.int64), masks[:wanted], facts
