"""Which rows go together, and padded tensors made of them.

The order is a function of (seed, epoch) alone, so that a resumed run needs no saved position but a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator

# Rows are sorted by length within windows of this many batches: enough to pad little, and still shuffled well.
_WINDOW_BATCHES = 64


@dataclass(frozen=True)
class Batch:
    """A padded batch.

    Attributes:
        inputs: input_ids, attention_mask and, where the encoder knows them, token_type_ids: (B, T) int64 each; for
            pairs of texts apart second_start, (B,) int64, where in each row the second one begins.
        samples: (B,) the places of these rows in the epoch's plan (or in the split, in evaluation).
        tokens: the number of real tokens.
        token_labels: (B, T) float32, negative where a token has no label; None where no labels were given.
    """

    inputs: dict[str, torch.Tensor]
    samples: np.ndarray
    tokens: int
    token_labels: torch.Tensor | None = None


def bucketed_order(lengths: np.ndarray, batch_rows: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of a training epoch: rows of like length together, all else random.

    Args:
        lengths: (N,) tokens of each row.
        batch_rows: rows in a batch; one batch may be smaller.
        seed: with `epoch`, the key of the shuffle.
        epoch: from 0.

    Returns:
        Arrays of places in `lengths`; each place stands in exactly one.
    """
    generator = numpy_generator("order", seed, epoch)
    shuffled = generator.permutation(len(lengths))
    window = batch_rows * _WINDOW_BATCHES
    batches: list[np.ndarray] = []
    for begin in range(0, len(shuffled), window):
        part = shuffled[begin : begin + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[place : place + batch_rows] for place in range(0, len(part), batch_rows)]
    return [batches[place] for place in generator.permutation(len(batches))]


def sorted_order(lengths: np.ndarray, batch_rows: int) -> list[np.ndarray]:
    """The batches of an evaluation: longest rows first, so that too little memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    return [order[place : place + batch_rows] for place in range(0, len(order), batch_rows)]


def budget_order(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Batches of rows of like length, longest first, with at most so many tokens each, padding included.

    A row that is longer than that has a batch of its own.
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
    """Tensors of these rows, padded on the right to the longest.

    Args:
        features: the split's tokens.
        rows: which rows, in this order.
        pad_token_id: fills up.
        mask_token_id: stands at the masked places.
        masked: for each row the places to mask, or None for none; not given: nothing is masked.
        attention_excluded: for each row the places that attention leaves out as if they were padding, or None for none.
        samples: what `Batch.samples` is to be; the rows themselves if not given.
        token_labels: for each row one number a token, negative where there is no label.
    """
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
        for number, own in enumerate(token_labels):
            labels[number, : len(own)] = torch.from_numpy(own)
    return Batch(inputs, np.asarray(rows if samples is None else samples), int(lengths.sum()), labels)
