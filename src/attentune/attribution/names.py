"""The names of attribution methods, which are checked before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Iterable

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

# In the order of `registry.METHODS`.
METHOD_NAMES = (
    "fast-shap",
    "ssa",
    "gradient",
    "integrated-gradients",
    "leave-one-out",
    "lime",
    "shap",
    "attention",
    "attention-gradient",
    "random",
)


def check_method_names(names: Iterable[str]) -> None:
    """Check that there are methods of these names."""
    for name in names:
        if name not in METHOD_NAMES:
            near = did_you_mean(name, METHOD_NAMES)
            raise ConfigError(f"method: got {name!r}, expected one of {', '.join(METHOD_NAMES)}.{near}")
