"""Progress of a run: a bar and lines on standard error, and the log file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attentune.io.files import storage_errors
from attentune.results import without_nan


class JsonLog:
    """An append-only file of JSON lines that is cut back to a checkpoint when a run is resumed."""

    def __init__(self, path: Path, *, keep_bytes: int = 0, keep_sha256: str | None = None) -> None:
        self._path = path
        with storage_errors(path):
            self._file = path.open("ab", buffering=0)  # unbuffered
            self._file.truncate(min(keep_bytes, path.stat().st_size))
            self._digest = hashlib.sha256(path.read_bytes())
        self.is_as_written = keep_sha256 in (None, self._digest.hexdigest())

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line."""
        line = json.dumps(without_nan(facts), ensure_ascii=False).encode() + b"\n"
        self._digest.update(line)
        with storage_errors(self._path):
            while line:  # a full disk may write a part only
                line = line[self._file.write(line) :]

    def synced(self) -> tuple[int, str]:
        """Flush the file to the disk; return its length and SHA-256."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size, self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()


def is_main_rank() -> bool:
    """Return whether this is the main process of those that `torchrun` or `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"


class ProgressDisplay:
    """A progress bar with loss, speed and time left; plain lines where standard error is no terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet or not is_main_rank(), soft_wrap=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._predicted = 0

    def info(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)

    def warning(self, text: str) -> None:
        """Print a warning above the bar."""
        self._console.print(f"warning: {text}", markup=False, style="yellow")

    def start(self, total_steps: int, done: int) -> None:
        """Show the bar, if standard error is a terminal."""
        if not self._console.is_terminal or self._console.quiet:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=total_steps, completed=done, facts="")
        self._bar.start()

    def advance(self, step: int, *, loss: float, tokens_per_second: float) -> None:
        """Move the bar."""
        self._predicted = 0
        if self._bar is not None and self._task is not None:
            facts = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
            self._bar.update(self._task, completed=step, facts=facts)

    def predicted(self, rows: int) -> None:
        """Show in the bar how many sentences have been predicted for token labels since the last step."""
        self._predicted += rows
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, facts=f"labels: {self._predicted:,} sentences predicted")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        sys.stderr.flush()


def one_line(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """Format scores as one line: "validation: accuracy 0.8123, f1 0.8456"."""
    return "; ".join(
        f"{split}: "
        + ", ".join(
            f"{name} {'undefined' if value is None or value != value else format(value, '.4f')}"
            for name, value in metrics.items()
        )
        for split, metrics in scores.items()
    )


def label_line(facts: Mapping[str, Any]) -> str:
    """Format an epoch's label counts as one line: "labels: 800 probed, 640 correct; 900 tokens at 1, 3,000 at 0"."""
    sentences = ", ".join(f"{facts[name]:,} {name}" for name in ("probed", "correct", "flipped") if name in facts)
    if "reused_wrong_share" in facts:
        sentences += (
            f", {facts['reused']:,} reused ({facts['reused_wrong_share']:.0%} of {facts['reused_checked']} wrong)"
        )
    tokens = f"{facts['ones']:,} tokens at 1, {facts['zeros']:,} at 0 ({facts['seconds']:.1f} s)"
    return f"labels: {sentences}; {tokens}" if sentences else f"labels: {tokens}"
