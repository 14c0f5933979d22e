"""Saves the attribution head that was fitted to a run into its folder, and loads it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from attentune.errors import CheckpointError
from attentune.io.files import read_json, written_together
from attentune.nn.attribution_head import AttributionHead
from attentune.results import to_json

WEIGHTS, SETTINGS = "attribution_head.safetensors", "attribution_head.json"
_SHAPE = ("hidden_size", "layers", "width", "outputs", "longest")
_AGAIN = "Fit it again: attentune fit-explainer {folder}"


def save_attribution_head(head: AttributionHead, model: nn.Module, facts: dict[str, Any], folder: Path) -> None:
    """Write a head, what it is and how it was fitted; a head that the folder has is replaced."""
    settings = {
        "layers": list(head.layers),
        "hidden_size": head.hidden_size,
        "width": head.dense.out_features,
        "outputs": head.output.out_features,
        "longest": len(head.nothing_MO),
        "model": weights_of(model),
        "calibration_temperature": _temperature(model),
        "fitted": facts,
    }
    with written_together(folder, "attribution_head", last=SETTINGS) as target:
        safetensors.torch.save_file(head.state_dict(), target / WEIGHTS)
        # safetensors creates files that only their owner can read.
        (target / WEIGHTS).chmod((folder / "config.json").stat().st_mode)
        (target / SETTINGS).write_text(to_json(settings), encoding="utf-8")


def load_attribution_head(folder: Path, model: nn.Module) -> AttributionHead | None:
    """Load the head of a run folder; None if it has none.

    Raises:
        CheckpointError: the files are damaged, or the head was fitted to other weights than the model's.
    """
    if not (folder / SETTINGS).is_file():
        return None
    again = _AGAIN.format(folder=folder)
    try:
        settings = read_json(folder / SETTINGS)
        head = AttributionHead(**{name: settings[name] for name in _SHAPE})
        head.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        fitted_to, temperature = settings["model"], float(settings["calibration_temperature"])
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder / WEIGHTS}: cannot be loaded: {reason} {again}") from error
    if fitted_to != weights_of(model):
        raise CheckpointError(
            f"{folder / WEIGHTS}: was fitted to other weights than those in this folder, so its scores would explain"
            f" another model. {again}"
        )
    # Calibration after the fit divides the logits, and with them every score.
    for tensor in (head.output.weight.data, head.output.bias.data, head.nothing_MO):
        tensor.mul_(temperature / _temperature(model))
    return head.eval().to(next(model.parameters()).device)


def weights_of(model: nn.Module) -> str:
    """Hash the vectors among a model's weights (biases, norms), all of which training changes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        if tensor.ndim == 1:
            digest.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _temperature(model: Any) -> float:
    return float(model.config.calibration_temperature)
