"""Token labels from masking some of a sentence's tokens and comparing the prediction before and after."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.explain.methods import single_token_masks
from attentune.seeding import numpy_generator
from attentune.token_labels.attribution import ReusesTrainingPredictions
from attentune.token_labels.base import LabelSource, RowLabelGenerator, labelled_plan
from attentune.token_labels.corruption import copy_numbers, random_mask, random_spans, spread_copies
from attentune.token_labels.plan import EpochPlan, LabelSums

# The program goes on for as long as it takes, which may be for ever.
_MAX_PASSES = 20


class OriginalSSA(ReusesTrainingPredictions):
    """Ever more samples whose masked copy kept its prediction (masked tokens 0, others 1), and originals (all 1).

    The training text itself is never masked; only its labels depend on the mask. An epoch has as many samples as there
    are rows: a share is drawn from the kept samples, the rest from the originals. The share is 0 in the first epoch and
    rises by `aug_ratio_each` after each one while it stays below 1: for 0.2 it is 0, 0.2, 0.4, 0.6, 0.8, 0.8 ...
    `double_ori` adds all originals once more, but not while the share is 0.

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
        self.reset_predictions()
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
        assumed_correct = self.assumed_correct()
        unsure = np.flatnonzero(~assumed_correct)
        plain_UC = source.scorer.logits(unsure)
        is_right_U = source.comparator.correct(plain_UC, source.gold[unsure])
        correct = np.setdiff1d(rows, unsure[~is_right_U])
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
            if source.comparator.correct_implies_same:
                is_same = source.comparator.correct(masked_RC, source.gold[correct[new]])
            else:
                is_same = source.comparator.same(plain_UC[is_right_U][new], masked_RC)
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
            **self.check_reused(np.flatnonzero(assumed_correct), epoch),
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


@dataclass(frozen=True)
class MaskedCopies:
    """Masked copies of correctly predicted sentences, with predictions."""

    rows: np.ndarray  # (M,) the training row of each copy
    masks: list[np.ndarray]  # the masked positions of each copy
    plain_MC: np.ndarray  # logits of the unmasked sentence
    masked_MC: np.ndarray  # logits of the copy
    probed: int  # number of copies drawn, incorrectly predicted sentences included
    reused: np.ndarray  # the rows that were taken as correct without being predicted unmasked


def predict_masked_copies(
    source: LabelSource, ratio: float, mask_share: float, epoch: int, assumed_correct_N: np.ndarray | None = None
) -> MaskedCopies:
    """Mask ratio x N sentences at random and predict them; incorrectly predicted sentences are left out."""
    count, key = len(source.features), (source.seed, epoch)
    copies = spread_copies(count, ratio, *key)
    numbers = copy_numbers(copies)
    is_assumed_correct_N = np.zeros(count, dtype=bool) if assumed_correct_N is None else assumed_correct_N
    plain = _UnmaskedPredictions(source)
    plain.predict(np.unique(copies[~is_assumed_correct_N[copies]]))
    is_used = is_assumed_correct_N[copies] | plain.is_right_N[copies]
    rows, numbers = copies[is_used], numbers[is_used]
    masks = [
        random_mask(source.features, int(row), mask_share, *key, int(row), int(number))
        for row, number in zip(rows, numbers, strict=True)
    ]
    masked_MC = source.scorer.logits(rows, masks)
    # The prediction may differ because the model has unlearned the sentence since, not because of the mask.
    doubted = is_assumed_correct_N[rows] & ~source.comparator.correct(masked_MC, source.gold[rows])
    plain.predict(np.unique(rows[doubted]))
    keep = np.flatnonzero(~doubted | plain.is_right_N[rows])
    return MaskedCopies(
        rows=rows[keep],
        masks=[masks[place] for place in keep],
        plain_MC=plain.logits(rows[keep], masked_MC.shape[1]),
        masked_MC=masked_MC[keep],
        probed=len(copies),
        reused=np.unique(rows[is_assumed_correct_N[rows] & ~doubted]),
    )


class _UnmaskedPredictions:
    """Predictions of unmasked sentences, made on demand."""

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.is_right_N = np.zeros(len(source.features), dtype=bool)
        self._logits: dict[int, np.ndarray] = {}

    def predict(self, rows: np.ndarray) -> None:
        if len(rows):
            logits_RC = self._source.scorer.logits(rows)
            self.is_right_N[rows] = self._source.comparator.correct(logits_RC, self._source.gold[rows])
            self._logits |= dict(zip(rows.tolist(), logits_RC, strict=True))

    def logits(self, rows: np.ndarray, outputs: int) -> np.ndarray:
        """Return (M, outputs) logits; NaN for rows that were not predicted."""
        unknown_C = np.full(outputs, np.nan, dtype=np.float32)
        known = [self._logits.get(row, unknown_C) for row in rows.tolist()]
        return np.stack(known) if known else np.zeros((0, outputs), dtype=np.float32)


class Flip(ReusesTrainingPredictions, RowLabelGenerator):
    """Labels tokens 1 if masking them changed the prediction, 0 if it did not.

    With classes and `reuse_predictions`, sentences that the last training pass predicted correctly are assumed to be
    correct, so that only the others, and those whose masked copy is predicted incorrectly, are predicted unmasked. One
    difference remains: a sentence that the model has unlearned since, but predicts correctly when masked, gets labels 0
    instead of none. `check_reused` estimates how many these are.

    Source: SSA (Kou et al. 2020, section 3.1).
    """

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        copies = predict_masked_copies(source, settings.ratio, settings.mask_share, epoch, self.assumed_correct())
        if source.comparator.correct_implies_same:
            flipped_M = ~source.comparator.correct(copies.masked_MC, source.gold[copies.rows])
        else:
            flipped_M = ~source.comparator.same(copies.plain_MC, copies.masked_MC)
        sums = LabelSums(source.features.starts)
        for row, places, flipped in zip(copies.rows, copies.masks, flipped_M, strict=True):
            sums.add(int(row), places, float(flipped))
        facts = _facts(copies, flipped_M) | self.check_reused(copies.reused, epoch)
        self.reset_predictions()
        return sums.means(), facts


class ProbabilityDrop(RowLabelGenerator):
    """Labels tokens by the drop of the gold class's probability, divided evenly among the masked tokens."""

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        copies = predict_masked_copies(source, settings.ratio, settings.mask_share, epoch)
        flipped_M = ~source.comparator.same(copies.plain_MC, copies.masked_MC)
        drop_M = source.comparator.drop(copies.plain_MC, copies.masked_MC, source.gold[copies.rows])
        sums = LabelSums(source.features.starts)
        for row, places, drop in zip(copies.rows, copies.masks, drop_M, strict=True):
            sums.add(int(row), places, float(drop) / max(1, len(places)))
        return sums.means(), _facts(copies, flipped_M)


def _facts(copies: MaskedCopies, flipped_M: np.ndarray) -> dict[str, Any]:
    return {"probed": copies.probed, "correct": len(copies.rows), "flipped": int(flipped_M.sum())}


_ROWS_AT_ONCE = 512


class LeaveOneOut(RowLabelGenerator):
    """Labels each token by whether masking it alone changes the prediction, or (soft) by the gold class's drop.

    A ratio below 1 takes a random share of the sentences; above 1 it has no effect.
    """

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        source = self.source
        rows = spread_copies(len(source.features), min(1.0, self.settings.ratio), source.seed, epoch)
        logits_RC = source.scorer.logits(rows)
        is_correct = source.comparator.correct(logits_RC, source.gold[rows])
        rows, logits_RC = rows[is_correct], logits_RC[is_correct]
        sums = LabelSums(source.features.starts)
        flipped = 0
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(begin, begin + _ROWS_AT_ONCE)
            flipped += self._label_rows(rows[part], logits_RC[part], sums)
        return sums.means(), {"probed": len(is_correct), "correct": len(rows), "flipped": flipped}

    def _label_rows(self, rows: np.ndarray, logits_RC: np.ndarray, sums: LabelSums) -> int:
        """Label these rows; returns how many change their prediction for at least one token."""
        source = self.source
        owner_M, place_M = single_token_masks(source.features, rows)
        if len(owner_M) == 0:
            return 0
        masked_MC = source.scorer.logits(rows[owner_M], [np.array([place]) for place in place_M])
        is_flipped_M = ~source.comparator.same(logits_RC[owner_M], masked_MC)
        values_M = is_flipped_M.astype(np.float64)
        if self.settings.targets == "soft":
            values_M = source.comparator.drop(logits_RC[owner_M], masked_MC, source.gold[rows[owner_M]])
        for owner, place, value in zip(owner_M, place_M, values_M, strict=True):
            sums.add(int(rows[owner]), np.array([place]), float(value))
        return len(np.unique(owner_M[is_flipped_M]))
