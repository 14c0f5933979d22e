"""From texts to token ids, kept flat: one array of ids and where each row begins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from attentune.data.dataset import TextRows
from attentune.errors import DataError

# What is tokenised at once: a tokenizer holds some hundred bytes for each token.
_CHUNK_ROWS, _CHUNK_CHARACTERS = 4096, 1 << 20

# Of each token of a row: None for special ones, else "text" or "pair" and where it begins and ends there.
Spans = list[tuple[str, int, int] | None]


@dataclass(frozen=True)
class Features:
    """The token ids of the rows of one split.

    Attributes:
        ids: (sum of lengths,) int32, all rows one after the other.
        type_ids: (sum of lengths,) int8 segment numbers, or None where the encoder knows none.
        special: (sum of lengths,) bool, True at tokens that the tokenizer added ([CLS], [SEP], ...).
        starts: (N + 1,) int64; row n is ids[starts[n]:starts[n + 1]].
        full_lengths: (N,) int64, the length in tokens before cutting at the maximum; of two texts apart, the longer's.
        second_starts: (N,) int64, where in its row the second text begins, with special tokens of its own; None where a
            row is read as one.
    """

    ids: np.ndarray
    type_ids: np.ndarray | None
    special: np.ndarray
    starts: np.ndarray
    full_lengths: np.ndarray
    second_starts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64, the length of each row in tokens, as the model sees it."""
        return np.diff(self.starts)

    @property
    def padded_lengths(self) -> np.ndarray:
        """(N,) int64, the tokens that the model reads for each row by itself, padding included.

        That is its length; of two texts apart, which are read side by side, twice the longer one's.
        """
        if self.second_starts is None:
            return self.lengths
        return 2 * np.maximum(self.second_starts, self.lengths - self.second_starts)

    def fingerprint(self) -> str:
        """A SHA-256 of all that a model is given of these rows: another tokenizer makes another one."""
        digest = hashlib.sha256()
        for array in (self.ids, self.type_ids, self.special, self.starts, self.second_starts):
            digest.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    def row(self, index: int) -> slice:
        """Where row `index` lies in the flat arrays."""
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def non_special_positions(self, index: int) -> np.ndarray:
        """The places within row `index` that hold ordinary tokens, ascending."""
        return np.flatnonzero(~self.special[self.row(index)])


def encode_rows(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> Features:
    """Tokenise texts or pairs; those longer than `max_length` tokens are cut, of a pair the longer text first.

    Text that looks like a special token ("[SEP]") stays text.

    Args:
        rows: texts, or pairs of them.
        tokenizer: the encoder's.
        max_length: maximum number of tokens of a row; of each text of a row for a bi-encoder.
        bi_encoder: encode the two texts of a pair separately: a row is then the first text with its special tokens,
            followed by the second with its own. It does not affect rows of single texts.

    Raises:
        DataError: a text holds half of a surrogate pair, which is no character.
    """
    if bi_encoder and rows.pairs is not None:
        return _beside(*(encode_rows(part, tokenizer, max_length=max_length) for part in _parted(rows, rows.pairs)))
    return _encoded(rows, tokenizer, max_length, None)


def encode_with_spans(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> tuple[Features, list[Spans]]:
    """`encode_rows` and `token_spans`, from texts that are tokenised once (twice, where they are apart)."""
    if bi_encoder and rows.pairs is not None:
        features = encode_rows(rows, tokenizer, max_length=max_length, bi_encoder=True)
        return features, token_spans(rows, tokenizer, max_length=max_length, bi_encoder=True)
    spans: list[Spans] = []
    return _encoded(rows, tokenizer, max_length, spans), spans


def _encoded(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, max_length: int, spans: list[Spans] | None
) -> Features:
    """The features of rows that are read as one; `spans`, if there is a list, is filled with those of the tokens."""
    ids: list[np.ndarray] = []
    type_ids: list[np.ndarray] = []
    special: list[np.ndarray] = []
    full_lengths = np.zeros(len(rows), dtype=np.int64)
    for places in _chunks(rows):
        whole = _tokenise(rows, places, tokenizer, None, with_offsets=spans is not None)
        full_lengths[places.start : places.stop] = [len(row) for row in whole["input_ids"]]
        long_places = [place for place in places if full_lengths[place] > max_length]
        with_offsets = spans is not None
        cut = _tokenise(rows, long_places, tokenizer, max_length, with_offsets=with_offsets) if long_places else {}
        replaced = {place: number for number, place in enumerate(long_places)}
        for name, column, dtype in (
            ("input_ids", ids, np.int32),
            ("token_type_ids", type_ids, np.int8),
            ("special_tokens_mask", special, np.bool_),
        ):
            if name in whole:
                for place in places:
                    source = cut[name][replaced[place]] if place in replaced else whole[name][place - places.start]
                    column.append(np.asarray(source, dtype=dtype))
        if spans is not None:
            for place in places:
                home, number = (cut, replaced[place]) if place in replaced else (whole, place - places.start)
                spans.append(_spans(rows, place, home, number))
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in ids], out=starts[1:])
    return Features(
        ids=_joined(ids, np.int32),
        type_ids=_joined(type_ids, np.int8) if type_ids else None,
        special=_joined(special, np.bool_),
        starts=starts,
        full_lengths=full_lengths,
    )


def _chunks(rows: TextRows) -> Iterator[range]:
    """Places of consecutive rows to tokenise together; each row's tokens are its own, whatever stands beside it."""
    begin, characters = 0, 0
    for place in range(len(rows)):
        own = len(rows.texts[place]) + (0 if rows.pairs is None else len(rows.pairs[place]))
        if place - begin >= _CHUNK_ROWS or (place > begin and characters + own > _CHUNK_CHARACTERS):
            yield range(begin, place)
            begin, characters = place, 0
        characters += own
    if begin < len(rows):
        yield range(begin, len(rows))


def _parted(rows: TextRows, pairs: tuple[str, ...]) -> tuple[TextRows, TextRows]:
    """The first texts and the second ones, as rows of single texts."""
    return replace(rows, pairs=None), replace(rows, texts=pairs, pairs=None)


def _beside(first: Features, second: Features) -> Features:
    """Each row of the one with that of the other behind it."""
    starts = first.starts + second.starts
    firsts = np.arange(len(first.ids)) + np.repeat(second.starts[:-1], first.lengths)
    seconds = np.arange(len(second.ids)) + np.repeat(first.starts[1:], second.lengths)

    def woven(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        both = np.empty(len(ones) + len(others), dtype=ones.dtype)
        both[firsts], both[seconds] = ones, others
        return both

    return Features(
        ids=woven(first.ids, second.ids),
        type_ids=None if first.type_ids is None or second.type_ids is None else woven(first.type_ids, second.type_ids),
        special=woven(first.special, second.special),
        starts=starts,
        full_lengths=np.maximum(first.full_lengths, second.full_lengths),
        second_starts=first.lengths,
    )


def token_spans(
    rows: TextRows, tokenizer: PreTrainedTokenizerBase, *, max_length: int, bi_encoder: bool = False
) -> list[Spans]:
    """Where each token of `encode_rows` stands in its text.

    Returns:
        For each row one entry a token: None for special tokens, else "text" or "pair" and the characters' start and
        end, without the white space that some tokenizers count in.
    """
    if bi_encoder and rows.pairs is not None:
        parts = [token_spans(part, tokenizer, max_length=max_length) for part in _parted(rows, rows.pairs)]
        return [
            [*first, *(None if span is None else ("pair", *span[1:]) for span in second)]
            for first, second in zip(*parts, strict=True)
        ]
    spans: list[Spans] = []
    for places in _chunks(rows):
        encoded = _tokenise(rows, places, tokenizer, max_length, with_offsets=True)
        spans += [_spans(rows, place, encoded, number) for number, place in enumerate(places)]
    return spans


def _spans(rows: TextRows, place: int, encoded: Any, number: int) -> Spans:
    """Of one row, which is this one of those encoded."""
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
    """The span without white space at its ends; as it is where there is nothing else."""
    own = text[start:end]
    inner = own.strip()
    if not inner or inner == own:
        return start, end
    first = start + own.index(inner)
    return first, first + len(inner)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


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
        _check_characters(rows, places)
        raise


def _check_characters(rows: TextRows, places: range | list[int]) -> None:
    for place in places:
        try:
            f"{rows.texts[place]} {rows.pairs[place] if rows.pairs else ''}".encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{rows.source}: row {place} holds half of a surrogate pair (such as \\ud83d alone), which is no"
                " character; remove it."
            ) from None
