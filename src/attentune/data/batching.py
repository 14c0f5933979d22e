"""Batching: the order of the rows, and padded tensors.

The order is a function of (seed, epoch), so that a run is resumed from the number of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator

# Rows are sorted by length within windows of this many batches: little padding, and still well shuffled.
_WINDOW_BATCHES = 64


@dataclass(frozen=True)
class Batch:
    """A padded batch."""

    inputs: dict[str, torch.Tensor]  # input_ids, attention_mask and, if the encoder has them, token_type_ids,
    samples: np.ndarray  # (B,) the indices of the rows in the plan of the epoch (in evaluation: in the split)
    tokens: int  # the number of tokens without padding
    token_labels: torch.Tensor | None = None  # (B, T) float32, negative at tokens without a token label


def bucketed_order(
    lengths: np.ndarray, batch_rows: int, *, seed: int, epoch: int, by_tokens: bool = False
) -> list[np.ndarray]:
    """Make the batches of a training epoch: rows of similar length together, otherwise in random order."""
    generator = numpy_generator("order", seed, epoch)
    shuffled = generator.permutation(len(lengths))
    window = batch_rows * _WINDOW_BATCHES
    batches: list[np.ndarray] = []
    for begin in range(0, len(shuffled), window):
        part = shuffled[begin : begin + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        ends = np.arange(batch_rows, len(part), batch_rows)
        if by_tokens:
            ends = _equal_ends(lengths[part], len(ends) + 1)
        batches += np.split(part, ends) if len(part) else []
    return [batches[place] for place in generator.permutation(len(batches))]


def _equal_ends(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Return where to divide rows into this many parts of about equally many tokens, each of at least one row."""
    tokens = np.cumsum(lengths)
    ends = np.searchsorted(tokens, tokens[-1] * np.arange(1, parts) / parts, side="right")
    count = np.arange(1, parts)
    ends = np.maximum.accumulate(np.maximum(ends, count) - count) + count  # strictly increasing, from 1 on
    return np.minimum(ends, len(lengths) - parts + count)


def sorted_order(lengths: np.ndarray, batch_rows: int) -> list[np.ndarray]:
    """Make the batches of an evaluation, longest rows first, so that running out of memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    return [order[place : place + batch_rows] for place in range(0, len(order), batch_rows)]


def budget_order(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Make batches of at most `batch_tokens` tokens, with padding, longest rows first.

    A longer row is a batch by itself.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    begin = 0
    while begin < len(order):
        rows = max(1, batch_tokens // max(1, int(lengths[order[begin]])))
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
