"""Labels from masking some of a sentence's tokens and looking at what becomes of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.attribution.perturbation import single_token_masks
from attentune.token_labels.base import LabelSource, RowLabelGenerator
from attentune.token_labels.masking import copy_numbers, random_mask, spread_copies
from attentune.token_labels.plan import LabelSums
from attentune.token_labels.training_pass import ReusesTrainingPredictions


@dataclass(frozen=True)
class Copies:
    """Masked copies of sentences that the model is right on.

    Attributes:
        rows: (M,) the training row of each copy.
        masks: the places masked in each.
        plain_MC: logits of the sentence.
        masked_MC: logits of the copy.
        probed: how many copies were wanted.
    """

    rows: np.ndarray
    masks: list[np.ndarray]
    plain_MC: np.ndarray
    masked_MC: np.ndarray
    probed: int


def predict_masked_copies(
    source: LabelSource, ratio: float, mask_share: float, epoch: int, assumed_correct_N: np.ndarray | None = None
) -> Copies:
    """Mask ratio x N sentences at random and predict them; those that the model is wrong on are passed over.

    Args:
        source: the rows and the model.
        ratio: copies made, as a multiple of the rows.
        mask_share: share of a sentence's tokens that is masked.
        epoch: the masks are a function of it.
        assumed_correct_N: classes only: rows taken to be right without asking. Their `plain_MC` is NaN, unless the copy is
            predicted wrong: then the sentence is asked for too, and passed over if it is wrong by now.
    """
    count, key = len(source.features), (source.seed, epoch)
    copies = spread_copies(count, ratio, *key)
    numbers = copy_numbers(copies)
    is_assumed_correct_N = np.zeros(count, dtype=bool) if assumed_correct_N is None else assumed_correct_N
    answers = _UnmaskedPredictions(source)
    answers.ask(np.unique(copies[~is_assumed_correct_N[copies]]))
    is_used = is_assumed_correct_N[copies] | answers.is_right_N[copies]
    rows, numbers = copies[is_used], numbers[is_used]
    masks = [
        random_mask(source.features, int(row), mask_share, *key, int(row), int(number))
        for row, number in zip(rows, numbers, strict=True)
    ]
    masked_MC = source.scorer.logits(rows, masks)
    # A prediction that seems to have turned may belong to a sentence that has been unlearned meanwhile.
    doubted = is_assumed_correct_N[rows] & ~source.comparator.correct(masked_MC, source.gold[rows])
    answers.ask(np.unique(rows[doubted]))
    keep = np.flatnonzero(~doubted | answers.is_right_N[rows])
    return Copies(
        rows=rows[keep],
        masks=[masks[place] for place in keep],
        plain_MC=answers.logits(rows[keep], masked_MC.shape[1]),
        masked_MC=masked_MC[keep],
        probed=len(copies),
    )


class _UnmaskedPredictions:
    """What the model says of the sentences that it was asked for."""

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.is_right_N = np.zeros(len(source.features), dtype=bool)
        self._logits: dict[int, np.ndarray] = {}

    def ask(self, rows: np.ndarray) -> None:
        if len(rows):
            logits_RC = self._source.scorer.logits(rows)
            self.is_right_N[rows] = self._source.comparator.correct(logits_RC, self._source.gold[rows])
            self._logits |= dict(zip(rows.tolist(), logits_RC, strict=True))

    def logits(self, rows: np.ndarray, outputs: int) -> np.ndarray:
        """(M, outputs); NaN for rows that were not asked for."""
        unknown_C = np.full(outputs, np.nan, dtype=np.float32)
        found = [self._logits.get(row, unknown_C) for row in rows.tolist()]
        return np.stack(found) if found else np.zeros((0, outputs), dtype=np.float32)


class Flip(ReusesTrainingPredictions, RowLabelGenerator):
    """1 for tokens whose masking turned the prediction, 0 for tokens whose masking did not.

    With classes and `reuse_predictions`, sentences that the last training pass was right on are taken to be right, so
    that few have to be asked for unmasked: those that it was wrong on, and those whose masked copy is predicted wrong.
    That leaves one difference: masked tokens of a sentence that the model has unlearned since, but is right on when
    masked, are labelled 0 instead of not at all.

    Source: SSA (Kou et al. 2020, section 3.2).
    """

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        found = predict_masked_copies(source, settings.ratio, settings.mask_share, epoch, self.assumed_correct())
        if source.comparator.correct_implies_same:
            flipped_M = ~source.comparator.correct(found.masked_MC, source.gold[found.rows])
        else:
            flipped_M = ~source.comparator.same(found.plain_MC, found.masked_MC)
        sums = LabelSums(source.features.starts)
        for row, places, flipped in zip(found.rows, found.masks, flipped_M, strict=True):
            sums.add(int(row), places, float(flipped))
        self.reset_predictions()
        return sums.means(), _facts(found, flipped_M)


class ProbabilityDrop(RowLabelGenerator):
    """The drop of the gold class's probability, spread evenly over the tokens that were masked."""

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        settings, source = self.settings, self.source
        found = predict_masked_copies(source, settings.ratio, settings.mask_share, epoch)
        flipped_M = ~source.comparator.same(found.plain_MC, found.masked_MC)
        fall_M = source.comparator.drop(found.plain_MC, found.masked_MC, source.gold[found.rows])
        sums = LabelSums(source.features.starts)
        for row, places, drop in zip(found.rows, found.masks, fall_M, strict=True):
            sums.add(int(row), places, float(drop) / max(1, len(places)))
        return sums.means(), _facts(found, flipped_M)


def _facts(found: Copies, flipped_M: np.ndarray) -> dict[str, Any]:
    return {"probed": found.probed, "correct": len(found.rows), "flipped": int(flipped_M.sum())}


_ROWS_AT_ONCE = 512


class LeaveOneOut(RowLabelGenerator):
    """Each token's label is whether masking it alone turns the prediction, or (soft) how far it lowers the gold class.

    Below 1 the ratio takes a random share of the sentences; above 1 it changes nothing.
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
            flipped += self._label_part(rows[part], logits_RC[part], sums)
        return sums.means(), {"probed": len(is_correct), "correct": len(rows), "flipped": flipped}

    def _label_part(self, rows: np.ndarray, logits_RC: np.ndarray, sums: LabelSums) -> int:
        """Label these rows; how many of them turned under at least one token."""
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
