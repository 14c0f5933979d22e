"""The runs of a member, and the probe of an encoder, in a worker process, which holds the rows (`hold`).

A fold is an ordinary run (`runs.driver`) of the folder `auto`: it is trained on the rows of all other folds, and leaves
the logits of its own rows in its run folder. A baseline has one run, with a model for each fold and one of all rows.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from attentune.automl.budget import REFIT_FOLDER, EncoderSpeed, LoadMeter
from attentune.automl.folds import HELD_OUT_FILE, load_folds
from attentune.automl.portfolio import Member
from attentune.config import Config, ModelConfig, load_config, to_dict, to_flat, to_yaml
from attentune.data.dataset import TaskData, TextRows
from attentune.errors import CheckpointError
from attentune.io.files import storage_errors, write_text
from attentune.metrics.rejection import energy
from attentune.results import RunResult, versions
from attentune.runs.records import Run
from attentune.training.callbacks import TrainingCallback
from attentune.training.run_folder import CONFIG_FILE, Interrupted, StopRequest, stop_on_signal

_PROBE_ROWS, _PROBE_STEPS = 256, 24
# The data settings of a member's runs: how rows are read. They get the rows themselves.
_DATA_SETTINGS = (
    *("text_column", "text_pair_column", "label_column", "id_column", "task_type", "label_separator"),
    *("label_names", "ignore_labels", "ignore_words", "max_length", "long_texts", "stride", "max_windows"),
)
# Settings of the whole command, not of a member's runs.
_NOT_PASSED_ON = ("preset", "training.output_dir", "training.resume", "training.overwrite_output_dir",
                  "training.reject")  # fmt: skip


@dataclass(frozen=True)
class WorkerSetup:
    """Data that a worker process holds from its start."""

    data: TaskData  # the rows to train on and to predict, as the split "train"
    base: Config  # of the whole command
    unlabeled: TextRows | None = None  # further texts to adapt encoders to

    @property
    def rows(self) -> TextRows:
        return self.data.splits["train"]

    def config(self, member: Member, preset: str | None, **training: Any) -> Config:
        """Return the configuration of a run: the preset, the member's settings, the user's, and those of every run."""
        overrides = {
            **member.settings,
            **settings_of(self.base),
            **({} if member.encoder is None else {"model.name_or_path": member.encoder}),
            "data.max_length": self.base.data.max_length,
            "training.eval_strategy": "no",
            "training.use_cpu": self.base.training.use_cpu,
            **{f"training.{name}": value for name, value in training.items()},
        }
        return load_config(overrides=overrides, preset=preset)


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


# The state of a worker process.
_SETUP: WorkerSetup
_FROZEN: dict[str, Any] = {}


def hold(setup: WorkerSetup) -> None:
    global _SETUP
    _SETUP = setup
    # Loaded before the first run, whose time is measured.
    import attentune.inference.predictor
    import attentune.training.run  # noqa: F401


class _Deadline(TrainingCallback):
    """Stops training at the deadline, or ends that of a late fold before it."""

    def __init__(self, deadline: float, stop: StopRequest, trainer: MemberTrainer | None = None) -> None:
        self.deadline, self.trainer, self._stop = deadline, trainer, stop
        self.steps: list[tuple[int, float]] = []  # tokens and seconds so far, at each step
        self.ended_at: int | None = None
        self._is_late = False

    @contextlib.contextmanager
    def on_time(self) -> Iterator[None]:
        """Withdraw the stop request of a late run at the end: the worker may go on with others."""
        try:
            yield
        finally:
            if self._is_late:
                self._stop.requested = False

    def check(self) -> None:
        """Raise `Interrupted` if time is up, for work that is not trained."""
        if self._stop.requested or time.time() > self.deadline:
            raise Interrupted("", 0)

    def on_step_end(self, state: Any, logs: Mapping[str, float]) -> None:
        self.steps.append((state.tokens, state.seconds))
        if not self._stop.requested and self._has_to_end(state):
            state.stopped_early, self.ended_at = True, state.step
        else:
            self.on_prediction_step(0)

    def on_prediction_step(self, rows: int) -> None:
        if time.time() > self.deadline and not self._stop.requested:
            self._is_late = self._stop.requested = True

    def _has_to_end(self, state: Any) -> bool:
        fold = self.trainer
        if fold is None or fold.fewest_updates is None or state.step < fold.fewest_updates:
            return False
        slower = max(1.0, fold.tokens_per_s * state.seconds / max(state.tokens, 1))
        return time.time() > self.deadline - fold.ending_s * slower


@dataclass(frozen=True)
class MemberTrainer:
    """Trains a run of a member, in a worker process."""

    member: Member
    folds: tuple[int, ...]  # the fold of the run, all folds of a baseline, none for the adaptation of the encoder
    folds_file: str  # has the fold of each row; see `save_folds`
    deadline: float  # the time (`time.time()`) at which it saves a checkpoint and stops
    fewest_updates: int | None = None  # a fine-tuned member that has done so many ends early instead
    ending_s: float = 0.0  # it does so these seconds before the deadline
    tokens_per_s: float = 0.0  # the speed at which that time was predicted; a slower run ends in proportion earlier
    encoder_folder: str = ""  # that of the adapted encoder

    def __call__(self, run: Run, config: Config) -> RunResult:
        meter = LoadMeter()
        with stop_on_signal() as stop:  # the worker's own
            deadline = _Deadline(self.deadline, stop, self)
            with deadline.on_time():
                if self.member.is_baseline:
                    result = self._fit_baseline(config, deadline.check)
                elif not self.folds:
                    result = self._adapt(config, deadline)
                else:
                    result = self._train_fold(config, deadline)
        return replace(result, train={**result.train, "load": meter.load(), "ended_at": deadline.ended_at})

    def _train_fold(self, config: Config, deadline: _Deadline) -> RunResult:
        """Train on the rows of the other folds, and predict those of this fold."""
        from attentune.inference.predictor import predict_rows
        from attentune.training.checkpoint import checkpoint_folders

        folder = Path(str(config.training.output_dir))
        if config.training.resume:  # with the updates that it was begun with; time may allow more or fewer by now
            begun = load_config(folder / "config.yaml").training.max_steps
            config = replace(config, training=replace(config.training, max_steps=begun))
        folds_N = load_folds(Path(self.folds_file))
        result = _train(config, (folds_N != self.folds[0]) & (folds_N >= 0), [deadline])
        held = np.flatnonzero(folds_N == self.folds[0])
        if len(held):  # the model on all rows has none
            logits_MC = predict_rows(folder, replace(_SETUP.rows.take(held), labels=None, weights=None))
            _save_held_out(folder, logits_MC, held)
        for checkpoint in checkpoint_folders(folder):  # the run is finished
            shutil.rmtree(checkpoint, ignore_errors=True)
        return result

    def _fit_baseline(self, config: Config, check_time: Callable[[], None]) -> RunResult:
        """Fit a baseline on each fold's rows, and on all rows for delivery if time is left."""
        from attentune.baselines.registry import make_baseline

        frozen = None if self.member.encoder is None else _frozen_encoder(config.model)
        folder, folds_N = Path(str(config.training.output_dir)), load_folds(Path(self.folds_file))
        folder.mkdir(parents=True, exist_ok=True)

        def fit(rows: np.ndarray, penalty: Any = None) -> Any:
            check_time()
            baseline = make_baseline(
                self.member.method,
                encoder=ModelConfig() if frozen is None else config.model,
                max_length=_SETUP.base.data.max_length,
                seed=config.training.seed,
                frozen=frozen,
            )
            return baseline.fit(_SETUP.rows.take(np.flatnonzero(rows)), _SETUP.data.label_space, penalty)

        def save(baseline: Any, target: Path) -> None:
            with storage_errors(target):
                target.mkdir()
            baseline.save(target)
            if config.data.ignore_words:  # as the folders of models say what they leave out
                write_text(target / CONFIG_FILE, to_yaml(config))

        used = folds_N >= 0
        rows_of = {fold: np.flatnonzero(folds_N == fold) for fold in self.folds}
        held, parts = np.concatenate(list(rows_of.values())), []
        for fold, rows in rows_of.items():
            baseline = fit((folds_N != fold) & used)
            save(baseline, folder / f"fold-{fold}")
            parts.append(baseline.logits(_SETUP.rows.take(rows)))
        _save_held_out(folder, logits_MC := np.concatenate(parts), held)
        with contextlib.suppress(Interrupted):  # without it, the models of the folds are averaged
            whole = fit(used)
            if _SETUP.base.training.reject is not None:
                # A fold chooses another penalty and scale than all rows, and so has energies of another size.
                alike = [
                    fit((folds_N != fold) & used, whole.penalty).logits(_SETUP.rows.take(rows))
                    for fold, rows in rows_of.items()
                ]
                _save_held_out(folder, logits_MC, held, energies=energy(np.concatenate(alike)))
            save(whole, folder / REFIT_FOLDER)
        return RunResult({}, {}, None, to_dict(config), config.training.seed, versions(), {})

    def _adapt(self, config: Config, deadline: _Deadline) -> RunResult:
        """Adapt the encoder to the texts of all folds, whose labels it does not see, and to further texts."""
        from attentune.training.adaptation import adapt
        from attentune.training.callbacks import ProgressDisplay

        rows = _SETUP.rows.take(np.flatnonzero(load_folds(Path(self.folds_file)) >= 0))
        parts = [rows] if _SETUP.unlabeled is None else [rows, _SETUP.unlabeled]
        texts = tuple(text for part in parts for text in part.texts)
        texts_only = TextRows(tuple(map(str, range(len(texts)))), texts, None, None, rows.source)
        folder = Path(self.encoder_folder)

        def adapt_with(*, resume: bool) -> None:
            training = replace(config.training, output_dir=str(folder), resume=resume)
            display = ProgressDisplay(quiet=True)
            adapt(replace(config, training=training), rows=texts_only, display=display, callbacks=[deadline])

        try:
            adapt_with(resume=folder.is_dir())
        except CheckpointError as error:
            print(f"{error}\nStarting again.", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            adapt_with(resume=False)
        return RunResult({}, {}, None, to_dict(config), config.training.seed, versions(), {})


def _train(config: Config, rows: np.ndarray, callbacks: Sequence[TrainingCallback]) -> RunResult:
    """Train a run on these rows, a mask, and on the names of many classes as texts."""
    from attentune.baselines.linear import with_class_names
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run import train

    data, train_rows = _SETUP.data, _SETUP.rows.take(np.flatnonzero(rows))
    train_rows = with_class_names(train_rows, data.label_space)
    data = TaskData(data.name, data.label_space, data.metrics, {"train": train_rows})
    return train(config, data=data, display=ProgressDisplay(quiet=True), callbacks=callbacks, with_baselines=False)


def _save_held_out(folder: Path, logits_MC: np.ndarray, held: np.ndarray, **more: np.ndarray) -> None:
    if not np.isfinite(logits_MC).all():
        raise ValueError("its predictions are not finite")
    with storage_errors(folder):
        arrays = {"logits": np.ascontiguousarray(logits_MC, dtype=np.float64), "rows": held.astype(np.int64)}
        save_file(arrays | more, folder / HELD_OUT_FILE)


def _frozen_encoder(encoder: ModelConfig) -> Any:
    """Return an encoder that keeps the vectors of texts for the next fold and baseline of this worker."""
    from attentune.baselines.frozen import FrozenEncoder

    made = FrozenEncoder(encoder, _SETUP.base.data.max_length, use_cpu=_SETUP.base.training.use_cpu)
    return _FROZEN.setdefault(encoder.name_or_path, made)


def probe(encoder: str, folder: str, limit_s: float, *, stop: StopRequest) -> EncoderSpeed:
    """Train a few steps and predict the rows that were trained on, to measure an encoder's speed."""
    import torch

    from attentune.data.tokenization import encode_rows
    from attentune.inference.predictor import Predictor, predict_rows
    from attentune.nn.compiled.memory import peak_memory_bytes

    began, meter, run = time.perf_counter(), LoadMeter(), Path(folder)
    rows = _SETUP.rows
    # Spread over the file, which may be sorted by length or label.
    sample_N = np.zeros(len(rows), dtype=bool)
    sample_N[np.linspace(0, len(rows) - 1, min(len(rows), _PROBE_ROWS)).astype(int)] = True
    shutil.rmtree(run, ignore_errors=True)
    steps, member = _PROBE_STEPS, Member("probe", "fine-tuned", "bert", encoder=encoder)
    config = _SETUP.config(member, "bert", max_steps=steps, save_steps=steps, output_dir=folder)
    deadline = _Deadline(time.time() + limit_s, stop)
    with contextlib.suppress(Interrupted), deadline.on_time():  # at the limit; the steps so far are enough
        _train(config, sample_N, [deadline])
    trained_s = time.perf_counter() - began
    increments = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in itertools.pairwise([(0, 0.0), *deadline.steps])
    ]
    # The first steps also compile and allocate, also for each new length of a batch.
    later = increments[len(increments) // 3 :] or [(1, limit_s)]
    train_tokens_per_s = float(np.median([tokens / max(seconds, 1e-6) for tokens, seconds in later]))
    speed = EncoderSpeed(
        train_tokens_per_s=train_tokens_per_s,
        predict_tokens_per_s=3 * train_tokens_per_s,  # forward and backward pass cost three times the forward pass
        overhead_s=max(0.0, trained_s - math.fsum(part for _, part in increments)),
        memory_bytes=peak_memory_bytes(torch.device("cpu")),
        disk_bytes=sum(file.stat().st_size for file in run.iterdir() if file.is_file()) if run.is_dir() else 0,
        frozen_rows=_frozen_encoder(config.model).affordable_rows(rows),
    )
    if len(deadline.steps) == steps:
        predictor = Predictor.load(folder).single_model("the probe")
        sample = replace(rows.take(np.flatnonzero(sample_N)), labels=None, weights=None)
        predicting = time.perf_counter()
        predict_rows(predictor, sample)
        predict_s = time.perf_counter() - predicting
        bi_encoder = predictor.model.config.is_bi_encoder
        max_length = _SETUP.base.data.max_length
        features = encode_rows(sample, predictor.tokenizer, max_length=max_length, bi_encoder=bi_encoder)
        speed = replace(speed, predict_tokens_per_s=float(features.lengths.sum() / max(predict_s, 1e-6)))
    shutil.rmtree(run, ignore_errors=True)
    return replace(speed, load=meter.load())
