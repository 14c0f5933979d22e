"""Callbacks of the training loop: the log file, the experiment tracker and the progress bar.

The events are those of transformers' `TrainerCallback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator

from attentune.training.progress import JsonLog, ProgressDisplay, label_line, one_line
from attentune.training.state import TrainingState

# By split, metric names and values.
Scores = dict[str, dict[str, float]]


class TrainingCallback:
    """Base class of callbacks; subclasses override the events that they need. What a method raises ends the run."""

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Called when an epoch has been planned; `state.epoch_labels` describes its token labels."""

    def on_prediction_step(self, rows: int) -> None:
        """Called while token labels are made, after the model has predicted this many rows more."""

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        """Called after each optimiser step, with its loss, learning rates and gradient norm."""

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        """Called every `logging_steps`, with the mean loss since the last call."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """Called after the last step of an epoch, before `state` moves on to the next one."""

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        """Called with the validation scores; `is_last` if the run ends with them."""

    def on_save(self, state: TrainingState) -> None:
        """Called after a checkpoint has been written."""


class JsonLogCallback(TrainingCallback):
    """Writes `log.jsonl`."""

    def __init__(self, log: JsonLog, extra: Mapping[str, Any] | None = None) -> None:
        self._log, self._extra = log, dict(extra or {})

    def _write(self, state: TrainingState, facts: Mapping[str, Any]) -> None:
        self._log.write({**self._extra, "step": state.step, "epoch": state.epoch, **facts})

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        times = {"seconds": round(state.seconds, 3), "tokens_per_second": round(state.tokens_per_second, 1)}
        self._write(state, {**logs, "tokens": state.tokens, **times})

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        self._write(state, {**scores, "is_best": state.is_best})

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the epoch's label counts, and the token head's loss and accuracy on them."""
        facts = dict(state.epoch_labels)
        loss_sum, hits, ones, count = (facts.pop(f"token_{name}", 0) for name in ("loss_sum", "hits", "ones", "count"))
        if not facts:
            return
        if count:
            facts |= {"token_loss": loss_sum / count, "token_accuracy": hits / count}
            facts["majority_accuracy"] = max(ones, count - ones) / count
        self._write(state, {"labels": facts})


class TrackerCallback(TrainingCallback):
    """Logs losses and scores to the experiment tracker that Accelerate has started; see `trackers`."""

    def __init__(self, accelerator: Accelerator, prefix: str = "") -> None:
        self._accelerator, self._prefix = accelerator, prefix

    def _track(self, values: Mapping[str, float], step: int) -> None:
        self._accelerator.log({f"{self._prefix}{name}": value for name, value in values.items()}, step=step)

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        self._track({f"train/{name}": value for name, value in logs.items()}, state.step)

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        values = {f"{split}/{name}": value for split, part in scores.items() for name, value in part.items()}
        self._track(values, state.step)


class ProgressCallback(TrainingCallback):
    """Moves the progress bar, and prints scores and token label counts."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        self._display.advance(state.step, loss=logs["loss"], tokens_per_second=state.tokens_per_second)

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        self._display.info(f"step {state.step}: {one_line(scores)}{'  (best so far)' if state.is_best else ''}")

    def on_prediction_step(self, rows: int) -> None:
        self._display.predicted(rows)

    def on_epoch_begin(self, state: TrainingState) -> None:
        facts = state.epoch_labels
        if "reason" in facts and state.epoch > 0:
            self._display.warning(f"epoch {state.epoch + 1}: no token is labelled: {facts['reason']}")
        elif "ones" in facts:
            self._display.info(f"epoch {state.epoch + 1}: {label_line(facts)}")
