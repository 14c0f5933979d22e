"""Builds the parts of a run from its settings, which stop here: tokens, model, token-label planner, evaluator."""

import math
from typing import Any

import numpy as np

from attentune.config import TrainingConfig
from attentune.data.doctor import examine, summary_lines
from attentune.data.tokenization import encode_rows
from attentune.inference.scoring import ModelEvaluator, make_accelerator
from attentune.models.build import build_model, encoder_size, is_english_only, load_tokenizer
from attentune.models.cpu_layers import use_fused_layers, use_own_attention
from attentune.models.slots import check_peft
from attentune.nn.compiled.attention import use_fast_dropout
from attentune.nn.compiled.checks import unavailable_reason
from attentune.token_labels.base import LabelSource, PredictionComparator, TrainingScorer
from attentune.token_labels.planner import EpochPlanner, build_generator
from attentune.training.callbacks import ProgressDisplay
from attentune.training.debias import debiased
from attentune.training.linear_probe import FrozenStates, evaluation_caches, is_probed
from attentune.training.objective import Objective, check_metric
from attentune.training.prepare import Prepared, RunInputs, RunSize, chosen


def load_inputs(prepared: Prepared, display: ProgressDisplay) -> RunInputs:
    """Tokenise the rows and choose device and precision; print what the checks of the data find."""
    config, data, read = prepared.config, prepared.data, prepared.read_data
    accelerator, precision = make_accelerator(
        precision=config.training.precision,
        use_cpu=config.training.use_cpu,
        tracker=config.training.report_to,
        folder=str(config.training.output_dir),
    )
    is_bf16_cpu = accelerator.device.type == "cpu" and precision == "bf16"
    if is_bf16_cpu and config.training.fused_layers and (reason := unavailable_reason()) is not None:
        display.info(f"layers in C are not used, which makes training up to three times as slow: {reason}")
    tokenizer = load_tokenizer(config.model)
    limit, bi_encoder = config.data.longest_row, config.model.pair_encoding == "bi-encoder"
    features = {
        name: encode_rows(rows, tokenizer, max_length=limit, bi_encoder=bi_encoder)
        for name, rows in read.splits.items()
    }
    lengths = {name: part.full_lengths for name, part in features.items()}
    report = examine(read, token_lengths=lengths, max_length=limit, english_only=is_english_only(config.model))
    for line in (*data.notes, *summary_lines(report)):
        display.info(line)
    layers, hidden_size = encoder_size(config.model)
    size = RunSize(
        rows=len(prepared.labels),
        mean_tokens=float(features["train"].lengths.mean()),
        validation_rows=sum(len(data.splits[name]) for name in prepared.validation),
        layers=layers,
        hidden_size=hidden_size,
        processes=accelerator.num_processes,
    )
    inputs = RunInputs(
        config=config,
        data=data,
        metric=prepared.metric,
        features=features,
        size=size,
        tokenizer=tokenizer,
        accelerator=accelerator,
        precision=precision,
        findings=report.findings,
        cues=report.cues,
    )
    return debiased(inputs, display)


def new_model(inputs: RunInputs, objective: Objective) -> Any:
    """Build the model to train: the encoder, the four slots that the settings fill, and the classifier."""
    config, device = inputs.config, inputs.accelerator.device
    check_metric(objective, inputs.metric)
    uses_windows = config.data.long_texts == "windows"
    model = build_model(
        config.model,
        inputs.data.label_space,
        inputs.tokenizer,
        max_length=config.data.longest_row,
        window=config.data.max_length if uses_windows else None,
        window_stride=config.data.stride if uses_windows else 0,
        is_pair=inputs.data.is_pair,
        seed=config.training.seed,
        loss=objective.loss,
        focal_gamma=objective.focal_gamma,
        lora=_lora_settings(config.training),
        score_mean=inputs.score_scale[0],
        score_std=inputs.score_scale[1],
    )
    is_probed(model, linear_probe=config.training.linear_probe)  # an error now, not after the run folder was made
    model = model.to(device)
    if device.type == "cpu":
        use_fast_dropout(model)
        use_own_attention(model)
        if config.training.fused_layers and inputs.precision == "bf16":
            use_fused_layers(model)
    return model


def new_evaluator(inputs: RunInputs, model: Any, frozen: FrozenStates | None) -> ModelEvaluator:
    """Build what scores the splits: in float32, as `attentune evaluate` does, whatever it trains in."""
    return ModelEvaluator(
        # Not the wrapped model: processes score different numbers of batches, for which the wrapper would wait.
        model=model,
        accelerator=inputs.accelerator,
        splits=inputs.data.splits,
        features=inputs.features,
        label_space=inputs.data.label_space,
        metrics=inputs.metrics,
        pad_token_id=inputs.tokenizer.pad_token_id,
        batch_size=inputs.config.training.per_device_eval_batch_size,
        encoded=evaluation_caches(model, inputs.features, inputs.validation, frozen=frozen),
        in_float32=True,
    )


def used_token_ids(inputs: RunInputs) -> np.ndarray:
    """Return every token id that training can feed to the encoder."""
    tokenizer = inputs.tokenizer
    return np.append(inputs.features["train"].ids, [tokenizer.pad_token_id, tokenizer.mask_token_id])


def build_planner(inputs: RunInputs, model: Any) -> EpochPlanner:
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    scorer = TrainingScorer(
        model=model,
        accelerator=accelerator,
        features=inputs.features["train"],
        pad_token_id=tokenizer.pad_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    comparator = PredictionComparator(inputs.data.label_space, tolerance=config.labels.tolerance)
    source = LabelSource(
        features=inputs.features["train"],
        gold=inputs.labels,
        comparator=comparator,
        scorer=scorer,
        mask_token_id=tokenizer.mask_token_id,
        seed=config.training.seed,
        words=inputs.words,
    )
    return EpochPlanner(build_generator(config.labels, source))


def rows_per_batch(inputs: RunInputs) -> int:
    """Return the number of rows in a batch, over all processes."""
    return chosen(inputs.config.training.per_device_train_batch_size) * inputs.accelerator.num_processes


def count_steps_per_epoch(inputs: RunInputs, planner: EpochPlanner, epoch: int | None = None) -> int:
    """Return the number of optimiser steps in most epochs, or in the given one."""
    generator = planner.generator
    samples = generator.samples_per_epoch if epoch is None else generator.samples_in_epoch(epoch)
    batches = math.ceil(samples / rows_per_batch(inputs))
    return math.ceil(batches / inputs.config.training.gradient_accumulation_steps)


def count_steps(inputs: RunInputs, planner: EpochPlanner) -> int:
    training = inputs.config.training
    if training.max_steps > 0:
        return training.max_steps
    rest, whole = math.modf(chosen(training.num_train_epochs))
    steps = sum(count_steps_per_epoch(inputs, planner, epoch) for epoch in range(int(whole)))
    # Rounded first: 0.07 epochs of 100 steps are 7, not 7.000000000000001.
    return max(1, math.ceil(round(steps + rest * count_steps_per_epoch(inputs, planner, int(whole)), 6)))


def _lora_settings(training: TrainingConfig) -> dict[str, Any] | None:
    if training.lora_rank is None:
        return None
    check_peft()
    alpha = 2.0 * training.lora_rank if training.lora_alpha is None else training.lora_alpha
    return {"rank": training.lora_rank, "alpha": alpha, "dropout": training.lora_dropout}
