"""Builds everything that a run computes with: model, token-label generator, optimiser, evaluator and training loop.

Configuration stops here: what is built takes plain values.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from attentune.config import TrainingConfig
from attentune.data.batching import pad_batch
from attentune.data.splits import row_groups
from attentune.data.tokenization import Features
from attentune.inference.evaluator import ModelEvaluator
from attentune.inference.scoring import score_rows, summed_over_processes
from attentune.models.attention import use_own_attention
from attentune.models.build import build_model
from attentune.models.counting import count_parameters
from attentune.models.fused import fused_layers, use_bf16_gradients, use_fused_layers
from attentune.models.lora import check_peft
from attentune.models.precision import BFloat16Copy
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.nn.compiled.adamw import CompiledAdamW
from attentune.nn.compiled.attention import use_fast_dropout
from attentune.nn.compiled.memory import return_freed_memory
from attentune.token_labels.base import LabelSource
from attentune.token_labels.comparator import PredictionComparator
from attentune.token_labels.registry import build_generator
from attentune.training.callbacks import Scores
from attentune.training.defaults import chosen
from attentune.training.frozen_encoder import FrozenStates, evaluation_caches, freeze
from attentune.training.inputs import RunInputs
from attentune.training.linear_probe import ProbeRows, is_probed, start_classifier
from attentune.training.loop import LoopConfig, TrainingLoop
from attentune.training.objective import Objective, build_objective, check_metric
from attentune.training.optimizer import AdamWL2SP, LearningRateSchedule, build_optimizer
from attentune.training.state import EpochPlanner, TrainingRows, TrainingState


class TrainingScorer:
    """Predicts training rows with the current weights, in evaluation mode.

    All processes must make the same calls; they share the work.
    """

    def __init__(
        self,
        *,
        model: Any,
        bf16_copy: BFloat16Copy | None,
        accelerator: Accelerator,
        features: Features,
        pad_token_id: int,
        mask_token_id: int,
    ) -> None:
        self.model = model
        self._bf16_copy, self._accelerator, self._features = bf16_copy, accelerator, features
        self._pad_token_id, self._mask_token_id = pad_token_id, mask_token_id
        self._on_rows: Callable[[int], None] | None = None

    @property
    def part(self) -> slice:
        """The slice of a list of rows that is this process's share."""
        return slice(self._accelerator.process_index, None, self._accelerator.num_processes)

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        """Return (N, C) logits of training rows, with the tokens at the given positions masked."""
        with self._scoring_model() as model:
            return score_rows(
                model,
                self._features,
                pad_token_id=self._pad_token_id,
                accelerator=self._accelerator,
                rows=rows,
                masked=masked,
                mask_token_id=self._mask_token_id,
                progress=self.tick,
            ).logits_NC

    @contextlib.contextmanager
    def _scoring_model(self) -> Iterator[Any]:
        """Yield the model for predictions; within `watched` the bf16 copy is reused, as the weights do not change."""
        try:
            yield self.model if self._bf16_copy is None else self._bf16_copy.fresh()
        finally:
            if self._bf16_copy is not None and self._on_rows is None:
                self._bf16_copy.release()

    def inputs(self, row: int) -> dict[str, Tensor]:
        """Return a training row as a batch of one, on the model's device."""
        batch = pad_batch(self._features, [row], pad_token_id=self._pad_token_id)
        return {name: tensor.to(self._accelerator.device) for name, tensor in batch.inputs.items()}

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all processes."""
        return summed_over_processes(values, self._accelerator)

    @contextlib.contextmanager
    def watched(self, on_rows: Callable[[int], None]) -> Iterator[None]:
        """While the block runs, call `on_rows` with the number of predicted rows; what it raises ends the prediction.

        The weights must not change in the block.
        """
        self._on_rows = on_rows
        try:
            yield
        finally:
            self._on_rows = None
            if self._bf16_copy is not None:
                self._bf16_copy.release()

    def tick(self, rows: int) -> None:
        """Report that this many rows have been predicted."""
        if self._on_rows is not None:
            self._on_rows(rows)


# Label generators that only check whether predictions change, for which a bf16 copy of the model is precise enough.
_SCORED_IN_BF16 = ("flip", "released")


@dataclass(kw_only=True)
class TrainingComponents:
    """Everything that computes in a run."""

    inputs: RunInputs  # the data and settings that it was built from
    model: Any  # the model itself, without Accelerate's wrapper
    embeddings: VocabularySubset  # restricts the word embeddings to the tokens that occur in training
    planner: EpochPlanner  # plans each epoch's samples and token labels
    optimizer: Any  # prepared by Accelerate
    evaluator: ModelEvaluator  # scores splits with the model
    # Returns the factor by which weight decay has shrunk the embeddings of all other tokens.
    decay: Callable[[TrainingState], float]
    loop: TrainingLoop  # trains the model
    note: str | None = None  # how the encoder trains, for the user; None if there is nothing special

    @property
    def bare_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser without Accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def start_classifier(self) -> str | None:
        """Fit the classifier before the first step, if settings or head say so; return a note for the user.

        A resumed run must not call it: its checkpoint has the classifier, and with L2-SP the starts.
        """
        if not is_probed(self.model, linear_probe=self.inputs.config.training.linear_probe):
            return None
        inputs = self.inputs
        train = inputs.data.splits["train"]
        note = start_classifier(
            self.model,
            ProbeRows(
                inputs.features["train"],
                inputs.targets if inputs.is_regression else inputs.labels,
                inputs.data.label_space,
                lambda rows: row_groups(train.take(rows), near=False),
                inputs.weights,
            ),
            self.loop.objective,
            pad_token_id=inputs.tokenizer.pad_token_id,
            accelerator=inputs.accelerator,
            seed=inputs.config.training.seed,
        )
        if isinstance(self.bare_optimizer, AdamWL2SP):
            self.bare_optimizer.set_starts()
        return note

    def free_optimizer_memory(self) -> None:
        """Drop gradients and moments, three times the size of the trained weights; for the time after the last step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.bare_optimizer.state.clear()

    def resume_fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed, as plain values."""
        encoder = json.loads(self.model.config.encoder_config.to_json_string(False))
        return {**self.inputs.resume_fingerprint(), "encoder": encoder, "fused_layers": fused_layers(self.model)}


def build_components(inputs: RunInputs) -> TrainingComponents:
    """Build everything that computes in a run of one task."""
    training = inputs.config.training
    model = new_model(inputs)
    frozen, note = freeze_encoder(inputs, model)
    embeddings = VocabularySubset(model.encoder, used_token_ids(inputs))
    planner = build_planner(inputs, model)
    wrapped, optimizer = inputs.accelerator.prepare(
        model, new_optimizer(training, model, processes=inputs.accelerator.num_processes)
    )
    schedule = build_schedule(inputs, planner)
    weight_decay = embedding_weight_decay(training)
    return assemble(
        inputs,
        model=model,
        wrapped=wrapped,
        embeddings=embeddings,
        planner=planner,
        optimizer=optimizer,
        schedule=schedule,
        decay=lambda state: schedule.decay_factor(state.step, weight_decay=weight_decay),
        frozen=frozen,
        note=note,
    )


def new_model(inputs: RunInputs, *, share_encoder_of: Any = None) -> Any:
    """Build the model to train, on the device."""
    config, accelerator = inputs.config, inputs.accelerator
    objective = new_objective(inputs)
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
        lora=lora_settings(config.training),
        score_scale=inputs.score_scale,
    )
    if share_encoder_of is not None:
        model.share_encoder_of(share_encoder_of)
    is_probed(model, linear_probe=config.training.linear_probe)  # an error now, not after the run folder was made
    model = model.to(accelerator.device)
    if accelerator.device.type == "cpu":
        use_fast_dropout(model)
        use_own_attention(model)
        if config.training.fused_layers and inputs.precision == "bf16":
            use_fused_layers(model)
    return model


def new_objective(inputs: RunInputs) -> Objective:
    """Build the training objective."""
    settings = inputs.config.objective
    return build_objective(
        inputs.data.label_space,
        inputs.labels,
        row_weights=inputs.weights,
        score_scale=inputs.score_scale,
        loss=inputs.loss,
        class_weights=settings.class_weights,
        label_smoothing=settings.label_smoothing,
        alpha=settings.alpha,
        token_loss_warmup_epochs=settings.token_loss_warmup_epochs,
        focal_gamma=settings.focal_gamma,
        soft_targets=inputs.has_soft_targets,
    )


def lora_settings(training: TrainingConfig) -> dict[str, Any] | None:
    """Return rank, alpha and dropout of the encoder's adapters; None without adapters."""
    if training.lora_rank is None:
        return None
    check_peft()
    alpha = 2.0 * training.lora_rank if training.lora_alpha is None else training.lora_alpha
    return {"rank": training.lora_rank, "alpha": alpha, "dropout": training.lora_dropout}


def freeze_encoder(inputs: RunInputs, model: Any) -> tuple[FrozenStates | None, str | None]:
    """Freeze the encoder if the settings say so; return its cached hidden states, if any, and a note for the user."""
    training = inputs.config.training
    if training.lora_rank is not None:
        counts = count_parameters(model)
        share = f"{counts.total.trainable:,} of {counts.total.parameters:,} parameters train"
        return None, f"adapters in the encoder: {share} (slots and classifier included)"
    if not training.freeze_encoder:
        return None, None
    return freeze(
        model,
        inputs.features["train"],
        inputs.config.labels.generator,
        pad_token_id=inputs.tokenizer.pad_token_id,
        accelerator=inputs.accelerator,
    )


def used_token_ids(inputs: RunInputs) -> np.ndarray:
    """Return every token id that training can feed to the encoder."""
    tokenizer = inputs.tokenizer
    return np.append(inputs.features["train"].ids, [tokenizer.pad_token_id, tokenizer.mask_token_id])


def build_planner(inputs: RunInputs, model: Any) -> EpochPlanner:
    """Build the token-label generator. Call it before Accelerate wraps the model, of which it may make a bf16 copy."""
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    is_bf16_cpu = accelerator.device.type == "cpu" and inputs.precision == "bf16"
    scorer = TrainingScorer(
        model=model,
        bf16_copy=BFloat16Copy(model) if is_bf16_cpu and config.labels.generator in _SCORED_IN_BF16 else None,
        accelerator=accelerator,
        features=inputs.features["train"],
        pad_token_id=tokenizer.pad_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    comparator = PredictionComparator(
        inputs.data.label_space,
        tolerance=config.labels.tolerance,
        score_range=float(np.ptp(inputs.labels)) if inputs.is_regression else 1.0,
    )
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


def new_optimizer(training: TrainingConfig, model: nn.Module, *, processes: int) -> torch.optim.AdamW:
    """Build the optimiser over a model's trainable parameters.

    Where its step reads bf16 gradients, fused layers keep theirs in bf16, in which they are computed: fewer passes over
    memory and the same numbers, as long as nothing is added to them.
    """
    optimizer = build_optimizer(
        model,
        learning_rate=chosen(training.learning_rate),
        encoder_learning_rate=training.encoder_learning_rate,
        weight_decay=training.weight_decay,
        l2_sp=training.l2_sp,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
    )
    if isinstance(optimizer, CompiledAdamW) and training.gradient_accumulation_steps == 1 and processes == 1:
        use_bf16_gradients(model)
    return optimizer


def embedding_weight_decay(training: TrainingConfig) -> float:
    """Return the weight decay of word embeddings: 0 where they are frozen or pulled towards their start."""
    has_none = training.freeze_encoder or training.lora_rank is not None or training.l2_sp > 0
    return 0.0 if has_none else training.weight_decay


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
    """Return the number of optimiser steps of the whole run."""
    training = inputs.config.training
    if training.max_steps > 0:
        return training.max_steps
    rest, whole = math.modf(chosen(training.num_train_epochs))
    steps = sum(count_steps_per_epoch(inputs, planner, epoch) for epoch in range(int(whole)))
    # Rounded first: 0.07 epochs of 100 steps are 7, not 7.000000000000001.
    return max(1, math.ceil(round(steps + rest * count_steps_per_epoch(inputs, planner, int(whole)), 6)))


def build_schedule(inputs: RunInputs, planner: EpochPlanner) -> LearningRateSchedule:
    """Build the learning-rate schedule over all steps of the run."""
    training = inputs.config.training
    return LearningRateSchedule(
        learning_rate=chosen(training.learning_rate),
        encoder_learning_rate=training.encoder_learning_rate,
        kind=training.lr_scheduler_type,
        warmup_ratio=training.warmup_ratio,
        warmup_steps=training.warmup_steps,
        total_steps=count_steps(inputs, planner),
    )


def assemble(
    inputs: RunInputs,
    *,
    model: Any,
    wrapped: Any,
    embeddings: VocabularySubset,
    planner: EpochPlanner,
    optimizer: Any,
    schedule: LearningRateSchedule,
    decay: Callable[[TrainingState], float],
    frozen: FrozenStates | None,
    note: str | None,
) -> TrainingComponents:
    """Put evaluator and training loop around a model."""
    training, accelerator, tokenizer = inputs.config.training, inputs.accelerator, inputs.tokenizer
    evaluator = ModelEvaluator(
        # Not the wrapped model: processes score different numbers of batches, for which the wrapper would wait.
        model=model,
        accelerator=accelerator,
        splits=inputs.data.splits,
        features=inputs.features,
        label_space=inputs.data.label_space,
        metrics=inputs.metrics,
        pad_token_id=tokenizer.pad_token_id,
        batch_size=training.per_device_eval_batch_size,
        encoded=evaluation_caches(model, inputs.features, inputs.validation, frozen=frozen),
    )

    def evaluate(state: TrainingState) -> Scores:
        # Scoring's tensors have other sizes than those of training.
        return_freed_memory()
        with embeddings.whole(decay(state)):
            scores = evaluator.score(inputs.validation)
        return_freed_memory()
        return scores

    loop = TrainingLoop(
        model=wrapped,
        optimizer=optimizer,
        accelerator=accelerator,
        rows=TrainingRows(
            features=inputs.features["train"],
            labels=inputs.targets,
            names=inputs.row_name,
            pad_token_id=tokenizer.pad_token_id,
            mask_token_id=tokenizer.mask_token_id,
            weights=None if inputs.weights is None else inputs.weights.astype(np.float32),
        ),
        objective=new_objective(inputs),
        planner=planner,
        schedule=schedule,
        evaluate=evaluate,
        metric=inputs.metric,
        config=LoopConfig(
            total_steps=schedule.total_steps,
            steps_per_epoch=count_steps_per_epoch(inputs, planner),
            batch_size=rows_per_batch(inputs),
            batch_by=training.batch_by,
            gradient_accumulation_steps=training.gradient_accumulation_steps,
            max_grad_norm=training.max_grad_norm,
            seed=training.seed,
            logging_steps=training.logging_steps,
            eval_strategy=chosen(training.eval_strategy),
            eval_steps=training.eval_steps,
            # The frozen solution is a candidate for the best weights.
            eval_on_start=is_probed(model, linear_probe=training.linear_probe),
            save_steps=training.save_steps,
            early_stopping_patience=training.early_stopping_patience,
            early_stopping_threshold=training.early_stopping_threshold,
        ),
        frozen=frozen,
    )
    return TrainingComponents(
        inputs=inputs,
        model=model,
        embeddings=embeddings,
        planner=planner,
        optimizer=optimizer,
        evaluator=evaluator,
        decay=decay,
        loop=loop,
        note=note,
    )
