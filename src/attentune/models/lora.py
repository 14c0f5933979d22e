"""LoRA adapters in an encoder's attention, by the peft library, and merging them into its weights.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"; on query and value projections, as there.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from torch import Tensor, nn

from attentune.errors import ConfigError, UnsupportedEncoderError
from attentune.models.slots import blur_slot

# Names of the query and value projections by family; the first complete entry is used.
_TARGETS = (("query", "value"), ("query_proj", "value_proj"), ("q_lin", "v_lin"), ("q", "v"), ("Wqkv",))
_NAME = "default"


def check_peft() -> None:
    """Check that peft is installed."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError("training.lora_rank: needs peft, which is not installed; run: pip install 'attentune[peft]'")


def adapter_targets(encoder: nn.Module) -> list[str]:
    """Return the names of the linear layers that get adapters."""
    names = {name.split(".")[-1] for name, module in encoder.named_modules() if isinstance(module, nn.Linear)}
    for targets in _TARGETS:
        if names.issuperset(targets):
            return list(targets)
    raise UnsupportedEncoderError(
        "training.lora_rank: found no projections to queries and values in this encoder, expected those of a BERT-like"
        " one. Train it without --lora_rank."
    )


def inject_adapters(encoder: nn.Module, settings: dict[str, Any]) -> None:
    """Add new adapters to an encoder, initially without effect, and train only these."""
    _peft().inject_adapter_in_model(_lora_config(settings, adapter_targets(encoder)), encoder)
    for name, module in encoder.named_modules():
        if ".lora_" in f".{name}":
            # Initialised by peft with B = 0; must not be initialised again.
            module._is_hf_initialized = True


def merge_adapters(model: Any) -> dict[str, Tensor] | None:
    """Merge a model's adapters into the weights of its encoder and remove them."""
    if model.config.lora is None:
        return None
    layer = importlib.import_module("peft.tuners.lora").LoraLayer
    adapters = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": value.detach().cpu().clone().contiguous()
        for name, value in model.encoder.named_parameters()
        if ".lora_" in name
    }
    for parent in list(model.encoder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, layer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    model.encoder.requires_grad_(True)
    if hasattr(model.encoder, "peft_config"):
        del model.encoder.peft_config
    model.config.lora = None
    if model.blur_hooks is not None:
        # Its hooks were attached to the modules just replaced.
        model.blur_hooks.remove()
        model.blur_hooks = blur_slot(model.config, model.encoder)[1]
    return adapters


def adapter_settings(settings: dict[str, Any], encoder: nn.Module, base: str | None) -> Any:
    """Build the configuration that peft saves as `adapter_config.json`."""
    config = _lora_config(settings, adapter_targets(encoder))
    config.base_model_name_or_path = base
    config.inference_mode = True
    return config


def _lora_config(settings: dict[str, Any], targets: list[str]) -> Any:
    return _peft().LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=targets,
        bias="none",
    )


def _peft() -> Any:
    # Imported by name: transformers scans model code for imports and would require peft for models without adapters.
    return importlib.import_module("peft")
