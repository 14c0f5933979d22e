"""Runs of baselines, and the comparison of a finished model with them: a model that is no better is told."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.baselines.frozen import FrozenEncoder, OnFrozenEncoder
from attentune.baselines.linear import Baseline
from attentune.baselines.registry import baselines_for, make_baseline, misfit
from attentune.config import to_dict
from attentune.data.dataset import CALIBRATION, LabelSpace
from attentune.inference.scoring import Evaluator
from attentune.io.files import written_together
from attentune.metrics.intervals import example_values
from attentune.metrics.metrics import METRICS, predictions_of, score_predictions
from attentune.nn.compiled.memory import peak_memory_bytes
from attentune.results import RunResult, versions
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_mean
from attentune.training.callbacks import ProgressDisplay, number
from attentune.training.card import metric_interval, write_results
from attentune.training.prepare import RunInputs, row_facts
from attentune.training.run_folder import TEMPORARY

MAJORITY = "majority"
THIS_MODEL = "this model"
_RESAMPLES = 1000
# From this share of the rows with one predicted class, unless nearly all rows have one label.
_CONSTANT_SHARE, _CLEAR_SHARE = 0.98, 0.95
# Predicted scores that vary less than this share of the labels' standard deviation.
_CONSTANT_SPREAD = 1e-3
# A model that predicts no more different scores than this has lost them, in rounding or in a saturated layer.
_FEW_SCORES = 5


@dataclass(frozen=True)
class FittedBaseline:
    baseline: Baseline
    logits: dict[str, np.ndarray]  # (N, C) by split
    # The time for fitting, with encoding texts that an earlier baseline has encoded, and for predicting.
    fit_seconds: float
    predict_seconds: float


def fit_baseline(name: str, inputs: RunInputs, splits: Sequence[str], frozen: FrozenEncoder) -> FittedBaseline:
    config, rows, shared_seconds = inputs.config, inputs.read_data.splits, frozen.seconds
    started = time.perf_counter()
    baseline = make_baseline(
        name, encoder=config.model, max_length=config.data.max_length, seed=config.training.seed, frozen=frozen
    )
    baseline.fit(rows["train"], inputs.data.label_space)
    fitted = time.perf_counter()
    logits = {split: baseline.logits(rows[split]) for split in splits}
    shared = shared_seconds if isinstance(baseline, OnFrozenEncoder) else 0.0
    return FittedBaseline(baseline, logits, fitted - started + shared, time.perf_counter() - fitted)


def run_baseline(run: Path, name: str, inputs: RunInputs) -> RunResult:
    """Fit a baseline on the training rows, score the other splits, and write the run folder."""
    config, data, device = inputs.config, inputs.data, inputs.accelerator.device
    splits = [split for split in data.splits if split not in ("train", CALIBRATION)]
    done = fit_baseline(name, inputs, splits, frozen_encoder(inputs, in_bf16=False))
    scores: dict[str, dict[str, float | None]] = {
        split: dict(score_predictions(inputs.metrics, labels, done.logits[split], data.label_space))
        for split in splits
        if (labels := data.splits[split].labels) is not None and len(labels)
    }
    result = RunResult(
        scores=scores,
        train={
            "seconds": round(done.fit_seconds, 3),
            "tokens": 0,
            "peak_memory_bytes": peak_memory_bytes(device),
            "evaluation_seconds": round(done.predict_seconds, 3),
            "label_seconds": 0.0,
            "rows": len(inputs.labels),
            **row_facts(data.splits["train"]),
            "steps": 0,
            "precision": "fp32",
            "device": device.type,
        },
        best=None,
        config=to_dict(config),
        seed=config.training.seed,
        versions=versions(),
        data_fingerprint=inputs.fingerprint,
        notes=[*data.notes, *done.baseline.notes],
    )
    if inputs.accelerator.is_main_process:
        with written_together(run, f"{TEMPORARY}baseline-{os.getpid()}") as temporary:
            done.baseline.save(temporary)
        write_results(run, inputs, data, result, done.logits)
    return result


def frozen_encoder(inputs: RunInputs, *, in_bf16: bool) -> FrozenEncoder:
    config, use_cpu = inputs.config, inputs.accelerator.device.type == "cpu"
    return FrozenEncoder(config.model, config.data.max_length, use_cpu=use_cpu, in_bf16=in_bf16)


@dataclass(frozen=True)
class _Scored:
    """The predictions of one method on the validation rows, and the values whose mean is its score."""

    name: str
    score: float
    predictions: np.ndarray
    values_N: np.ndarray


def compare_with_baselines(
    inputs: RunInputs, evaluator: Evaluator, seconds: float, display: ProgressDisplay
) -> tuple[dict[str, Any] | None, list[str]]:
    """Fit baselines on the training rows and compare the model with them on the first validation split, if labelled.

    `training.baselines` chooses the baselines of the table; the majority class is always compared with. One that fails
    is left out with a warning, since the model is already trained.
    """
    split = inputs.validation[0] if inputs.validation else ""
    if split not in evaluator.logits or inputs.data.splits[split].labels is None or not len(inputs.data.splits[split]):
        return None, []
    space, labels = inputs.data.label_space, np.asarray(inputs.data.splits[split].labels)
    metric, seed, setting = inputs.metric.name, inputs.config.training.seed, inputs.config.training.baselines
    fitting = baselines_for(inputs.data)
    named = () if setting == "none" else tuple(name.strip() for name in setting.split(","))
    wanted = fitting if setting == "auto" else named
    for name in wanted:
        if (reason := misfit(name, inputs.data)) is not None:
            display.warning(f"the baseline {name} is left out: it {reason}")
    scored, entries = [], []
    frozen = frozen_encoder(inputs, in_bf16=True)
    for name in fitting:
        if name not in wanted and name != MAJORITY:
            continue
        try:
            done = fit_baseline(name, inputs, [split], frozen)
        except Exception as error:
            if name == MAJORITY:
                raise
            reason = f"{type(error).__name__}: {error}"
            display.warning(f"the baseline {name} could not be fitted ({reason}); it is left out")
            continue
        scored.append(_scored(name, metric, labels, predictions_of(done.logits[split], space)))
        if name in wanted:
            spent = done.fit_seconds + done.predict_seconds
            entries.append(_entry(scored[-1], metric, labels, seed, seconds=spent, notes=list(done.baseline.notes)))
    model = _scored(THIS_MODEL, metric, labels, predictions_of(evaluator.logits[split], evaluator.label_space))
    warnings = find_failures(model, scored, metric=metric, labels=labels, label_space=space, seed=seed)
    if not any(name in fitting for name in wanted):
        return None, warnings
    entries.append(_entry(model, metric, labels, seed, seconds=seconds, notes=[]))
    kind = "Wilson" if metric == "accuracy" else "bootstrap"
    return {"split": split, "metric": metric, "rows": len(labels), "interval": kind, "methods": entries}, warnings


def _scored(name: str, metric: str, labels: np.ndarray, predictions: np.ndarray) -> _Scored:
    score = METRICS[metric].score(labels, predictions)
    # A correlation with a constant is undefined; it counts as none.
    is_defined = len(labels) > 1 and math.isfinite(score)
    values_N = example_values(metric, labels, predictions) if is_defined else np.zeros(len(labels))
    return _Scored(name, score, predictions, np.nan_to_num(values_N))


def _entry(
    one: _Scored, metric: str, labels: np.ndarray, seed: int, *, seconds: float, notes: list[str]
) -> dict[str, Any]:
    low, high = metric_interval(METRICS[metric], labels, one.predictions, seed)
    numbers = {"score": one.score, "low": low, "high": high}
    return {
        "name": one.name,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "seconds": round(seconds, 3),
        "notes": notes,
    }


def find_failures(
    model: _Scored,
    baselines: list[_Scored],
    *,
    metric: str,
    labels: np.ndarray,
    label_space: LabelSpace,
    seed: int,
) -> list[str]:
    """Return sentences on a model that predicts (nearly) one class or is no better than a baseline, with advice."""
    found = []
    constant = _constant(model.predictions, labels, label_space)
    if constant is not None:
        found.append(constant)
    sign = 1.0 if METRICS[metric].greater_is_better else -1.0
    for baseline in baselines:
        if len(labels) < 2:
            break
        difference_N = sign * (model.values_N - baseline.values_N)
        generator = numpy_generator("baseline comparison", seed)
        low, high = bootstrap_mean(difference_N, generator=generator, resamples=_RESAMPLES)
        numbers = f"{metric} {number(model.score)} and {number(baseline.score)} on {len(labels):,} validation rows"
        interval = f"95 % interval of the advantage {low:.4f} to {high:.4f}"
        if high < 0:
            found.append(f"This model is worse than the baseline {baseline.name}: {numbers}; {interval}.")
        elif baseline.name == MAJORITY and low <= 0:
            found.append(f"This model is not measurably better than the majority baseline: {numbers}; {interval}.")
    return [*found, _advice(baselines, sign)] if found else []


def _advice(baselines: list[_Scored], sign: float) -> str:
    """Say what to try: among others the baseline with the best score, or without scores the frozen encoder."""
    known = [one for one in baselines if one.name != MAJORITY and math.isfinite(one.score)]
    name = max(known, key=lambda one: sign * one.score).name if known else "frozen-linear"
    steps = "Try more steps (--num_train_epochs), a higher or lower --learning_rate"
    return f"{steps}, another preset, or --preset {name}."


def _constant(predictions: np.ndarray, labels: np.ndarray, label_space: LabelSpace) -> str | None:
    rows = len(labels)
    if rows < 2:
        return None
    if label_space.task_type == "regression":
        distinct = len(np.unique(predictions))
        if np.ptp(labels) > 0 and np.std(predictions) <= _CONSTANT_SPREAD * np.std(labels):
            score = label_space.text_of(np.mean(predictions))
            return f"This model predicts nearly the same score ({score}) for all {rows:,} validation rows."
        if distinct <= _FEW_SCORES < min(rows / 2, len(np.unique(labels))):
            return f"This model predicts only {distinct} different scores for {rows:,} validation rows."
        return None
    kinds, counts = np.unique(predictions, axis=0, return_counts=True)
    most = int(counts.argmax())
    _, label_counts = np.unique(labels, axis=0, return_counts=True)
    is_all = counts[most] == rows and len(label_counts) > 1
    is_nearly_all = counts[most] >= _CONSTANT_SHARE * rows and label_counts.max() <= _CLEAR_SHARE * rows
    if not (is_all or is_nearly_all):
        return None
    name = label_space.text_of(kinds[most])
    what = f"the labels {name or '(none)'}" if label_space.is_multilabel else f"the class {name}"
    return f"This model predicts {what} for {counts[most]:,} of {rows:,} validation rows."
