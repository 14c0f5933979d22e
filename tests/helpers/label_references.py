"""Reference implementations of the label generators: loops with one text at a time, no padding and no batches."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.data.tokenization import Features
from attentune.token_labels.base import LabelSource
from attentune.token_labels.flip import random_mask, spread_copies


class Row:
    """A row of encoded texts, as a batch of one of a model."""

    def __init__(self, features: Features, row: int, model: Any, mask_token_id: int) -> None:
        begin, end = features.starts[row], features.starts[row + 1]
        self.model, self._mask = model, mask_token_id
        self.ids = [int(token) for token in features.ids[begin:end]]
        self.places = [place for place, is_special in enumerate(features.special[begin:end]) if not is_special]
        self.second = None if features.second_starts is None else int(features.second_starts[row])
        self._type_ids = None if features.type_ids is None else features.type_ids[begin:end].astype(int).tolist()

    def inputs(self, gone: Iterable[int] = ()) -> dict[str, Tensor]:
        """Return the model inputs, with these token positions masked."""
        lost = set(gone)
        ids = [self._mask if place in lost else own for place, own in enumerate(self.ids)]
        inputs = {"input_ids": torch.tensor([ids])}
        if self._type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([self._type_ids])
        if self.second is not None:
            inputs["second_start"] = torch.tensor([self.second])
        return inputs

    @torch.no_grad()
    def logits(self, gone: Iterable[int] = ()) -> Tensor:
        return self.model(**self.inputs(gone)).logits[0]


def row_of(source: LabelSource, row: int) -> Row:
    return Row(source.features, row, getattr(source.scorer, "model", None), source.mask_token_id)


def ordinary(source: LabelSource, row: int) -> list[int]:
    return row_of(source, row).places


def answer(source: LabelSource, row: int, places: Iterable[int] = ()) -> Tensor:
    return row_of(source, row).logits(places)


def is_right(source: LabelSource, row: int, logits_C: Tensor) -> bool:
    if source.comparator.label_space.task_type == "regression":
        return abs(float(logits_C) - float(source.gold[row])) <= source.comparator.tolerance
    return int(logits_C.argmax()) == int(source.gold[row])


def is_same(source: LabelSource, one_C: Tensor, other_C: Tensor) -> bool:
    if source.comparator.label_space.task_type == "regression":
        return abs(float(one_C) - float(other_C)) <= source.comparator.tolerance
    return int(one_C.argmax()) == int(other_C.argmax())


def flat(source: LabelSource, given: dict[tuple[int, int], list[float]]) -> np.ndarray:
    """Return the mean of the values given to each (row, position), as flat labels; -1 where there are none."""
    values = np.full(len(source.features.ids), -1.0)
    for (row, place), own in given.items():
        values[source.features.starts[row] + place] = sum(own) / len(own)
    return values


def probing_labels(
    source: LabelSource, epoch: int, *, ratio: float = 1.0, mask_share: float = 0.3
) -> tuple[np.ndarray, Counter[str]]:
    """Compute the labels of `flip`."""
    given: dict[tuple[int, int], list[float]] = defaultdict(list)
    facts: Counter[str] = Counter()
    used: Counter[int] = Counter()
    for row in map(int, spread_copies(len(source.features), ratio, source.seed, epoch)):
        copy, used[row] = used[row], used[row] + 1
        facts["probed"] += 1
        plain_C = answer(source, row)
        if not is_right(source, row, plain_C):
            continue
        places = random_mask(source.features, row, mask_share, source.seed, epoch, row, copy).tolist()
        flipped = not is_same(source, plain_C, answer(source, row, places))
        facts["correct"] += 1
        facts["flipped"] += flipped
        for place in places:
            given[row, place].append(float(flipped))
    return flat(source, given), facts
