"""Multi-task training: several tasks share one encoder; each has its own slots, classifier and training loop.

The loops alternate by optimiser step. A task gets steps in proportion to its rows to a power below 1, so that large
tasks do not drown small ones; all tasks together have as many steps as they would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import nn

from attentune.config import Config, TrainingConfig, to_yaml
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import storage_errors, write_text
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.nn.compiled.memory import kept_memory
from attentune.results import LOG_FILE, RunResult
from attentune.seeding import numpy_generator
from attentune.training.callbacks import JsonLogCallback, ProgressCallback, TrackerCallback, TrainingCallback
from attentune.training.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    fitting,
    keep_newest,
    newest_good,
    read_state,
    write_checkpoint,
)
from attentune.training.components import (
    TrainingComponents,
    assemble,
    build_planner,
    build_schedule,
    count_steps,
    embedding_weight_decay,
    freeze_encoder,
    new_model,
    new_optimizer,
    used_token_ids,
)
from attentune.training.defaults import RULED, RunSize, choose_settings, chosen
from attentune.training.finalize import finalize_run
from attentune.training.inputs import RunInputs, prepare_inputs
from attentune.training.optimizer import load_optimizer_tensors, optimizer_tensors
from attentune.training.progress import JsonLog, ProgressDisplay, one_line
from attentune.training.run_folder import CONFIG_FILE, changes
from attentune.training.signals import Interrupted, StopRequest, stop_on_signal
from attentune.training.state import TrainingState


class SharedModel(nn.Module):
    """One encoder and the models of all tasks around it; each weight has one name."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        super().__init__()
        first = next(iter(models.values()))
        self.encoder = first.encoder
        self.blur = first.blur
        self.tasks = nn.ModuleDict(models)


@dataclass
class MultiTaskComponents:
    """Everything that computes in multi-task training."""

    model: SharedModel  # all tasks' models, with one encoder
    tasks: dict[str, TrainingComponents]  # the components of each task; all have the same optimiser and embeddings
    states: dict[str, TrainingState]  # the state of each task
    embeddings: VocabularySubset  # of the shared encoder
    optimizer: Any  # over all weights, prepared by Accelerate
    # Returns the factor by which the steps of all tasks have shrunk the embeddings of unused tokens.
    decay: Callable[[], float]

    @property
    def steps_done(self) -> int:
        """Optimiser steps of all tasks so far."""
        return sum(state.step for state in self.states.values())

    @property
    def bare_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser without Accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of fp16; None otherwise."""
        return next(iter(self.tasks.values())).inputs.accelerator.scaler

    def resume_fingerprint(self) -> dict[str, Any]:
        """Return, by task, what must be equal for the run to be resumed."""
        return {task: components.resume_fingerprint() for task, components in self.tasks.items()}


def build_multitask_components(inputs: Mapping[str, RunInputs], training: TrainingConfig) -> MultiTaskComponents:
    """Build the tasks' components around the encoder of the first task."""
    models: dict[str, Any] = {}
    for task, task_inputs in inputs.items():
        models[task] = new_model(task_inputs, share_encoder_of=next(iter(models.values()), None))
    frozen = {task: freeze_encoder(task_inputs, models[task]) for task, task_inputs in inputs.items()}
    model, accelerator = SharedModel(models), next(iter(inputs.values())).accelerator
    embeddings = VocabularySubset(
        model.encoder, np.concatenate([used_token_ids(task_inputs) for task_inputs in inputs.values()])
    )
    planners = {task: build_planner(task_inputs, models[task]) for task, task_inputs in inputs.items()}
    steps = steps_per_task(
        {task: count_steps(task_inputs, planners[task]) for task, task_inputs in inputs.items()},
        {task: len(task_inputs.features["train"]) for task, task_inputs in inputs.items()},
        training.task_sampling_exponent,
        training.max_steps,
    )
    inputs = {task: _with_max_steps(task_inputs, steps[task]) for task, task_inputs in inputs.items()}
    schedules = {task: build_schedule(task_inputs, planners[task]) for task, task_inputs in inputs.items()}
    optimizer = accelerator.prepare_optimizer(new_optimizer(training, model, processes=accelerator.num_processes))
    states = {task: TrainingState() for task in inputs}

    def decay() -> float:
        factor, weight_decay = 1.0, embedding_weight_decay(training)
        for task, schedule in schedules.items():
            factor *= schedule.decay_factor(states[task].step, weight_decay=weight_decay)
        return factor

    tasks = {}
    for task, task_inputs in inputs.items():
        frozen_states, note = frozen[task]
        tasks[task] = assemble(
            task_inputs,
            model=models[task],
            wrapped=accelerator.prepare_model(models[task]),
            embeddings=embeddings,
            planner=planners[task],
            optimizer=optimizer,
            schedule=schedules[task],
            decay=lambda _: decay(),
            frozen=frozen_states,
            note=note,
        )
    return MultiTaskComponents(model, tasks, states, embeddings, optimizer, decay)


def _joint_size(sizes: Sequence[RunSize]) -> RunSize:
    """Return the size of all tasks together, which share one encoder and their training settings."""
    rows = sum(size.rows for size in sizes)
    return replace(
        sizes[0],
        rows=rows,
        mean_tokens=sum(size.mean_tokens * size.rows for size in sizes) / rows,
        validation_rows=sum(size.validation_rows for size in sizes),
    )


def _with_choices(inputs: RunInputs, settled: TrainingConfig) -> TrainingConfig:
    """Return a task's training settings with those that were chosen for all tasks."""
    return replace(inputs.config.training, **{name: getattr(settled, name) for name in RULED})


def _with_max_steps(inputs: RunInputs, count: int) -> RunInputs:
    """Return the inputs with this number of optimiser steps in their settings."""
    config = inputs.config
    return replace(inputs, config=replace(config, training=replace(config.training, max_steps=count)))


def steps_per_task(alone: Mapping[str, int], rows: Mapping[str, int], exponent: float, total: int) -> dict[str, int]:
    """Return the number of optimiser steps of each task."""
    total = total if total > 0 else sum(alone.values())
    weights = {task: rows[task] ** exponent for task in alone}
    return {task: max(1, round(total * weights[task] / sum(weights.values()))) for task in alone}


def task_schedule(steps: Mapping[str, int], seed: int) -> list[str]:
    """Return the task of each optimiser step: each as often as it has steps, in an order drawn from the seed."""
    names = np.repeat(list(steps), list(steps.values()))
    return [str(name) for name in numpy_generator("turns of tasks", seed).permutation(names)]


def train_together(
    run: Path, configs: Mapping[str, Config], config: Config, display: ProgressDisplay
) -> dict[str, RunResult]:
    """Train all tasks on one encoder, then evaluate each and save it in `run/TASK` as a run of its own."""
    inputs = {}
    for task, task_config in configs.items():
        display.info(f"{task}:")
        inputs[task] = prepare_inputs(task_config, None, display)
    accelerator = next(iter(inputs.values())).accelerator
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"training.multi_task: got {accelerator.num_processes} processes, expected one: tasks that share an encoder"
            " are trained in a single process."
        )
    settled = choose_settings(config.training, _joint_size([one.size() for one in inputs.values()]))
    config = replace(config, training=settled)
    inputs = {
        task: task_inputs.with_training(_with_choices(task_inputs, settled)) for task, task_inputs in inputs.items()
    }
    note = f"Trained together with {', '.join(configs)}, on one encoder."
    components = build_multitask_components(
        {
            task: replace(
                task_inputs,
                accelerator=accelerator,
                data=replace(task_inputs.data, notes=(*task_inputs.data.notes, note)),
            )
            for task, task_inputs in inputs.items()
        },
        config.training,
    )
    display.info(f"optimiser steps: {', '.join(map(_steps_text, components.tasks, components.tasks.values()))}")
    with stop_on_signal() as stop:
        _train(run, components, config.training, display, stop)
        return {task: _finalize(run / task, components, task, display) for task in configs}


def _steps_text(task: str, components: TrainingComponents) -> str:
    config = components.loop.config
    return f"{task} {config.total_steps} ({config.total_steps / config.steps_per_epoch:.1f} epochs)"


def _train(
    run: Path, components: MultiTaskComponents, training: TrainingConfig, display: ProgressDisplay, stop: StopRequest
) -> None:
    folder = newest_good(run, display.warning) if training.resume else None
    content: dict[str, Any] = {}
    if folder is not None:
        display.info(f"resuming from {folder}")
        content = read_state(folder)
        _check_identity(run, components, content["identity"])
    log = JsonLog(run / LOG_FILE, keep_bytes=_log_bytes(folder, content))
    checkpointer = MultiTaskCheckpointer(run, components, log, save_total_limit=training.save_total_limit)
    if folder is not None:
        checkpointer.restore(folder, content)
    else:
        for task, one in components.tasks.items():
            if (note := one.start_classifier()) is not None:
                display.info(f"{task}: {note}")
    states = components.states
    order = task_schedule({task: one.loop.config.total_steps for task, one in components.tasks.items()}, training.seed)
    loops = {
        task: one.loop.steps(states[task], stop=stop, callbacks=_callbacks(task, components, log, display))
        for task, one in components.tasks.items()
    }
    save_steps = training.save_steps or max(1, round(len(order) / max(1.0, chosen(training.num_train_epochs))))
    display.start(len(order), components.steps_done)
    try:
        with kept_memory():
            while components.steps_done < len(order) and not stop.requested:
                # A loop that was stopped while it made labels yields nothing.
                next(loops[order[components.steps_done]], None)
                if components.steps_done % save_steps == 0:
                    checkpointer.save()
        checkpointer.save()
    finally:
        for loop in loops.values():
            loop.close()
        display.stop()
    if components.steps_done < len(order):
        raise Interrupted(str(run), components.steps_done)


def _check_identity(run: Path, components: MultiTaskComponents, before: Mapping[str, Any]) -> None:
    changed = [
        f"{task}: {' and '.join(differences)}"
        for task, now in components.resume_fingerprint().items()
        if (differences := changes(before.get(task, {}), now) if task in before else ["the task"])
    ]
    if changed:
        raise CheckpointError(
            f"{run}: cannot be resumed: {'; '.join(changed)} changed since it was begun. Put back what was there, or"
            " train again from the start with --overwrite_output_dir."
        )


def _log_bytes(folder: Path | None, content: Mapping[str, Any]) -> int:
    """Return the length of the log when the checkpoint was written; 0 without a checkpoint."""
    if folder is None:
        return 0
    with fitting(folder):
        return int(content["log_bytes"])


def _callbacks(
    task: str, components: MultiTaskComponents, log: JsonLog, display: ProgressDisplay
) -> list[TrainingCallback]:
    """Return the callbacks of one task's loop."""
    inputs = components.tasks[task].inputs
    task_display: Any = _TaskDisplay(display, task, components)
    return [
        JsonLogCallback(log, {"task": task}),
        *([] if inputs.config.training.report_to == "none" else [TrackerCallback(inputs.accelerator, f"{task}/")]),
        ProgressCallback(task_display),
    ]


def _finalize(folder: Path, components: MultiTaskComponents, task: str, display: ProgressDisplay) -> RunResult:
    """Evaluate and save one task with the final weights of the shared encoder."""
    task_components, state = components.tasks[task], components.states[task]
    state.last_scored_step = -1  # the other tasks have changed the encoder since
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
    write_text(folder / CONFIG_FILE, to_yaml(task_components.inputs.config))
    result = finalize_run(folder, task_components, state)
    display.info(f"{task}: {one_line(result.scores)}; saved in {folder}")
    return result


class _TaskDisplay:
    """Shows the progress of one task as part of the whole."""

    def __init__(self, display: ProgressDisplay, task: str, components: MultiTaskComponents) -> None:
        self._display, self._task, self._components = display, task, components

    def info(self, text: str) -> None:
        self._display.info(f"{self._task}: {text}")

    def warning(self, text: str) -> None:
        self._display.warning(f"{self._task}: {text}")

    def advance(self, step: int, *, loss: float, tokens_per_second: float) -> None:
        self._display.advance(self._components.steps_done, loss=loss, tokens_per_second=tokens_per_second)

    def predicted(self, rows: int) -> None:
        self._display.predicted(rows)


class MultiTaskCheckpointer:
    """Saves and restores checkpoints of all tasks together."""

    def __init__(self, run: Path, components: MultiTaskComponents, log: JsonLog, *, save_total_limit: int) -> None:
        self._run, self._components, self._log = run, components, log
        self._save_total_limit = save_total_limit
        self._saved_steps = -1

    def save(self) -> None:
        """Write a checkpoint, unless this step has one, then remove the oldest ones beyond the limit."""
        steps_done = self._components.steps_done
        if self._saved_steps != steps_done:
            self._saved_steps = steps_done
            self._write()
        keep_newest(self._run, steps_done, self._save_total_limit, None)

    def _write(self) -> None:
        components = self._components
        for task, task_components in components.tasks.items():
            task_components.loop.check_weights(components.states[task])
        content = {
            "tasks": {task: state.to_dict() for task, state in components.states.items()},
            "identity": components.resume_fingerprint(),
            "log_bytes": self._log.synced()[0],
            "scaler": None if components.scaler is None else components.scaler.state_dict(),
        }
        optimizer = optimizer_tensors(components.bare_optimizer, components.model)

        def write_files(folder: Path) -> None:
            weights = {name: weight.detach().contiguous() for name, weight in components.model.named_parameters()}
            save_file(weights, folder / MODEL_FILE)
            save_file(optimizer, folder / OPTIMIZER_FILE)
            for task, task_components in components.tasks.items():
                if tensors := task_components.planner.tensors():
                    save_arrays(tensors, folder / f"labels-{task}.safetensors")

        with components.embeddings.whole(components.decay()):
            write_checkpoint(self._run, components.steps_done, content, write_files)

    def restore(self, folder: Path, content: Mapping[str, Any]) -> None:
        """Load weights, optimiser, scaler, states and token labels of all tasks."""
        components = self._components
        with fitting(folder):
            for task, values in content["tasks"].items():
                components.states[task] = TrainingState.from_dict(values)
            with components.embeddings.loading(components.decay()):
                weights = load_file(folder / MODEL_FILE)
                for name, weight in components.model.named_parameters():
                    weight.data.copy_(weights[name])
            load_optimizer_tensors(components.bare_optimizer, components.model, load_file(folder / OPTIMIZER_FILE))
            if content.get("scaler") and components.scaler is not None:
                components.scaler.load_state_dict(content["scaler"])
            for task, task_components in components.tasks.items():
                if (folder / f"labels-{task}.safetensors").is_file():
                    task_components.planner.restore(load_arrays(folder / f"labels-{task}.safetensors"))
        self._saved_steps = components.steps_done
