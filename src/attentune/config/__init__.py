"""The settings of a run: sections, presets, reading and writing."""

from attentune.config.load import (
    flatten,
    load_config,
    load_preset,
    model_preset_names,
    preset_names,
    to_dict,
    to_flat,
    to_yaml,
)
from attentune.config.schema import (
    BlurConfig,
    Config,
    DataConfig,
    HeadConfig,
    LabelsConfig,
    LayerMixConfig,
    ModelConfig,
    ObjectiveConfig,
    TokenGateConfig,
    TrainingConfig,
)

__all__ = [
    "BlurConfig",
    "Config",
    "DataConfig",
    "HeadConfig",
    "LabelsConfig",
    "LayerMixConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "TokenGateConfig",
    "TrainingConfig",
    "flatten",
    "load_config",
    "load_preset",
    "model_preset_names",
    "preset_names",
    "to_dict",
    "to_flat",
    "to_yaml",
]
