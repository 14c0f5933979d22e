"""Tokenise rows into flat arrays: the ids of all rows, and the offset of each row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from attentune.data.dataset import TextRows
from attentune.data.tables import ChunkLimit, in_chunks
from attentune.errors import DataError
from attentune.seeding import numpy_generator

# Rows are sorted by length within windows of this many batches: little padding, and still well shuffled.
_WINDOW_BATCHES = 64


@dataclass(frozen=True)
class Batch:
    inputs: dict[str, torch.Tensor]  # input_ids, attention_mask and, if the encoder has them, token_type_ids,
    samples: np.ndarray  # (B,) the indices of the rows in the plan of the epoch (in evaluation: in the split)
    tokens: int  # the number of tokens without padding
    token_labels: torch.Tensor | None = None  # (B, T) float32, negative at tokens without a token label


def bucketed_order(lengths: np.ndarray, batch_rows: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """Make the batches of a training epoch: rows of similar length together, otherwise in random order."""
    generator = numpy_generator("order", seed, epoch)
    shuffled = generator.permutation(len(lengths))
    window = batch_rows * _WINDOW_BATCHES
    batches: list[np.ndarray] = []
    for begin in range(0, len(shuffled), window):
        part = shuffled[begin : begin + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += np.split(part, np.arange(batch_rows, len(part), batch_rows))
    return [batches[place] for place in generator.permutation(len(batches))]


def sorted_order(lengths: np.ndarray, batch_rows: int) -> list[np.ndarray]:
    """Make the batches of an evaluation, longest rows first, so that running out of memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    return [order[place : place + batch_rows] for place in range(0, len(order), batch_rows)]


def budget_order(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Make batches of at most `batch_tokens` tokens with padding (or one row), longest rows first.

    From a quarter of the tokens on, a batch ends before rows that would be padded by a third of their length or more.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    begin = 0
    while begin < len(order):
        longest = max(1, int(lengths[order[begin]]))
        rows = max(1, batch_tokens // longest)
        near = int((4 * lengths[order[begin : begin + rows]] > 3 * longest).sum())
        rows = min(rows, max(near, -(-batch_tokens // 4 // longest)))
        batches.append(order[begin : begin + rows])
        begin += rows
    return batches


def pad_batch(
    features: Features,
    rows: Sequence[int] | np.ndarray,
    *,
    pad_token_id: int,
    mask_token_id: int | None = None,
    masked: Sequence[np.ndarray | None] | None = None,
    attention_excluded: Sequence[np.ndarray | None] | None = None,
    samples: np.ndarray | None = None,
    token_labels: Sequence[np.ndarray] | None = None,
) -> Batch:
    """Make tensors of some rows, padded on the right to the longest."""
    lengths = features.lengths[np.asarray(rows, dtype=np.int64)]
    shape = (len(rows), int(lengths.max(initial=1)))
    ids = np.full(shape, pad_token_id, dtype=np.int64)
    type_ids = None if features.type_ids is None else np.zeros(shape, dtype=np.int64)
    for number, row in enumerate(rows):
        place = features.row(int(row))
        ids[number, : lengths[number]] = features.ids[place]
        if type_ids is not None and features.type_ids is not None:
            type_ids[number, : lengths[number]] = features.type_ids[place]
        places = None if masked is None else masked[number]
        if places is not None:
            if mask_token_id is None:
                raise ValueError("places to mask need a mask_token_id")
            ids[number, places] = mask_token_id
    attention = np.arange(shape[1])[None, :] < lengths[:, None]
    for number, places in enumerate(attention_excluded or ()):
        if places is not None:
            attention[number, places] = False
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(attention.astype(np.int64))}
    if type_ids is not None:
        inputs["token_type_ids"] = torch.from_numpy(type_ids)
    if features.second_starts is not None:
        inputs["second_start"] = torch.from_numpy(features.second_starts[np.asarray(rows, dtype=np.int64)])
    labels = None
    if token_labels is not None:
        labels = torch.full(shape, -1.0)
        for number, row_labels in enumerate(token_labels):
            labels[number, : len(row_labels)] = torch.from_numpy(row_labels)
    return Batch(inputs, np.asarray(rows if samples is None else samples), int(lengths.sum()), labels)


# Chunk size: a tokenizer needs some hundred bytes per token.
_CHUNK = ChunkLimit(4096, 1 << 20)

# Per token of a row: None for special tokens, otherwise "text" or "pair" and its start and end there.
Spans = list[tuple[str, int, int] | None]


@dataclass(frozen=True)
class Features:
    """The token ids of the rows of one split."""

    ids: np.ndarray  # (sum of lengths,) int32, the rows one after the other
    type_ids: np.ndarray | None  # (sum of lengths,) int8 segment ids, or None if the encoder has none
    special: np.ndarray  # (sum of lengths,) bool, True at special tokens ([CLS], [SEP], ...)
    starts: np.ndarray  # (N + 1,) int64; row n is ids[starts[n]:starts[n + 1]]
    full_lengths: np.ndarray  # (N,) int64, the length in tokens before truncation
    # (N,) int64, for a bi-encoder the offset of the second text in its row, at its own special tokens; None for a
    # cross-encoder.
    second_starts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64, the length of each row in tokens, after truncation."""
        return np.diff(self.starts)

    @property
    def padded_lengths(self) -> np.ndarray:
        """(N,) int64, the tokens processed for a row alone; a bi-encoder pads both texts to the longer one."""
        if self.second_starts is None:
            return self.lengths
        return 2 * np.maximum(self.second_starts, self.lengths - self.second_starts)

    def fingerprint(self) -> str:
        """Return a SHA-256 of all model inputs; it depends on the rows and the tokenizer."""
        digest = hashlib.sha256()
        for array in (self.ids, self.type_ids, self.special, self.starts, self.second_starts):
            digest.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    def cut_lengths(self, limit: int) -> np.ndarray:
        """Return (N,) int64: the limit for rows of more tokens, which were truncated to it, else 0."""
        return np.where(self.full_lengths > limit, limit, 0)

    def row(self, index: int) -> slice:
        """Return the slice of row `index` in the flat arrays."""
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def non_special_positions(self, index: int) -> np.ndarray:
        return np.flatnonzero(~self.special[self.row(index)])


def encode_rows(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> Features:
    """Tokenise texts or pairs, truncated to `max_length` tokens; of a pair the longer text is truncated first.

    Text that looks like a special token ("[SEP]") is tokenised as text.
    """
    if bi_encoder and rows.pairs is not None:
        return _interleaved(*(encode_rows(side, tokenizer, max_length=max_length) for side in _sides(rows, rows.pairs)))
    return _encoded(rows, tokenizer, max_length, None)


def encode_with_spans(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> tuple[Features, list[Spans]]:
    """Return the results of `encode_rows`, and the character span of each token."""
    spans: list[Spans] = []
    if not (bi_encoder and rows.pairs is not None):
        return _encoded(rows, tokenizer, max_length, spans), spans
    sides = [encode_with_spans(side, tokenizer, max_length=max_length) for side in _sides(rows, rows.pairs)]
    for first, second in zip(sides[0][1], sides[1][1], strict=True):
        spans.append([*first, *(None if span is None else ("pair", *span[1:]) for span in second)])
    return _interleaved(sides[0][0], sides[1][0]), spans


def _encoded(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, max_length: int, spans: list[Spans] | None
) -> Features:
    """Tokenise each row as one sequence; token spans are appended to `spans`, if it is given."""
    ids: list[np.ndarray] = []
    type_ids: list[np.ndarray] = []
    special: list[np.ndarray] = []
    full_lengths = np.zeros(len(rows), dtype=np.int64)
    for places in _chunks(rows):
        whole = _tokenise(rows, places, tokenizer, None, with_offsets=spans is not None)
        full_lengths[places.start : places.stop] = [len(row) for row in whole["input_ids"]]
        encodings = [(whole, number) for number in range(len(places))]
        long_places = [place for place in places if full_lengths[place] > max_length]
        if long_places:
            cut = _tokenise(rows, long_places, tokenizer, max_length, with_offsets=spans is not None)
            for number, place in enumerate(long_places):
                encodings[place - places.start] = cut, number
        for name, column, dtype in (
            ("input_ids", ids, np.int32),
            ("token_type_ids", type_ids, np.int8),
            ("special_tokens_mask", special, np.bool_),
        ):
            if name in whole:
                column += [np.asarray(encoding[name][number], dtype=dtype) for encoding, number in encodings]
        if spans is not None:
            spans += [_spans(rows, place, *encoding) for place, encoding in zip(places, encodings, strict=True)]
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in ids], out=starts[1:])
    return Features(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        type_ids=np.concatenate(type_ids) if type_ids else None,
        special=np.concatenate([np.zeros(0, np.bool_), *special]),
        starts=starts,
        full_lengths=full_lengths,
    )


def _chunks(rows: TextRows) -> Iterator[range]:
    pairs = rows.pairs or ("",) * len(rows)
    sizes = ((None, len(text) + len(pair)) for text, pair in zip(rows.texts, pairs, strict=True))
    return in_chunks(sizes, _CHUNK, lambda chunk, first: range(first, first + len(chunk)))


def _sides(rows: TextRows, pairs: tuple[str, ...]) -> tuple[TextRows, TextRows]:
    return replace(rows, pairs=None), replace(rows, texts=pairs, pairs=None)


def _interleaved(first: Features, second: Features) -> Features:
    """Concatenate both features row by row."""
    starts = first.starts + second.starts
    firsts = np.arange(len(first.ids)) + np.repeat(second.starts[:-1], first.lengths)
    seconds = np.arange(len(second.ids)) + np.repeat(first.starts[1:], second.lengths)

    def merge(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        both = np.empty(len(ones) + len(others), dtype=ones.dtype)
        both[firsts], both[seconds] = ones, others
        return both

    return Features(
        ids=merge(first.ids, second.ids),
        type_ids=None if first.type_ids is None or second.type_ids is None else merge(first.type_ids, second.type_ids),
        special=merge(first.special, second.special),
        starts=starts,
        full_lengths=np.maximum(first.full_lengths, second.full_lengths),
        second_starts=first.lengths,
    )


def _spans(rows: TextRows, place: int, encoded: Any, number: int) -> Spans:
    """The spans of the row at `place`, which is entry `number` of the encoding."""
    offsets = encoded["offset_mapping"][number]
    if rows.pairs is None:
        text = rows.texts[place]
        return [
            None if is_special else ("text", *_trimmed(text, *offset))
            for is_special, offset in zip(encoded["special_tokens_mask"][number], offsets, strict=True)
        ]
    texts = (rows.texts[place], rows.pairs[place])
    return [
        None if owner is None else (("text", "pair")[owner], *_trimmed(texts[owner], *offset))
        for owner, offset in zip(encoded.sequence_ids(number), offsets, strict=True)
    ]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Strip white space from a span, unless it is all white space."""
    whole = text[start:end]
    inner = whole.strip()
    if not inner or inner == whole:
        return start, end
    first = start + whole.index(inner)
    return first, first + len(inner)


def _tokenise(
    rows: TextRows,
    places: range | list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    *,
    with_offsets: bool = False,
) -> Any:
    texts = [rows.texts[place] for place in places]
    pairs = None if rows.pairs is None else [rows.pairs[place] for place in places]
    try:
        return tokenizer(
            texts,
            pairs,
            add_special_tokens=True,
            truncation="longest_first" if max_length else False,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_special_tokens_mask=True,
            return_offsets_mapping=with_offsets,
            split_special_tokens=True,
            verbose=False,
        )
    except TypeError:
        for place, text in zip(places, map(str.__add__, texts, pairs or texts), strict=True):
            if re.search("[\ud800-\udfff]", text):
                raise DataError(
                    f"{rows.source}: row {place} holds half of a surrogate pair (such as \\ud83d alone), which is no"
                    " character; remove it."
                ) from None
        raise


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
    """Return the words of rows: tokens whose letters or digits meet, as `encode_rows` tokenises them."""
    first: list[int] = []
    end: list[int] = []
    texts: list[str] = []
    starts, place = [0], 0
    _, spans_N = encode_with_spans(rows, tokenizer, max_length=max_length, bi_encoder=bi_encoder)
    for number, spans in enumerate(spans_N):
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
