"""Attentune: fine-tune text encoders with methods that guide attention, and compare them with statistics.

>>> import attentune
>>> config = attentune.load_config(preset="bert", overrides={"data.task": "cola", "data.data_dir": "glue_data",
...                                "training.output_dir": "runs/cola"})
>>> result = attentune.train(config)
>>> attentune.predict("runs/cola", ["The sailors rode the breeze clear of the rocks."])
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from attentune.models.registration import register_with_transformers

__version__ = "0.1.0"

# Each public name and the module that defines it. They are imported on first use, so that `import attentune` is fast
# and settings can be read without PyTorch.
_PUBLIC = {
    "AttentuneAuto": "attentune.integrations.sklearn",
    "AttentuneClassifier": "attentune.integrations.sklearn",
    "AttentuneError": "attentune.errors",
    "AttentuneForSequenceClassification": "attentune.models.modeling",
    "AttentuneRegressor": "attentune.integrations.sklearn",
    "Predictor": "attentune.inference.predictor",
    "SSACallback": "attentune.integrations.hf_trainer.callback",
    "auto": "attentune.experiments.auto.driver",
    "compare": "attentune.experiments.comparison.runner",
    "evaluate": "attentune.inference.predictor",
    "explain_texts": "attentune.explain.texts",
    "load_config": "attentune.config",
    "predict": "attentune.inference.predictor",
    "search": "attentune.experiments.search.search",
    "train": "attentune.training.train",
}

# Public names that are imported from their own module. `attentune.NAME` still works, with a warning.
_MOVED = {
    "AttentuneConfig": "attentune.models.configuration",
    "Config": "attentune.config",
    "DataConfig": "attentune.config",
    "Explanation": "attentune.explain.explanation",
    "RunResult": "attentune.results",
    "export_run": "attentune.integrations.onnx.export",
    "list_tokens": "attentune.token_labels.listing",
    "load_data": "attentune.data.load",
    "make_submission": "attentune.suites.glue",
    "measure_faithfulness": "attentune.explain.faithfulness.measure",
    "new_model": "attentune.integrations.hf_trainer.building",
    "score_hans": "attentune.suites.hans",
}

# Earlier names and their new names.
_RENAMED = {"SavedRun": "Predictor"}

__all__ = [
    "AttentuneAuto",
    "AttentuneClassifier",
    "AttentuneError",
    "AttentuneForSequenceClassification",
    "AttentuneRegressor",
    "Predictor",
    "SSACallback",
    "__version__",
    "auto",
    "compare",
    "evaluate",
    "explain_texts",
    "load_config",
    "predict",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        new = _RENAMED[name]
        _warn(f"attentune.{name} is deprecated and will be removed in 0.3; use attentune.{new} instead")
        return __getattr__(new)
    if name in _MOVED:
        home = _MOVED[name]
        _warn(f"attentune.{name} is deprecated and will be removed in 0.3; use `from {home} import {name}` instead")
        return getattr(importlib.import_module(home), name)
    if name not in _PUBLIC:
        raise AttributeError(f"module 'attentune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _warn(message: str) -> None:
    """Warn at the line that used the old name: the caller of `__getattr__`."""
    warnings.warn(message, FutureWarning, stacklevel=3)


register_with_transformers()
