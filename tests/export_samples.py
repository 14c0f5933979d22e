"""Saved runs that were not trained: tiny models with slots moved away from where they begin."""

from pathlib import Path
from typing import Any

import torch

from attentune.models.saving import save_model
from tiny_models import build


def save_run(checkpoint: Path, folder: Path, **options: Any) -> Path:
    """A model as `tiny_models.build` makes it, saved without settings of a run."""
    model, tokenizer = build(checkpoint, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("encoder."):
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    return folder
