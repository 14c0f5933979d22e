"""Training the portfolio's members on folds, in worker processes.

A member's folder has a folder for each fold: `fold-1` is trained on the rows of all other folds and predicts those of
fold 1. A fine-tuned member's fold is an ordinary run folder, a baseline's a baseline folder. `fold.json` is written
last and marks a finished fold; `heldout.safetensors` has the logits of its rows.

Everything below `run_task` runs in a worker process (`workers`), which holds the rows; a task names a member and its
folds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from attentune.automl.budget import EncoderSpeed, load_of
from attentune.automl.portfolio import Member
from attentune.config import Config, ModelConfig, load_config, to_flat
from attentune.data.dataset import TaskData, TextRows
from attentune.errors import AttentuneError, CheckpointError
from attentune.io.files import read_json, storage_errors, write_text
from attentune.training.signals import Interrupted, StopRequest

FOLD_FILE, HELD_OUT_FILE, REFIT_FOLDER = "fold.json", "heldout.safetensors", "all"
# Before its folds: the task of a member whose encoder is adapted to the texts.
ADAPTATION = 0
WEIGHTS_FILE = "model.safetensors"
_PROBE_ROWS, _PROBE_STEPS = 256, 24
# The data settings of a member's runs: how rows are read. They get the rows themselves.
_DATA_SETTINGS = (
    "text_column",
    "text_pair_column",
    "label_column",
    "id_column",
    "task_type",
    "label_separator",
    "label_names",
    "ignore_labels",
    "max_length",
    "long_texts",
    "stride",
    "max_windows",
)
# Settings of the whole command, not of a member's runs.
_NOT_PASSED_ON = ("preset", "training.output_dir", "training.resume", "training.overwrite_output_dir")


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker process holds from its start."""

    data: TaskData  # the rows to train on and to predict, as the split "train"
    settings: dict[str, Any]  # overrides of all members' presets, by dotted name
    max_length: int  # the maximum number of tokens of a text
    use_cpu: bool  # not to use an accelerator
    unlabeled: TextRows | None = None  # further texts to adapt encoders to


@dataclass(frozen=True)
class FoldTask:
    """What a worker does at a time: one fold of a fine-tuned member, or all folds of a baseline."""

    member: Member
    folds: tuple[int, ...]  # their numbers; `ADAPTATION` alone to adapt the member's encoder
    folder: str  # the member's folder
    folds_file: str  # has the fold of each row; see `save_folds`
    updates: int  # the updates of a fine-tuned member, of `batch_size` rows each
    batch_size: int
    save_steps: int  # its updates between checkpoints
    deadline: float  # the time (`time.time()`) at which it saves a checkpoint and stops
    fewest_updates: int | None = None  # a fine-tuned member that has done so many ends early instead
    ending_s: float = 0.0  # it does so these seconds before the deadline
    tokens_per_s: float = 0.0  # the speed at which that time was predicted; a slower run ends in proportion earlier

    @property
    def name(self) -> str:
        if self.is_adaptation:
            return f"{self.member.name}, adapting its encoder"
        return f"{self.member.name}, fold {self.folds[0]}" if len(self.folds) == 1 else self.member.name

    @property
    def is_adaptation(self) -> bool:
        return self.folds == (ADAPTATION,)


@dataclass(frozen=True)
class ProbeTask:
    """A short timed training run with an encoder, of at most `limit_s` seconds; its result is an `EncoderSpeed`."""

    encoder: str
    folder: str
    limit_s: float

    @property
    def name(self) -> str:
        return f"the speed of {self.encoder}"


@dataclass(frozen=True)
class TaskResult:
    """How a task ended."""

    status: str  # "done", "stopped" (at the deadline or on request; it can be resumed), or "failed"
    seconds: float = 0.0  # the time that it took
    message: str = ""  # why it failed
    speed: EncoderSpeed | None = None  # of a probe
    error: AttentuneError | None = None  # an error that the user can correct
    ended_at: int | None = None  # the updates of a fine-tuned member whose fold ended early
    load: float = 1.0  # by how much other processes slowed it down; see `EncoderSpeed`


def settings_of(config: Config) -> dict[str, Any]:
    """Return the settings that a user has set, as overrides of all members' presets."""
    defaults = to_flat(Config())
    return {
        name: value
        for name, value in to_flat(config).items()
        if value != defaults.get(name)
        and name not in _NOT_PASSED_ON
        and (not name.startswith("data.") or name.removeprefix("data.") in _DATA_SETTINGS)
    }


def save_folds(file: Path, folds_N: np.ndarray) -> None:
    """Write the fold of each row, from 1; 0 for rows that are only trained on, -1 for rows that are not used."""
    with storage_errors(file):
        save_file({"folds": folds_N.astype(np.int64)}, file)


def load_folds(file: Path) -> np.ndarray:
    """Read what `save_folds` wrote."""
    try:
        return load_file(file)["folds"]
    except Exception as error:  # safetensors has its own
        raise CheckpointError(f"{file}: cannot be read ({error}). Start again with --overwrite_output_dir.") from error


def fold_folder(folder: str | Path, fold: int) -> Path:
    """Return the folder of a fold in that of its member."""
    return Path(folder) / f"fold-{fold}"


def adapted_encoder(folder: str | Path, member: Member) -> Path:
    """Return the folder of a member's adapted encoder in that of the member."""
    return Path(folder) / f"{Path(member.encoder or '').name}-adapted"


def is_finished(folder: Path) -> bool:
    """Whether a fold is finished."""
    return (folder / FOLD_FILE).is_file()


def fold_seconds(folder: Path) -> float:
    """Return the time that a finished fold took, over all attempts."""
    try:
        return float(read_json(folder / FOLD_FILE)["seconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / FOLD_FILE}: cannot be read ({error}); remove {folder} and resume.") from error


def held_out_logits(folder: str | Path, folds: Sequence[int], rows: int) -> np.ndarray:
    """Return the (N, C) float64 out-of-fold logits of a member; NaN in rows that no fold predicts."""
    logits_NC: np.ndarray | None = None
    for fold in folds:
        file = fold_folder(folder, fold) / HELD_OUT_FILE
        try:
            arrays = load_file(file)
            part_MC, places_M = arrays["logits"], arrays["rows"]
            if logits_NC is None:
                logits_NC = np.full((rows, part_MC.shape[1]), np.nan)
            logits_NC[places_M] = part_MC
        except Exception as error:  # safetensors and NumPy have their own
            raise CheckpointError(f"{file}: cannot be read ({error}); remove {file.parent} and resume.") from error
    if logits_NC is None:
        raise CheckpointError(f"{folder}: has no finished fold.")
    return logits_NC


@dataclass
class MemberState:
    """A member and its progress."""

    member: Member
    folder: Path
    folds: tuple[int, ...]
    waiting: list[int]  # folds that no worker has taken; `ADAPTATION` first if the encoder has still to be adapted
    running: set[int] = field(default_factory=set)  # folds that a worker works on
    kills: dict[tuple[int, ...], int] = field(default_factory=dict)  # killed workers by task
    updates: int = 0  # the updates of its next folds, if they are fewer than the plan's; else 0
    note: str = ""  # why the member was left out; empty if it was not

    @property
    def done(self) -> list[int]:
        return [fold for fold in self.folds if is_finished(fold_folder(self.folder, fold))]

    @property
    def is_complete(self) -> bool:
        """Whether all rows have an out-of-fold prediction and the files for delivery are there."""
        if len(self.done) < len(self.folds):
            return False
        return self.member.is_baseline or all((folder / WEIGHTS_FILE).is_file() for folder in self.folders())

    @property
    def is_started(self) -> bool:
        return bool(self.running or self.done or (self.member.adapted and ADAPTATION not in self.waiting))

    @property
    def is_ready(self) -> bool:
        """Whether a worker can take its next fold."""
        return bool(self.waiting) and ADAPTATION not in self.running

    @property
    def seconds(self) -> float:
        return sum(fold_seconds(fold_folder(self.folder, fold)) for fold in self.done)

    def folders(self) -> list[Path]:
        """Return the folders to deliver: the baseline fitted on all rows, if it is, else the runs of all folds."""
        if self.member.is_baseline and is_finished(self.folder / REFIT_FOLDER):
            return [self.folder / REFIT_FOLDER]
        return [fold_folder(self.folder, fold) for fold in self.folds]


# The state of a worker process: what it holds, and the request to stop its task.
_SETUP: WorkerSetup
_STOP: StopRequest
_FROZEN: dict[str, Any] = {}


def hold(setup: WorkerSetup) -> None:
    """Prepare a worker process."""
    global _SETUP
    _SETUP = setup
    # Loaded before the first task, whose time is measured.
    import attentune.inference.predictor
    import attentune.training.train  # noqa: F401


def run_task(task: FoldTask | ProbeTask, *, stop: StopRequest) -> TaskResult:
    """Do a task in a worker process; errors become results."""
    global _STOP
    began, worked, _STOP = time.perf_counter(), time.thread_time(), stop
    print(f"{time.strftime('%H:%M:%S')} process {os.getpid()}: {task.name}", flush=True)
    result = _result_of(task)
    seconds = time.perf_counter() - began
    load = load_of(seconds, time.thread_time() - worked)
    speed = None if result.speed is None else replace(result.speed, load=load)
    return replace(result, seconds=seconds, load=load, speed=speed)


def _result_of(task: FoldTask | ProbeTask) -> TaskResult:
    import traceback

    try:
        if isinstance(task, ProbeTask):
            return TaskResult("done", speed=_probe(task))
        if task.is_adaptation:
            _adapt(task)
        elif task.member.is_baseline:
            _fit_baseline(task)
        else:
            return TaskResult("done", ended_at=_train_fold(task))
    except Interrupted:
        return TaskResult("stopped")
    except AttentuneError as error:
        return TaskResult("failed", message=str(error), error=error)
    except Exception as error:
        traceback.print_exc()
        return TaskResult("failed", message=f"{type(error).__name__}: {error}")
    return TaskResult("done")


def _raise_if_stopped(deadline: float) -> None:
    if _STOP.requested or time.time() > deadline:
        raise Interrupted("", 0)


def _callback(deadline: float, task: FoldTask | None = None) -> Any:
    """Return a callback that stops training at the deadline, or ends that of this fold before it; see `FoldTask`."""
    from attentune.training.callbacks import TrainingCallback

    class StopCallback(TrainingCallback):
        def __init__(self) -> None:
            self.steps: list[tuple[int, float]] = []  # tokens and seconds so far, at each step
            self.is_late = False
            self.ended_at: int | None = None

        def _check(self) -> None:
            if time.time() > deadline and not _STOP.requested:
                self.is_late = _STOP.requested = True

        def on_step_end(self, state: Any, logs: Mapping[str, float]) -> None:
            self.steps.append((state.tokens, state.seconds))
            if not _STOP.requested and self._has_to_end(state):
                state.stopped_early, self.ended_at = True, state.step
            else:
                self._check()

        def _has_to_end(self, state: Any) -> bool:
            if task is None or task.fewest_updates is None or state.step < task.fewest_updates:
                return False
            slower = max(1.0, task.tokens_per_s * state.seconds / max(state.tokens, 1))
            return time.time() > deadline - task.ending_s * slower

        def on_prediction_step(self, rows: int) -> None:
            self._check()

    return StopCallback()


def _fold_rows(task: FoldTask, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the rows that a fold trains on, and of those it predicts."""
    folds_N = load_folds(Path(task.folds_file))
    return np.flatnonzero((folds_N != fold) & (folds_N >= 0)), np.flatnonzero(folds_N == fold)


def _fit_baseline(task: FoldTask) -> None:
    """Fit a baseline on each fold's rows, and on all rows for delivery."""
    from attentune.baselines.registry import make_baseline

    member, rows = task.member, _SETUP.data.splits["train"]
    encoder = load_config(overrides=_encoder_settings(member)).model
    frozen = None if member.encoder is None else _frozen_encoder(encoder)

    def fitted(places: np.ndarray, seed: int) -> Any:
        made = make_baseline(
            member.method,
            encoder=ModelConfig() if frozen is None else encoder,
            max_length=_SETUP.max_length,
            seed=seed,
            frozen=frozen,
        )
        return made.fit(rows.take(places), _SETUP.data.label_space)

    seed = _seed(member, 0)
    for fold in task.folds:
        folder = fold_folder(task.folder, fold)
        if is_finished(folder):
            continue
        _raise_if_stopped(task.deadline)
        began = time.perf_counter()
        trained, held = _fold_rows(task, fold)
        baseline = fitted(trained, seed)
        logits_MC = baseline.logits(rows.take(held))
        with storage_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        baseline.save(folder)
        _finish_fold(folder, logits_MC, held, time.perf_counter() - began)
    whole = Path(task.folder) / REFIT_FOLDER
    if not is_finished(whole):
        _raise_if_stopped(task.deadline)  # without it, the models of the folds are averaged
        with storage_errors(whole):
            shutil.rmtree(whole, ignore_errors=True)
            whole.mkdir(parents=True)
        every = np.flatnonzero(load_folds(Path(task.folds_file)) >= 0)
        fitted(every, seed).save(whole)
        write_text(whole / FOLD_FILE, json.dumps({"rows": len(every)}) + "\n")


def _frozen_encoder(encoder: ModelConfig) -> Any:
    """Return an encoder that keeps the vectors of texts for the next fold and baseline of this worker."""
    from attentune.baselines.frozen import FrozenEncoder

    if encoder.name_or_path not in _FROZEN:
        _FROZEN[encoder.name_or_path] = FrozenEncoder(encoder, _SETUP.max_length, use_cpu=_SETUP.use_cpu)
    return _FROZEN[encoder.name_or_path]


def _adapt(task: FoldTask) -> None:
    """Adapt a member's encoder to the texts of all folds, whose labels it does not see, and to further texts."""
    from attentune.training.adaptation import AdaptationDisplay, adapt

    rows = _SETUP.data.splits["train"].take(np.flatnonzero(load_folds(Path(task.folds_file)) >= 0))
    parts = [rows] if _SETUP.unlabeled is None else [rows, _SETUP.unlabeled]
    texts = tuple(text for part in parts for text in part.texts)
    pairs = None if rows.pairs is None else tuple(text for part in parts for text in part.pairs or ())
    ids = tuple(map(str, range(len(texts))))
    folder, callback = adapted_encoder(task.folder, task.member), _callback(task.deadline)
    overrides = {
        **_settings(task.member, ADAPTATION),
        "training.max_steps": task.updates,
        "training.save_steps": task.save_steps,
        "training.output_dir": str(folder),
    }
    config = load_config(overrides=overrides)

    def adapt_with(*, resume: bool) -> None:
        adapt(
            replace(config, training=replace(config.training, resume=resume)),
            rows=TextRows(ids, texts, pairs, None, rows.source),
            display=AdaptationDisplay(quiet=True),
            callbacks=[callback],
        )

    try:
        adapt_with(resume=folder.is_dir())
    except CheckpointError as error:
        print(f"{error}\nStarting again.", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        adapt_with(resume=False)
    finally:
        if callback.is_late:  # the worker goes on with another task
            _STOP.requested = False


def _train_fold(task: FoldTask) -> int | None:
    """Train a fine-tuned member on the rows of the other folds, and predict those of this fold."""
    from attentune.inference.predictor import predict_rows
    from attentune.training.checkpoint import checkpoint_folders

    (fold,) = task.folds
    folder = fold_folder(task.folder, fold)
    if is_finished(folder):
        return None
    began = time.perf_counter()
    trained, held = _fold_rows(task, fold)
    rows = _SETUP.data.splits["train"]
    spent = folder.parent / f"fold-{fold}-seconds.json"  # of earlier attempts
    before = _seconds_before(spent)
    try:
        ended_at = _train(task, folder, trained, fold)
    except BaseException:
        write_text(spent, json.dumps({"seconds": before + time.perf_counter() - began}) + "\n")
        raise
    logits_MC = predict_rows(folder, _without_labels(rows.take(held)))
    for checkpoint in checkpoint_folders(folder):  # the run is finished
        shutil.rmtree(checkpoint, ignore_errors=True)
    _finish_fold(folder, logits_MC, held, before + time.perf_counter() - began)
    spent.unlink(missing_ok=True)
    return ended_at


def _seconds_before(file: Path) -> float:
    try:
        return float(read_json(file)["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _without_labels(rows: Any) -> Any:
    return replace(rows, labels=None, weights=None)


def _train(task: FoldTask, folder: Path, trained: np.ndarray, fold: int) -> int | None:
    """Train one run, from its checkpoint if it has been begun; return its updates if it ended early."""
    method = task.member.method
    resume = (folder / "config.yaml").is_file()
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    adapted = {"model.name_or_path": str(adapted_encoder(task.folder, task.member))} if task.member.adapted else {}
    overrides = {
        **_settings(task.member, fold),
        **adapted,
        "training.max_steps": _begun_updates(folder) if resume else task.updates,
        "training.per_device_train_batch_size": task.batch_size,
        "training.save_steps": task.save_steps,
        "training.output_dir": str(folder),
    }
    callback = _callback(task.deadline, task)
    try:
        _train_once(overrides | {"training.resume": resume}, method, trained, callback)
    except CheckpointError as error:
        if not resume:
            raise
        print(f"{error}\nStarting again.", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _train_once(overrides, method, trained, callback)
    return callback.ended_at


def _begun_updates(folder: Path) -> int:
    """Return the updates that a run was begun with; time may allow more or fewer by now."""
    return load_config(folder / "config.yaml").training.max_steps


def _train_once(overrides: dict[str, Any], method: str, trained: np.ndarray, callback: Any) -> None:
    """Train a run of this preset on these rows."""
    from attentune.training.progress import ProgressDisplay
    from attentune.training.train import train

    data = TaskData(
        _SETUP.data.name,
        _SETUP.data.label_space,
        _SETUP.data.metrics,
        {"train": _SETUP.data.splits["train"].take(trained)},
    )
    config = load_config(overrides=overrides, preset=method)
    try:
        train(config, data=data, display=ProgressDisplay(quiet=True), callbacks=[callback], with_baselines=False)
    finally:
        if callback.is_late:  # the worker goes on with another task
            _STOP.requested = False


def _settings(member: Member, fold: int) -> dict[str, Any]:
    """Return the overrides of a member's preset: its own, the user's, and those of every fold."""
    return {
        **member.settings,
        **_encoder_settings(member),
        "data.max_length": _SETUP.max_length,
        "training.seed": _seed(member, fold),
        "training.eval_strategy": "no",
        "training.use_cpu": _SETUP.use_cpu,
    }


def _encoder_settings(member: Member) -> dict[str, Any]:
    encoder = {} if member.encoder is None else {"model.name_or_path": member.encoder}
    return {**_SETUP.settings, **encoder}


def _seed(member: Member, fold: int) -> int:
    """Return a seed of its own for each fold and each repetition of a member."""
    return int(_SETUP.settings.get("training.seed", Config().training.seed)) + 1000 * member.seed + fold


def _finish_fold(folder: Path, logits_MC: np.ndarray, held: np.ndarray, seconds: float) -> None:
    """Write a fold's logits, and last the file that marks it as finished."""
    with storage_errors(folder):
        arrays = {"logits": np.ascontiguousarray(logits_MC, dtype=np.float64), "rows": held.astype(np.int64)}
        save_file(arrays, folder / HELD_OUT_FILE)
    write_text(folder / FOLD_FILE, json.dumps({"seconds": round(seconds, 3), "rows": len(held)}) + "\n")


def _probe(task: ProbeTask) -> EncoderSpeed:
    """Train a few steps and predict the rows that were trained on, to measure an encoder's speed."""
    import torch

    from attentune.data.tokenization import encode_rows
    from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
    from attentune.training.memory import peak_memory_bytes

    member = Member("probe", "fine-tuned", "bert", encoder=task.encoder)
    rows = _SETUP.data.splits["train"]
    # Spread over the file, which may be sorted by length or label.
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _PROBE_ROWS)).astype(int))
    folder = Path(task.folder)
    shutil.rmtree(folder, ignore_errors=True)
    overrides = {
        **_settings(member, 0),
        "training.max_steps": _PROBE_STEPS,
        "training.save_steps": _PROBE_STEPS,
        "training.output_dir": str(folder),
    }
    began, callback = time.perf_counter(), _callback(time.time() + task.limit_s)
    with contextlib.suppress(Interrupted):  # at the limit; the steps so far are enough
        _train_once(overrides, "bert", places, callback)
    trained_s = time.perf_counter() - began
    steps = [(0, 0.0), *callback.steps]
    increments = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(steps)]
    # The first steps also compile and allocate, also for each new length of a batch.
    later = increments[len(increments) // 3 :] or [(1, task.limit_s)]
    train_tokens_per_s = float(np.median([tokens / max(seconds, 1e-6) for tokens, seconds in later]))
    speed = EncoderSpeed(
        train_tokens_per_s=train_tokens_per_s,
        predict_tokens_per_s=3 * train_tokens_per_s,  # forward and backward pass cost three times the forward pass
        overhead_s=max(0.0, trained_s - sum(part for _, part in increments)),
        memory_bytes=peak_memory_bytes(torch.device("cpu")),
        disk_bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0,
        frozen_rows=_frozen_encoder(load_config(overrides=_encoder_settings(member)).model).affordable_rows(rows),
    )
    if len(callback.steps) == _PROBE_STEPS:
        predictor, sample = Predictor.load(folder).single_model("the probe"), _without_labels(rows.take(places))
        began = time.perf_counter()
        predict_rows(predictor, sample)
        predict_s = time.perf_counter() - began
        assert isinstance(predictor, ModelPredictor)
        bi_encoder = predictor.model.config.is_bi_encoder
        features = encode_rows(sample, predictor.tokenizer, max_length=_SETUP.max_length, bi_encoder=bi_encoder)
        speed = replace(speed, predict_tokens_per_s=float(features.lengths.sum() / max(predict_s, 1e-6)))
    shutil.rmtree(folder, ignore_errors=True)
    return speed
