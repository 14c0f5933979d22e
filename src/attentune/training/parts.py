"""The parts that compute, put together from a run's inputs: model, optimiser, loop, evaluator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.evaluation.evaluator import Evaluator
from attentune.labels.generator import LabelGenerator, LabelSource
from attentune.labels.judge import Judge
from attentune.labels.plan import EpochPlan
from attentune.labels.table import build_generator
from attentune.models.attention import use_plain_attention
from attentune.models.build import build_model
from attentune.models.compact import CompactEmbeddings
from attentune.models.half_copy import HalfCopy
from attentune.nn.dropout import use_fast_dropout
from attentune.training.inputs import RunInputs
from attentune.training.loop import Scores, TrainingLoop, TrainingRows
from attentune.training.objective import build_objective
from attentune.training.optimizer import build_optimizer, decay_factor
from attentune.training.probe import TrainingProbe

# Generators that only look whether predictions change, for which bf16 throughout is enough.
_BY_HALF = ("flip", "released")


@dataclass
class RunParts:
    """What computes in a run.

    Attributes:
        model: the model itself, outside of what Accelerate wraps around it.
        embeddings: keeps to the word embeddings that training can touch.
        evaluator: scores splits with the model.
        loop: trains it.
    """

    inputs: RunInputs
    model: Any
    embeddings: CompactEmbeddings
    evaluator: Evaluator
    loop: TrainingLoop

    def decay(self, step: int) -> float:
        """What weight decay alone has made of a weight after `step` steps, as a factor."""
        return decay_factor(self.inputs.config.training, step, self.loop.total_steps)

    def score(self, step: int) -> Scores:
        """The validation scores of the weights after `step` steps."""
        with self.embeddings.whole(self.decay(step)):
            return self.evaluator.score(self.inputs.validation)

    def label_tensors(self) -> dict[str, np.ndarray]:
        """The labels in force and what their generator must keep; every process must call it alike."""
        if not self.loop.labels.asks_model:
            return {}
        plan = {} if self.loop.plan is None else self.loop.plan.tensors()
        return plan | self.loop.labels.tensors()

    def restore_labels(self, tensors: dict[str, np.ndarray]) -> None:
        """Put back what `label_tensors` gave."""
        self.loop.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        self.loop.labels.restore(tensors)


def build_parts(inputs: RunInputs) -> RunParts:
    """Build everything that computes.

    Raises:
        UnsupportedEncoderError: the encoder cannot be loaded or cannot do what is asked.
        ConfigError: the objective does not fit the task.
    """
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    objective = build_objective(config.objective, inputs.data.label_space, inputs.labels)
    model = build_model(
        config.model,
        inputs.data.label_space,
        tokenizer,
        max_length=config.data.max_length,
        is_pair=inputs.data.is_pair,
        seed=config.training.seed,
    ).to(accelerator.device)
    if accelerator.device.type == "cpu":
        use_fast_dropout(model)
        use_plain_attention(model)
    always = [tokenizer.pad_token_id, tokenizer.mask_token_id]
    embeddings = CompactEmbeddings(model.encoder, np.append(inputs.features["train"].ids, always))
    labels = _build_labels(inputs, model)
    wrapped, optimizer = accelerator.prepare(model, build_optimizer(model, config.training))
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
    is_regression = objective.loss == "mse"
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
        ),
        objective=objective,
        settings=config.training,
        labels=labels,
        metric=inputs.metric,
    )
    return RunParts(inputs, model, embeddings, evaluator, loop)


def _build_labels(inputs: RunInputs, model: Any) -> LabelGenerator:
    """The label generator, with what it needs to ask the model; called before Accelerate wraps the model."""
    config, accelerator, tokenizer = inputs.config, inputs.accelerator, inputs.tokenizer
    # Labels of single tokens ask for predictions only, or for gradients of the model itself.
    wants_half = accelerator.device.type == "cpu" and inputs.precision == "bf16" and config.labels.generator in _BY_HALF
    probe = TrainingProbe(
        model=model,
        half_copy=HalfCopy(model) if wants_half else None,
        accelerator=accelerator,
        features=inputs.features["train"],
        pad_token_id=tokenizer.pad_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    is_regression = inputs.data.label_space.task_type == "regression"
    judge = Judge(
        inputs.data.label_space,
        tolerance=config.labels.tolerance,
        score_range=float(np.ptp(inputs.labels)) if is_regression else 1.0,
    )
    source = LabelSource(
        features=inputs.features["train"],
        gold=inputs.labels,
        judge=judge,
        probe=probe,
        mask_token_id=tokenizer.mask_token_id,
        seed=config.training.seed,
    )
    return build_generator(config.labels, source)
