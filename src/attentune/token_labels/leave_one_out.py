"""Labels from masking one token at a time: exact, and as many forward passes as there are tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from attentune.token_labels.base import RowLabelGenerator
from attentune.token_labels.masking import spread_copies
from attentune.token_labels.plan import LabelSums

_ROWS_AT_ONCE = 512


class LeaveOneOut(RowLabelGenerator):
    """Each token's label is whether masking it alone turns the prediction, or (soft) how far it lowers the gold class.

    Below 1 the ratio takes a random share of the sentences; above 1 it changes nothing.
    """

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        source = self.source
        rows = spread_copies(len(source.features), min(1.0, self.settings.ratio), source.seed, epoch)
        logits_RC = source.probe.logits(rows)
        is_correct = source.judge.correct(logits_RC, source.gold[rows])
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
        places = [source.features.ordinary_positions(int(row)) for row in rows]
        owners = np.repeat(np.arange(len(rows)), [len(own) for own in places])
        if len(owners) == 0:
            return 0
        flat = np.concatenate(places)
        masked_MC = source.probe.logits(rows[owners], [np.array([place]) for place in flat])
        turned_M = ~source.judge.same(logits_RC[owners], masked_MC)
        values_M = turned_M.astype(np.float64)
        if self.settings.targets == "soft":
            values_M = source.judge.fall(logits_RC[owners], masked_MC, source.gold[rows[owners]])
        for owner, place, value in zip(owners, flat, values_M, strict=True):
            sums.add(int(rows[owner]), np.array([place]), float(value))
        return len(np.unique(owners[turned_M]))
