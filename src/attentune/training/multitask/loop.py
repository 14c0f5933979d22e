"""Several tasks on one encoder: each has slots, classifier and loop of its own, and the loops take turns.

A task gets optimiser steps in proportion to its rows to a power below 1, so that large tasks do not drown small ones.
All tasks together have as many steps as they would have alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from attentune.config import Config, to_yaml
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import storage_errors, write_text
from attentune.nn.cpu.memory import kept_memory
from attentune.results import LOG_FILE, RunResult
from attentune.seeding import numpy_generator
from attentune.training.callbacks import OPTIMIZER_FILE, RunCallback
from attentune.training.checkpoint import fitting, keep_newest, newest_good, read_state, write_checkpoint
from attentune.training.finalize import finalize_run
from attentune.training.inputs import prepare_inputs
from attentune.training.multitask.shared import SharedParts, build_shared_parts
from attentune.training.optimizer import load_optimizer_tensors, optimizer_tensors
from attentune.training.progress import Display, JsonLog, one_line
from attentune.training.run_folder import CONFIG_FILE, changes
from attentune.training.signals import Interrupted, StopRequest, stop_on_signal
from attentune.training.state import TrainingState

_MODEL_FILE = "model.safetensors"


def steps_per_task(alone: Mapping[str, int], rows: Mapping[str, int], exponent: float, total: int) -> dict[str, int]:
    """How many optimiser steps each task gets.

    Args:
        alone: the steps that each task would have by itself.
        rows: the training rows of each.
        exponent: a task's share is in proportion to its rows to this power.
        total: steps of all tasks together; the sum of `alone` if not above 0.
    """
    total = total if total > 0 else sum(alone.values())
    weights = {task: rows[task] ** exponent for task in alone}
    return {task: max(1, round(total * weights[task] / sum(weights.values()))) for task in alone}


def task_schedule(steps: Mapping[str, int], seed: int) -> list[str]:
    """Whose turn each optimiser step is: every task as often as it has steps, in an order drawn from the seed."""
    names = np.repeat(list(steps), list(steps.values()))
    return [str(name) for name in numpy_generator("turns of tasks", seed).permutation(names)]


def train_together(run: Path, configs: Mapping[str, Config], whole: Config, display: Display) -> dict[str, RunResult]:
    """Train all tasks on one encoder, then score and save each in `run/TASK` as a run of its own.

    Args:
        run: the folder of all of them, open for writing; its checkpoints hold all tasks.
        configs: each task's configuration; they agree on encoder, blur and training.
        whole: the configuration that they come from.
        display: where progress is shown.

    Raises:
        ConfigError: it was started in several processes.
        CheckpointError: what it is to go on from is of other data or settings.
        Interrupted: a stop was asked for and all was saved.
    """
    inputs = {}
    for task, config in configs.items():
        display.info(f"{task}:")
        inputs[task] = prepare_inputs(config, None, display)
    accelerator = next(iter(inputs.values())).accelerator
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"training.multi_task: got {accelerator.num_processes} processes, expected one: tasks that share an encoder"
            " are trained in a single process."
        )
    note = f"Trained together with {', '.join(configs)}, on one encoder."
    shared = build_shared_parts(
        {
            task: replace(own, accelerator=accelerator, data=replace(own.data, notes=(*own.data.notes, note)))
            for task, own in inputs.items()
        }
    )
    _allot(shared, whole, display)
    with stop_on_signal() as stop:
        states = _train(run, shared, whole, display, stop)
        return {task: _finish(run / task, shared, task, states[task], display) for task in configs}


def _allot(shared: SharedParts, whole: Config, display: Display) -> None:
    """Give each task its number of steps."""
    loops = {task: parts.loop for task, parts in shared.parts.items()}
    rows = {task: len(loop.rows.features) for task, loop in loops.items()}
    alone = {task: loop.total_steps for task, loop in loops.items()}
    steps = steps_per_task(alone, rows, whole.training.task_sampling_exponent, whole.training.max_steps)
    for task, count in steps.items():
        shared.set_steps(task, count)
    shown = ", ".join(
        f"{task} {count} ({count / loops[task].steps_per_epoch:.1f} epochs)" for task, count in steps.items()
    )
    display.info(f"optimiser steps: {shown}")


def _train(
    run: Path, shared: SharedParts, whole: Config, display: Display, stop: StopRequest
) -> dict[str, TrainingState]:
    keeper = _MultiTaskCheckpointer(run, shared, whole)
    folder = newest_good(run, display.warning) if whole.training.resume else None
    log_bytes = 0
    if folder is not None:
        display.info(f"resuming from {folder}")
        with fitting(folder):
            log_bytes = keeper.restore(folder)
    keeper.log = JsonLog(run / LOG_FILE, keep_bytes=log_bytes)
    order = task_schedule({task: parts.loop.total_steps for task, parts in shared.parts.items()}, whole.training.seed)
    watchers = {task: _TaskCallback(run, task, shared, keeper.log, display) for task in shared.parts}
    loops = {task: parts.loop.steps(shared.states[task], watchers[task], stop) for task, parts in shared.parts.items()}
    save_steps = whole.training.save_steps or max(1, round(len(order) / max(1.0, whole.training.num_train_epochs)))
    display.start(len(order), shared.steps_done)
    try:
        with kept_memory():
            while shared.steps_done < len(order) and not stop.asked:
                # A loop that was asked to stop while it made labels gives nothing.
                next(loops[order[shared.steps_done]], None)
                if shared.steps_done % save_steps == 0:
                    keeper.save()
        keeper.save()
    finally:
        for loop in loops.values():
            loop.close()
        display.stop()
    if shared.steps_done < len(order):
        raise Interrupted(str(run), shared.steps_done)
    return shared.states


def _finish(folder: Path, shared: SharedParts, task: str, state: TrainingState, display: Display) -> RunResult:
    """Score and save one task; its encoder is the one that all have come to."""
    parts = shared.parts[task]
    state.last_scored_step = -1  # the other tasks have moved the encoder since
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
    write_text(folder / CONFIG_FILE, to_yaml(parts.inputs.config))
    result = finalize_run(folder, parts, state)
    display.info(f"{task}: {one_line(result.scores)}; saved in {folder}")
    return result


class _TaskDisplay:
    """Shows one task's part of the whole."""

    def __init__(self, display: Display, task: str, shared: SharedParts) -> None:
        self._display, self._task, self._shared = display, task, shared

    def info(self, text: str) -> None:
        self._display.info(f"{self._task}: {text}")

    def warning(self, text: str) -> None:
        self._display.warning(f"{self._task}: {text}")

    def advance(self, step: int, *, loss: float, tokens_per_second: float) -> None:
        self._display.advance(self._shared.steps_done, loss=loss, tokens_per_second=tokens_per_second)

    def probed(self, rows: int) -> None:
        self._display.probed(rows)


class _TaskCallback(RunCallback):
    """Watches one task's loop; checkpoints are of all tasks, and not its work."""

    def __init__(self, run: Path, task: str, shared: SharedParts, log: JsonLog, display: Display) -> None:
        shown: Any = _TaskDisplay(display, task, shared)
        super().__init__(run=run, parts=shared.parts[task], log=log, display=shown)
        self._task = task

    def save(self, state: TrainingState) -> None:
        """Nothing."""

    def _write(self, facts: dict[str, Any]) -> None:
        super()._write({"task": self._task, **facts})

    def _track(self, values: dict[str, float], step: int) -> None:
        super()._track({f"{self._task}/{name}": value for name, value in values.items()}, step)


class _MultiTaskCheckpointer:
    """Writes and reads checkpoints of all tasks."""

    def __init__(self, run: Path, shared: SharedParts, whole: Config) -> None:
        self._run, self._shared, self._whole = run, shared, whole
        self._saved_steps = -1
        self.log: JsonLog | None = None

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step."""
        shared = self._shared
        if self._saved_steps != shared.steps_done:
            self._saved_steps = shared.steps_done
            self._write_checkpoint()
        keep_newest(self._run, shared.steps_done, self._whole.training.save_total_limit, None)

    def _write_checkpoint(self) -> None:
        shared = self._shared
        for task, parts in shared.parts.items():
            parts.loop.check_weights(shared.states[task])
        content = {
            "tasks": {task: state.to_dict() for task, state in shared.states.items()},
            "identity": self._resume_fingerprint(),
            "log_bytes": 0 if self.log is None else self.log.synced()[0],
            "scaler": None if shared.scaler is None else shared.scaler.state_dict(),
        }
        optimizer = optimizer_tensors(shared.bare_optimizer, shared.model)

        def write_files(folder: Path) -> None:
            weights = {name: weight.detach().contiguous() for name, weight in shared.model.named_parameters()}
            save_file(weights, folder / _MODEL_FILE)
            save_file(optimizer, folder / OPTIMIZER_FILE)
            for task, parts in shared.parts.items():
                if tensors := parts.label_tensors():
                    save_arrays(tensors, folder / f"labels-{task}.safetensors")

        with shared.embeddings.whole(shared.decay()):
            write_checkpoint(self._run, shared.steps_done, content, write_files)

    def restore(self, folder: Path) -> int:
        """Put everything back; the length that the log then had is returned.

        Raises:
            CheckpointError: data or hardware are others.
        """
        shared, content = self._shared, read_state(folder)
        before = content.get("identity") or {}
        changed = [
            f"{task}: {' and '.join(found)}"
            for task, own in self._resume_fingerprint().items()
            if (found := changes(before.get(task, {}), own) if task in before else ["the task"])
        ]
        if changed:
            raise CheckpointError(
                f"{self._run}: cannot be resumed: {'; '.join(changed)} changed since it was begun. Put back what was"
                " there, or train anew with --overwrite_output_dir."
            )
        for task, values in content["tasks"].items():
            shared.states[task] = TrainingState.from_dict(values)
        with shared.embeddings.loading(shared.decay()):
            weights = load_file(folder / _MODEL_FILE)
            for name, weight in shared.model.named_parameters():
                weight.data.copy_(weights[name])
        load_optimizer_tensors(shared.bare_optimizer, shared.model, load_file(folder / OPTIMIZER_FILE))
        if content.get("scaler") and shared.scaler is not None:
            shared.scaler.load_state_dict(content["scaler"])
        for task, parts in shared.parts.items():
            if (folder / f"labels-{task}.safetensors").is_file():
                parts.restore_labels(load_arrays(folder / f"labels-{task}.safetensors"))
        self._saved_steps = shared.steps_done
        return int(content["log_bytes"])

    def _resume_fingerprint(self) -> dict[str, Any]:
        return {task: parts.resume_fingerprint() for task, parts in self._shared.parts.items()}
