"""What must be as it was for a resumed run to be the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What it is called in messages.
_NAMES = {
    "data": "the rows",
    "tokens": "the tokens that the tokenizer makes of them",
    "processes": "the number of processes",
    "precision": "the precision",
    "device": "the kind of device",
    "fused_layers": "the layers that train by the C code (--fused_layers, which needs a C compiler)",
}
# Of an encoder's settings, those that say who wrote them and with what.
_OF_THE_WRITER = {"_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words; empty where nothing does.

    Args:
        before: the identity in a checkpoint.
        now: that of the run which would go on from it; see `RunParts.identity`.
    """
    others = [name for name in _NAMES if name in before and name in now and before[name] != now[name]]
    if "data" in others and "tokens" in others:  # other rows make other tokens
        others.remove("tokens")
    found = [f"{_NAMES[name]}{_splits(before[name], now[name])}" for name in others]
    encoder = _other_settings(before.get("encoder", {}), now.get("encoder", {}))
    return [*found, *([f"the encoder ({', '.join(encoder)})"] if encoder else [])]


def _splits(before: Any, now: Any) -> str:
    """The splits that differ, or the values."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return f" (was {before}, now {now})"
    names = sorted({*before, *now})
    return f" ({', '.join(name for name in names if before.get(name) != now.get(name))})"


def _other_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings with other values. A version of transformers may know more of them than another: both must have it."""
    shared = [name for name in before if name in now and name not in _OF_THE_WRITER]
    return [f"{name}: was {before[name]!r}, now {now[name]!r}" for name in shared if before[name] != now[name]]
