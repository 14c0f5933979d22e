"""Batches, steps, evaluation and log of a run. `run.py` calls these by name."""

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from attentune.config import TrainingConfig
from attentune.data.tokenization import bucketed_order, pad_batch
from attentune.inference.scoring import ModelEvaluator
from attentune.models.build import ParameterCounts
from attentune.models.cpu_layers import fused_layers
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.nn.compiled.memory import peak_memory_bytes, return_freed_memory
from attentune.seeding import seed_global
from attentune.token_labels.plan import EpochPlan
from attentune.token_labels.planner import EpochPlanner
from attentune.training.building import count_steps_per_epoch, rows_per_batch
from attentune.training.callbacks import (
    JsonLog,
    ProgressDisplay,
    TrackerCallback,
    TrainingCallback,
    TrainingState,
)
from attentune.training.linear_probe import FrozenStates, is_probed, start_classifier
from attentune.training.objective import UNCHANGED, Denominators, Objective, count_nonfinite, nonfinite_error
from attentune.training.optimizer import AdamWL2SP, LearningRateSchedule, bare_optimizer, clip_gradients
from attentune.training.prepare import RunInputs, row_facts
from attentune.training.run_folder import StopRequest


class PlanCancelled(Exception):
    """A stop was requested while an epoch was being planned; nothing of that epoch has been done."""


@dataclass(frozen=True)
class TrainingBatch:
    inputs: dict[str, Tensor]  # the keyword arguments of the model
    labels_B: Tensor
    token_labels_BT: Tensor | None
    weights_B: Tensor | None  # the rows' weights; None if all are 1
    weak_BC: Tensor | None  # what `objective.debias product` adds to the logits
    share: float  # 1; or 0 in a process without samples, which computes one to stay in step with the others


@dataclass(kw_only=True)
class Trainer:
    """The parts and the progress of a training."""

    inputs: RunInputs  # the data and settings that it was built from
    model: Any  # the model itself, without Accelerate's wrapper
    wrapped: nn.Module  # the model as prepared by Accelerate
    objective: Objective
    planner: EpochPlanner  # plans each epoch's samples and token labels
    schedule: LearningRateSchedule
    optimizer: Any  # prepared by Accelerate
    embeddings: VocabularySubset  # of the encoder
    evaluator: ModelEvaluator  # scores splits with the model
    frozen: FrozenStates | None = None  # hidden states of a frozen encoder, where they are cached
    note: str | None = None  # how the encoder trains, for the user; None if there is nothing special
    state: TrainingState = field(default_factory=TrainingState)
    # Set by `connect`.
    callbacks: Sequence[TrainingCallback] = ()
    stop: StopRequest = field(default_factory=StopRequest)
    log: JsonLog | None = None
    _is_stop_agreed: bool = field(default=False, init=False)
    _nonfinite_at_start: int = field(default=0, init=False)
    _last_rows: Callable[[], list[str]] = field(default=list, init=False)

    @property
    def training(self) -> TrainingConfig:
        return self.inputs.config.training

    @property
    def accelerator(self) -> Accelerator:
        return self.inputs.accelerator

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, or early stopping has ended them."""
        return self.state.step >= self.schedule.total_steps or self.state.stopped_early

    @property
    def is_stopping(self) -> bool:
        """Whether there is a stop request, which several processes take up after the same step."""
        return self.stop.requested if self.accelerator.num_processes == 1 else self._is_stop_agreed

    def decay(self) -> float:
        """Return the factor by which weight decay has shrunk the embeddings of unused tokens."""
        return self.schedule.decay_factor(self.state.step)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        return count_steps_per_epoch(self.inputs, self.planner)

    def connect(
        self, stop: StopRequest, log: JsonLog | None, display: ProgressDisplay, callbacks: Sequence[TrainingCallback]
    ) -> None:
        """Obey a stop request, and tell log, tracker, progress bar and further callbacks of what happens."""
        self.stop, self.log = stop, log
        self.callbacks = [
            *([] if log is None else [log]),
            *([] if self.training.report_to == "none" else [TrackerCallback(self.accelerator)]),
            display,
            *callbacks,
        ]

    def start_classifier(self) -> str | None:
        """Fit the classifier before the first step, if settings or head say so; return a note for the user.

        A resumed run must not call it: its checkpoint has the classifier, and with L2-SP the starts.
        """
        if not is_probed(self.model, linear_probe=self.training.linear_probe):
            return None
        began = time.perf_counter()
        note = start_classifier(self.inputs, self.model, self.objective)
        if isinstance(bare := bare_optimizer(self.optimizer), AdamWL2SP):
            bare.set_starts()
        self.state.seconds += time.perf_counter() - began
        return note

    def begin(self) -> bool:
        """Prepare the first step; return whether the weights are to be scored before it."""
        self.wrapped.train()
        # Pretrained weights may contain some, in embeddings of tokens that no row has.
        self._nonfinite_at_start = count_nonfinite(self.wrapped)
        is_scored = self.state.step > 0 or self.state.last_scored_step >= 0
        # The solution of the linear probe is a candidate for the best weights.
        is_wanted = is_probed(self.model, linear_probe=self.training.linear_probe) and not is_scored
        return is_wanted and self.training.eval_strategy != "no" and not self.is_stopping

    def plan_epoch(self) -> EpochPlan:
        """Return the epoch's plan: a new one, or the checkpoint's if the run was interrupted within the epoch."""
        state = self.state

        def on_rows(rows: int) -> None:
            for callback in self.callbacks:
                callback.on_prediction_step(rows)
            # With several processes, which wait for each other here, the stop takes effect after the next step.
            if self.is_stopping:
                raise PlanCancelled

        if state.step_in_epoch > 0:
            return self.planner.resume_epoch(state.epoch)
        began = time.perf_counter()
        plan = self.planner.begin_epoch(state.epoch, on_rows)
        seconds = time.perf_counter() - began
        state.label_seconds += seconds
        facts = {**plan.facts, "seconds": round(seconds, 3)} if plan.facts else {}
        state.epoch_labels = facts | dict.fromkeys(("token_loss_sum", "token_hits", "token_ones", "token_count"), 0)
        for callback in self.callbacks:
            callback.on_epoch_begin(state)
        return plan

    def batches(self, plan: EpochPlan) -> list[list[np.ndarray]]:
        """Return the samples of the epoch's batches, in one list for each optimiser step."""
        features, rows = plan.tokens(self.inputs.features["train"], np.arange(len(plan)))
        batches = bucketed_order(
            features.padded_lengths[rows],
            rows_per_batch(self.inputs),
            seed=self.training.seed,
            epoch=self.state.epoch,
        )
        size = self.training.gradient_accumulation_steps
        return [batches[start : start + size] for start in range(0, len(batches), size)]

    def denominators(self, plan: EpochPlan, group: list[np.ndarray]) -> Denominators:
        """Return the denominators of one optimiser step's losses, so that accumulation changes nothing."""
        samples, epoch_labels = np.concatenate(group), self.state.epoch_labels
        tokens, ones = (0, 0) if plan.token_labels is None else plan.token_labels.counts(samples)
        if tokens:
            epoch_labels["token_count"] += tokens
            epoch_labels["token_ones"] += ones
        time_in_epochs = self.state.step / self.steps_per_epoch
        return self.objective.denominators(self.inputs.targets[plan.rows[samples]], tokens, time_in_epochs)

    @contextlib.contextmanager
    def one_batch(self, number: int, *, is_last: bool) -> Iterator[None]:
        """Seed dropout for a batch of the current step; gradients are summed over processes after the last one."""
        # The key holds all that dropout may depend on, so no generator's state has to be saved.
        seed_global("dropout", self.training.seed, self.state.step, number, self.accelerator.process_index)
        with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.wrapped):
            yield

    def batch(self, plan: EpochPlan, samples: np.ndarray) -> TrainingBatch:
        """Return this process's part of these samples as tensors."""
        samples = samples[self.accelerator.process_index :: self.accelerator.num_processes]
        is_empty = len(samples) == 0
        samples = np.zeros(1, dtype=np.int64) if is_empty else samples
        rows, labels, device = plan.rows[samples], plan.token_labels, self.accelerator.device
        inputs, weights_B, weak_BC = self.inputs, None, None
        if inputs.weights is not None:
            weights_B = torch.from_numpy(inputs.weights[rows].astype(np.float32)).to(device)
        if inputs.debias is not None:
            share_done = np.float32(self.state.step / self.schedule.total_steps)
            weak_BC = torch.from_numpy(inputs.debias.log_p_NC[rows] * share_done).to(device)
        batch = pad_batch(
            *plan.tokens(inputs.features["train"], samples),
            pad_token_id=inputs.tokenizer.pad_token_id,
            mask_token_id=inputs.tokenizer.mask_token_id,
            masked=None if plan.masked is None else [plan.masked[sample] for sample in samples],
            samples=samples,
            token_labels=None if labels is None else [labels.sample(sample) for sample in samples],
        )
        tensors = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.inputs.items()}
        if self.frozen is not None:
            tensors["encoded_BTD"] = self.frozen.batch(rows, tensors["input_ids"].shape[1])
        return TrainingBatch(
            inputs=tensors,
            labels_B=torch.from_numpy(inputs.targets[rows]).to(device),
            token_labels_BT=None if batch.token_labels is None else batch.token_labels.to(device),
            weights_B=weights_B,
            weak_BC=weak_BC,
            share=0.0 if is_empty else 1.0,
        )

    def mean_loss(self, sums_3: Tensor, denominators: Denominators, plan: EpochPlan, group: list[np.ndarray]) -> float:
        """Return the loss over all rows of a step, from `Objective.sums` of this process; refuse NaN and infinity."""
        sums_3, state = self._reduced(sums_3), self.state
        value = float(denominators.combine(sums_3))
        if not math.isfinite(value):
            raise nonfinite_error(f"the loss became {value}", state.step + 1, self._row_names(plan, group), UNCHANGED)
        state.task_loss_sum += float(sums_3[0]) / denominators.target
        if denominators.tokens:
            state.epoch_labels["token_loss_sum"] += float(sums_3[1])
            state.epoch_labels["token_hits"] += int(sums_3[2])
        return value

    def _reduced(self, sums_3: Tensor) -> Tensor:
        """Sum over all processes, which also learn whether one of them has a stop request."""
        if self.accelerator.num_processes == 1:
            return sums_3
        wanted_1 = sums_3.new_full((1,), float(self.stop.requested))
        sums_4 = self.accelerator.reduce(torch.cat([sums_3, wanted_1]), reduction="sum")
        if sums_4[3] > 0:
            self.stop.requested = self._is_stop_agreed = True
        return sums_4[:3]

    def clip(self, plan: EpochPlan, group: list[np.ndarray]) -> float:
        """Clip the gradients' norm, and return it; refuse NaN and infinity."""
        # The optimiser's own list: walking through the model's modules takes a millisecond.
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        norm = clip_gradients(self.accelerator, self.optimizer, parameters, self.training.max_grad_norm)
        # Overflows are normal with fp16: the scaler skips the step and lowers its scale.
        if not math.isfinite(norm) and self.accelerator.mixed_precision != "fp16":
            names = self._row_names(plan, group)
            raise nonfinite_error(f"the gradient's norm became {norm}", self.state.step + 1, names, UNCHANGED)
        return norm

    def count_step(self, plan: EpochPlan, group: list[np.ndarray], loss: float, seconds: float) -> None:
        features, rows = plan.tokens(self.inputs.features["train"], np.concatenate(group))
        state = self.state
        state.step += 1
        state.step_in_epoch += 1
        state.tokens += int(features.lengths[rows].sum())
        state.loss_sum += loss
        state.loss_steps += 1
        state.seconds += seconds
        self._last_rows = functools.partial(self._row_names, plan, group)

    def _row_names(self, plan: EpochPlan, group: list[np.ndarray]) -> list[str]:
        return [self.inputs.row_name(int(row)) for samples in group for row in plan.rows[samples]]

    def log_step(self, logs: dict[str, float]) -> None:
        """Tell the callbacks of a step, and every `logging_steps` of the mean loss."""
        state = self.state
        for callback in self.callbacks:
            callback.on_step_end(state, logs)
        if state.step % self.training.logging_steps == 0 or state.step == self.schedule.total_steps:
            logs = {**logs, "loss": state.loss_sum / state.loss_steps}
            if state.epoch_labels.get("token_count"):
                logs["task_loss"] = state.task_loss_sum / state.loss_steps
            for callback in self.callbacks:
                callback.on_log(state, logs)
            state.loss_sum, state.task_loss_sum, state.loss_steps = 0.0, 0.0, 0

    def end_epoch(self) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(self.state)
        self.state.epoch, self.state.step_in_epoch, self.state.epoch_labels = self.state.epoch + 1, 0, {}

    def should_evaluate(self, *, is_epoch_end: bool) -> bool:
        strategy, step = self.training.eval_strategy, self.state.step
        return strategy != "no" and (
            step == self.schedule.total_steps
            or (strategy == "epoch" and is_epoch_end)
            or (strategy == "steps" and step % (self.training.eval_steps or 1) == 0)
        )

    def should_save(self, *, is_epoch_end: bool) -> bool:
        every, step = self.training.save_steps, self.state.step
        return step == self.schedule.total_steps or (is_epoch_end if every is None else step % every == 0)

    def evaluate(self) -> bool:
        """Score the validation splits, update the state, and return whether these are the best scores so far."""
        self.check_weights()
        state, metric = self.state, self.inputs.metric
        began = time.perf_counter()
        return_freed_memory()  # scoring's tensors have other sizes than those of training
        with self.embeddings.whole(self.decay()):
            scores = self.evaluator.score(self.inputs.validation)
        return_freed_memory()
        state.evaluation_seconds += time.perf_counter() - began
        value = next(iter(scores.values()))[metric.name]
        is_best = state.update_best(metric, value, self.training.early_stopping_threshold)
        patience = self.training.early_stopping_patience
        state.stopped_early = patience is not None and state.scores_without_gain >= patience
        is_last = state.step == self.schedule.total_steps or state.stopped_early
        for callback in self.callbacks:
            callback.on_evaluate(state, scores, is_last=is_last)
        return is_best

    def check_weights(self) -> None:
        """Check the weights before they are evaluated or saved: there may be no next step whose loss would show it."""
        count = count_nonfinite(self.wrapped) - self._nonfinite_at_start
        if count > 0:
            what = f"{count:,} weights became infinite or NaN"
            raise nonfinite_error(what, self.state.step, self._last_rows(), "They are not saved.")

    def resume_fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed, as plain values."""
        inputs = self.inputs
        return {
            "data": inputs.fingerprint,
            "tokens": inputs.token_fingerprint,
            "processes": self.accelerator.num_processes,
            "precision": inputs.precision,
            "device": self.accelerator.device.type,
            "encoder": json.loads(self.model.config.encoder_config.to_json_string(False)),
            "fused_layers": fused_layers(self.model),
        }

    def free_optimizer_memory(self) -> None:
        """Drop gradients and moments, three times the size of the trained weights; for the time after the last step."""
        self.optimizer.zero_grad(set_to_none=True)
        bare_optimizer(self.optimizer).state.clear()

    def facts(self, final_step: int, counts: ParameterCounts) -> dict[str, Any]:
        """Return the section `train` of `run.json`."""
        inputs, state = self.inputs, self.state
        return {
            "seconds": round(state.seconds, 3),
            "tokens": state.tokens,
            "tokens_per_second": round(state.tokens_per_second, 1),
            "peak_memory_bytes": peak_memory_bytes(inputs.accelerator.device),
            "evaluation_seconds": round(state.evaluation_seconds, 3),
            "label_seconds": round(state.label_seconds, 3),
            "rows": len(inputs.labels),
            **row_facts(inputs.data.splits["train"]),
            **({} if inputs.debias is None else {"debias": inputs.debias.facts}),
            "steps": state.step,
            "steps_per_epoch": self.steps_per_epoch,
            "steps_first_epoch": count_steps_per_epoch(inputs, self.planner, 0),
            "final_step": final_step,
            "stopped_early": state.stopped_early,
            "precision": inputs.precision,
            "fused_layers": fused_layers(self.model),
            "device": inputs.accelerator.device.type,
            "processes": inputs.accelerator.num_processes,
            "parameters": counts.total.parameters,
            "trainable_parameters": counts.total.trainable,
            "added_parameters": counts.total.parameters - counts.parts["encoder"].parameters,
        }
