"""Checkpoints, written atomically: a folder `checkpoint-STEP` is complete or does not exist.

A checkpoint is written to a temporary folder, each file is flushed to the disk, a manifest with sizes and hashes is
added, and the folder is renamed to `checkpoint-STEP`. Later damage is detected through the manifest.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from attentune.errors import CheckpointError, StorageError
from attentune.io import files
from attentune.io.files import read_json, storage_errors, sync_file, sync_folder, write_manifest, written_together
from attentune.models.build import hub_name
from attentune.models.saving import save_model
from attentune.models.slots import adapter_settings
from attentune.token_labels.plan import LABELS_FILE, load_labels, save_labels
from attentune.training.callbacks import ProgressDisplay, TrainingState
from attentune.training.optimizer import bare_optimizer, load_optimizer_tensors, optimizer_tensors
from attentune.training.prepare import wants_best
from attentune.training.run_folder import TEMPORARY, changes, checkpoint_folders, command_to_resume
from attentune.training.trainer import Trainer

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
    """Return the newest undamaged checkpoint, or None; with `with_best` its best one must be undamaged too."""
    for folder in reversed(checkpoint_folders(run)):
        problem = verify_checkpoint(folder)
        if problem is None and with_best:
            problem = _damage_of_best(run, folder)
        if problem is None:
            return folder
        warn(f"{folder}: skipped: {problem}. An older checkpoint is used instead, if there is one.")
    return None


def _damage_of_best(run: Path, folder: Path) -> str | None:
    """Return the fault of the checkpoint that was the best when this one was written; None if it is sound."""
    best = read_state(folder)["state"]["best"]
    if best is None or best["step"] == int(folder.name.removeprefix("checkpoint-")):
        return None
    best_folder = run / f"checkpoint-{best['step']}"
    problem = verify_checkpoint(best_folder) if best_folder.is_dir() else "it is missing"
    return None if problem is None else f"the best weights until then, of {best_folder.name}, cannot be used: {problem}"


def read_state(folder: Path) -> dict[str, Any]:
    try:
        content = read_json(folder / STATE)
        if not isinstance(content["identity"], dict):
            raise ValueError("identity is not an object")
        TrainingState.from_dict(content["state"])
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
    """Remove all but the newest `limit` checkpoints, and those newer than `step`, skipped as damaged on resuming."""
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
    """Saves and restores the checkpoints of a run. Only the main process writes."""

    def __init__(self, run: Path, trainer: Trainer) -> None:
        self._run, self._trainer = run, trainer
        self._saved_step = -1

    def save(self) -> None:
        """Write a checkpoint, unless this step has one, then remove the oldest ones beyond the limit."""
        trainer, state = self._trainer, self._trainer.state
        if self._saved_step != state.step:
            self._saved_step = state.step
            trainer.check_weights()
            self._write()
            for callback in trainer.callbacks:
                callback.on_save(state)
        if trainer.accelerator.is_main_process:  # also if this step has one: a killed run may have left too many
            best = None if state.best is None else state.best["step"]
            keep_newest(self._run, state.step, trainer.training.save_total_limit, best)

    def _write(self) -> None:
        trainer, state = self._trainer, self._trainer.state
        trainer.accelerator.wait_for_everyone()
        labels = trainer.planner.tensors()
        if not trainer.accelerator.is_main_process:
            return
        if trainer.log is not None:
            state.log_bytes = trainer.log.synced_bytes()
        scaler = trainer.accelerator.scaler
        content = {
            "state": asdict(state),
            "identity": trainer.resume_fingerprint(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        optimizer = optimizer_tensors(bare_optimizer(trainer.optimizer), trainer.model)

        def write_files(folder: Path) -> None:
            _save_model(folder, trainer, labels)
            save_file(optimizer, folder / OPTIMIZER_FILE)

        with trainer.embeddings.whole(trainer.decay()):
            write_checkpoint(self._run, state.step, content, write_files)

    def restore(self, display: ProgressDisplay) -> bool:
        """Go back to the newest undamaged checkpoint: weights, optimiser, state, token labels; False without one."""
        trainer, scaler = self._trainer, self._trainer.accelerator.scaler
        folder = newest_good(self._run, display.warning, with_best=wants_best(trainer.training))
        if folder is None:
            display.info(f"{self._run}: no checkpoint to resume from; starting at the beginning.")
            return False
        content = read_state(folder)
        if differences := changes(content["identity"], trainer.resume_fingerprint()):
            raise CheckpointError(
                f"{self._run}: cannot be resumed: {' and '.join(differences)} changed since it was begun, so the result"
                " would be of two mixed runs. Put back what was there, or train again from the start with"
                " --overwrite_output_dir."
            )
        display.info(f"resuming from {folder}")
        with fitting(folder):
            trainer.state = TrainingState.from_dict(content["state"])
            with trainer.embeddings.loading(trainer.decay()):
                trainer.model.load_state_dict(load_file(folder / MODEL_FILE))
            optimizer = bare_optimizer(trainer.optimizer)
            load_optimizer_tensors(optimizer, trainer.model, load_file(folder / OPTIMIZER_FILE))
            if content.get("scaler") and scaler is not None:
                scaler.load_state_dict(content["scaler"])
            if (folder / LABELS_FILE).is_file():
                trainer.planner.restore(load_labels(folder / LABELS_FILE)[0])
        self._saved_step = trainer.state.step
        return True


# The folder of the adapters alone; the run folder has the merged weights.
ADAPTER_FOLDER = "adapter"


def load_best(run: Path, trainer: Trainer) -> int:
    """Load the best weights if the settings say so; return the step of the final weights."""
    state = trainer.state
    if not wants_best(trainer.training) or state.best is None or state.best["step"] == state.step:
        return state.step
    folder = run / f"checkpoint-{state.best['step']}"
    problem = verify_checkpoint(folder)
    if problem is not None:
        raise CheckpointError(
            f"{folder}: has the best weights, but {problem}. To train them again: {command_to_resume(run)}"
        )
    trainer.model.load_state_dict(load_file(folder / MODEL_FILE))
    return state.best["step"]


def save_final_model(run: Path, trainer: Trainer, labels: dict[str, np.ndarray]) -> None:
    """Write the model and the token labels, if any, all or nothing."""
    with written_together(run, f"{TEMPORARY}model-{os.getpid()}") as temporary:
        _save_model(temporary, trainer, labels)


def _save_model(folder: Path, trainer: Trainer, labels: dict[str, np.ndarray]) -> None:
    save_model(trainer.model, trainer.inputs.tokenizer, folder)
    if labels:
        save_labels(folder / LABELS_FILE, labels, train_fingerprint=trainer.inputs.fingerprint["train"])


def save_adapters(folder: Path, adapters: dict[str, torch.Tensor], trainer: Trainer, lora: dict[str, Any]) -> None:
    """Save the encoder's adapters alone, in peft's format."""
    base = hub_name(trainer.inputs.config.model.name_or_path)
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        save_file(adapters, folder / "adapter_model.safetensors")
        settings = adapter_settings(lora, trainer.model.encoder, base_model_name_or_path=base, inference_mode=True)
        settings.save_pretrained(str(folder))
        # The same permissions as the other files; safetensors writes private ones.
        (folder / "adapter_model.safetensors").chmod((folder / "adapter_config.json").stat().st_mode)
