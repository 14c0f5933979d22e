"""Takes in what the loop reports: the log, the bar, the tracker, the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from attentune.models.saving import save_model
from attentune.token_labels.plan import LABELS_FILE, load_labels, save_labels
from attentune.training.checkpoint import fitting, keep_newest, write_checkpoint
from attentune.training.components import TrainingComponents
from attentune.training.loop import Scores
from attentune.training.optimizer import load_optimizer_tensors, optimizer_tensors
from attentune.training.progress import Display, JsonLog, label_line, one_line
from attentune.training.state import TrainingState

OPTIMIZER_FILE = "optimizer.safetensors"
# Told the state, the scores by split, and whether they are the last.
ScoresHook = Callable[[TrainingState, Scores, bool], None]


class RunCallback:
    """Writes a run's log and checkpoints. Under several processes only the main one has it write."""

    def __init__(
        self,
        *,
        run: Path,
        parts: TrainingComponents,
        log: JsonLog | None,
        display: Display,
        hook: ScoresHook | None = None,
    ) -> None:
        self._hook = hook
        self._run, self._parts, self._log, self._display = run, parts, log, display
        self._accelerator, self._settings = parts.inputs.accelerator, parts.inputs.config.training
        self._saved_step = -1

    def on_step(self, state: TrainingState, facts: dict[str, float]) -> None:
        """Move the bar; every `logging_steps` write a line with the mean loss since the last."""
        speed = state.tokens / max(state.seconds, 1e-9)
        self._display.advance(state.step, loss=facts["loss"], tokens_per_second=speed)
        is_last = state.step == self._parts.loop.total_steps
        if state.step % self._settings.logging_steps == 0 or is_last:
            mean_loss = state.loss_sum / state.loss_steps
            shown = {**facts, "loss": mean_loss}
            line = {"step": state.step, "epoch": state.epoch, **shown, "tokens": state.tokens}
            self._write(line | {"seconds": round(state.seconds, 3), "tokens_per_second": round(speed, 1)})
            self._track({f"train/{name}": value for name, value in shown.items()}, state.step)
            state.loss_sum, state.loss_steps = 0.0, 0

    def score(self, state: TrainingState) -> Scores:
        """The validation scores of the weights as they are."""
        return self._parts.score(state.step)

    def on_scores(self, state: TrainingState, scores: Scores) -> None:
        """Write the scores to the log and say them."""
        is_best = state.best is not None and state.best["step"] == state.step
        self._write({"step": state.step, "epoch": state.epoch, **scores, "is_best": is_best})
        values = {f"{split}/{name}": value for split, part in scores.items() for name, value in part.items()}
        self._track(values, state.step)
        self._display.info(f"step {state.step}: {one_line(scores)}{'  (best so far)' if is_best else ''}")
        if self._hook is not None:
            self._hook(state, scores, state.step == self._parts.loop.total_steps or state.stopped_early)

    def on_probed(self, rows: int) -> None:
        """Show that labels are being made."""
        self._display.probed(rows)

    def on_labels(self, state: TrainingState) -> None:
        """Say what the epoch's labels are, or why there are none."""
        facts = state.epoch_labels
        if "reason" in facts and state.epoch > 0:
            self._display.warning(f"epoch {state.epoch + 1}: no token is labelled: {facts['reason']}")
        elif "ones" in facts:
            self._display.info(f"epoch {state.epoch + 1}: {label_line(facts)}")

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the epoch's labels and how the token head did on them to the log."""
        facts = dict(state.epoch_labels)
        loss_sum, hits, ones, count = (facts.pop(f"token_{name}", 0) for name in ("loss_sum", "hits", "ones", "count"))
        if not facts:
            return
        if count:
            facts |= {"token_loss": loss_sum / count, "token_accuracy": hits / count}
            facts["majority_accuracy"] = max(ones, count - ones) / count
        self._write({"step": state.step, "epoch": state.epoch, "labels": facts})

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint, unless this step has one, then remove the oldest beyond the limit."""
        if self._saved_step != state.step:
            self._saved_step = state.step
            self._write_checkpoint(state)
        if self._accelerator.is_main_process:  # a killed run may have left more than it should have
            best_step = None if state.best is None else state.best["step"]
            keep_newest(self._run, state.step, self._settings.save_total_limit, best_step)

    def _write_checkpoint(self, state: TrainingState) -> None:
        self._accelerator.wait_for_everyone()
        labels = self._parts.label_tensors()
        if not self._accelerator.is_main_process:
            return
        if self._log is not None:
            state.log_bytes, state.log_sha256 = self._log.synced()
        inputs, model = self._parts.inputs, self._parts.model
        content = {
            "training": state.to_dict(),
            "identity": self._parts.resume_fingerprint(),
            "scaler": self._scaler_state(),
        }
        optimizer = optimizer_tensors(self._optimizer, model)

        def write_files(folder: Path) -> None:
            save_model(model, inputs.tokenizer, folder)
            save_file(optimizer, folder / OPTIMIZER_FILE)
            if labels:
                save_labels(folder, labels, train_fingerprint=inputs.fingerprint["train"])

        with self._parts.embeddings.whole(self._parts.decay(state.step)):
            write_checkpoint(self._run, state.step, content, write_files)

    def restore(self, folder: Path, content: dict[str, Any]) -> TrainingState:
        """Put a checkpoint's weights, optimiser and scaler back; its state is returned."""
        state = TrainingState.from_dict(content["training"])
        model = self._parts.model
        with fitting(folder):
            with self._parts.embeddings.loading(self._parts.decay(state.step)):
                model.load_state_dict(load_file(folder / "model.safetensors"))
            load_optimizer_tensors(self._optimizer, model, load_file(folder / OPTIMIZER_FILE))
            if content.get("scaler") and self._accelerator.scaler is not None:
                self._accelerator.scaler.load_state_dict(content["scaler"])
            if (folder / LABELS_FILE).is_file():
                self._parts.restore_labels(load_labels(folder)[0])
        self._saved_step = state.step
        return state

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimiser inside Accelerate's wrapper."""
        optimizer = self._parts.loop.optimizer
        return getattr(optimizer, "optimizer", optimizer)

    def _scaler_state(self) -> dict[str, Any] | None:
        scaler = self._accelerator.scaler
        return None if scaler is None else scaler.state_dict()

    def _write(self, facts: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.write(facts)

    def _track(self, values: dict[str, float], step: int) -> None:
        if self._settings.report_to != "none":
            self._accelerator.log(values, step=step)
