"""Calibration at a run's end: fitted to rows kept out of training, put into the model, measured on the others."""

from __future__ import annotations

from dataclasses import replace

from attentune.data.dataset import CALIBRATION
from attentune.metrics.calibration import Calibration, error_of, fit
from attentune.training.calibration_check import is_wanted
from attentune.training.components import TrainingComponents


def calibrate(parts: TrainingComponents, splits: list[str], *, reuse: bool) -> Calibration | None:
    """Fit what the settings ask for with the final weights, and put it into the model and the evaluator.

    The evaluator then holds the calibrated logits of these splits.

    Args:
        parts: what computes, with the final weights.
        splits: those that are scored.
        reuse: whether the evaluator's logits, where it has some, are of these weights.
    """
    inputs, evaluator, settings = parts.inputs, parts.evaluator, parts.inputs.config.training
    rows = inputs.data.splits.get(CALIBRATION)
    if not is_wanted(settings) or rows is None or rows.labels is None:
        return None
    space = inputs.data.label_space
    wanted = {"temperature": settings.calibrate == "temperature", "thresholds": settings.thresholds == "f1"}
    found = fit(evaluator.predict(CALIBRATION), rows.labels, space, **wanted)
    errors: dict[str, tuple[float, float]] = {}
    for split in splits:
        before_NC, labels = evaluator.logits_of(split, reuse=reuse), inputs.data.splits[split].labels
        evaluator.logits[split] = before_NC / before_NC.dtype.type(found.temperature)
        if labels is not None and len(labels):
            errors[split] = error_of(before_NC, labels, space), error_of(evaluator.logits[split], labels, space)
    found = replace(found, errors=errors)
    parts.model.config.update(found.settings())
    evaluator.label_space = found.space(space)
    return found
