"""Texts with some of their tokens erased, in one of three ways, and what a model says of them.

All of it is done on token ids: no text is put together and tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attentune.attribution.base import Probe
from attentune.data.tokenization import Features
from attentune.inference.scoring import score_rows
from attentune.metrics.metrics import probabilities_of

# By the mask token in a token's place; by leaving the token out, so that the text grows shorter; by hiding it from
# attention, so that it keeps its place but no other token looks at it.
ERASURES = ("mask", "delete", "attention")

_QUESTIONS_AT_ONCE = 8192


class Eraser:
    """What a model says of rows of which tokens were erased, each erased row asked but once.

    Args:
        probe: the model and the rows.
        erasure: one of `ERASURES`.

    Attributes:
        asked: how many erased rows have gone through the model.
    """

    def __init__(self, probe: Probe, erasure: str) -> None:
        self._probe, self._erasure = probe, erasure
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self.asked = 0

    def probabilities(self, rows: Sequence[int] | np.ndarray, erased: Sequence[np.ndarray]) -> np.ndarray:
        """(M, C) float64, the classes' probabilities of these rows without these tokens.

        Args:
            rows: (M,) their numbers, each as often as you like.
            erased: for each of them the places to erase, in any order.
        """
        places = [np.sort(own).astype(np.int64) for own in erased]
        keys = [(int(row), own.tobytes()) for row, own in zip(rows, places, strict=True)]
        new = {key: own for key, own in zip(keys, places, strict=True) if key not in self._known}
        names = list(new)
        for begin in range(0, len(names), _QUESTIONS_AT_ONCE):
            part = names[begin : begin + _QUESTIONS_AT_ONCE]
            logits_MC = self._ask(np.array([row for row, _ in part]), [new[key] for key in part])
            answers = probabilities_of(logits_MC, self._probe.label_space)
            self._known |= dict(zip(part, answers, strict=True))
        self.asked += len(names)
        if not keys:
            return np.zeros((0, self._probe.label_space.num_labels))
        return np.stack([self._known[key] for key in keys])

    def _ask(self, rows_M: np.ndarray, places: list[np.ndarray]) -> np.ndarray:
        """(M, C) logits."""
        probe = self._probe
        features, numbers = probe.features, rows_M
        if self._erasure == "delete":
            features, numbers = without_tokens(features, rows_M, places), np.arange(len(rows_M))
        return score_rows(
            probe.model,
            features,
            pad_token_id=probe.pad_token_id,
            accelerator=probe.accelerator,
            rows=numbers,
            mask_token_id=probe.mask_token_id,
            masked=places if self._erasure == "mask" else None,
            passed_over=places if self._erasure == "attention" else None,
        ).logits_NC


def without_tokens(features: Features, rows_M: np.ndarray, places: Sequence[np.ndarray]) -> Features:
    """These rows, one after the other, each without the tokens at its places.

    Args:
        features: the split's tokens.
        rows_M: which rows, one as often as you like.
        places: for each of them the places within it to leave out.
    """
    kept = []
    for row, own in zip(rows_M, places, strict=True):
        span = features.row(int(row))
        kept.append(np.delete(np.arange(span.start, span.stop), own))
    flat = np.concatenate(kept)
    seconds = features.second_starts
    if seconds is not None:
        gone = [np.count_nonzero(own < seconds[row]) for row, own in zip(rows_M, places, strict=True)]
        seconds = seconds[rows_M] - np.array(gone)
    return replace(
        features,
        ids=features.ids[flat],
        type_ids=None if features.type_ids is None else features.type_ids[flat],
        special=features.special[flat],
        starts=np.concatenate([[0], np.cumsum([len(own) for own in kept])]).astype(np.int64),
        full_lengths=features.full_lengths[rows_M],
        second_starts=seconds,
    )
