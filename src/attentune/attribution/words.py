"""Perturbations of words instead of tokens, for runs that are not one model: a masked word is deleted from the text."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attentune.attribution.base import PredictionScorer
from attentune.data.dataset import TextRows
from attentune.data.tokenization import Features
from attentune.inference.scoring import RowScores

# The words of a row: "text" or "pair", and the start and end there.
WordSpans = Sequence[tuple[str, int, int]]


@dataclass(frozen=True)
class WordScorer(PredictionScorer):
    """Predicts rows and copies of them without some of their words, by any function of texts.

    The features are words: an id is a checksum of a word's characters, and none is special.
    """

    predict: Callable[[TextRows], np.ndarray]  # from rows to (N, C) logits; equal rows of one call are predicted once
    rows: TextRows  # the rows to explain
    spans: Sequence[WordSpans]  # the words of each row

    def scores(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> RowScores:
        """Predict rows, with the words at masked positions deleted."""
        masked = [None] * len(rows) if masked is None else masked
        copies = [self._without(int(row), words) for row, words in zip(rows, masked, strict=True)]
        places = {copy: place for place, copy in enumerate(dict.fromkeys(copies))}
        texts, pairs = zip(*places, strict=True) if places else ((), ())
        ids = tuple(str(number) for number in range(len(places)))
        distinct = TextRows(ids, texts, pairs if self.rows.pairs else None, None, self.rows.source)
        logits_NC = np.asarray(self.predict(distinct))
        return RowScores(logits_NC[[places[copy] for copy in copies]])

    def _without(self, row: int, words: np.ndarray | None) -> tuple[str, str]:
        """The texts of a row without some of its words; what surrounds them stays."""
        texts = {"text": self.rows.texts[row], "pair": self.rows.pairs[row] if self.rows.pairs else ""}
        for word in sorted(() if words is None else words.tolist(), reverse=True):
            within, start, end = self.spans[row][word]
            texts[within] = texts[within][:start] + texts[within][end:]
        return texts["text"], texts["pair"]


def word_features(rows: TextRows, spans: Sequence[WordSpans]) -> Features:
    """Return the words of rows in the form of tokens."""
    ids = []
    for row, row_spans in enumerate(spans):
        texts = {"text": rows.texts[row], "pair": rows.pairs[row] if rows.pairs else ""}
        ids += [
            zlib.crc32(texts[within][start:end].encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
            for within, start, end in row_spans
        ]
    lengths = np.array([len(row_spans) for row_spans in spans], dtype=np.int64)
    return Features(
        ids=np.array(ids, dtype=np.int32),
        type_ids=None,
        special=np.zeros(len(ids), dtype=bool),
        starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        full_lengths=lengths,
    )
