"""The run folder: who may write to it, and what it holds.

config.yaml                    the complete configuration, re-runnable
config.json, model.safetensors, tokenizer files: loads with from_pretrained
README.md                      the model card
metrics.json, run.json         scores; run.json is written last and marks a finished run
predictions_SPLIT.csv          one row a text
labels.safetensors             the token labels of the last epoch, where the method makes some
log.jsonl, checkpoint-STEP/    what happened, and what to resume from
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_flat, to_yaml
from attentune.errors import CheckpointError, ConfigError, StorageError
from attentune.io.files import check_links, storage_errors, write_text
from attentune.io.locks import close_lock, lock_handle, open_lock_file
from attentune.results import RESULT_FILE
from attentune.training.checkpoint import checkpoint_folders, is_leftover, remove_leftovers
from attentune.training.signals import Pruned, command_to_resume

# What it is called in messages.
_NAMES = {
    "data": "the rows",
    "tokens": "the tokens that the tokenizer makes of them",
    "processes": "the number of processes",
    "precision": "the precision",
    "device": "the kind of device",
    "fused_layers": "the layers that train by the C code (--fused_layers, which needs a C compiler)",
}
# Of an encoder's settings, those that say who wrote them and with what.
_OF_THE_WRITER = {"_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words; empty where nothing does.

    Args:
        before: the resume_fingerprint in a checkpoint.
        now: that of the run which would go on from it; see `TrainingComponents.resume_fingerprint`.
    """
    others = [name for name in _NAMES if name in before and name in now and before[name] != now[name]]
    if "data" in others and "tokens" in others:  # other rows make other tokens
        others.remove("tokens")
    found = [f"{_NAMES[name]}{_splits(before[name], now[name])}" for name in others]
    encoder = _other_settings(before.get("encoder", {}), now.get("encoder", {}))
    return [*found, *([f"the encoder ({', '.join(encoder)})"] if encoder else [])]


def _splits(before: Any, now: Any) -> str:
    """The splits that differ, or the values."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return f" (was {before}, now {now})"
    names = sorted({*before, *now})
    return f" ({', '.join(name for name in names if before.get(name) != now.get(name))})"


def _other_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings with other values. A version of transformers may know more of them than another: both must have it."""
    shared = [name for name in before if name in now and name not in _OF_THE_WRITER]
    return [f"{name}: was {before[name]!r}, now {now[name]!r}" for name in shared if before[name] != now[name]]


CONFIG_FILE, METRICS_FILE = "config.yaml", "metrics.json"
_LOCK_FILE = ".lock"
# Differences that a resumed run may have: they say how the command was given, not what is computed.
_FREE_ON_RESUME = {"output_dir", "resume", "overwrite_output_dir", "save_total_limit", "logging_steps", "report_to"}


def config_for_run(config: Config) -> Config:
    """The configuration to train with. `--resume --output_dir RUN` without data takes all from RUN's own config.yaml.

    Raises:
        ConfigError: no output folder is named.
        CheckpointError: there is nothing to resume from, or settings are given that differ from the run's own.
    """
    folder = config.training.output_dir
    if folder is None:
        raise ConfigError("training.output_dir: is missing; name the run folder: --output_dir runs/my-run")
    data = config.data
    sourceless = all(way is None for way in (data.task, data.tasks, data.train_file, data.dataset_name))
    if not (config.training.resume and sourceless):
        return config
    file = Path(folder) / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder}: has no {CONFIG_FILE}, so there is no run to resume. Train without --resume.")
    check_links(Path(folder))
    own, defaults, given = (to_flat(part) for part in (load_config(file, as_record=True), Config(), config))
    given = {name: value for name, value in given.items() if value != defaults.get(name)}
    _refuse_changes(Path(folder), own, given)
    kept = {
        name: value
        for name, value in given.items()
        if name.split(".")[-1] in _FREE_ON_RESUME or name == "model.trust_remote_code"
    }
    return load_config(file, {**kept, "training.output_dir": folder, "training.resume": True})


def check_folder(config: Config) -> None:
    """Refuse a folder that must not be written to, before any work is done.

    Raises:
        CheckpointError: it holds something, and neither --resume nor --overwrite_output_dir is given; or the run in it
            had other settings; or what it holds is no run of ours.
    """
    run = Path(str(config.training.output_dir))
    with storage_errors(run):
        if not run.exists():
            return
        content = _content(run)
    if not content:
        return
    if config.training.resume:
        _check_same_settings(run, config)
    elif not config.training.overwrite_output_dir:
        raise CheckpointError(
            f"{run}: is not empty. Go on with --resume, start anew with --overwrite_output_dir, or name another folder."
        )
    elif CONFIG_FILE not in content:
        raise CheckpointError(
            f"{run}: holds no {CONFIG_FILE}, so it is no run folder and will not be emptied. Name another."
        )


def _check_same_settings(run: Path, config: Config) -> None:
    check_links(run)
    if not (run / CONFIG_FILE).is_file():
        raise CheckpointError(f"{run}: has no {CONFIG_FILE}, so there is no run to resume. Name another folder.")
    _refuse_changes(run, to_flat(load_config(run / CONFIG_FILE, as_record=True)), to_flat(config))


def _refuse_changes(run: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [
        f"{name}: was {before.get(name)!r}, now {value!r}"
        for name, value in now.items()
        if name.split(".")[-1] not in _FREE_ON_RESUME and before.get(name) != value
    ]
    if changed:
        raise CheckpointError(
            f"{run}: was begun with other settings, so resuming would mix two runs: {'; '.join(changed)}."
            f" Resume with its own: {command_to_resume(run)}"
        )


@contextlib.contextmanager
def opened_folder(config: Config, *, is_main: bool = True) -> Iterator[Path]:
    """Make, empty or reopen the run folder and keep other processes out of it.

    A folder that was new or empty is so again when the run fails before there is anything to resume from.

    Raises:
        CheckpointError: another process is writing to it.
        StorageError: it cannot be made or written to.
    """
    run = Path(str(config.training.output_dir))
    if not is_main:  # under several processes one looks after the folder
        yield run
        return
    with storage_errors(run):
        is_new = _made(run)
        lock = _locked(run, is_new)
    was_empty = not _content(run)
    try:
        check_folder(config)  # again, now that no other process can fill it
        with storage_errors(run):
            if config.training.overwrite_output_dir:
                _empty(run)
            remove_leftovers(run)
        write_text(run / CONFIG_FILE, to_yaml(_rerunnable(config)))
        yield run
    except Pruned:
        raise  # what it logged is wanted
    except BaseException:
        if was_empty and not checkpoint_folders(run):
            _clear(run, keep_folder=not is_new)
        raise
    finally:
        close_lock(lock)


@contextlib.contextmanager
def locked_folder(run: Path) -> Iterator[None]:
    """Keep other processes out of a run folder that is there.

    Raises:
        CheckpointError: another process is writing to it.
        StorageError: it cannot be written to.
    """
    with storage_errors(run):
        lock = _locked(run, is_new=False)
    try:
        yield
    finally:
        close_lock(lock)


def _rerunnable(config: Config) -> Config:
    """Without what holds for one call only."""
    return replace(config, training=replace(config.training, resume=False, overwrite_output_dir=False))


def _content(run: Path) -> list[str]:
    """The names of what is there, without what a killed process left half-written: that counts for nothing."""
    return [entry.name for entry in run.iterdir() if entry.name != _LOCK_FILE and not is_leftover(entry)]


def _made(run: Path) -> bool:
    """Make the folder if it is not there; whether this process made it (of two at once only one does)."""
    run.parent.mkdir(parents=True, exist_ok=True)
    try:
        run.mkdir()
    except FileExistsError:
        if not run.is_dir():
            raise
        return False
    return True


def _locked(run: Path, is_new: bool) -> int:
    """The run folder's lock, held until it is closed or the process ends, however it ends."""
    try:
        lock = open_lock_file(run / _LOCK_FILE)
    except OSError:
        if is_new:
            run.rmdir()
        raise
    if not lock_handle(lock, wait=False):
        os.close(lock)
        raise CheckpointError(f"{run}: another process is training in this folder. Wait for it, or name another.")
    return lock


def _empty(run: Path) -> None:
    """Take everything away: first what says that a run is finished, last what says that this is a run's folder."""
    place = {RESULT_FILE: -1, CONFIG_FILE: 1}
    for entry in sorted(run.iterdir(), key=lambda entry: place.get(entry.name, 0)):
        if entry.name == _LOCK_FILE:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _clear(run: Path, *, keep_folder: bool) -> None:
    """Take away what a failed run wrote, as far as the disk lets us; the failure itself is what the user should see."""
    with contextlib.suppress(OSError):
        _empty(run)
        (run / _LOCK_FILE).unlink(missing_ok=True)
        if not keep_folder:
            run.rmdir()


def check_writable(config: Config) -> None:
    """Find out before an hour of work, not after, that the folder cannot be made.

    Raises:
        StorageError: the nearest existing folder above cannot be written to.
    """
    place = Path(str(config.training.output_dir)).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise StorageError(f"{place}: is a file, so no run folder can be made there; name another --output_dir.")
    if not os.access(place, os.W_OK):
        raise StorageError(f"{place}: cannot be written to; name another --output_dir.")
