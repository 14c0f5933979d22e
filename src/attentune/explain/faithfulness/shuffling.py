"""A copy of a model whose layers are shuffled one after the other, from the head down to the embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.seeding import torch_generator


def parts_from_the_head(model: AttentuneForSequenceClassification) -> dict[str, list[str]]:
    """The names of the parameters of each part: the head (with layer mix, gate and linear), each layer, the rest.

    Layers that share their weights are one part.
    """
    layers = _layer_lists(model.encoder)
    parts: dict[str, list[str]] = {"head": []}
    below: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        if not name.startswith("encoder."):
            parts["head"].append(name)
            continue
        inner = name.removeprefix("encoder.")
        prefix = next((own for own in layers if inner.startswith(f"{own}.")), None)
        part = "embeddings" if prefix is None else f"layer {int(inner[len(prefix) + 1 :].split('.')[0]) + 1}"
        below.setdefault(part, []).append(name)
    rest = below.pop("embeddings", None)
    deepest_last = sorted(below, key=lambda part: -int(part.split()[1]))
    parts |= {part: below[part] for part in deepest_last}
    return parts if rest is None else parts | {"embeddings": rest}


def _layer_lists(encoder: nn.Module) -> list[str]:
    """The name of the encoder's list of layers: the first list of modules there is."""
    return [name for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)][:1]


def shuffled_from_the_head(
    model: AttentuneForSequenceClassification, seed: int
) -> Iterator[tuple[str, AttentuneForSequenceClassification]]:
    """The model with one part more shuffled each time: the part's name, and a copy with it and those above shuffled.

    Each weight keeps its numbers and loses their places, so that their size stays what it was. It is one copy that
    changes from step to step.

    Source: the cascading randomisation of Adebayo et al. 2018 (Sanity checks for saliency maps), with weights shuffled
    and not drawn anew.
    """
    other: Any = copy.deepcopy(model)
    weights = dict(other.named_parameters())
    for part, names in parts_from_the_head(model).items():
        for name in names:
            weight = weights[name]
            order = torch.randperm(weight.numel(), generator=torch_generator("shuffled", seed, name))
            with torch.no_grad():
                weight.copy_(weight.flatten()[order.to(weight.device)].view_as(weight))
        yield part, other
