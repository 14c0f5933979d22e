"""The end of a run: final weights, their scores, and the files of the run folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from attentune.baselines.registry import baselines_for
from attentune.baselines.scores import BaselineResult, score_baselines
from attentune.config import TrainingConfig, to_dict
from attentune.data.dataset import CALIBRATION, LabelSpace, TaskData, TextRows
from attentune.errors import CheckpointError
from attentune.inference.predictions import predictions_csv
from attentune.io.files import storage_errors, write_text, written_together
from attentune.metrics.intervals import example_values
from attentune.metrics.metrics import METRICS, predictions_of
from attentune.models.build import hub_name
from attentune.models.counting import ParameterCounts, count_parameters
from attentune.models.fused import fused_layers
from attentune.models.lora import adapter_settings, merge_adapters
from attentune.models.saving import save_model
from attentune.results import RESULT_FILE, RunResult, to_json, versions
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_mean, wilson_interval
from attentune.token_labels.plan import save_labels
from attentune.training.calibration import calibrate
from attentune.training.checkpoint import TEMPORARY, verify_checkpoint
from attentune.training.components import TrainingComponents, count_steps_per_epoch
from attentune.training.inputs import RunInputs
from attentune.training.linear_probe import fit_output_scale
from attentune.training.memory import peak_memory_bytes
from attentune.training.model_card import CARD_FILE, CardFacts, model_card
from attentune.training.progress import ProgressDisplay
from attentune.training.run_folder import METRICS_FILE
from attentune.training.signals import command_to_resume
from attentune.training.state import TrainingState
from attentune.training.trackers import log_final

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
class _Scored:
    """The predictions of one method on the validation rows, and the values whose mean is its score."""

    name: str
    score: float
    predictions: np.ndarray
    values_N: np.ndarray


def compare_with_baselines(
    inputs: RunInputs,
    logits_NC: np.ndarray,
    label_space: LabelSpace,
    *,
    seconds: float,
    display: ProgressDisplay,
) -> tuple[dict[str, Any] | None, list[str]]:
    """Fit baselines on the training rows and compare the model with them on the first validation split.

    `training.baselines` chooses the baselines of the table; the majority class is always compared with.
    """
    split = inputs.validation[0]
    labels = np.asarray(inputs.data.splits[split].labels)
    metric, seed = inputs.metric.name, inputs.config.training.seed
    names = _names(inputs.config.training.baselines, inputs.data)
    results = _fitted(inputs, split, names, display)
    own_space = inputs.data.label_space
    model = _scored(THIS_MODEL, metric, labels, predictions_of(logits_NC, label_space))
    scored = [_scored(one.name, metric, labels, predictions_of(one.logits[split], own_space)) for one in results]
    warnings = find_failures(model, scored, metric=metric, labels=labels, label_space=own_space, seed=seed)
    if not names:
        return None, warnings
    methods = [
        _entry(one, metric, labels, seed, seconds=result.seconds, notes=list(result.notes))
        for one, result in zip(scored, results, strict=True)
        if result.name in names
    ]
    methods.append(_entry(model, metric, labels, seed, seconds=seconds, notes=[]))
    kind = "Wilson" if metric == "accuracy" else "bootstrap"
    return {"split": split, "metric": metric, "rows": len(labels), "interval": kind, "methods": methods}, warnings


def _names(setting: str, data: TaskData) -> tuple[str, ...]:
    fitting = baselines_for(data)
    if setting == "auto":
        return fitting
    wanted = [name.strip() for name in setting.split(",")]
    return tuple(name for name in fitting if name in wanted)


def _fitted(inputs: RunInputs, split: str, names: tuple[str, ...], display: ProgressDisplay) -> list[BaselineResult]:
    """Fit each baseline; one that fails is left out with a warning, since the model is already trained."""
    wanted = tuple(name for name in baselines_for(inputs.data) if name in names or name == MAJORITY)
    splits = {name: inputs.data.splits[name] for name in ("train", split)}
    options: dict[str, Any] = {
        "encoder": inputs.config.model,
        "max_length": inputs.config.data.max_length,
        "seed": inputs.config.training.seed,
        "metrics": inputs.metrics,
        "use_cpu": inputs.accelerator.device.type == "cpu",
    }
    data = replace(inputs.data, splits=splits)

    def failed(name: str, error: Exception) -> None:
        if name == MAJORITY:
            raise error
        display.warning(f"the baseline {name} could not be fitted ({type(error).__name__}: {error}); it is left out")

    return score_baselines(data, names=wanted, on_error=failed, **options)


def _scored(name: str, metric: str, labels: np.ndarray, predictions: np.ndarray) -> _Scored:
    score = METRICS[metric].score(labels, predictions)
    # A correlation with a constant is undefined; it counts as none.
    is_defined = len(labels) > 1 and math.isfinite(score)
    values_N = example_values(metric, labels, predictions) if is_defined else np.zeros(len(labels))
    return _Scored(name, score, predictions, np.nan_to_num(values_N))


def _entry(
    one: _Scored, metric: str, labels: np.ndarray, seed: int, *, seconds: float, notes: list[str]
) -> dict[str, Any]:
    low = high = math.nan
    if metric == "accuracy":
        low, high = wilson_interval(int(np.sum(one.predictions == labels)), len(labels))
    elif math.isfinite(one.score):
        low, high = _mean_interval(one.values_N, seed)
    numbers = {"score": one.score, "low": low, "high": high}
    return {
        "name": one.name,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "seconds": round(seconds, 3),
        "notes": notes,
    }


def _mean_interval(values_N: np.ndarray, seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean over rows; all methods see the same resamples."""
    generator = numpy_generator("baseline comparison", seed)
    return bootstrap_mean(values_N[None], over="examples", generator=generator, resamples=_RESAMPLES)


def find_failures(
    model: _Scored,
    baselines: list[_Scored],
    *,
    metric: str,
    labels: np.ndarray,
    label_space: LabelSpace,
    seed: int,
) -> list[str]:
    """Return sentences on a model that predicts (nearly) one class, or is not better than a baseline, and what to try.

    The differences are paired by row, with a 95 % bootstrap interval: the model is expected to be better than the
    majority class, and not worse than any other baseline.
    """
    found = []
    constant = _constant(model.predictions, labels, label_space)
    if constant is not None:
        found.append(constant)
    sign = 1.0 if METRICS[metric].greater_is_better else -1.0
    for baseline in baselines:
        if len(labels) < 2:
            break
        difference_N = sign * (model.values_N - baseline.values_N)
        low, high = _mean_interval(difference_N, seed)
        numbers = f"{metric} {_number(model.score)} and {_number(baseline.score)} on {len(labels):,} validation rows"
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


def _number(score: float) -> str:
    return f"{score:.4f}" if math.isfinite(score) else "undefined"


# The folder of the adapters alone; the run folder has the merged weights.
ADAPTER_FOLDER = "adapter"


def finalize_run(
    run: Path,
    components: TrainingComponents,
    state: TrainingState,
    display: ProgressDisplay | None = None,
) -> RunResult:
    """Choose the final weights, evaluate them and write the results; `run.json` is last and marks the run finished."""
    inputs, evaluator, training = components.inputs, components.evaluator, components.inputs.config.training
    components.free_optimizer_memory()
    components.embeddings.expand(components.decay(state))
    final_step = _load_best(run, components, state)
    # Before adapters are merged, which changes the counts.
    counts, lora = count_parameters(components.model), components.model.config.lora
    adapters = merge_adapters(components.model)
    scale_note = fit_output_scale(
        components.model,
        inputs.features["train"],
        inputs.labels,
        pad_token_id=evaluator.pad_token_id,
        accelerator=inputs.accelerator,
        batch_size=evaluator.batch_size,
    )
    splits = [name for name in inputs.data.splits if name not in ("train", CALIBRATION)]
    as_scored = final_step == state.last_scored_step and scale_note is None and adapters is None
    calibration = calibrate(
        evaluator,
        splits,
        temperature=training.calibrate == "temperature",
        thresholds=training.thresholds == "f1",
        reuse=as_scored,
    )
    if calibration is not None:
        components.model.config.update(calibration.settings())
    scores = evaluator.score(splits, reuse=as_scored or calibration is not None)
    labels = components.planner.tensors()
    baselines: dict[str, Any] | None = None
    warnings: list[str] = []
    has_scores = bool(inputs.validation) and inputs.validation[0] in scores
    if display is not None and has_scores and inputs.accelerator.is_main_process:
        baselines, warnings = compare_with_baselines(
            inputs,
            evaluator.logits[inputs.validation[0]],
            evaluator.label_space,
            seconds=state.seconds + state.label_seconds,
            display=display,
        )
    result = RunResult(
        scores={split: dict(part) for split, part in scores.items()},
        train=_train_facts(components, state, final_step, counts)
        | ({} if calibration is None else {"calibration": calibration.facts(evaluator.label_space)}),
        best=state.best,
        config=to_dict(inputs.config),
        seed=inputs.config.training.seed,
        versions=versions(),
        data_fingerprint=inputs.fingerprint,
        notes=[
            *inputs.data.notes,
            *([] if scale_note is None else [scale_note]),
            *([] if calibration is None else [calibration.sentence()]),
        ],
        baselines=baselines,
        warnings=warnings,
    )
    if inputs.accelerator.is_main_process:
        if adapters is not None:
            _save_adapters(run / ADAPTER_FOLDER, adapters, components, lora)
        _write(run, components, result, splits, labels)
    log_final(inputs.accelerator, result.scores, state.step)
    inputs.accelerator.end_training()
    return result


def _write(
    run: Path, components: TrainingComponents, result: RunResult, splits: Sequence[str], labels: dict[str, np.ndarray]
) -> None:
    """Write all files of a finished run except log and checkpoints."""
    inputs, evaluator = components.inputs, components.evaluator
    _save_final_model(run, components, labels)
    data = replace(inputs.data, label_space=evaluator.label_space)
    write_results(run, inputs, data, result, {split: evaluator.logits[split] for split in splits})


def write_results(
    run: Path, inputs: RunInputs, data: TaskData, result: RunResult, logits: Mapping[str, np.ndarray]
) -> None:
    """Write predictions, model card and scores of a finished run; `run.json` is last."""
    for split, logits_NC in logits.items():
        text = predictions_csv(data.splits[split], logits_NC, data.label_space)
        write_text(run / f"predictions_{split}.csv", text)
    facts = CardFacts(inputs.config, data, inputs.metric, result, logits, inputs.findings)
    write_text(run / CARD_FILE, model_card(facts))
    write_text(run / METRICS_FILE, to_json(result.metrics()))
    write_text(run / RESULT_FILE, result.to_json())


def _save_final_model(run: Path, components: TrainingComponents, labels: dict[str, np.ndarray]) -> None:
    """Write the model and the token labels, if any, to a temporary folder, and move them once all are on the disk."""
    with written_together(run, f"{TEMPORARY}model-{os.getpid()}") as temporary:
        save_model(components.model, components.inputs.tokenizer, temporary)
        if labels:
            save_labels(temporary, labels, train_fingerprint=components.inputs.fingerprint["train"])


def _save_adapters(
    folder: Path, adapters: dict[str, torch.Tensor], components: TrainingComponents, lora: dict[str, Any]
) -> None:
    """Save the encoder's adapters alone, in peft's format."""
    base = hub_name(components.inputs.config.model.name_or_path)
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        save_file(adapters, folder / "adapter_model.safetensors")
        adapter_settings(lora, components.model.encoder, base).save_pretrained(str(folder))
        # The same permissions as the other files; safetensors writes private ones.
        (folder / "adapter_model.safetensors").chmod((folder / "adapter_config.json").stat().st_mode)


def wants_best(settings: TrainingConfig) -> bool:
    """Return whether a run ends with its best weights."""
    return bool(settings.load_best_model_at_end) or settings.early_stopping_patience is not None


def _load_best(run: Path, components: TrainingComponents, state: TrainingState) -> int:
    """Load the best weights if the settings say so; return the step of the final weights."""
    if not wants_best(components.inputs.config.training) or state.best is None or state.best["step"] == state.step:
        return state.step
    folder = run / f"checkpoint-{state.best['step']}"
    problem = verify_checkpoint(folder)
    if problem is not None:
        raise CheckpointError(
            f"{folder}: has the best weights, but {problem}. To train them again: {command_to_resume(run)}"
        )
    components.model.load_state_dict(load_file(folder / "model.safetensors"))
    return state.best["step"]


def row_facts(train: TextRows) -> dict[str, Any]:
    """Return the sources and weights of the training rows, if there are several sources, and the range of scores."""
    facts: dict[str, Any] = {}
    if train.sources is not None:
        facts["rows_from"] = [asdict(part) for part in train.row_sources()]
    if train.labels is not None and train.labels.dtype.kind == "f" and len(train):
        facts["score_range"] = [float(train.labels.min()), float(train.labels.max())]
    return facts


def _train_facts(
    components: TrainingComponents, state: TrainingState, final_step: int, counts: ParameterCounts
) -> dict[str, Any]:
    inputs = components.inputs
    return {
        "seconds": round(state.seconds, 3),
        "tokens": state.tokens,
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
        "peak_memory_bytes": peak_memory_bytes(inputs.accelerator.device),
        "evaluation_seconds": round(state.evaluation_seconds, 3),
        "label_seconds": round(state.label_seconds, 3),
        "rows": len(inputs.labels),
        **row_facts(inputs.data.splits["train"]),
        "steps": state.step,
        "steps_per_epoch": components.loop.config.steps_per_epoch,
        "steps_first_epoch": count_steps_per_epoch(inputs, components.planner, 0),
        "final_step": final_step,
        "stopped_early": state.stopped_early,
        "precision": inputs.precision,
        "fused_layers": fused_layers(components.model),
        "device": inputs.accelerator.device.type,
        "processes": inputs.accelerator.num_processes,
        "parameters": counts.total.parameters,
        "trainable_parameters": counts.total.trainable,
        "added_parameters": counts.total.parameters - counts.parts["encoder"].parameters,
    }
