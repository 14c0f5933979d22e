"""The parts that compute, put together from a run's inputs: model, optimiser, loop, evaluator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.config import TrainingConfig
from attentune.inference.evaluator import Evaluator
from attentune.models.attention import use_own_attention
from attentune.models.build import build_model
from attentune.models.counting import count_parameters
from attentune.models.fused import fused_layers, use_fused_layers
from attentune.models.lora import check_peft
from attentune.models.precision import BFloat16Copy
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.nn.cpu.dropout import use_fast_dropout
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.comparator import PredictionComparator
from attentune.token_labels.plan import EpochPlan
from attentune.token_labels.registry import build_generator
from attentune.training.frozen_encoder import FrozenStates, freeze
from attentune.training.inputs import RunInputs
from attentune.training.loop import Scores, TrainingLoop
from attentune.training.objective import build_objective, check_metric
from attentune.training.optimizer import build_optimizer, decay_factor
from attentune.training.scorer import TrainingScorer
from attentune.training.state import TrainingRows

# Generators that only look whether predictions change, for which bf16 throughout is enough.
_BY_HALF = ("flip", "released")


@dataclass
class TrainingComponents:
    """What computes in a run.

    Attributes:
        model: the model itself, outside of what Accelerate wraps around it.
        embeddings: keeps to the word embeddings that training can touch.
        evaluator: scores splits with the model.
        loop: trains it.
        note: what to tell the user of how it computes, if anything.
        whole_decay: takes the place of `decay` where tasks share the encoder, all of whose steps count.
    """

    inputs: RunInputs
    model: Any
    embeddings: VocabularySubset
    evaluator: Evaluator
    loop: TrainingLoop
    note: str | None = None
    whole_decay: Callable[[], float] | None = None

    def resume_fingerprint(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; plain values."""
        encoder = json.loads(self.model.config.encoder_config.to_json_string(False))
        return {**self.inputs.resume_fingerprint(), "encoder": encoder, "fused_layers": fused_layers(self.model)}

    def decay(self, step: int) -> float:
        """What weight decay alone has made of a word embedding after `step` steps, as a factor."""
        if self.whole_decay is not None:
            return self.whole_decay()
        return decay_factor(self.inputs.config.training, step, self.loop.total_steps)

    def score(self, step: int) -> Scores:
        """The validation scores of the weights after `step` steps."""
        with self.embeddings.whole(self.decay(step)):
            return self.evaluator.score(self.inputs.validation)

    def label_tensors(self) -> dict[str, np.ndarray]:
        """The labels in force and what their generator must keep; every process must call it alike."""
        if not self.loop.labels.needs_model:
            return {}
        plan = {} if self.loop.plan is None else self.loop.plan.tensors()
        return plan | self.loop.labels.tensors()

    def restore_labels(self, tensors: dict[str, np.ndarray]) -> None:
        """Put back what `label_tensors` gave."""
        self.loop.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        if self.loop.plan is not None:
            self.loop.plan.check(np.diff(self.inputs.features["train"].starts))
        self.loop.labels.restore(tensors)


def build_components(inputs: RunInputs) -> TrainingComponents:
    """Build everything that computes.

    Raises:
        UnsupportedEncoderError: the encoder cannot be loaded or cannot do what is asked.
        ConfigError: the objective does not fit the task.
    """
    model = new_model(inputs)
    frozen = freeze_encoder(inputs, model)
    return assemble(inputs, model, VocabularySubset(model.encoder, used_ids(inputs)), frozen=frozen)


def new_model(inputs: RunInputs, *, like: Any = None) -> Any:
    """The model to train, on the device; around the encoder and the blur of another one if `like` is given.

    Raises:
        UnsupportedEncoderError, ConfigError: as `build_components`.
    """
    config, accelerator = inputs.config, inputs.accelerator
    objective = build_objective(config.objective, inputs.data.label_space, inputs.labels, inputs.weights)
    check_metric(objective, inputs.metric)
    model = build_model(
        config.model,
        inputs.data.label_space,
        inputs.tokenizer,
        max_length=config.data.longest_row,
        window=config.data.max_length if config.data.long_texts == "windows" else None,
        window_stride=config.data.stride if config.data.long_texts == "windows" else 0,
        is_pair=inputs.data.is_pair,
        seed=config.training.seed,
        loss=objective.loss,
        focal_gamma=objective.focal_gamma,
        lora=lora_settings(config.training),
    )
    if like is not None:
        model.share_encoder_of(like)
    model = model.to(accelerator.device)
    if accelerator.device.type == "cpu":
        use_fast_dropout(model)
        use_own_attention(model)
        if config.training.fused_layers and inputs.precision == "bf16":
            use_fused_layers(model)
    return model


def lora_settings(settings: TrainingConfig) -> dict[str, Any] | None:
    """Of adapters in the encoder, None where there are none.

    Raises:
        ConfigError: peft is not installed.
    """
    if settings.lora_rank is None:
        return None
    check_peft()
    alpha = 2.0 * settings.lora_rank if settings.lora_alpha is None else settings.lora_alpha
    return {"rank": settings.lora_rank, "alpha": alpha, "dropout": settings.lora_dropout}


def used_ids(inputs: RunInputs) -> np.ndarray:
    """Every token id that training on these rows can feed."""
    tokenizer = inputs.tokenizer
    return np.append(inputs.features["train"].ids, [tokenizer.pad_token_id, tokenizer.mask_token_id])


def freeze_encoder(inputs: RunInputs, model: Any) -> tuple[FrozenStates | None, str | None]:
    """Freeze the encoder if asked: its hidden states where they can be kept, and what to tell the user."""
    if inputs.config.training.lora_rank is not None:
        counts = count_parameters(model)
        share = f"{counts.total.trainable:,} of {counts.total.parameters:,} parameters train"
        return None, f"adapters in the encoder: {share} (slots and classifier included)"
    if not inputs.config.training.freeze_encoder:
        return None, None
    return freeze(
        model,
        inputs.features["train"],
        inputs.config.labels.generator,
        pad_token_id=inputs.tokenizer.pad_token_id,
        accelerator=inputs.accelerator,
    )


def assemble(
    inputs: RunInputs,
    model: Any,
    embeddings: VocabularySubset,
    *,
    frozen: tuple[FrozenStates | None, str | None],
    optimizer: Any = None,
) -> TrainingComponents:
    """Everything around a model.

    Args:
        inputs: what it is trained on.
        model: from `new_model`; Accelerate wraps its forward pass here.
        embeddings: of its encoder.
        frozen: from `freeze_encoder`.
        optimizer: one that Accelerate has prepared; one over the model's own parameters if not given.
    """
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    objective = build_objective(config.objective, inputs.data.label_space, inputs.labels, inputs.weights)
    labels = _build_labels(inputs, model)
    if optimizer is None:
        wrapped, optimizer = accelerator.prepare(model, build_optimizer(model, config.training))
    else:
        wrapped = accelerator.prepare_model(model)
    evaluator = Evaluator(
        # Not the wrapped one: several processes score unlike numbers of batches, which that would wait for.
        model=model,
        accelerator=accelerator,
        splits=inputs.data.splits,
        features=inputs.features,
        label_space=inputs.data.label_space,
        metrics=inputs.metrics,
        pad_token_id=tokenizer.pad_token_id,
        batch_size=config.training.per_device_eval_batch_size,
    )
    is_regression = inputs.data.label_space.task_type == "regression"
    states, note = frozen
    loop = TrainingLoop(
        model=wrapped,
        optimizer=optimizer,
        accelerator=accelerator,
        rows=TrainingRows(
            features=inputs.features["train"],
            labels=inputs.labels.astype(np.float32) if is_regression else inputs.labels,
            names=inputs.row_name,
            pad_token_id=tokenizer.pad_token_id,
            mask_token_id=tokenizer.mask_token_id,
            weights=None if inputs.weights is None else inputs.weights.astype(np.float32),
        ),
        objective=objective,
        settings=config.training,
        labels=labels,
        metric=inputs.metric,
        frozen=states,
    )
    return TrainingComponents(inputs, model, embeddings, evaluator, loop, note)


def _build_labels(inputs: RunInputs, model: Any) -> LabelGenerator:
    """The label generator, with what it needs to ask the model; called before Accelerate wraps the model."""
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    # Labels of single tokens ask for predictions only, or for gradients of the model itself.
    wants_half = accelerator.device.type == "cpu" and inputs.precision == "bf16" and config.labels.generator in _BY_HALF
    scorer = TrainingScorer(
        model=model,
        bf16_copy=BFloat16Copy(model) if wants_half else None,
        accelerator=accelerator,
        features=inputs.features["train"],
        pad_token_id=tokenizer.pad_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    is_regression = inputs.data.label_space.task_type == "regression"
    comparator = PredictionComparator(
        inputs.data.label_space,
        tolerance=config.labels.tolerance,
        score_range=float(np.ptp(inputs.labels)) if is_regression else 1.0,
    )
    source = LabelSource(
        features=inputs.features["train"],
        gold=inputs.labels,
        comparator=comparator,
        scorer=scorer,
        mask_token_id=tokenizer.mask_token_id,
        seed=config.training.seed,
    )
    return build_generator(config.labels, source)
