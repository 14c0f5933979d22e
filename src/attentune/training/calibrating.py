"""Calibration at the end of a run, on rows held out of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attentune.data.dataset import CALIBRATION, LabelSpace
from attentune.errors import ConfigError
from attentune.inference.evaluator import Evaluator
from attentune.metrics.calibration import Calibration, error_of, fit


def check_calibration(label_space: LabelSpace, *, calibrate: str = "none", thresholds: str = "none") -> None:
    """Check that the task has the probabilities or thresholds that are to be fitted.

    Args:
        label_space: the task's labels.
        calibrate: "none" or "temperature".
        thresholds: "none" or "f1".

    Raises:
        ConfigError: the task is a regression; or thresholds for more than two classes or for ordinal ones.
    """
    if calibrate == "none" and thresholds == "none":
        return
    if label_space.task_type == "regression":
        name = "calibrate" if calibrate != "none" else "thresholds"
        raise ConfigError(f"training.{name}: needs classes, whose probabilities it mends; this task is a regression.")
    is_binary = label_space.task_type == "classification" and label_space.num_labels == 2
    if thresholds != "none" and not (is_binary or label_space.is_multilabel):
        raise ConfigError(
            f"training.thresholds: needs two classes, or several labels a row; this is {label_space.task_type} into"
            f" {label_space.num_labels}. Leave it out: the likeliest class is predicted."
        )


def calibrate(
    evaluator: Evaluator, splits: Sequence[str], *, temperature: bool, thresholds: bool, reuse: bool
) -> Calibration | None:
    """Fit temperature and thresholds on the calibration rows, and measure the calibration error of other splits.

    The evaluator then has the calibrated logits of these splits, and predicts by the thresholds.

    Args:
        evaluator: has the final weights.
        splits: the splits that are scored.
        temperature, thresholds: what to fit.
        reuse: whether the logits that the evaluator has already are of these weights.

    Returns:
        The calibration; None if nothing is to be fitted or there are no labelled calibration rows.
    """
    rows = evaluator.splits.get(CALIBRATION)
    if not (temperature or thresholds) or rows is None or rows.labels is None:
        return None
    space = evaluator.label_space
    fitted = fit(evaluator.predict(CALIBRATION), rows.labels, space, temperature=temperature, thresholds=thresholds)
    errors: dict[str, tuple[float, float]] = {}
    for split in splits:
        before_NC, labels = evaluator.logits_of(split, reuse=reuse), evaluator.splits[split].labels
        evaluator.logits[split] = before_NC / before_NC.dtype.type(fitted.temperature)
        if labels is not None and len(labels):
            errors[split] = error_of(before_NC, labels, space), error_of(evaluator.logits[split], labels, space)
    evaluator.label_space = fitted.space(space)
    return replace(fitted, errors=errors)
