"""Compares the logits of a model with those of copies in another precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helpers.tiny import CORPUS
from helpers.tiny_models import FIRST, LONG, SECOND, build, encoded

Tiny = Callable[..., Path]
TEXTS = (FIRST, SECOND, LONG, *CORPUS.splitlines()[:12])


@torch.no_grad()
def answers(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits


@torch.no_grad()
def widen(model: Any, inputs: dict[str, Tensor]) -> None:
    """Shift and scale the classifier to logits with mean 0 and deviation 1; otherwise differences would not show."""
    logits_BC = answers(model, inputs)
    model.classifier.weight.div_(logits_BC.std(dim=0).mean())
    model.classifier.bias.sub_(answers(model, inputs).mean(dim=0))


def close(ours_BC: Tensor, theirs_BC: Tensor, *, within: float = 0.1) -> bool:
    """Return whether logits differ by at most a share of the largest; bf16 causes about half of the default here."""
    return bool((ours_BC - theirs_BC).abs().max() <= within * theirs_BC.abs().max())


def made(tiny: Tiny, family: str, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    model, tokenizer = build(tiny(family), **options)
    inputs = encoded(tokenizer, *TEXTS)
    widen(model, inputs)
    return model, inputs
