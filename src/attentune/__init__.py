"""Attentune: fine-tune text encoders with methods that guide attention, and compare them with statistics.

>>> import attentune
>>> config = attentune.load_config(preset="bert", overrides={"data.task": "cola", "data.data_dir": "glue_data",
...                                "training.output_dir": "runs/cola"})
>>> result = attentune.train(config)
>>> attentune.predict("runs/cola", ["The sailors rode the breeze clear of the rocks."])
"""

import importlib
from typing import Any

__version__ = "0.2.0.dev0"

# Each public name and the module that defines it. They are imported on first use, so that `import attentune` is fast
# and settings can be read without PyTorch.
_PUBLIC = {
    "AttentuneAuto": "attentune.integrations.sklearn",
    "AttentuneClassifier": "attentune.integrations.sklearn",
    "AttentuneError": "attentune.errors",
    "AttentuneForSequenceClassification": "attentune.models.modeling",
    "AttentuneRegressor": "attentune.integrations.sklearn",
    "Predictor": "attentune.inference.predictor",
    "SSACallback": "attentune.integrations.hf_trainer",
    "auto": "attentune.automl.auto",
    "compare": "attentune.runs.compare",
    "evaluate": "attentune.inference.predictor",
    "explain_texts": "attentune.explain.texts",
    "load_config": "attentune.config",
    "predict": "attentune.inference.predictor",
    "search": "attentune.runs.search",
    "train": "attentune.training.run",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'attentune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_PUBLIC]
