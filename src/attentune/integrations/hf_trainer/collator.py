"""Data collator that adds the token labels of the current epoch to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithPadding

from attentune.data.tokenization import Features
from attentune.errors import DataError
from attentune.models.loading import Tokenizer
from attentune.nn.losses import NO_LABEL

Key = tuple[bytes, float]


def tokens_of(row: Mapping[str, Any]) -> np.ndarray:
    """Return the (T,) int32 token ids of a tokenised row, without padding."""
    ids = np.asarray(row["input_ids"], dtype=np.int32)
    mask = row.get("attention_mask")
    return ids if mask is None else ids[np.asarray(mask).astype(bool)]


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the key of a row: its tokens and its label, since the Trainer may drop all other columns."""
    label = row.get("labels", row.get("label"))
    return tokens_of(row).tobytes(), float("nan") if label is None else float(label)


def read_rows(dataset: Any, *, special_ids: list[int], is_regression: bool) -> tuple[Features, np.ndarray, list[Key]]:
    """Read all rows of a tokenised data set.

    Args:
        dataset: a data set with a length whose rows, by index, have `input_ids` and `label` or `labels`.
        special_ids: the ids of tokens that are never masked or labelled.
        is_regression: whether the labels are scores.

    Returns:
        The tokens, the (N,) labels and the keys of all rows.

    Raises:
        DataError: the data set is empty or has no length, or a row has no tokens or no numeric label.
    """
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise DataError("train_dataset: expected a data set with a length and at least one row; a stream has none.")
    rows = [dataset[number] for number in range(len(dataset))]
    for number, row in enumerate(rows):
        if "input_ids" not in row or isinstance(row.get("labels", row.get("label")), (str, type(None))):
            raise DataError(
                f"train_dataset: row {number} has {', '.join(map(str, row))}, expected input_ids and a number as"
                " label; tokenise it first: dataset.map(lambda row: tokenizer(row['text'], truncation=True)), and"
                " number classes that are words: dataset.class_encode_column('label')"
            )
    ids = [tokens_of(row) for row in rows]
    types = [_types_of(row) for row in rows]
    lengths = np.array([len(row_ids) for row_ids in ids], dtype=np.int64)
    flat = np.concatenate(ids)
    features = Features(
        ids=flat,
        type_ids=None
        if any(row_types is None for row_types in types)
        else np.concatenate([row_types for row_types in types if row_types is not None]),
        special=np.isin(flat, special_ids),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        full_lengths=lengths,
    )
    labels = [row.get("labels", row.get("label")) for row in rows]
    gold = np.asarray([float(label) for label in labels])
    return features, gold if is_regression else gold.astype(np.int64), [key_of(row) for row in rows]


def _types_of(row: Mapping[str, Any]) -> np.ndarray | None:
    if row.get("token_type_ids") is None:
        return None
    types, mask = np.asarray(row["token_type_ids"], dtype=np.int8), row.get("attention_mask")
    return types if mask is None else types[np.asarray(mask).astype(bool)]


class SSACollator:
    """Data collator that pads rows and, in training mode, adds token labels.

    The labels are `token_targets` (B, T): from 0 to 1, and negative for tokens without a label.

    Args:
        model: the model; labels are added only if it is in training mode.
        tokenizer: the tokenizer that pads.
        targets: the token labels by row key; a row that is missing has none. It may be filled later.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, targets: Mapping[Key, np.ndarray]) -> None:
        self._model, self._pad, self._targets = model, DataCollatorWithPadding(tokenizer), targets

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        batch = self._pad([dict(row) for row in rows])
        if self._model.training:
            # Added even if no row has labels: in distributed training every process needs the token head in the graph.
            targets_BT = torch.full(batch["input_ids"].shape, NO_LABEL)
            for number, row in enumerate(rows):
                row_targets = self._targets.get(key_of(row))
                if row_targets is not None:
                    targets_BT[number, batch["attention_mask"][number].bool()] = torch.from_numpy(row_targets)
            batch["token_targets"] = targets_BT
        return batch
