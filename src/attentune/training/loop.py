"""The training loop: epochs, steps, scores, checkpoints. It knows no method's name."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from attentune.config import TrainingConfig
from attentune.data.batching import bucketed_order, pad_batch
from attentune.metrics.metrics import Metric
from attentune.seeding import seed_global
from attentune.token_labels.base import LabelGenerator
from attentune.token_labels.plan import EpochPlan
from attentune.training.frozen_encoder import FrozenStates
from attentune.training.objective import (
    Denominators,
    Objective,
    count_nonfinite,
    nonfinite_value_error,
    nonfinite_weights_error,
)
from attentune.training.optimizer import clip_gradients, learning_rate_factor, logged_rates, set_learning_rate
from attentune.training.signals import StopRequest
from attentune.training.state import TrainingRows, TrainingState

Scores = dict[str, dict[str, float]]


class TrainingCallback(Protocol):
    """What is around the loop: it scores, and is told what happens (log, progress bar, checkpoints)."""

    def on_step(self, state: TrainingState, facts: dict[str, float]) -> None: ...
    def on_scores(self, state: TrainingState, scores: Scores) -> None: ...
    def on_probed(self, rows: int) -> None: ...
    def on_labels(self, state: TrainingState) -> None: ...
    def on_epoch_end(self, state: TrainingState) -> None: ...
    def score(self, state: TrainingState) -> Scores: ...
    def save(self, state: TrainingState) -> None: ...


class _PlanCancelled(Exception):
    """A stop was asked for while an epoch was being planned; nothing of that epoch has been done."""


@dataclass
class TrainingLoop:
    """One run from its state to its end. Build it, then call `run`.

    `plan` is the plan of the epoch begun last; a run that is resumed within an epoch is given that epoch's. `frozen`
    has the hidden states of a frozen encoder, where they are kept.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    rows: TrainingRows
    objective: Objective
    settings: TrainingConfig
    labels: LabelGenerator
    metric: Metric
    plan: EpochPlan | None = None
    frozen: FrozenStates | None = None
    _odd_at_start: int = field(default=0, init=False)
    _last_rows: Callable[[], list[str]] = field(default=list, init=False)

    @property
    def rows_per_batch(self) -> int:
        """Rows in a batch over all processes."""
        return self.settings.per_device_train_batch_size * self.accelerator.num_processes

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        batches = math.ceil(self.labels.samples_per_epoch / self.rows_per_batch)
        return math.ceil(batches / self.settings.gradient_accumulation_steps)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        if self.settings.max_steps > 0:
            return self.settings.max_steps
        # Rounded first: 0.07 epochs of 100 steps are 7, not 7.000000000000001.
        return max(1, math.ceil(round(self.settings.num_train_epochs * self.steps_per_epoch, 6)))

    def run(self, state: TrainingState, watcher: TrainingCallback, stop: StopRequest) -> None:
        """Train until the steps are done, early stopping ends it, or a stop is asked for; `state` says where it got."""
        for _ in self.steps(state, watcher, stop):
            pass

    def steps(self, state: TrainingState, watcher: TrainingCallback, stop: StopRequest) -> Generator[None, None, None]:
        """`run`, pausing after each optimiser step, so that several loops can take turns."""
        self.model.train()
        self._odd_at_start = count_nonfinite(self.model)  # an encoder may come with some, of words that no row has
        with self.labels.on_train(), contextlib.suppress(_PlanCancelled):
            while state.step < self.total_steps and not state.stopped_early and not stop.asked:
                yield from self._epoch_steps(state, watcher, stop)
        if stop.asked:
            self.check_weights(state)
            watcher.save(state)

    def _epoch_steps(
        self, state: TrainingState, watcher: TrainingCallback, stop: StopRequest
    ) -> Generator[None, None, None]:
        plan = self._begin_epoch(state, watcher, stop)
        groups = self._groups(plan, state.epoch)
        for group in groups[state.step_in_epoch :]:
            self._timed_step(plan, group, state, watcher)
            self._last_rows = functools.partial(self._row_names, plan, group)
            is_last = state.step_in_epoch == len(groups)
            if is_last:
                watcher.on_epoch_end(state)
                state.epoch, state.step_in_epoch, state.epoch_labels = state.epoch + 1, 0, {}
            self._score_and_save(state, watcher, epoch_ended=is_last)
            yield
            if state.step == self.total_steps or state.stopped_early or stop.asked:
                break

    def _begin_epoch(self, state: TrainingState, watcher: TrainingCallback, stop: StopRequest) -> EpochPlan:
        """The epoch's plan: a new one, or within an epoch that was broken off the one it had."""

        def on_rows(rows: int) -> None:
            watcher.on_probed(rows)
            # Several processes wait for each other here, so they go on to the next step.
            if stop.asked and self.accelerator.num_processes == 1:
                raise _PlanCancelled

        if state.step_in_epoch > 0:
            # What was made without asking the model is made again; the rest came with the checkpoint.
            return self.labels.plan(state.epoch) if self.plan is None else self.plan
        began = time.perf_counter()
        with self.labels.source.scorer.watched(on_rows):
            self.plan = self.labels.plan(state.epoch)
        seconds = time.perf_counter() - began
        state.label_seconds += seconds
        facts = {**self.plan.facts, "seconds": round(seconds, 3)} if self.plan.facts else {}
        state.epoch_labels = facts | dict.fromkeys(("token_loss_sum", "token_hits", "token_ones", "token_count"), 0)
        watcher.on_labels(state)
        return self.plan

    def _groups(self, plan: EpochPlan, epoch: int) -> list[list[np.ndarray]]:
        """The epoch's batches, grouped to optimiser steps."""
        padded_lengths = self.rows.features.padded_lengths[plan.rows]
        batches = bucketed_order(padded_lengths, self.rows_per_batch, seed=self.settings.seed, epoch=epoch)
        size = self.settings.gradient_accumulation_steps
        return [batches[place : place + size] for place in range(0, len(batches), size)]

    def _timed_step(
        self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState, watcher: TrainingCallback
    ) -> None:
        began = time.perf_counter()
        factor = learning_rate_factor(self.settings, state.step, self.total_steps)
        set_learning_rate(self.optimizer, factor)
        loss = self._accumulate(plan, group, state)
        norm = self._clip(state, plan, group)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.step_in_epoch += 1
        state.tokens += int(sum(self.rows.features.lengths[plan.rows[samples]].sum() for samples in group))
        state.loss_sum += loss
        state.loss_steps += 1
        state.seconds += time.perf_counter() - began
        watcher.on_step(state, {"loss": loss, **logged_rates(self.settings, factor), "grad_norm": norm})

    def _accumulate(self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState) -> float:
        """Forward and backward over the batches of one optimiser step; the combined loss over all their rows."""
        denominators = self._denominators(plan, group, state)
        total_3 = torch.zeros(3, device=self.accelerator.device)
        for number, samples in enumerate(group):
            waits = self.accelerator.no_sync(self.model) if number + 1 < len(group) else contextlib.nullcontext()
            # The key holds all that dropout may depend on, so no generator's state has to be saved.
            seed_global("dropout", self.settings.seed, state.step, number, self.accelerator.process_index)
            with waits:
                total_3 += self._forward_backward(plan, self._own_share(samples), denominators)
        total_3 = self.accelerator.reduce(total_3, reduction="sum")
        value = float(denominators.combine(total_3))
        if not math.isfinite(value):
            raise nonfinite_value_error("the loss", value, state.step + 1, self._row_names(plan, group))
        if denominators.tokens:
            state.epoch_labels["token_loss_sum"] += float(total_3[1])
            state.epoch_labels["token_hits"] += int(total_3[2])
        return value

    def _denominators(self, plan: EpochPlan, group: list[np.ndarray], state: TrainingState) -> Denominators:
        samples = np.concatenate(group)
        tokens, ones = (0, 0) if plan.token_labels is None else plan.token_labels.counts(samples)
        if tokens:
            state.epoch_labels["token_count"] += tokens
            state.epoch_labels["token_ones"] += ones
        time_in_epochs = state.step / self.steps_per_epoch
        return self.objective.denominators(self.rows.labels[plan.rows[samples]], tokens, time_in_epochs)

    def _own_share(self, samples: np.ndarray) -> np.ndarray:
        """This process's part of a batch."""
        return samples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _forward_backward(self, plan: EpochPlan, samples: np.ndarray, denominators: Denominators) -> torch.Tensor:
        """The sums of `Objective.sums` over these samples, after their backward pass.

        A process without samples scores one with weight zero, to stay in step with the others.
        """
        is_empty = len(samples) == 0
        samples = np.zeros(1, dtype=np.int64) if is_empty else samples
        rows = plan.rows[samples]
        labels = plan.token_labels
        batch = pad_batch(
            self.rows.features,
            rows,
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
            self.labels.on_backward(rows, inputs, output.logits)
        return sums_3.detach()

    def _clip(self, state: TrainingState, plan: EpochPlan, group: list[np.ndarray]) -> float:
        limit = self.settings.max_grad_norm
        # Asked of the optimiser: to walk through the model's modules takes a millisecond.
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        norm = clip_gradients(self.accelerator, self.optimizer, parameters, limit)
        # With fp16 an overflow is everyday business: the scaler skips the step and lowers its scale.
        if not math.isfinite(norm) and self.accelerator.mixed_precision != "fp16":
            raise nonfinite_value_error("the gradient's norm", norm, state.step + 1, self._row_names(plan, group))
        return norm

    def _row_names(self, plan: EpochPlan, group: list[np.ndarray]) -> list[str]:
        return [self.rows.names(int(row)) for samples in group for row in plan.rows[samples]]

    def check_weights(self, state: TrainingState) -> None:
        """Before weights are scored or saved: the next step, whose loss would tell of them, may never come.

        Raises:
            NonFiniteLossError: some became infinite or NaN.
        """
        count = count_nonfinite(self.model) - self._odd_at_start
        if count > 0:
            raise nonfinite_weights_error(count, state.step, self._last_rows())

    def _is_scored(self, state: TrainingState, *, epoch_ended: bool) -> bool:
        settings = self.settings
        return settings.eval_strategy != "no" and (
            state.step == self.total_steps
            or (settings.eval_strategy == "epoch" and epoch_ended)
            or (settings.eval_strategy == "steps" and state.step % (settings.eval_steps or 1) == 0)
        )

    def _is_saved(self, state: TrainingState, *, epoch_ended: bool) -> bool:
        every = self.settings.save_steps
        return state.step == self.total_steps or (epoch_ended if every is None else state.step % every == 0)

    def _score_and_save(self, state: TrainingState, watcher: TrainingCallback, *, epoch_ended: bool) -> None:
        is_scored, is_saved = (ask(state, epoch_ended=epoch_ended) for ask in (self._is_scored, self._is_saved))
        if is_scored or is_saved:
            self.check_weights(state)
        is_best = self._score(state, watcher) if is_scored else False
        if is_best or is_saved or state.stopped_early:
            watcher.save(state)

    def _score(self, state: TrainingState, watcher: TrainingCallback) -> bool:
        began = time.perf_counter()
        scores = watcher.score(state)
        state.evaluation_seconds += time.perf_counter() - began
        value = next(iter(scores.values()))[self.metric.name]
        is_best = state.note_score(self.metric, value, self.settings.early_stopping_threshold)
        patience = self.settings.early_stopping_patience
        state.stopped_early = patience is not None and state.scores_without_gain >= patience
        watcher.on_scores(state, scores)
        return is_best
