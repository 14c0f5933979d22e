"""Checkpoints, written atomically: a folder `checkpoint-STEP` is complete or does not exist.

A checkpoint is written to a temporary folder, each file is flushed to the disk, a manifest with sizes and hashes is
added, and the folder is renamed to `checkpoint-STEP`. Later damage is detected through the manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from attentune.errors import CheckpointError, StorageError
from attentune.io import files
from attentune.io.files import read_json, storage_errors, sync_file, sync_folder, write_manifest
from attentune.models.saving import save_model
from attentune.token_labels.plan import LABELS_FILE, load_labels, save_labels
from attentune.training.components import TrainingComponents
from attentune.training.optimizer import load_optimizer_tensors, optimizer_tensors
from attentune.training.progress import JsonLog
from attentune.training.run_folder import TEMPORARY, checkpoint_folders
from attentune.training.state import TrainingState

STATE, MODEL_FILE, OPTIMIZER_FILE = "state.json", "model.safetensors", "optimizer.safetensors"
_NEEDED = (STATE, MODEL_FILE)
_MEND = "Delete this checkpoint; the same command resumes from an older one, or starts at the beginning."


def write_checkpoint(run: Path, step: int, state: dict[str, Any], write_files: Callable[[Path], None]) -> Path:
    """Write `checkpoint-STEP` atomically: the folder is renamed once its files have been read back and verified."""
    target, temporary = run / f"checkpoint-{step}", run / f"{TEMPORARY}{step}-{os.getpid()}"
    with storage_errors(target):
        try:
            temporary.mkdir()
            write_files(temporary)
            (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
            write_manifest(temporary)
            for path in temporary.iterdir():
                sync_file(path)
            sync_folder(temporary)
            problem = verify_checkpoint(temporary)
            if problem is not None:
                raise StorageError(
                    f"{target}: read-back check failed: the files differ from what was written ({problem}), so this"
                    " checkpoint is not used; earlier ones remain. Check the disk, or resume in a copy of the run"
                    " folder on another one."
                )
            if target.exists():  # a damaged one of the same step, skipped when the run was resumed
                shutil.rmtree(target)
            temporary.rename(target)
            sync_folder(run)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def verify_checkpoint(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, in a few words; None if every file is as it was written."""
    return files.verify_manifest(folder, needed=_NEEDED)


def newest_good(run: Path, warn: Callable[[str], None], *, with_best: bool = False) -> Path | None:
    """Return the newest undamaged checkpoint, or None."""
    for folder in reversed(checkpoint_folders(run)):
        problem = verify_checkpoint(folder)
        if problem is None and with_best:
            problem = _damage_of_best(run, folder)
        if problem is None:
            return folder
        warn(f"{folder}: skipped: {problem}. An older checkpoint is used instead, if there is one.")
    return None


def _damage_of_best(run: Path, folder: Path) -> str | None:
    """Return what is wrong with the checkpoint that was the best when this one was written; None if nothing."""
    best = read_state(folder)["training"]["best"]
    if best is None or best["step"] == int(folder.name.removeprefix("checkpoint-")):
        return None
    best_folder = run / f"checkpoint-{best['step']}"
    problem = verify_checkpoint(best_folder) if best_folder.is_dir() else "it is missing"
    return None if problem is None else f"the best weights until then, of {best_folder.name}, cannot be used: {problem}"


def read_state(folder: Path) -> dict[str, Any]:
    """Read the state of a checkpoint."""
    try:
        content = read_json(folder / STATE)
        states = [content["training"]] if "training" in content else [*content["tasks"].values()]
        if not isinstance(content["identity"], dict):
            raise ValueError("identity is not an object")
        for state in states:
            TrainingState.from_dict(state)
        return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read ({error}). {_MEND}") from error


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Convert any error while a checkpoint is loaded to one message: its content may come from anyone."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder}: does not fit this run ({reason}). {_MEND}") from error


def keep_newest(run: Path, step: int, limit: int, always: int | None) -> None:
    """Remove all but the newest `limit` checkpoints.

    Checkpoints newer than `step` were skipped as damaged when the run was resumed; they are removed and do not count.
    """
    folders = checkpoint_folders(run)
    newest = run / f"checkpoint-{step}"
    past = folders[: folders.index(newest) + 1]
    retained = {newest} | {folder for folder in past if folder.name == f"checkpoint-{always}"}
    for folder in reversed(past):
        if len(retained) < limit:
            retained.add(folder)
    for folder in folders:
        if folder not in retained:
            # Renamed first: a kill during the removal leaves no incomplete checkpoint under a checkpoint's name.
            removed = folder.with_name(f"{TEMPORARY}removed-{folder.name}")
            with storage_errors(folder):
                folder.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)


class Checkpointer:
    """Saves and restores the checkpoints of one run. Only the main process writes."""

    def __init__(self, run: Path, components: TrainingComponents, log: JsonLog | None) -> None:
        self._run, self._components, self._log = run, components, log
        self._saved_step = -1

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint, unless this step has one, then remove the oldest ones beyond the limit."""
        inputs = self._components.inputs
        if self._saved_step != state.step:
            self._saved_step = state.step
            self._write(state)
        if inputs.accelerator.is_main_process:  # also if this step has one: a killed run may have left too many
            best_step = None if state.best is None else state.best["step"]
            keep_newest(self._run, state.step, inputs.config.training.save_total_limit, best_step)

    def _write(self, state: TrainingState) -> None:
        components, inputs = self._components, self._components.inputs
        inputs.accelerator.wait_for_everyone()
        labels = components.planner.tensors()
        if not inputs.accelerator.is_main_process:
            return
        if self._log is not None:
            state.log_bytes, state.log_sha256 = self._log.synced()
        scaler = inputs.accelerator.scaler
        content = {
            "training": state.to_dict(),
            "identity": components.resume_fingerprint(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        optimizer = optimizer_tensors(components.bare_optimizer, components.model)

        def write_files(folder: Path) -> None:
            save_model(components.model, inputs.tokenizer, folder)
            save_file(optimizer, folder / OPTIMIZER_FILE)
            if labels:
                save_labels(folder, labels, train_fingerprint=inputs.fingerprint["train"])

        with components.embeddings.whole(components.decay(state)):
            write_checkpoint(self._run, state.step, content, write_files)

    def restore(self, folder: Path, content: dict[str, Any]) -> TrainingState:
        """Load a checkpoint's weights, optimiser, scaler and token labels, and return its state."""
        components, scaler = self._components, self._components.inputs.accelerator.scaler
        state = TrainingState.from_dict(content["training"])
        with fitting(folder):
            with components.embeddings.loading(components.decay(state)):
                components.model.load_state_dict(load_file(folder / MODEL_FILE))
            load_optimizer_tensors(components.bare_optimizer, components.model, load_file(folder / OPTIMIZER_FILE))
            if content.get("scaler") and scaler is not None:
                scaler.load_state_dict(content["scaler"])
            if (folder / LABELS_FILE).is_file():
                components.planner.restore(load_labels(folder)[0])
        self._saved_step = state.step
        return state
