"""The end of a run: final weights, their scores, and the files of the run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from attentune.config import TrainingConfig, to_dict
from attentune.data.dataset import CALIBRATION, TaskData, TextRows
from attentune.errors import CheckpointError
from attentune.inference.predictions import predictions_csv
from attentune.io.files import storage_errors, write_text, written_together
from attentune.models.build import hub_name
from attentune.models.counting import ParameterCounts, count_parameters
from attentune.models.fused import fused_layers
from attentune.models.lora import adapter_settings, merge_adapters
from attentune.models.saving import save_model
from attentune.results import RESULT_FILE, RunResult, to_json, versions
from attentune.token_labels.plan import save_labels
from attentune.training.baseline_comparison import compare_with_baselines
from attentune.training.calibrating import calibrate
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

# The folder of the adapters alone; the run folder has the merged weights.
ADAPTER_FOLDER = "adapter"


def finalize_run(
    run: Path,
    components: TrainingComponents,
    state: TrainingState,
    display: ProgressDisplay | None = None,
) -> RunResult:
    """Choose the final weights, evaluate them and write the results; `run.json` is last and marks the run as finished.

    Args:
        run: the run folder.
        components: with the weights after the last step.
        state: the state after the last step.
        display: if given, the model is compared with the baselines of the settings, and warnings are shown there.

    Raises:
        StorageError: the disk refused; the run can be resumed from the newest checkpoint.
        CheckpointError: the best weights are needed and damaged; the resumed run trains them again.
    """
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
    """Write predictions, model card and scores of a finished run; `run.json` is last.

    Args:
        run: the run folder.
        inputs: settings and metric.
        data: the rows, with the label space that predicts.
        result: the record.
        logits: (N, C) logits of each predicted split.
    """
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
