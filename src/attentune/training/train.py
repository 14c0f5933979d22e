"""From a configuration to a finished run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.data.dataset import TaskData
from attentune.errors import CheckpointError
from attentune.nn.cpu.memory import kept_memory
from attentune.results import LOG_FILE, RESULT_FILE, RunResult
from attentune.training.callbacks import RunCallback, ScoresHook
from attentune.training.checkpoint import newest_good, read_state
from attentune.training.components import TrainingComponents, build_components
from attentune.training.finalize import finalize_run, wants_best
from attentune.training.inputs import prepare_inputs
from attentune.training.progress import Display, JsonLog, one_line
from attentune.training.run_folder import (
    changes,
    check_folder,
    check_writable,
    config_for_run,
    opened_folder,
)
from attentune.training.signals import Interrupted, stop_on_signal
from attentune.training.state import TrainingState
from attentune.training.trackers import tracked


def train(
    config: Config,
    *,
    data: TaskData | None = None,
    display: Display | None = None,
    on_scores: ScoresHook | None = None,
) -> RunResult:
    """Fine-tune, score and save; the run folder is `config.training.output_dir`.

    Nothing is written before data, settings and encoder have been checked.

    Args:
        config: from `load_config`.
        data: rows to use instead of those that `config.data` names. Such a run resumes only with the same rows given.
        display: where progress is shown; standard error if not given.
        on_scores: called with the state, the validation scores by split and whether they are the last, whenever there
            are some. What it raises ends the run.

    Returns:
        The run's record, as in its `run.json`.

    Raises:
        AttentuneError: anything that the user can mend; the message says how.
        Interrupted: a stop was asked for (Ctrl-C or SIGTERM) and the run was saved.
    """
    with display or Display() as shown:
        config = config_for_run(config)
        check_folder(config)
        record = Path(str(config.training.output_dir)) / RESULT_FILE
        if config.training.resume and record.is_file():
            shown.info(f"{config.training.output_dir}: this run is finished; nothing to resume.")
            return RunResult.load(record)
        check_writable(config)
        inputs = prepare_inputs(config, data, shown)
        parts = build_components(inputs)
        if parts.note is not None:
            shown.info(parts.note)
        with (
            opened_folder(config, is_main=inputs.accelerator.is_main_process) as run,
            stop_on_signal() as stop,
            tracked(inputs.accelerator, config, run),
        ):
            state = _train_in(run, parts, shown, stop, on_scores)
            result = finalize_run(run, parts, state)
        if "calibration" in result.train:
            shown.info(result.notes[-1])
        shown.info(f"done: {one_line(result.scores)}; saved in {run}")
        return result


def _train_in(
    run: Path, parts: TrainingComponents, display: Display, stop: Any, on_scores: ScoresHook | None
) -> TrainingState:
    """Train from the newest good checkpoint, or the beginning, to the end."""
    settings = parts.inputs.config.training
    folder = newest_good(run, display.warning, with_best=wants_best(settings)) if settings.resume else None
    content: dict[str, Any] = {} if folder is None else read_state(folder)
    if content:
        _check_identity(run, parts, content["identity"])
    elif settings.resume:
        display.info(f"{run}: no checkpoint to resume from; starting at the beginning.")
    log = None
    if parts.inputs.accelerator.is_main_process:
        log = _opened_log(run, content.get("training", {}), display)
    watcher = RunCallback(run=run, parts=parts, log=log, display=display, hook=on_scores)
    state = TrainingState()
    if folder is not None:
        display.info(f"resuming from {folder}")
        state = watcher.restore(folder, content)
    display.start(parts.loop.total_steps, state.step)
    try:
        with kept_memory():
            parts.loop.run(state, watcher, stop)
    finally:
        display.stop()
    if stop.asked and state.step < parts.loop.total_steps and not state.stopped_early:
        raise Interrupted(str(run), state.step)
    watcher.save(state)
    return state


def _opened_log(run: Path, before: dict[str, Any], display: Display) -> JsonLog:
    """The log, cut back to where the checkpoint was written."""
    log = JsonLog(run / LOG_FILE, keep_bytes=before.get("log_bytes", 0), keep_sha256=before.get("log_sha256"))
    if not log.is_as_written:
        display.warning(
            f"{run / LOG_FILE}: has changed or lost lines since it was written. The run goes on, as nothing is computed"
            " from it; curves up to here may be wrong."
        )
    return log


def _check_identity(run: Path, parts: TrainingComponents, before: dict[str, Any]) -> None:
    changed = changes(before, parts.resume_fingerprint())
    if changed:
        raise CheckpointError(
            f"{run}: cannot be resumed: {' and '.join(changed)} changed since it was begun, so the result would be of"
            " two mixed runs. Put back what was there, or train anew with --overwrite_output_dir."
        )
