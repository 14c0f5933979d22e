"""Reference implementations of token erasure, one erased copy at a time, and of ERASER's AOPC."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from helpers.explain_references import OneText


def chances(text: OneText, gone: Collection[int], erasure: str) -> list[float]:
    """Return the class probabilities of a text with these tokens erased."""
    inputs = text.inputs(gone if erasure == "mask" else ())
    if erasure == "attention":
        inputs["attention_mask"] = torch.tensor([[int(place not in gone) for place in range(len(text.ids))]])
    if erasure == "delete":
        kept = [place for place in range(len(text.ids)) if place not in gone]
        second = inputs.pop("second_start", None)
        inputs = {name: tensor[:, kept] for name, tensor in inputs.items()}
        if second is not None:
            inputs["second_start"] = torch.tensor([sum(place < int(second[0]) for place in kept)])
    with torch.no_grad():
        return text.model(**inputs).logits[0].double().softmax(dim=0).tolist()


def aopc(records: Sequence[dict[str, Any]], name: str) -> float:
    """Return the AOPC as ERASER's program computes it: the mean of p(full) - p(erased) over bins and rows."""
    total, count = 0.0, 0
    for record in records:
        label = record["classification"]
        for part in record["thresholded_scores"]:
            total += record["classification_scores"][label] - part[f"{name}_classification_scores"][label]
            count += 1
    return total / count
