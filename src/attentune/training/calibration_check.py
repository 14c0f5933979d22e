"""Whether a run calibrates, and whether its task can be calibrated."""

from __future__ import annotations

from attentune.config import TrainingConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError


def is_wanted(settings: TrainingConfig) -> bool:
    """Whether a run calibrates at its end."""
    return settings.calibrate != "none" or settings.thresholds != "none"


def check_calibration(settings: TrainingConfig, label_space: LabelSpace) -> None:
    """Refuse what the task has no probabilities or no thresholds for.

    Raises:
        ConfigError: a regression; or thresholds among more than two classes, or ordered ones.
    """
    if not is_wanted(settings):
        return
    if label_space.task_type == "regression":
        name = "calibrate" if settings.calibrate != "none" else "thresholds"
        raise ConfigError(f"training.{name}: needs classes, whose probabilities it mends; this task is a regression.")
    two = label_space.task_type == "classification" and label_space.num_labels == 2
    if settings.thresholds != "none" and not (two or label_space.is_multilabel):
        raise ConfigError(
            f"training.thresholds: needs two classes, or several labels a row; this is {label_space.task_type} into"
            f" {label_space.num_labels}. Leave it out: the likeliest class is predicted."
        )
