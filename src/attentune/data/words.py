"""The words of tokenised rows: which tokens make a word, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from attentune.data.dataset import TextRows
from attentune.data.tokenization import token_spans


@dataclass(frozen=True)
class TokenWords:
    """The words of all rows of a split, by their tokens in `Features`."""

    first: np.ndarray  # (W,) int64, the place of each word's first token in the flat arrays of `Features`
    end: np.ndarray  # (W,) int64, the place after its last token
    starts: np.ndarray  # (N + 1,) int64; row n has the words starts[n] to starts[n + 1]
    texts: tuple[str, ...]  # the word in lower case


def words_of(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> TokenWords:
    """Return the words of rows, as `encode_rows` tokenises them.

    Tokens belong to one word if no character lies between them and letters or digits meet.
    """
    first: list[int] = []
    end: list[int] = []
    texts: list[str] = []
    starts, place = [0], 0
    for number, spans in enumerate(token_spans(rows, tokenizer, max_length=max_length, bi_encoder=bi_encoder)):
        before: tuple[str, int] | None = None
        for span in spans:
            if span is None:
                before, place = None, place + 1
                continue
            where, begin, after = span
            text = rows.texts[number] if where == "text" or rows.pairs is None else rows.pairs[number]
            piece = text[begin:after]
            joins = before == (where, begin) and piece[:1].isalnum() and texts[-1][-1:].isalnum()
            if joins:
                texts[-1] += piece.lower()
                end[-1] = place + 1
            else:
                texts.append(piece.lower())
                first.append(place)
                end.append(place + 1)
            before, place = (where, after), place + 1
        starts.append(len(texts))
    return TokenWords(np.array(first, np.int64), np.array(end, np.int64), np.array(starts, np.int64), tuple(texts))
