"""Experiment trackers besides the run's own log: TensorBoard, MLflow and Weights & Biases, through Accelerate."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from attentune.config import Config, to_flat
from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_text
from attentune.training.signals import Interrupted

# In the run folder: the files of TensorBoard and Weights & Biases, and the id of the tracker's run.
TRACKER_FOLDER = "tracker"
_ID_FILE = "run-id.json"
PROJECT = "attentune"
# Trackers may send settings to a server, so paths on the user's machine are not logged.
_PRIVATE = ("output_dir", "resume", "overwrite_output_dir", "report_to", "data_dir", "dataset_name", "task_settings")


@contextlib.contextmanager
def tracked(accelerator: Accelerator, kind: str, run: Path, *, settings: Mapping[str, Any]) -> Iterator[None]:
    """Start a tracker, and mark its run as failed or killed if the block raises.

    A block that succeeds ends the tracker's run itself, by Accelerate's `end_training`.
    """
    if kind == "none":
        yield
        return
    _start(accelerator, kind, run, settings)
    try:
        yield
    except BaseException as error:
        _end(accelerator, kind, status="KILLED" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "FAILED")
        raise


def log_final(accelerator: Accelerator, scores: Mapping[str, Mapping[str, float | None]], step: int) -> None:
    """Log the scores of the final weights to the tracker."""
    values = {f"final/{split}/{name}": value for split, part in scores.items() for name, value in part.items()}
    accelerator.log({name: value for name, value in values.items() if value is not None}, step=step)


def tracker_settings(config: Config) -> dict[str, Any]:
    """Return the settings to log to a tracker, by dotted name, without paths of data and runs."""
    logged = {}
    for name, value in to_flat(config).items():
        last = name.split(".")[-1]
        if last not in _PRIVATE and not last.endswith("_file") and value is not None:
            logged[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    encoder = config.model.name_or_path
    logged["model.name_or_path"] = Path(encoder).name if Path(encoder).exists() else encoder
    return logged


def _start(accelerator: Accelerator, kind: str, run: Path, settings: Mapping[str, Any]) -> None:
    folder = run / TRACKER_FOLDER
    if accelerator.is_main_process:
        with storage_errors(folder):
            folder.mkdir(exist_ok=True)
    try:
        if kind == "tensorboard":
            accelerator.init_trackers(TRACKER_FOLDER)
            return
        # A resumed run continues in the tracker's same run.
        known = _known_id(folder, kind)
        if kind == "mlflow":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            options: dict[str, Any] = {"run_name": run.resolve().name, "run_id": known}
            project = PROJECT
        else:
            options = {"name": run.resolve().name, "dir": str(folder), "id": known, "resume": "allow"}
            project = os.environ.get("WANDB_PROJECT", PROJECT)
        accelerator.init_trackers(project, dict(settings), {kind: options})
    except Exception as error:  # each tracker has its own exception classes
        raise ConfigError(
            f"training.report_to: {kind} could not be started: {' '.join(str(error).split())[:300]} {_cure(kind)}"
        ) from error
    if accelerator.is_main_process:
        write_text(folder / _ID_FILE, json.dumps({kind: _own_id(accelerator, kind)}) + "\n")


def _cure(kind: str) -> str:
    if kind == "mlflow":
        return "MLFLOW_TRACKING_URI says where its store is (not set: MLflow's own default); or set --report_to none."
    if kind == "wandb":
        return "Log in (wandb login), keep it on this machine (WANDB_MODE=offline), or set --report_to none."
    return "Set --report_to none to do without it."


def _known_id(folder: Path, kind: str) -> str | None:
    try:
        return json.loads((folder / _ID_FILE).read_text(encoding="utf-8")).get(kind)
    except (OSError, ValueError, AttributeError):
        return None


def _own_id(accelerator: Accelerator, kind: str) -> str:
    tracker = accelerator.get_tracker(kind, unwrap=True)
    return str(tracker.info.run_id if kind == "mlflow" else tracker.id)


def _end(accelerator: Accelerator, kind: str, *, status: str) -> None:
    """End the tracker's run. Its own errors are ignored: the user should see the error that ended training."""
    with contextlib.suppress(Exception):
        if accelerator.is_main_process and kind == "mlflow":
            import mlflow

            mlflow.end_run(status)
        elif accelerator.is_main_process and kind == "wandb":
            accelerator.get_tracker(kind, unwrap=True).finish(exit_code=1)
        else:
            for tracker in accelerator.trackers:
                tracker.finish()
