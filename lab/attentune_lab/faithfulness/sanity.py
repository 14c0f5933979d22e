"""Sanity checks of attribution methods: repeatability, and dependence on the model's weights."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from attentune.data.dataset import TextRows
from attentune.errors import ConfigError
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.methods import METHODS
from attentune.explain.scorer import Settings
from attentune.inference.predictor import ModelPredictor
from attentune.models.cpu_layers import attention_by
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.seeding import torch_generator
from attentune_lab.faithfulness.measure import Progress, agreements, mean_interval
from attentune_lab.interval import Interval


def parts_from_the_head(model: AttentuneForSequenceClassification) -> dict[str, list[str]]:
    """Group the model's parameter names, from the top: "head" (all slots and classifier), each layer, "embeddings".

    Layers that share their weights are one group.
    """
    lists = (name for name, module in model.encoder.named_modules() if isinstance(module, nn.ModuleList))
    layers = next(lists, None)  # the encoder's first module list
    parts: dict[str, list[str]] = {"head": []}
    below: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        if not name.startswith("encoder."):
            parts["head"].append(name)
            continue
        inner = name.removeprefix("encoder.")
        number = inner.removeprefix(f"{layers}.").split(".")[0] if inner.startswith(f"{layers}.") else None
        part = "embeddings" if number is None else f"layer {int(number) + 1}"
        below.setdefault(part, []).append(name)
    rest = below.pop("embeddings", None)
    deepest_last = sorted(below, key=lambda part: -int(part.split()[1]))
    parts |= {part: below[part] for part in deepest_last}
    return parts if rest is None else parts | {"embeddings": rest}


def shuffled_from_the_head(
    model: AttentuneForSequenceClassification, seed: int
) -> Iterator[tuple[str, AttentuneForSequenceClassification]]:
    """Yield the name of each part, from the head down, and a model in which it and all parts above are shuffled.

    The elements of each weight are permuted, which preserves their distribution. The same copy is changed in each step.

    Source: the cascading randomisation of Adebayo et al. 2018 (Sanity checks for saliency maps), with permuted instead
    of newly initialised weights.
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


# Enough texts to distinguish 1.0 from less and 0.5 from 0.
SANITY_ROWS = 32


@dataclass(frozen=True)
class RepeatScore:
    """Kendall's tau between repeated scores of a method, averaged over texts."""

    method: str  # a key of `METHODS`
    again: Interval  # the same computation twice
    alone: Interval  # each text alone, against a batch with padding
    precision: Interval | None  # fp32 against bf16; None if the device has no bf16


@dataclass(frozen=True)
class ShuffleScore:
    """Agreement of a method's scores with those of a model with shuffled upper parts, averaged over texts."""

    method: str  # a key of `METHODS`
    part: str  # the lowest shuffled part: "head", "layer 6", ..., "embeddings"
    tau: Interval  # Kendall's tau-b
    rho: Interval  # Spearman's rho


@dataclass(frozen=True)
class Sanity:
    rows: int
    repeats: list[RepeatScore]
    shuffles: list[ShuffleScore]


def check_sanity(
    saved: ModelPredictor,
    rows: TextRows,
    *,
    methods: Sequence[str],
    settings: Settings | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Sanity:
    """Repeat methods unchanged, without batching, in another precision, and on models with shuffled weights."""
    settings, tell = settings or Settings(), progress or (lambda what: None)
    seed, rows = settings.seed, rows.take(range(min(len(rows), SANITY_ROWS)))
    with attention_by(saved.model):
        explainer = Explainer(saved, rows, precision=precision)
        places = [explainer.scorer.features.non_special_positions(row) for row in range(len(rows))]
        first = explainer.attributions(methods[0], settings=settings)
        target = [saved.label_space.names[attribution.target] for attribution in first]  # the same for all models

        def scores(method: str, asked: Explainer = explainer, **options: Any) -> list[Attribution]:
            return asked.attributions(method, target=target, settings=settings, **options)

        def tau(one: list[Attribution], other: list[Attribution]) -> Interval:
            return mean_interval(agreements(one, other, places)[0], seed)

        base = {name: scores(name) for name in methods}
        repeats, shuffles = [], []
        for name in methods:
            tell(f"repeating {name}")
            try:
                exact, rough = (scores(name, Explainer(saved, rows, precision=kind)) for kind in ("fp32", "bf16"))
                precisions = tau(exact, rough)
            except ConfigError:
                precisions = None
            again, alone = tau(base[name], scores(name)), tau(base[name], scores(name, alone=True))
            repeats.append(RepeatScore(name, again, alone, precisions))
        for part, model in shuffled_from_the_head(saved.model, seed):
            tell(f"shuffling from the head down to {part}")
            other = Explainer(replace(saved, model=model), rows, precision=precision)
            for name in methods:
                taus, rhos = agreements(base[name], scores(name, other), places)
                shuffles.append(ShuffleScore(name, part, mean_interval(taus, seed), mean_interval(rhos, seed)))
    return Sanity(len(rows), repeats, sorted(shuffles, key=lambda score: list(METHODS).index(score.method)))
