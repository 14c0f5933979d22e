"""Makes `pipeline("text-classification")` use our pipeline for our models, and the previous one for all others.

Not in `pipeline.py`, which is copied into exported folders, where an import must not change transformers.
"""

import importlib
from typing import Any

import numpy as np
from transformers import TextClassificationPipeline
from transformers.pipelines import PIPELINE_REGISTRY

from attentune.models.configuration import AttentuneConfig
from attentune.stats.verdict import class_probabilities, predict_labels


class AttentunePipeline(TextClassificationPipeline):
    """Predicts as `attentune predict` does, with decision thresholds and expected values.

    Predicted labels come first, then all others by score. For multi-label runs each entry says whether it is
    `predicted`. Scores are those of transformers' pipeline.
    """

    def postprocess(
        self, model_outputs: Any, function_to_apply: Any = None, top_k: int | None = 1, _legacy: bool = True
    ) -> Any:
        config = self.model.config
        if config.task_type == "regression":
            result = super().postprocess(model_outputs, function_to_apply, top_k, _legacy)
            if function_to_apply is None:  # transformers rounds to float32
                (entry,) = [result] if isinstance(result, dict) else result
                entry["score"] = float(model_outputs["logits"][0, 0])
            return result
        entries = super().postprocess(model_outputs, function_to_apply, top_k=None, _legacy=False)
        names = self._predicted(model_outputs["logits"][0].float().numpy())
        if config.task_type == "multi_label":
            entries = [{**entry, "predicted": entry["label"] in names} for entry in entries]
        entries.sort(key=lambda entry: entry["label"] not in names)
        return entries[0] if _legacy and top_k == 1 else entries[:top_k]

    def _predicted(self, logits_C: np.ndarray) -> set[str]:
        """Return the names of the predicted labels."""
        config = self.model.config
        several = config.task_type == "multi_label"
        predicted = predict_labels(
            class_probabilities(logits_C[None], is_multilabel=several),
            task_type=config.task_type,
            ordinal_prediction=config.ordinal_prediction,
            thresholds=config.thresholds,
        )[0]
        places = np.flatnonzero(predicted) if several else [predicted]
        return {config.id2label[int(place)] for place in places}


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
