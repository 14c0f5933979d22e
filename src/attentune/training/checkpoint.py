"""Checkpoints: folders that are whole or not there.

A checkpoint is written to a temporary folder, each file is flushed to the disk, a manifest with sizes and hashes is
added, and the folder is renamed to `checkpoint-STEP`. Whatever kills the process, what bears that name is complete;
damage that comes later is found through the manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from attentune.errors import CheckpointError
from attentune.files import read_json, sha256_of, storage_errors, sync_file, sync_folder
from attentune.training.state import TrainingState

MANIFEST = "manifest.json"
STATE = "state.json"
_NAME = re.compile(r"checkpoint-(\d+)$")
TEMPORARY = ".writing-"
_MEND = "Delete this checkpoint; the same command goes on from an older one, or begins anew."


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints in a run folder, oldest first, good or not."""
    found = [
        (int(match[1]), entry)
        for entry in run.iterdir()
        if _is_own_folder(entry) and (match := _NAME.match(entry.name))
    ]
    return [entry for _, entry in sorted(found)]


def _is_own_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def write_checkpoint(run: Path, step: int, state: dict[str, Any], write_files: Callable[[Path], None]) -> Path:
    """Write `checkpoint-STEP` whole.

    Args:
        run: the run folder.
        step: optimiser steps done.
        state: what `state.json` holds: everything that is neither weights nor optimiser.
        write_files: writes weights and the rest into the folder that it is given.

    Raises:
        StorageError: the disk refused; no part of the checkpoint remains.
    """
    target, temporary = run / f"checkpoint-{step}", run / f"{TEMPORARY}{step}-{os.getpid()}"
    with storage_errors(target):
        try:
            temporary.mkdir()
            write_files(temporary)
            (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
            files = sorted(path for path in temporary.iterdir())
            manifest = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for path in temporary.iterdir():
                sync_file(path)
            sync_folder(temporary)
            if target.exists():  # a torn one of the same step, passed over when resuming
                shutil.rmtree(target)
            temporary.rename(target)
            sync_folder(run)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None if every file is as it was written."""
    try:
        manifest = read_json(folder / MANIFEST)
        for name, facts in manifest.items():
            path = folder / Path(name).name
            if not path.is_file() or path.is_symlink():
                return f"{name} is missing"
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, not {facts['bytes']}"
            if sha256_of(path) != facts["sha256"]:
                return f"the content of {name} has changed"
        return None if {STATE, "model.safetensors"} <= set(manifest) else f"{MANIFEST} names no weights or state"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"


def newest_good(run: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest undamaged checkpoint, or None; each damaged one that is passed over is warned of."""
    for folder in reversed(checkpoint_folders(run)):
        problem = damage(folder)
        if problem is None:
            return folder
        warn(f"{folder}: passed over: {problem}. An older checkpoint is used instead, if there is one.")
    return None


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        content = read_json(folder / STATE)
        states = [content["training"]] if "training" in content else [*content["tasks"].values()]
        if not isinstance(content["identity"], dict):
            raise ValueError("identity is no object")
        for state in states:
            TrainingState.from_dict(state)
        return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read ({error}). {_MEND}") from error


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Turn what goes wrong while a checkpoint's content is put into a run into one message: anyone may have made it.

    Raises:
        CheckpointError: it does not fit.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder}: does not fit this run ({reason}). {_MEND}") from error


def remove_leftovers(run: Path) -> None:
    """Remove what a killed process left half-written."""
    for entry in run.iterdir():
        if entry.is_dir() and entry.name.startswith(TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.is_file() and entry.name.startswith(".") and entry.name.endswith(".tmp"):
            entry.unlink(missing_ok=True)


def keep_newest(run: Path, limit: int, always: int | None) -> None:
    """Remove all but the newest `limit` checkpoints; the one of step `always` (the best) is kept and counts.

    Called only after a newer checkpoint has been written and renamed.
    """
    folders = checkpoint_folders(run)
    kept = {folders[-1]} | {folder for folder in folders if folder.name == f"checkpoint-{always}"} if folders else set()
    for folder in reversed(folders):
        if len(kept) < limit:
            kept.add(folder)
    for folder in folders:
        if folder not in kept:
            # Renamed first: a kill in the middle of the removal leaves no half checkpoint under a checkpoint's name.
            doomed = folder.with_name(f"{TEMPORARY}removed-{folder.name}")
            with storage_errors(folder):
                folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
