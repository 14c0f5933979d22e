"""The state of a run and who is told of it: callbacks, the log file, the progress bar, experiment trackers.

The events are those of transformers' `TrainerCallback`, the state is its `TrainerState`.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from attentune.config import Config, to_flat
from attentune.errors import ConfigError
from attentune.io.files import storage_errors, write_text
from attentune.metrics.metrics import Metric
from attentune.results import RunResult, check_fields, without_nan
from attentune.training.run_folder import Interrupted

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TrainingState:
    """Counters and best score so far; corresponds to transformers' `TrainerState`."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # the current epoch, from 0
    step_in_epoch: int = 0  # optimiser steps done in this epoch
    tokens: int = 0  # tokens trained on, padding not counted
    seconds: float = 0.0  # wall time of training steps, without evaluation and saving
    evaluation_seconds: float = 0.0  # wall time of evaluation
    label_seconds: float = 0.0  # wall time of making token labels
    epoch_labels: dict[str, Any] = field(default_factory=dict)  # counts of this epoch's token labels, for the log
    loss_sum: float = 0.0  # sum of the steps' losses since the last line of the log
    task_loss_sum: float = 0.0  # the same of the task's loss alone, without the token head's
    loss_steps: int = 0  # number of steps in `loss_sum`
    best: dict[str, Any] | None = None  # {"metric", "value", "step"} of the best score, or None
    scores_without_gain: int = 0  # evaluations since the last improvement
    last_scored_step: int = -1  # step of the newest evaluation, or -1
    stopped_early: bool = False  # whether early stopping, or a callback, ended the run
    log_bytes: int = 0  # length of log.jsonl

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingState:
        check_fields(cls, values)
        counts = {name: value for name, value in values.items() if type(value) is int}
        below = [name for name, value in counts.items() if value < (-1 if name == "last_scored_step" else 0)]
        best = values.get("best")
        if best is not None and (type(best.get("step")) is not int or not isinstance(best.get("value"), (int, float))):
            below.append("best")
        if below:
            raise ValueError(f"{below[0]} is {str(values[below[0]])[:60]}, which is out of range")
        return cls(**values)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def is_best(self) -> bool:
        return self.best is not None and self.best["step"] == self.step

    def update_best(self, metric: Metric, value: float, threshold: float) -> bool:
        """Record a score; return whether it is the best so far. An undefined score (NaN) is never an improvement."""
        self.last_scored_step = self.step
        sign = 1.0 if metric.greater_is_better else -1.0
        before = None if self.best is None else self.best["value"]
        gain = not math.isnan(value) and (before is None or sign * (value - before) > 0)
        if gain and (before is None or sign * (value - before) > threshold):
            self.scores_without_gain = 0
        else:
            self.scores_without_gain += 1
        if gain:
            self.best = {"metric": metric.name, "value": value, "step": self.step}
        return gain


# By split, metric names and values.
Scores = dict[str, dict[str, float]]


class TrainingCallback:
    """Base class of callbacks; subclasses override the events that they need. What a method raises ends the run."""

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Called when an epoch has been planned; `state.epoch_labels` describes its token labels."""

    def on_prediction_step(self, rows: int) -> None:
        """Called while token labels are made, after the model has predicted this many rows more."""

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        """Called after each optimiser step, with its loss, learning rates and gradient norm."""

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        """Called every `logging_steps`, with the mean loss since the last call."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """Called after the last step of an epoch, before `state` moves on to the next one."""

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        """Called with the validation scores; `is_last` if the run ends with them."""

    def on_save(self, state: TrainingState) -> None:
        """Called after a checkpoint has been written."""


class JsonLog(TrainingCallback):
    """`log.jsonl`, an append-only file of JSON lines that is cut back to a checkpoint when a run is resumed."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        self._path = path
        with storage_errors(path), path.open("ab") as file:
            file.truncate(min(keep_bytes, path.stat().st_size))

    def write(self, facts: dict[str, Any]) -> None:
        line = json.dumps(without_nan(facts), ensure_ascii=False).encode() + b"\n"
        with storage_errors(self._path), self._path.open("ab", buffering=0) as file:
            while line:  # a full disk may write a part only
                line = line[file.write(line) :]

    def synced_bytes(self) -> int:
        """Flush the file to the disk; return its length."""
        with storage_errors(self._path), self._path.open("ab") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def _write_state(self, state: TrainingState, facts: Mapping[str, Any]) -> None:
        self.write({"step": state.step, "epoch": state.epoch, **facts})

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        times = {"seconds": round(state.seconds, 3), "tokens_per_second": round(state.tokens_per_second, 1)}
        self._write_state(state, {**logs, "tokens": state.tokens, **times})

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        self._write_state(state, {**scores, "is_best": state.is_best})

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the epoch's label counts, and the token head's loss and accuracy on them."""
        facts = dict(state.epoch_labels)
        loss_sum, hits, ones, count = (facts.pop(f"token_{name}", 0) for name in ("loss_sum", "hits", "ones", "count"))
        if not facts:
            return
        if count:
            facts |= {"token_loss": loss_sum / count, "token_accuracy": hits / count}
            facts["majority_accuracy"] = max(ones, count - ones) / count
        self._write_state(state, {"labels": facts})


def is_main_rank() -> bool:
    """Return whether this is the main process of those that `torchrun` or `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"


class NotebookBar:
    """The progress of one call in a notebook: an output with a bar and the newest line, which is updated in place.

    It stands for rich's `Progress`, which floods a notebook without ipywidgets. Its text has the notebook's colours.
    """

    _EVERY_S = 0.2

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._warnings: list[str] = []
        self._fields: dict[str, Any] = {"completed": 0, "total": 0, "facts": "", "left": ""}
        self._output: Any = None
        self._shown_s = -math.inf

    def line(self, text: str, *, is_warning: bool = False) -> None:
        """Show a line below the bar; warnings stay, other lines make room for the next and are folded."""
        (self._warnings if is_warning else self._lines).append(text)
        self._show()

    def update(self, task: TaskID, **fields: Any) -> None:
        self._fields |= fields
        if time.monotonic() - self._shown_s > self._EVERY_S:
            self._show()

    def stop(self) -> None:
        """Show the last state; a bar that did not reach its end goes, as it does on a terminal."""
        if self._fields["completed"] < self._fields["total"]:
            self._fields["total"] = 0
        self._show()

    def _show(self) -> None:
        from IPython.display import display

        content = {"text/html": self._html(), "text/plain": "\n".join([*self._lines[-1:], *self._warnings])}
        self._shown_s = time.monotonic()
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)

    def _html(self) -> str:
        done, total = self._fields["completed"], self._fields["total"]
        facts = html.escape("  ".join(filter(None, (self._fields["facts"], self._fields["left"]))))
        bar = f'<progress value="{done}" max="{total}"></progress> {done:,} of {total:,}; {facts}' if total else ""
        shown = "".join(f"<div>{html.escape(line)}</div>" for line in (*self._lines[-1:], *self._warnings))
        log = html.escape("\n".join(self._lines))
        folded = f"<details><summary>{len(self._lines)} lines</summary><pre>{log}</pre></details>"
        return f"<div>{bar}{shown}{folded if len(self._lines) > 1 else ''}</div>"


class LiveDisplay:
    """Lines and a bar on standard error; plain lines where that is no terminal, and one output in a notebook."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)
        self._notebook = NotebookBar() if self._console.is_jupyter and not quiet else None
        self._bar: Progress | NotebookBar | None = None

    def info(self, text: str) -> None:
        if self._notebook is None:
            self._console.print(text, markup=False)
        else:
            self._notebook.line(text)

    def warning(self, text: str) -> None:
        if self._notebook is None:
            self._console.print(f"warning: {text}", markup=False, style="yellow")
        else:
            self._notebook.line(f"warning: {text}", is_warning=True)

    def _show_bar(self, *columns: ProgressColumn, total: int, completed: int = 0) -> None:
        """Show the bar, whose columns may have the fields `facts` and `left`, on a terminal or in a notebook."""
        if self._notebook is not None:
            self._bar = self._notebook
            self._move(total=total, completed=completed)
        elif self._console.is_terminal and not self._console.quiet:
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("training", total=total, completed=completed, facts="", left="")
            self._bar.start()

    def _move(self, **fields: Any) -> None:
        if self._bar is not None:
            self._bar.update(TaskID(0), **fields)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class ProgressDisplay(LiveDisplay, TrainingCallback):
    """The progress of a run: a bar with loss, speed and time left, and lines with scores and token label counts."""

    def __init__(self, *, quiet: bool = False, only_steps: bool = False) -> None:
        """`only_steps` leaves out what is said before the first step and after the last."""
        super().__init__(quiet=quiet or not is_main_rank())
        self._is_silent, self._only_steps, self._keeps_best = only_steps, only_steps, False
        self._predicted = self._tenths = self._total = 0

    def info(self, text: str) -> None:
        if not self._is_silent:
            super().info(text)

    def warning(self, text: str) -> None:
        if not self._is_silent:
            super().warning(text)

    def start(self, total_steps: int, done: int, *, keeps_best: bool) -> None:
        """Show the bar, if there can be one; with `keeps_best` lines say which scores are the best so far."""
        self._is_silent, self._keeps_best = False, keeps_best
        self._total, self._tenths = total_steps, 10 * done // max(total_steps, 1)
        self._show_bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            total=total_steps,
            completed=done,
        )

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        """Move the bar; without one, print a line at each tenth of the steps."""
        self._predicted, step = 0, state.step
        facts = f"loss {logs['loss']:.4f}, {state.tokens_per_second:,.0f} tokens/s"
        self._move(completed=step, facts=facts)
        if self._bar is None and (tenths := 10 * step // max(self._total, 1)) > self._tenths:
            self._tenths = tenths
            self.info(f"step {step} of {self._total}: {facts}")

    def on_prediction_step(self, rows: int) -> None:
        self._predicted += rows
        self._move(facts=f"labels: {self._predicted:,} sentences predicted")

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        best = "  (best so far)" if state.is_best and self._keeps_best else ""
        self.info(f"step {state.step} of {self._total}: {one_line(scores)}{best}")

    def on_epoch_begin(self, state: TrainingState) -> None:
        facts, epoch = state.epoch_labels, f"epoch {state.epoch + 1}"
        if "reason" in facts and state.epoch > 0:
            self.warning(f"{epoch}: no token is labelled: {facts['reason']}")
        elif "ones" in facts:
            names = [name for name in ("probed", "correct", "flipped") if name in facts]
            sentences = f"{', '.join(f'{facts[name]:,} {name}' for name in names)}; " if names else ""
            tokens = f"{facts['ones']:,} tokens at 1, {facts['zeros']:,} at 0 ({facts['seconds']:.1f} s)"
            self.info(f"{epoch}: labels: {sentences}{tokens}")

    def stop(self) -> None:
        self._is_silent = self._only_steps
        super().stop()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        sys.stderr.flush()


def number(score: float | None) -> str:
    return "undefined" if score is None or score != score else f"{score:.4f}"


def one_line(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """Format scores as one line: "validation: accuracy 0.8123, f1 0.8456"."""
    return "; ".join(
        f"{split}: {', '.join(f'{name} {number(value)}' for name, value in metrics.items())}"
        for split, metrics in scores.items()
    )


def ending(result: RunResult, folder: Path, *, is_best: bool) -> str:
    """Say how a finished run scores, and which of its weights were saved where."""
    step = result.train.get("final_step")
    weights = "" if step is None else f"; {'best' if is_best else 'last'} weights (step {step})"
    return f"done: {one_line(result.scores)}{weights or ';'} saved in {folder}"


class TrackerCallback(TrainingCallback):
    """Logs losses and scores to the experiment tracker that Accelerate has started; see `trackers`."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def on_log(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        self._accelerator.log({f"train/{name}": value for name, value in logs.items()}, step=state.step)

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        values = {f"{split}/{name}": value for split, part in scores.items() for name, value in part.items()}
        self._accelerator.log(values, step=state.step)


# In the run folder: the files of TensorBoard and Weights & Biases, and the id of the tracker's run.
TRACKER_FOLDER = "tracker"
_ID_FILE = "run-id.json"
PROJECT = "attentune"
# Trackers may send settings to a server, so paths on the user's machine are not logged.
_PRIVATE = ("output_dir", "resume", "overwrite_output_dir", "report_to", "data_dir", "dataset_name")


@contextlib.contextmanager
def tracked(accelerator: Accelerator, config: Config) -> Iterator[None]:
    """Start a tracker, and mark its run as failed or killed if the block raises.

    A block that succeeds ends the tracker's run itself, by Accelerate's `end_training`.
    """
    kind = config.training.report_to
    if kind == "none":
        yield
        return
    _start(accelerator, kind, Path(str(config.training.output_dir)), tracker_settings(config))
    try:
        yield
    except BaseException as error:
        _end(accelerator, kind, status="KILLED" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "FAILED")
        raise


def log_final(accelerator: Accelerator, scores: Mapping[str, Mapping[str, float | None]], step: int) -> None:
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


# What may help if a tracker cannot be started.
_CURES = {
    "tensorboard": "Set --report_to none to do without it.",
    "mlflow": "MLFLOW_TRACKING_URI says where its store is (not set: MLflow's own default); or set --report_to none.",
    "wandb": "Log in (wandb login), keep it on this machine (WANDB_MODE=offline), or set --report_to none.",
}


def _start(accelerator: Accelerator, kind: str, run: Path, settings: Mapping[str, Any]) -> None:
    folder = run / TRACKER_FOLDER
    if accelerator.is_main_process:
        with storage_errors(folder):
            folder.mkdir(exist_ok=True)
    known = None  # a resumed run continues in the tracker's same run
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known = json.loads((folder / _ID_FILE).read_text(encoding="utf-8")).get(kind)
    try:
        if kind == "tensorboard":
            accelerator.init_trackers(TRACKER_FOLDER)
            return
        options: dict[str, Any] = {"name": run.resolve().name, "dir": str(folder), "id": known, "resume": "allow"}
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        if kind == "mlflow":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            options, project = {"run_name": run.resolve().name, "run_id": known}, PROJECT
        accelerator.init_trackers(project, dict(settings), {kind: options})
    except Exception as error:  # each tracker has its own exception classes
        raise ConfigError(
            f"training.report_to: {kind} could not be started: {' '.join(str(error).split())[:300]} {_CURES[kind]}"
        ) from error
    if accelerator.is_main_process:
        tracker = accelerator.get_tracker(kind, unwrap=True)
        own_id = str(tracker.info.run_id if kind == "mlflow" else tracker.id)
        write_text(folder / _ID_FILE, json.dumps({kind: own_id}) + "\n")


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
