"""The training loop: epochs, optimiser steps, evaluation, checkpoints. It depends on no particular method."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from attentune.data.batching import bucketed_order, pad_batch
from attentune.metrics.metrics import Metric
from attentune.seeding import seed_global
from attentune.token_labels.plan import EpochPlan
from attentune.training.callbacks import Scores, TrainingCallback
from attentune.training.frozen_encoder import FrozenStates
from attentune.training.objective import (
    Denominators,
    Objective,
    count_nonfinite,
    nonfinite_value_error,
    nonfinite_weights_error,
)
from attentune.training.optimizer import LearningRateSchedule, clip_gradients, set_learning_rate
from attentune.training.signals import StopRequest
from attentune.training.state import EpochPlanner, TrainingRows, TrainingState

# Writes a checkpoint of the current weights and this state.
Save = Callable[[TrainingState], None]


class _JointStop:
    """A stop request that all processes take up after the same step, once one of them has it."""

    def __init__(self, own: StopRequest, processes: int) -> None:
        self._own, self._is_alone, self._is_agreed = own, processes == 1, False

    @property
    def requested(self) -> bool:
        return self._own.requested if self._is_alone else self._is_agreed

    @property
    def is_wanted(self) -> bool:
        """Whether this process has a stop request."""
        return self._own.requested

    def agree(self) -> None:
        """Have this process stop, as another one or itself has a stop request."""
        self._own.requested = self._is_agreed = True


class _PlanCancelled(Exception):
    """A stop was requested while an epoch was being planned; nothing of that epoch has been done."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """The settings of a training loop. The names are those of transformers' `TrainingArguments`."""

    total_steps: int  # optimiser steps of the whole run
    steps_per_epoch: int  # optimiser steps of one epoch
    batch_size: int  # rows in a batch, over all processes; with `batch_by` "tokens" their mean
    batch_by: str = "rows"  # what batches have equally much of, "rows" or "tokens"
    gradient_accumulation_steps: int = 1  # batches to one optimiser step
    max_grad_norm: float = 1.0  # the norm that gradients are clipped to; 0 for no limit
    seed: int = 42  # the run's seed, for the order of rows and for dropout
    logging_steps: int = 10  # optimiser steps between calls of `on_log`
    eval_strategy: str = "epoch"  # when to evaluate: "epoch", "steps" or "no"
    eval_steps: int | None = None  # with "steps": optimiser steps between evaluations
    eval_on_start: bool = False  # also evaluate before the first step, unless `eval_strategy` is "no"
    save_steps: int | None = None  # optimiser steps between checkpoints; None for one an epoch
    early_stopping_patience: int | None = None  # evaluations without improvement after which training stops
    early_stopping_threshold: float = 0.0  # smaller improvements do not count for early stopping


@dataclass(kw_only=True)
class TrainingLoop:
    """Trains a model from a given state to the end."""

    model: nn.Module  # the model as prepared by Accelerate
    optimizer: torch.optim.Optimizer  # from `build_optimizer`, prepared by Accelerate
    accelerator: Accelerator  # provides devices, processes and precision
    rows: TrainingRows  # the training rows
    objective: Objective  # the loss
    planner: EpochPlanner  # plans each epoch's samples and token labels
    schedule: LearningRateSchedule  # the learning rate at each step
    evaluate: Callable[[TrainingState], Scores]  # returns the validation scores of the current weights by split
    metric: Metric  # the metric, on the first split, that tells the best weights
    config: LoopConfig  # batch size, step counts, and when to log, evaluate, save and stop
    frozen: FrozenStates | None = None  # hidden states of a frozen encoder, where they are cached
    _nonfinite_at_start: int = field(default=0, init=False)
    _last_rows: Callable[[], list[str]] = field(default=list, init=False)
    _stop: _JointStop | None = field(default=None, init=False)

    def run(
        self,
        state: TrainingState,
        *,
        stop: StopRequest,
        save: Save | None = None,
        callbacks: Sequence[TrainingCallback] = (),
    ) -> None:
        """Train until all steps are done, early stopping ends the run, or a stop is requested."""
        for _ in self.steps(state, stop=stop, save=save, callbacks=callbacks):
            pass

    def steps(
        self,
        state: TrainingState,
        *,
        stop: StopRequest,
        save: Save | None = None,
        callbacks: Sequence[TrainingCallback] = (),
    ) -> Generator[None, None, None]:
        """Do what `run` does, yielding after each optimiser step, so that several loops can alternate."""
        joint = self._stop = _JointStop(stop, self.accelerator.num_processes)
        self.model.train()
        # Pretrained weights may contain some, in embeddings of tokens that no row has.
        self._nonfinite_at_start = count_nonfinite(self.model)
        is_scored = state.step > 0 or state.last_scored_step >= 0
        if self.config.eval_on_start and self.config.eval_strategy != "no" and not is_scored and not joint.requested:
            self._evaluate(state, callbacks)
            _save(state, save, callbacks)
        with self.planner.generator.on_train(), contextlib.suppress(_PlanCancelled):
            while state.step < self.config.total_steps and not state.stopped_early and not joint.requested:
                yield from self.epoch_steps(state, joint, save, callbacks)
        if joint.requested:
            self.check_weights(state)
            _save(state, save, callbacks)

    def epoch_steps(
        self, state: TrainingState, stop: _JointStop, save: Save | None, callbacks: Sequence[TrainingCallback]
    ) -> Generator[None, None, None]:
        """Do the remaining steps of the current epoch; yield after each."""
        plan = self._begin_epoch(state, stop, callbacks)
        groups = self._groups(plan, state.epoch)
        for group in groups[state.step_in_epoch :]:
            logs = self.timed_step(plan, group, state)
            self._last_rows = functools.partial(self._row_names, plan, group)
            self._log(state, logs, callbacks)
            is_epoch_end = state.step_in_epoch == len(groups)
            if is_epoch_end:
                for callback in callbacks:
                    callback.on_epoch_end(state)
                state.epoch, state.step_in_epoch, state.epoch_labels = state.epoch + 1, 0, {}
            self._evaluate_and_save(state, save, callbacks, is_epoch_end=is_epoch_end)
            yield
            if state.step == self.config.total_steps or state.stopped_early or stop.requested:
                break

    def _begin_epoch(self, state: TrainingState, stop: _JointStop, callbacks: Sequence[TrainingCallback]) -> EpochPlan:
        """Return the epoch's plan: a new one, or the checkpoint's if the run was interrupted within the epoch."""

        def on_rows(rows: int) -> None:
            for callback in callbacks:
                callback.on_prediction_step(rows)
            # With several processes, which wait for each other here, the stop takes effect after the next step.
            if stop.requested:
                raise _PlanCancelled

        if state.step_in_epoch > 0:
            return self.planner.resume_epoch(state.epoch)
        began = time.perf_counter()
        plan = self.planner.begin_epoch(state.epoch, on_rows)
        seconds = time.perf_counter() - began
        state.label_seconds += seconds
        facts = {**plan.facts, "seconds": round(seconds, 3)} if plan.facts else {}
        state.epoch_labels = facts | dict.fromkeys(("token_loss_sum", "token_hits", "token_ones", "token_count"), 0)
        for callback in callbacks:
            callback.on_epoch_begin(state)
        return plan

    def _groups(self, plan: EpochPlan, epoch: int) -> list[list[np.ndarray]]:
        """Return the epoch's batches, grouped to optimiser steps."""
        features, rows = plan.tokens(self.rows.features, np.arange(len(plan)))
        padded_lengths = features.padded_lengths[rows]
        by_tokens = self.config.batch_by == "tokens"
        batches = bucketed_order(
            padded_lengths, self.config.batch_size, seed=self.config.seed, epoch=epoch, by_tokens=by_tokens
        )
        size = self.config.gradient_accumulation_steps
        return [batches[start : start + size] for start in range(0, len(batches), size)]

    def timed_step(self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState) -> dict[str, float]:
        """Do one optimiser step, and return its loss, learning rates and gradient norm."""
        began = time.perf_counter()
        step = state.step
        set_learning_rate(self.optimizer, self.schedule.factor(step))
        loss = self._accumulate(plan, group, state)
        norm = self._clip(state, plan, group)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.step_in_epoch += 1
        features, rows = plan.tokens(self.rows.features, np.concatenate(group))
        state.tokens += int(features.lengths[rows].sum())
        state.loss_sum += loss
        state.loss_steps += 1
        state.seconds += time.perf_counter() - began
        return {"loss": loss, **self.schedule.rates(step), "grad_norm": norm}

    def _log(self, state: TrainingState, logs: dict[str, float], callbacks: Sequence[TrainingCallback]) -> None:
        for callback in callbacks:
            callback.on_step_end(state, logs)
        if state.step % self.config.logging_steps == 0 or state.step == self.config.total_steps:
            logs = {**logs, "loss": state.loss_sum / state.loss_steps}
            if state.epoch_labels.get("token_count"):
                logs["task_loss"] = state.task_loss_sum / state.loss_steps
            for callback in callbacks:
                callback.on_log(state, logs)
            state.loss_sum, state.task_loss_sum, state.loss_steps = 0.0, 0.0, 0

    def _accumulate(self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState) -> float:
        """Run forward and backward over the batches of one optimiser step; return the loss over all their rows."""
        denominators = self._denominators(plan, group, state)
        total_3 = torch.zeros(3, device=self.accelerator.device)
        for number, samples in enumerate(group):
            sync = self.accelerator.no_sync(self.model) if number + 1 < len(group) else contextlib.nullcontext()
            # The key holds all that dropout may depend on, so no generator's state has to be saved.
            seed_global("dropout", self.config.seed, state.step, number, self.accelerator.process_index)
            with sync:
                total_3 += self._forward_backward(plan, self._process_share(samples), denominators)
        total_3 = self._reduced(total_3)
        value = float(denominators.combine(total_3))
        if not math.isfinite(value):
            raise nonfinite_value_error("the loss", value, state.step + 1, self._row_names(plan, group))
        state.task_loss_sum += float(total_3[0]) / denominators.target
        if denominators.tokens:
            state.epoch_labels["token_loss_sum"] += float(total_3[1])
            state.epoch_labels["token_hits"] += int(total_3[2])
        return value

    def _reduced(self, total_3: torch.Tensor) -> torch.Tensor:
        """Sum over all processes, which also learn whether one of them has a stop request."""
        if self.accelerator.num_processes == 1 or self._stop is None:
            return total_3
        wanted_1 = total_3.new_full((1,), float(self._stop.is_wanted))
        total_4 = self.accelerator.reduce(torch.cat([total_3, wanted_1]), reduction="sum")
        if total_4[3] > 0:
            self._stop.agree()
        return total_4[:3]

    def _denominators(self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState) -> Denominators:
        samples = np.concatenate(group)
        tokens, ones = (0, 0) if plan.token_labels is None else plan.token_labels.counts(samples)
        if tokens:
            state.epoch_labels["token_count"] += tokens
            state.epoch_labels["token_ones"] += ones
        time_in_epochs = state.step / self.config.steps_per_epoch
        return self.objective.denominators(self.rows.labels[plan.rows[samples]], tokens, time_in_epochs)

    def _process_share(self, samples: np.ndarray) -> np.ndarray:
        """Return this process's part of a batch."""
        return samples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _forward_backward(self, plan: EpochPlan, samples: np.ndarray, denominators: Denominators) -> torch.Tensor:
        """Return the sums of `Objective.sums` over these samples, after their backward pass.

        A process without samples computes one with weight zero, to stay in step with the others.
        """
        is_empty = len(samples) == 0
        samples = np.zeros(1, dtype=np.int64) if is_empty else samples
        rows = plan.rows[samples]
        labels = plan.token_labels
        batch = pad_batch(
            *plan.tokens(self.rows.features, samples),
            pad_token_id=self.rows.pad_token_id,
            mask_token_id=self.rows.mask_token_id,
            masked=None if plan.masked is None else [plan.masked[sample] for sample in samples],
            samples=samples,
            token_labels=None if labels is None else [labels.sample(sample) for sample in samples],
        )
        device = self.accelerator.device
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.inputs.items()}
        labels_B = torch.from_numpy(self.rows.labels[rows]).to(device)
        weights_B = None if self.rows.weights is None else torch.from_numpy(self.rows.weights[rows]).to(device)
        token_labels_BT = None if batch.token_labels is None else batch.token_labels.to(device)
        if self.frozen is not None:
            inputs["encoded_BTD"] = self.frozen.batch(rows, inputs["input_ids"].shape[1])
        output = self.model(**inputs)
        sums_3 = self.objective.sums(output, labels_B, token_labels_BT, weights_B) * (0.0 if is_empty else 1.0)
        # Processes average their gradients; the factor turns that into the sum over all rows.
        self.accelerator.backward(denominators.combine(sums_3) * self.accelerator.num_processes)
        if not is_empty:
            self.planner.generator.on_backward(rows, inputs, output.logits)
        return sums_3.detach()

    def _clip(self, state: TrainingState, plan: EpochPlan, group: list[np.ndarray]) -> float:
        # The optimiser's own list: walking through the model's modules takes a millisecond.
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        norm = clip_gradients(self.accelerator, self.optimizer, parameters, self.config.max_grad_norm)
        # Overflows are normal with fp16: the scaler skips the step and lowers its scale.
        if not math.isfinite(norm) and self.accelerator.mixed_precision != "fp16":
            raise nonfinite_value_error("the gradient's norm", norm, state.step + 1, self._row_names(plan, group))
        return norm

    def _row_names(self, plan: EpochPlan, group: list[np.ndarray]) -> list[str]:
        return [self.rows.names(int(row)) for samples in group for row in plan.rows[samples]]

    def check_weights(self, state: TrainingState) -> None:
        """Check the weights before they are evaluated or saved: there may be no next step whose loss would show it."""
        count = count_nonfinite(self.model) - self._nonfinite_at_start
        if count > 0:
            raise nonfinite_weights_error(count, state.step, self._last_rows())

    def _should_evaluate(self, state: TrainingState, *, is_epoch_end: bool) -> bool:
        config = self.config
        return config.eval_strategy != "no" and (
            state.step == config.total_steps
            or (config.eval_strategy == "epoch" and is_epoch_end)
            or (config.eval_strategy == "steps" and state.step % (config.eval_steps or 1) == 0)
        )

    def _should_save(self, state: TrainingState, *, is_epoch_end: bool) -> bool:
        every = self.config.save_steps
        return state.step == self.config.total_steps or (is_epoch_end if every is None else state.step % every == 0)

    def _evaluate_and_save(
        self, state: TrainingState, save: Save | None, callbacks: Sequence[TrainingCallback], *, is_epoch_end: bool
    ) -> None:
        should_evaluate = self._should_evaluate(state, is_epoch_end=is_epoch_end)
        should_save = self._should_save(state, is_epoch_end=is_epoch_end)
        if should_evaluate or should_save:
            self.check_weights(state)
        is_best = self._evaluate(state, callbacks) if should_evaluate else False
        if is_best or should_save or state.stopped_early:
            _save(state, save, callbacks)

    def _evaluate(self, state: TrainingState, callbacks: Sequence[TrainingCallback]) -> bool:
        """Evaluate, update the state, and return whether these are the best scores so far."""
        began = time.perf_counter()
        scores = self.evaluate(state)
        state.evaluation_seconds += time.perf_counter() - began
        value = next(iter(scores.values()))[self.metric.name]
        is_best = state.update_best(self.metric, value, self.config.early_stopping_threshold)
        patience = self.config.early_stopping_patience
        state.stopped_early = patience is not None and state.scores_without_gain >= patience
        is_last = state.step == self.config.total_steps or state.stopped_early
        for callback in callbacks:
            callback.on_evaluate(state, scores, is_last=is_last)
        return is_best


def _save(state: TrainingState, save: Save | None, callbacks: Sequence[TrainingCallback]) -> None:
    if save is None:
        return
    save(state)
    for callback in callbacks:
        callback.on_save(state)
