"""Attentune: fine-tune text encoders that attend to what matters, and find out whether B is really better than A.

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

# Loaded when first used: `import attentune` stays fast, and a settings file can be read without PyTorch.
_HOMES = {
    "AttentuneConfig": "attentune.models.configuration",
    "AttentuneClassifier": "attentune.integrations.sklearn",
    "AttentuneError": "attentune.errors",
    "AttentuneForSequenceClassification": "attentune.models.modeling",
    "AttentuneRegressor": "attentune.integrations.sklearn",
    "Config": "attentune.config",
    "DataConfig": "attentune.config",
    "Explanation": "attentune.explain.explanation",
    "RunResult": "attentune.results",
    "SSACallback": "attentune.integrations.hf_trainer.callback",
    "Predictor": "attentune.inference.predictor",
    "compare": "attentune.experiments.comparison.runner",
    "evaluate": "attentune.inference.predictor",
    "explain_texts": "attentune.explain.texts",
    "list_tokens": "attentune.token_labels.listing",
    "export_run": "attentune.integrations.onnx.export",
    "load_config": "attentune.config",
    "load_data": "attentune.data.load",
    "make_submission": "attentune.suites.glue",
    "measure_faithfulness": "attentune.explain.faithfulness.measure",
    "new_model": "attentune.integrations.hf_trainer.building",
    "predict": "attentune.inference.predictor",
    "score_hans": "attentune.suites.hans",
    "search": "attentune.experiments.search.search",
    "train": "attentune.training.train",
}

# Names of 0.1.0, which work for a release.
_RENAMED = {"SavedRun": "Predictor"}

__all__ = [
    "AttentuneClassifier",
    "AttentuneConfig",
    "AttentuneError",
    "AttentuneForSequenceClassification",
    "AttentuneRegressor",
    "Config",
    "DataConfig",
    "Explanation",
    "Predictor",
    "RunResult",
    "SSACallback",
    "__version__",
    "compare",
    "evaluate",
    "explain_texts",
    "export_run",
    "list_tokens",
    "load_config",
    "load_data",
    "make_submission",
    "measure_faithfulness",
    "new_model",
    "predict",
    "score_hans",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"attentune.{name} is now attentune.{new}; the old name goes in 0.3", FutureWarning, stacklevel=2)
        return __getattr__(new)
    if name not in _HOMES:
        raise AttributeError(f"module 'attentune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_transformers()
