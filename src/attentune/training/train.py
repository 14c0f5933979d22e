"""Trains one run: from a configuration to a finished run folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.baselines.base import Baseline
from attentune.baselines.frozen import FrozenEncoder
from attentune.baselines.registry import make_baseline
from attentune.config import Config, to_dict
from attentune.data.dataset import CALIBRATION, TaskData
from attentune.errors import CheckpointError
from attentune.io.files import storage_errors, sync_file, sync_folder
from attentune.metrics.metrics import score_predictions
from attentune.nn.compiled.memory import kept_memory
from attentune.results import LOG_FILE, RESULT_FILE, RunResult, versions
from attentune.training.callbacks import JsonLogCallback, ProgressCallback, TrackerCallback, TrainingCallback
from attentune.training.checkpoint import TEMPORARY, Checkpointer, newest_good, read_state
from attentune.training.components import TrainingComponents, build_components
from attentune.training.finalize import finalize_run, row_facts, wants_best, write_results
from attentune.training.inputs import RunInputs, prepare_inputs, settled_inputs
from attentune.training.memory import peak_memory_bytes
from attentune.training.progress import JsonLog, ProgressDisplay, one_line
from attentune.training.run_folder import (
    changes,
    check_folder,
    check_writable,
    config_for_run,
    opened_folder,
)
from attentune.training.signals import Interrupted, StopRequest, stop_on_signal
from attentune.training.state import TrainingState
from attentune.training.trackers import tracked, tracker_settings


def train_baseline(run: Path, name: str, inputs: RunInputs) -> RunResult:
    """Fit a baseline on the training rows, score the other splits, and write the run folder."""
    config, data, device = inputs.config, inputs.data, inputs.accelerator.device
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=device.type == "cpu")
    started = time.perf_counter()
    baseline = make_baseline(
        name, encoder=config.model, max_length=config.data.max_length, seed=config.training.seed, frozen=frozen
    )
    baseline.fit(data.splits["train"], data.label_space)
    fitted = time.perf_counter()
    scored_rows = {split: rows for split, rows in data.splits.items() if split not in ("train", CALIBRATION)}
    logits = {split: baseline.logits(rows) for split, rows in scored_rows.items()}
    scores: dict[str, dict[str, float | None]] = {
        split: dict(score_predictions(inputs.metrics, rows.labels, logits[split], data.label_space))
        for split, rows in scored_rows.items()
        if rows.labels is not None and len(rows)
    }
    result = RunResult(
        scores=scores,
        train={
            "seconds": round(fitted - started, 3),
            "tokens": 0,
            "peak_memory_bytes": peak_memory_bytes(device),
            "evaluation_seconds": round(time.perf_counter() - fitted, 3),
            "label_seconds": 0.0,
            "rows": len(inputs.labels),
            **row_facts(data.splits["train"]),
            "steps": 0,
            "precision": inputs.precision,
            "device": device.type,
        },
        best=None,
        config=to_dict(config),
        seed=config.training.seed,
        versions=versions(),
        data_fingerprint=inputs.fingerprint,
        notes=[*data.notes, *baseline.notes],
    )
    if inputs.accelerator.is_main_process:
        _save(run, baseline)
        write_results(run, inputs, data, result, logits)
    return result


def _save(run: Path, baseline: Baseline) -> None:
    """Write the baseline to a temporary folder, and move its files once all are on the disk."""
    temporary = run / f"{TEMPORARY}baseline-{os.getpid()}"
    with storage_errors(run):
        try:
            temporary.mkdir()
            baseline.save(temporary)
            for path in sorted(temporary.iterdir()):
                sync_file(path)
                path.replace(run / path.name)
            sync_folder(run)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def train(
    config: Config,
    *,
    data: TaskData | None = None,
    display: ProgressDisplay | None = None,
    callbacks: Sequence[TrainingCallback] = (),
    with_baselines: bool = True,
) -> RunResult:
    """Fine-tune, evaluate and save a model; the run folder is `config.training.output_dir`.

    Nothing is written before data, settings and encoder have been checked.

    Args:
        config: from `load_config`.
        data: rows to use instead of those of `config.data`. To resume such a run, pass the same rows again.
        display: shows progress; on standard error if None.
        callbacks: called after the run's own (log, tracker, progress bar) at each event of training.
        with_baselines: compare the model with the baselines of `training.baselines` at the end; commands that train
            many runs turn it off.

    Returns:
        The run's record, as in its `run.json`.

    Raises:
        AttentuneError: a mistake that the user can correct; the message says how.
        Interrupted: a stop was requested (Ctrl-C or SIGTERM) and the run was saved.
    """
    with display or ProgressDisplay() as display:
        config = config_for_run(config)
        check_folder(config)
        record = Path(str(config.training.output_dir)) / RESULT_FILE
        if config.training.resume and record.is_file():
            display.info(f"{config.training.output_dir}: this run is finished; nothing to resume.")
            return RunResult.load(record)
        check_writable(config)
        inputs = prepare_inputs(config, data, display)
        config = inputs.config
        if config.baseline is not None:
            with opened_folder(config, is_main=inputs.accelerator.is_main_process) as run:
                result = train_baseline(run, config.baseline, inputs)
            for note in result.notes[len(inputs.data.notes) :]:
                display.info(note)
            display.info(f"done: {one_line(result.scores)}; saved in {run}")
            return result
        inputs = settled_inputs(inputs, display)
        config = inputs.config
        components = build_components(inputs)
        if components.note is not None:
            display.info(components.note)
        with (
            opened_folder(config, is_main=inputs.accelerator.is_main_process) as run,
            stop_on_signal() as stop,
            tracked(inputs.accelerator, config.training.report_to, run, settings=tracker_settings(config)),
        ):
            state = _run_loop(run, components, display, stop, callbacks)
            result = finalize_run(run, components, state, display if with_baselines else None)
        if "calibration" in result.train:
            display.info(result.notes[-1])
        display.info(f"done: {one_line(result.scores)}; saved in {run}")
        for sentence in result.warnings:
            display.warning(sentence)
        return result


def _run_loop(
    run: Path,
    components: TrainingComponents,
    display: ProgressDisplay,
    stop: StopRequest,
    callbacks: Sequence[TrainingCallback],
) -> TrainingState:
    """Train to the end, from the newest undamaged checkpoint if the run is resumed."""
    training, accelerator = components.inputs.config.training, components.inputs.accelerator
    folder = newest_good(run, display.warning, with_best=wants_best(training)) if training.resume else None
    content: dict[str, Any] = {} if folder is None else read_state(folder)
    if content:
        _check_identity(run, components, content["identity"])
    elif training.resume:
        display.info(f"{run}: no checkpoint to resume from; starting at the beginning.")
    log = _open_log(run, content.get("training", {}), display) if accelerator.is_main_process else None
    checkpointer = Checkpointer(run, components, log)
    callbacks = [
        *([] if log is None else [JsonLogCallback(log)]),
        *([] if training.report_to == "none" else [TrackerCallback(accelerator)]),
        ProgressCallback(display),
        *callbacks,
    ]
    state = TrainingState()
    if folder is not None:
        display.info(f"resuming from {folder}")
        state = checkpointer.restore(folder, content)
    else:
        began = time.perf_counter()
        note = components.start_classifier()
        if note is not None:
            display.info(note)
            state.seconds += time.perf_counter() - began
    total_steps = components.loop.config.total_steps
    display.start(total_steps, state.step)
    try:
        with kept_memory():
            components.loop.run(state, stop=stop, save=checkpointer.save, callbacks=callbacks)
    finally:
        display.stop()
    if stop.requested and state.step < total_steps and not state.stopped_early:
        raise Interrupted(str(run), state.step)
    checkpointer.save(state)
    return state


def _open_log(run: Path, before: Mapping[str, Any], display: ProgressDisplay) -> JsonLog:
    """Open the log, cut back to its length when the checkpoint was written."""
    log = JsonLog(run / LOG_FILE, keep_bytes=before.get("log_bytes", 0), keep_sha256=before.get("log_sha256"))
    if not log.is_as_written:
        display.warning(
            f"{run / LOG_FILE}: has changed or lost lines since it was written. The run goes on, as nothing is computed"
            " from it; curves up to here may be wrong."
        )
    return log


def _check_identity(run: Path, components: TrainingComponents, before: dict[str, Any]) -> None:
    changed = changes(before, components.resume_fingerprint())
    if changed:
        raise CheckpointError(
            f"{run}: cannot be resumed: {' and '.join(changed)} changed since it was begun, so the result would be of"
            " two mixed runs. Put back what was there, or train again from the start with --overwrite_output_dir."
        )
