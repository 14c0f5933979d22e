"""Makes `pipeline("text-classification")` use our pipeline for our models, and the previous one for all others.

Not in `pipeline.py`, which is copied into exported folders, where an import must not change transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

from transformers.pipelines import PIPELINE_REGISTRY

from attentune.models.configuration import AttentuneConfig
from attentune.models.pipeline import AttentunePipeline

_ENTRY: dict[str, Any] = PIPELINE_REGISTRY.supported_tasks["text-classification"]
# A class, or in newer versions of transformers its import path.
PREVIOUS: Any = _ENTRY["impl"]


class RegisteredPipeline(AttentunePipeline):
    """Our pipeline for our models; for any other model an instance of the class registered before."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        model = kwargs.get("model", args[0] if args else None)
        # Without a model the instance is being copied.
        if model is None or getattr(model.config, "model_type", None) == AttentuneConfig.model_type:
            return super().__new__(cls)
        # Not an instance of this class, so Python does not call __init__ again.
        return resolve_class(PREVIOUS)(*args, **kwargs)


def resolve_class(impl: Any) -> Any:
    """Import a class given by its path; return a class as it is."""
    if not isinstance(impl, str):
        return impl
    module, name = impl.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


_ENTRY["impl"] = RegisteredPipeline
