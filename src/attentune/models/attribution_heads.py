"""Saves the attribution head that was fitted to a run into its folder, and loads it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.io.files import read_json, written_together
from attentune.models.saving import label_space_of
from attentune.nn.attribution_head import AttributionHead
from attentune.results import to_json

WEIGHTS, SETTINGS = "attribution_head.safetensors", "attribution_head.json"
_AGAIN = "Fit it again: attentune explain {folder} --fit"


def save_attribution_head(head: AttributionHead, model: nn.Module, facts: dict[str, Any], folder: Path) -> None:
    """Write a head, what it is and how it was fitted; a head that the folder has is replaced."""
    settings = {
        "layers": list(head.layers),
        "model": weights_of(model),
        "calibration_temperature": _temperature(model),
        "fitted": facts,
    }
    with written_together(folder, "attribution_head", last=SETTINGS) as target:
        safetensors.torch.save_file(head.state_dict(), target / WEIGHTS)
        # safetensors creates files that only their owner can read.
        (target / WEIGHTS).chmod((folder / "config.json").stat().st_mode)
        (target / SETTINGS).write_text(to_json(settings), encoding="utf-8")


def load_attribution_head(folder: Path, model: Any) -> AttributionHead | None:
    """Load the head of a run folder; None if it has none."""
    if not (folder / SETTINGS).is_file():
        return None
    again = _AGAIN.format(folder=folder)
    try:
        settings = read_json(folder / SETTINGS)
        head = _head_of(safetensors.torch.load_file(folder / WEIGHTS), settings["layers"], model)
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
    return head.fold().eval().to(next(model.parameters()).device)


def outputs_of(space: LabelSpace) -> int:
    """Return how many values a head explains: a score, the log odds of two classes, or of each class and each logit."""
    if space.task_type == "regression":
        return 1
    classes = space.num_labels
    return classes if space.is_multilabel else 1 if classes == 2 else 2 * classes


def _head_of(weights: dict[str, Tensor], layers: list[int], model: Any) -> AttributionHead:
    """Make the head of these weights, whose sizes are theirs, if it fits the model."""
    sizes = {
        "hidden_size": int(weights["norms.0.weight"].shape[0]),
        "outputs": int(weights["output.weight"].shape[0]),
    }
    encoder = model.encoder.config
    wanted = {"hidden_size": encoder.hidden_size, "outputs": outputs_of(label_space_of(model.config))}
    if sizes != wanted or not all(0 <= layer <= encoder.num_hidden_layers for layer in layers):
        raise ValueError(f"got {sizes} and layers {layers}, expected {wanted} and at most {encoder.num_hidden_layers}.")
    width, longest = len(weights["dense.weight"]), len(weights["nothing_MO"])
    head = AttributionHead(layers=layers, width=width, longest=longest, **sizes)
    head.load_state_dict(weights)
    return head


def weights_of(model: nn.Module) -> str:
    """Hash the vectors among a model's weights (biases, norms), all of which training changes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        if tensor.ndim == 1:
            digest.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _temperature(model: Any) -> float:
    return float(model.config.calibration_temperature)
