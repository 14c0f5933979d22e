"""From a configuration to a finished run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from attentune.config import Config, to_dict
from attentune.data.doctor import examine, summary_lines
from attentune.data.features import Features, encode_rows
from attentune.data.load import load_data
from attentune.data.rows import TaskData, TextRows
from attentune.errors import CheckpointError, DataError
from attentune.evaluation.evaluator import Evaluator
from attentune.evaluation.metrics import choose_metric
from attentune.evaluation.predict import make_accelerator
from attentune.evaluation.predictions import predictions_csv
from attentune.files import write_text
from attentune.models.build import Tokenizer, build_model, load_tokenizer, save_model
from attentune.models.compact import CompactEmbeddings
from attentune.results import RunResult, to_json, versions
from attentune.training.checkpoint import newest_good, read_state
from attentune.training.display import Display, one_line
from attentune.training.folder import (
    LOG_FILE,
    METRICS_FILE,
    RESULT_FILE,
    check_folder,
    check_writable,
    config_for_run,
    opened_folder,
)
from attentune.training.log import JsonLog
from attentune.training.loop import TrainingLoop, TrainingRows
from attentune.training.objective import build_objective
from attentune.training.optimizer import build_optimizer, decay_factor
from attentune.training.signals import Interrupted, stop_on_signal
from attentune.training.state import TrainingState
from attentune.training.usage import peak_memory_bytes
from attentune.training.watcher import RunWatcher


def train(config: Config, *, data: TaskData | None = None, display: Display | None = None) -> RunResult:
    """Fine-tune, score and save; the run folder is `config.training.output_dir`.

    Args:
        config: from `load_config`.
        data: rows to use instead of those that `config.data` names. Such a run resumes only with the same rows given.
        display: where progress is shown; standard error if not given.

    Returns:
        The run's record, as in its `run.json`.

    Raises:
        AttentuneError: anything that the user can mend; the message says how.
        Interrupted: a stop was asked for (Ctrl-C or SIGTERM) and the run was saved.
    """
    with display or Display() as shown:
        config = config_for_run(config)
        check_folder(config)
        finished = _finished_result(config)
        if finished is not None:
            shown.say(f"{config.training.output_dir}: this run is finished; nothing to resume.")
            return finished
        check_writable(config)
        return _Run(config, data, shown).execute()


def _finished_result(config: Config) -> RunResult | None:
    file = Path(str(config.training.output_dir)) / RESULT_FILE
    return RunResult.load(file) if config.training.resume and file.is_file() else None


class _Run:
    """The parts of one run, built in the order in which they can fail: nothing is written before all is checked."""

    def __init__(self, config: Config, data: TaskData | None, display: Display) -> None:
        self.config, self.display = config, display
        settings = config.training
        self.data = data or load_data(config.data, seed=settings.seed, splits=_wanted_splits(config))
        self.validation = [name for name in self.data.splits if name.startswith("validation")]
        self.train_labels = _train_labels(self.data)
        if settings.eval_strategy != "no" and not self.validation:
            raise DataError(f"{self.data.name}: has no validation rows. Give some, or set --eval_strategy no.")
        self.metric = choose_metric(settings.metric_for_best_model, self.data.metrics, self.data.label_space)
        self.tokenizer = load_tokenizer(config.model)
        self.features = _encode(self.data.splits, self.tokenizer, config.data.max_length)
        self._say_what_the_data_are()
        self.accelerator, self.precision = make_accelerator(
            precision=settings.precision,
            use_cpu=settings.use_cpu,
            tracker=settings.report_to,
            folder=str(settings.output_dir),
        )

    def _say_what_the_data_are(self) -> None:
        lengths = {name: part.full_lengths for name, part in self.features.items()}
        report = examine(self.data, token_lengths=lengths, max_length=self.config.data.max_length)
        for line in (*self.data.notes, *summary_lines(report)):
            self.display.say(line)

    def execute(self) -> RunResult:
        """Train and write the run folder."""
        loop, evaluator = self._build_loop()
        with opened_folder(self.config, is_main=self.accelerator.is_main_process) as run, stop_on_signal() as stop:
            watcher, state = self._open(run, loop)
            self.display.start(loop.total_steps, state.step)
            loop.run(state, watcher, stop)
            self.display.stop()
            if stop.asked and state.step < loop.total_steps and not state.stopped_early:
                raise Interrupted(str(run), state.step)
            watcher.save(state)
            return self._finish(run, loop, evaluator, state)

    def _build_loop(self) -> tuple[TrainingLoop, Evaluator]:
        config, settings, accelerator = self.config, self.config.training, self.accelerator
        rows = self.data.splits["train"]
        model = build_model(
            config.model,
            self.data.label_space,
            self.tokenizer,
            max_length=config.data.max_length,
            is_pair=self.data.is_pair,
            seed=settings.seed,
        ).to(accelerator.device)
        features = self.features["train"]
        always = [self.tokenizer.pad_token_id, self.tokenizer.mask_token_id]
        self.embeddings = CompactEmbeddings(model.encoder, np.append(features.ids, always))
        objective = build_objective(config.objective, self.data.label_space, self.train_labels)
        model, optimizer = accelerator.prepare(model, build_optimizer(model, settings))
        pad_token_id = self.tokenizer.pad_token_id
        evaluator = Evaluator(
            model=model,
            accelerator=accelerator,
            splits=self.data.splits,
            features=self.features,
            label_space=self.data.label_space,
            metrics=_with_first(self.metric.name, self.data.metrics),
            pad_token_id=pad_token_id,
            batch_size=settings.per_device_eval_batch_size,
        )
        training_rows = TrainingRows(
            features=features,
            labels=self.train_labels if objective.loss == "cross-entropy" else self.train_labels.astype("float32"),
            names=lambda row: rows.ids[row] if rows.lines is None else f"{rows.ids[row]} (line {rows.lines[row]})",
            pad_token_id=pad_token_id,
            mask_token_id=self.tokenizer.mask_token_id,
        )
        loop = TrainingLoop(
            model=model,
            optimizer=optimizer,
            accelerator=accelerator,
            rows=training_rows,
            objective=objective,
            settings=settings,
            labels_settings=config.labels,
            metric=self.metric,
            evaluate=lambda step: self._score(evaluator, step),
        )
        self.total_steps = loop.total_steps
        return loop, evaluator

    def _score(self, evaluator: Evaluator, step: int) -> dict[str, dict[str, float]]:
        with self.embeddings.whole(self._decay(step)):
            return evaluator.score(self.validation)

    def _decay(self, step: int) -> float:
        """What weight decay alone has made of a weight after `step` steps, as a factor."""
        return decay_factor(self.config.training, step, self.total_steps)

    def _open(self, run: Path, loop: TrainingLoop) -> tuple[RunWatcher, TrainingState]:
        """The watcher, and the state to go on from: a fresh one, or that of the newest good checkpoint."""
        folder = newest_good(run, self.display.warn) if self.config.training.resume else None
        content: dict[str, Any] = {} if folder is None else read_state(folder)
        if content:
            self._check_identity(run, content["identity"])
        keep = content["training"]["log_bytes"] if content else 0
        if self.config.training.report_to != "none":
            self.accelerator.init_trackers("tracker")
        is_main = self.accelerator.is_main_process
        watcher = RunWatcher(
            run=run,
            model=loop.model,
            optimizer=loop.optimizer,
            tokenizer=self.tokenizer,
            accelerator=self.accelerator,
            settings=self.config.training,
            identity=self._identity(),
            log=JsonLog(run / LOG_FILE, keep_bytes=keep) if is_main else None,
            display=self.display,
            embeddings=self.embeddings,
            decay=self._decay,
        )
        if folder is None:
            if self.config.training.resume:
                self.display.say(f"{run}: no checkpoint to resume from; starting at the beginning.")
            return watcher, TrainingState()
        self.display.say(f"resuming from {folder}")
        return watcher, watcher.restore(folder, content)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run."""
        return {
            "data": self.data.fingerprint(),
            "processes": self.accelerator.num_processes,
            "precision": self.precision,
            "device": self.accelerator.device.type,
        }

    def _check_identity(self, run: Path, before: dict[str, Any]) -> None:
        changed = [name for name, value in self._identity().items() if before.get(name) != value]
        if changed:
            raise CheckpointError(
                f"{run}: cannot be resumed: {' and '.join(changed)} differ from when it was begun, so the result"
                " would be of two mixed runs. Put them back as they were, or train anew with --overwrite_output_dir."
            )

    def _finish(self, run: Path, loop: TrainingLoop, evaluator: Evaluator, state: TrainingState) -> RunResult:
        """Choose the final weights, score them and write the results; `run.json` comes last."""
        model = self.accelerator.unwrap_model(loop.model)
        self.embeddings.expand(self._decay(state.step))
        final_step = self._load_best(run, model, state)
        splits = [name for name in self.data.splits if name != "train"]
        scores = evaluator.score(splits, reuse=final_step == state.last_scored_step)
        result = RunResult(
            scores={split: dict(part) for split, part in scores.items()},
            train=self._train_facts(loop, state, final_step),
            best=state.best,
            config=to_dict(self.config),
            seed=self.config.training.seed,
            versions=versions(),
            data_fingerprint=self.data.fingerprint(),
            notes=list(self.data.notes),
        )
        if self.accelerator.is_main_process:
            save_model(model, self.tokenizer, run)
            for split in splits:
                text = predictions_csv(self.data.splits[split], evaluator.logits[split], self.data.label_space)
                write_text(run / f"predictions_{split}.csv", text)
            write_text(run / METRICS_FILE, to_json(result.metrics()))
            write_text(run / RESULT_FILE, result.to_json())
        self.accelerator.end_training()
        self.display.say(f"done: {one_line(scores)}; saved in {run}")
        return result

    def _load_best(self, run: Path, model: torch.nn.Module, state: TrainingState) -> int:
        """Load the best weights if asked; the step that the weights are of."""
        settings = self.config.training
        wants_best = settings.load_best_model_at_end or settings.early_stopping_patience is not None
        if not wants_best or state.best is None or state.best["step"] == state.step:
            return state.step
        model.load_state_dict(load_file(run / f"checkpoint-{state.best['step']}" / "model.safetensors"))
        return state.best["step"]

    def _train_facts(self, loop: TrainingLoop, state: TrainingState, final_step: int) -> dict[str, Any]:
        return {
            "seconds": round(state.seconds, 3),
            "tokens": state.tokens,
            "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
            "peak_memory_bytes": peak_memory_bytes(self.accelerator.device),
            "evaluation_seconds": round(state.evaluation_seconds, 3),
            "rows": len(self.data.splits["train"]),
            "steps": state.step,
            "steps_per_epoch": loop.steps_per_epoch,
            "final_step": final_step,
            "stopped_early": state.stopped_early,
            "precision": self.precision,
            "device": self.accelerator.device.type,
            "processes": self.accelerator.num_processes,
        }


def _wanted_splits(config: Config) -> Sequence[str] | None:
    """All of a user's own files; of a known task only what is trained and scored on."""
    return ("train", "validation") if config.data.task is not None else None


def _train_labels(data: TaskData) -> np.ndarray:
    rows = data.splits.get("train")
    if rows is None or len(rows) == 0 or rows.labels is None:
        raise DataError(f"{data.name}: has no labelled rows to train on, expected a train split.")
    return rows.labels


def _encode(splits: dict[str, TextRows], tokenizer: Tokenizer, max_length: int) -> dict[str, Features]:
    return {name: encode_rows(rows, tokenizer, max_length=max_length) for name, rows in splits.items()}


def _with_first(first: str, names: Sequence[str]) -> tuple[str, ...]:
    return (*names, first) if first not in names else tuple(names)
