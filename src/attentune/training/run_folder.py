"""The run folder: its files, its lock, and the checks before a run starts or resumes, which import no PyTorch.

config.yaml                    the complete configuration, re-runnable
config.json, model.safetensors, tokenizer files: loads with from_pretrained
README.md                      the model card
metrics.json, run.json         scores; run.json is written last and marks a finished run
predictions_SPLIT.csv          one line for each row of the split
labels.safetensors             the token labels of the last epoch, if the method has some
baseline.json, baseline.safetensors   instead of a model, if the run fitted a baseline
log.jsonl, checkpoint-STEP/    losses and scores during training; checkpoints to resume from
"""

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from attentune.config import Config, DataConfig, load_config, to_flat, to_yaml
from attentune.data.columns import with_columns
from attentune.errors import CheckpointError, ConfigError, StorageError
from attentune.io.files import FileLock, check_links, storage_errors, write_text
from attentune.models.encoder_list import check_at_hand, check_length
from attentune.results import RESULT_FILE

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A stop was requested and training has saved. `folder` is the run folder to resume from."""

    def __init__(self, folder: str, step: int) -> None:
        self.folder, self.step = folder, step
        super().__init__(f"stopped and saved at step {step}; resume with: {command_to_resume(folder)}")


def command_to_resume(folder: str | Path) -> str:
    return shlex.join(["attentune", "train", "--resume", "--output_dir", str(folder)])


class Pruned(Exception):
    """A run of a search was pruned: its scores were worse than those of others. The text has its score."""


class StopRequest:
    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Stopped(KeyboardInterrupt):
    """The first stop request, where `raise_on_signal` has it end a block at once."""


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM while the block runs, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def raise_on_signal(request: StopRequest) -> Iterator[None]:
    """Raise `Stopped` in the block at the first signal, for work that can be given up."""

    def handle(number: int, frame: FrameType | None) -> None:
        request(number, frame)
        raise Stopped

    with _handled(handle):
        yield


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs. A nested block shares the request of the outer one."""
    is_main = threading.current_thread() is threading.main_thread()
    outer = signal.getsignal(signal.SIGTERM)
    if is_main and isinstance(outer, StopRequest):
        yield outer
        return
    request = StopRequest()
    with _handled(request):
        yield request


# Settings that are None until `prepare.choose_settings` sets them.
RULED = (
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "eval_strategy",
    "eval_steps",
    "save_steps",
    "load_best_model_at_end",
)

# Their names in messages.
_NAMES = {
    "data": "the rows",
    "tokens": "the tokens that the tokenizer makes of them",
    "processes": "the number of processes",
    "precision": "the precision",
    "device": "the kind of device",
    "fused_layers": "the layers that train by the C code (--fused_layers, which needs a C compiler)",
}
# Settings of an encoder that depend on the version that wrote them.
_WRITER_SETTINGS = {"_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two resume fingerprints, in words."""
    others = [name for name in _NAMES if name in before and name in now and before[name] != now[name]]
    if "data" in others and "tokens" in others:  # different rows have different tokens
        others.remove("tokens")
    differences = [f"{_NAMES[name]}{_splits(before[name], now[name])}" for name in others]
    was, encoder = before.get("encoder", {}), now.get("encoder", {})
    shared = [name for name in was if name in encoder and name not in _WRITER_SETTINGS]  # transformers may add some
    settings = [f"{name}: was {was[name]!r}, now {encoder[name]!r}" for name in shared if was[name] != encoder[name]]
    return [*differences, *([f"the encoder ({', '.join(settings)})"] if settings else [])]


def _splits(before: Any, now: Any) -> str:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return f" (was {before}, now {now})"
    names = sorted({*before, *now})
    return f" ({', '.join(name for name in names if before.get(name) != now.get(name))})"


CONFIG_FILE, METRICS_FILE = "config.yaml", "metrics.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
# How the names of unfinished checkpoints begin.
TEMPORARY = ".writing-"
# The names of the temporary files of `files.write_bytes`.
_TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp$")
_LOCK_FILE = ".lock"
# Settings that a resumed run may change: they do not affect what is computed.
_FREE_ON_RESUME = {
    "output_dir",
    "resume",
    "overwrite_output_dir",
    "save_total_limit",
    "logging_steps",
    "report_to",
    "baselines",
}


def config_for_run(config: Config) -> Config:
    """Return the configuration to train with: settings that are still open are those that a resumed run began with."""
    if config.training.output_dir is None:
        rows = " (and rows to train on: attentune train FILE, --task NAME or --dataset_name NAME)"
        raise ConfigError(
            "training.output_dir: is missing; name the run folder: --output_dir runs/my-run"
            f"{'' if _names_rows(config.data) else rows}"
        )
    file = Path(config.training.output_dir) / CONFIG_FILE
    if not config.training.resume or not file.is_file():
        return config
    check_links(file.parent)
    saved = load_config(file, as_record=True).training
    open_ones = {
        name: getattr(saved, name)
        for name in (*RULED, "per_device_eval_batch_size")
        if getattr(config.training, name) is None
    }
    return replace(config, training=replace(config.training, **open_ones))


def resumed_config(config: Config, given: Mapping[str, Any]) -> Config:
    """Return the settings of the folder's run, with the given ones over them; `config` for a run not begun yet."""
    file = Path(str(config.training.output_dir)) / CONFIG_FILE
    if file.is_file():
        check_links(file.parent)
        return load_config(file, given)
    if _names_rows(config.data):
        return config
    raise CheckpointError(f"{file.parent}: has no {CONFIG_FILE}, so there is no run to resume. Train without --resume.")


def _names_rows(data: DataConfig) -> bool:
    return any(way is not None for way in (data.task, data.train_file, data.dataset_name))


def free_folder(name: str) -> Path:
    """Return the first of runs/NAME, runs/NAME-2, ... that does not exist."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(folder for folder in (Path("runs") / name for name in names) if not os.path.lexists(folder))


def check_folder(config: Config) -> None:
    """Check that the run may write to its folder, before any work is done."""
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
            f"{run}: is not empty. Go on with --resume, train again from the start with"
            " --overwrite_output_dir, or name another folder."
        )
    elif CONFIG_FILE not in content:
        raise CheckpointError(
            f"{run}: holds no {CONFIG_FILE}, so it is no run folder and will not be emptied. Name another."
        )


def check_own_folder(folder: Path, command: str, *, is_own: bool, resume: bool, overwrite: bool) -> None:
    """Check that a command other than train may write to a folder: it is new, empty or its own, and that is wanted."""
    content = [entry for entry in folder.iterdir() if entry.name != ".lock"] if folder.is_dir() else []
    if not content or (is_own and (resume or overwrite)):
        return
    cure = (
        "Go on with --resume, start again with --overwrite_output_dir, or name another folder."
        if is_own
        else f"It is not a folder of attentune {command}. Name another --output_dir."
    )
    raise CheckpointError(f"{folder}: is not empty. {cure}")


def _check_same_settings(run: Path, config: Config) -> None:
    check_links(run)
    if not (run / CONFIG_FILE).is_file():
        raise CheckpointError(f"{run}: has no {CONFIG_FILE}, so there is no run to resume. Name another folder.")
    saved = load_config(run / CONFIG_FILE, as_record=True)
    # Columns that are not given are found again as they were before, and noted alike.
    columns = {name: getattr(saved.data, name) for name in ("text_column", "text_pair_column", "label_column")}
    before, now = to_flat(saved), to_flat(replace(config, data=with_columns(config.data, columns)))
    changed = [
        f"{name}: was {before[name]!r}, now {value!r}"
        for name, value in now.items()
        if name.split(".")[-1] not in _FREE_ON_RESUME and before[name] != value
    ]
    if changed:
        raise CheckpointError(
            f"{run}: was begun with other settings, so resuming would mix two runs: {'; '.join(changed)}."
            f" Resume with its own: {command_to_resume(run)} (in Python with load_config({str(run / CONFIG_FILE)!r},"
            " {'training.resume': True}))"
        )


@contextlib.contextmanager
def opened_folder(config: Config, *, is_main: bool = True) -> Iterator[Path]:
    """Create, empty or reopen the run folder, and lock it.

    If the run fails before its first checkpoint, a folder that was new or empty is restored to that.
    """
    run = Path(str(config.training.output_dir))
    if not is_main:  # with several processes, the main one manages the folder
        yield run
        return
    with storage_errors(run):
        run.parent.mkdir(parents=True, exist_ok=True)
        is_new = not run.exists()
        run.mkdir(exist_ok=True)
        lock = _lock(run, is_new)
    was_empty = not _content(run)
    try:
        check_folder(config)  # again, now that the folder is locked
        with storage_errors(run):
            if config.training.overwrite_output_dir:
                empty_folder(run)
            for entry in filter(is_leftover, run.iterdir()):
                _remove(entry, ignore_errors=True)  # what cannot be removed harms nothing
        # Without the options of a single call, so that the file can be run again.
        training = replace(config.training, resume=False, overwrite_output_dir=False)
        write_text(run / CONFIG_FILE, to_yaml(replace(config, training=training)))
        yield run
    except Pruned:
        raise  # its log is needed
    except BaseException:
        if was_empty and not checkpoint_folders(run):
            _clear(run, keep_folder=not is_new)
        raise
    finally:
        lock.free()


@contextlib.contextmanager
def locked_folder(run: Path) -> Iterator[None]:
    with storage_errors(run):
        lock = _lock(run, is_new=False)
    try:
        yield
    finally:
        lock.free()


def _content(run: Path) -> list[str]:
    """Return the names of the folder's entries, without leftovers of killed processes."""
    return [entry.name for entry in run.iterdir() if entry.name != _LOCK_FILE and not is_leftover(entry)]


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the checkpoints in a run folder, oldest first, damaged ones included."""
    numbered = [
        (int(match[1]), entry)
        for entry in run.iterdir()
        if entry.is_dir() and not entry.is_symlink() and (match := _CHECKPOINT.match(entry.name))
    ]
    return [entry for _, entry in sorted(numbered)]


def is_leftover(entry: Path) -> bool:
    """Whether a killed process left this incomplete."""
    return entry.name.startswith(TEMPORARY) if entry.is_dir() else _TEMPORARY_FILE.match(entry.name) is not None


def _remove(entry: Path, *, ignore_errors: bool = False) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=ignore_errors)
    else:
        entry.unlink(missing_ok=True)


def _lock(run: Path, is_new: bool) -> FileLock:
    """Lock the run folder, until the lock is freed or the process ends."""
    lock = FileLock(run / _LOCK_FILE)
    try:
        is_taken = lock.take(wait=False)
    except StorageError:
        if is_new:
            run.rmdir()
        raise
    if not is_taken:
        raise CheckpointError(
            f"{run}: another process is training in this folder ({_LOCK_FILE} is locked). Wait for it, or name another."
        )
    return lock


def empty_folder(run: Path, *, first: str = RESULT_FILE, keep: Sequence[str] = ()) -> None:
    """Remove all but the lock and `keep`: `first` first, and last the file that marks a run folder."""
    order = {first: -1, CONFIG_FILE: 1}
    with storage_errors(run):
        for entry in sorted(run.iterdir(), key=lambda entry: order.get(entry.name, 0)):
            if entry.name not in (_LOCK_FILE, *keep):
                _remove(entry)


def _clear(run: Path, *, keep_folder: bool) -> None:
    """Remove what a failed run wrote. Errors are ignored: the user should see the failure itself."""
    with contextlib.suppress(OSError, StorageError):
        empty_folder(run)
        (run / _LOCK_FILE).unlink(missing_ok=True)
        if not keep_folder:
            run.rmdir()


def check_writable(config: Config) -> None:
    """Check that the run folder can be created, before any work is done."""
    parent = Path(str(config.training.output_dir)).absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise StorageError(f"{parent}: is a file, so no run folder can be made there; name another --output_dir.")
    if not os.access(parent, os.W_OK):
        raise StorageError(f"{parent}: cannot be written to; name another --output_dir.")


def check_feasible(config: Config) -> None:
    """Check precision and encoder, as far as PyTorch and the encoder's weights are not needed for it."""
    training, data = config.training, config.data
    if training.precision == "fp16" and (training.use_cpu or version("torch").endswith("+cpu")):
        reason = "--use_cpu is given" if training.use_cpu else "the installed PyTorch is built for CPUs only"
        raise ConfigError(f"training.precision: fp16 needs a GPU, but {reason}; expected auto, bf16 or fp32.")
    if config.baseline is None:
        check_at_hand(config.model.name_or_path)
        if data.long_texts == "cut" and data.max_length is not None:
            check_length(config.model.name_or_path, data.max_length)
