"""Progress of a comparison on standard error: one bar over all runs, and a line for each finished run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attentune.experiments.comparison.grid import Run
from attentune.experiments.comparison.record_store import RunRecord


def seconds_left(
    done: Sequence[RunRecord], waiting: Sequence[Run], running: Mapping[Run, float], workers: int
) -> float | None:
    """Estimate the seconds that the remaining runs take; None while only baselines are done, which take seconds.

    The estimate for a run is the (lower) median over the runs of its task, size and method, else over the trained runs
    of its task and size, else over all trained runs. A median, because the times of runs that were suspended with the
    machine are outliers.

    Args:
        done: finished runs.
        waiting: runs that have not started.
        running: running runs, with the seconds since their start.
        workers: number of workers.
    """
    trained = [record for record in done if not record.config.get("baseline")]
    known = {(record.run.task, record.run.size, record.run.method) for record in done}
    if not done or (not trained and any((run.task, run.size, run.method) not in known for run in (*waiting, *running))):
        return None

    def expected(run: Run) -> float:
        place = run.task, run.size
        same = [record for record in done if (*place, run.method) == (*place_of(record), record.run.method)]
        chosen = same or [record for record in trained if place_of(record) == place] or trained
        return statistics.median_low(record.wall_seconds for record in chosen)

    def place_of(record: RunRecord) -> tuple[str, str]:
        return record.run.task, record.run.size

    seconds = sum(expected(run) for run in waiting)
    rest = [max(0.0, expected(run) - since) for run, since in running.items()]
    # One long run may outlast all others.
    return max([(seconds + sum(rest)) / max(1, workers), *rest])


def as_duration(seconds: float | None) -> str:
    """Format seconds, such as "about 2 h 5 min" or "about 40 s"; an empty string for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"about {seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60} min"


class ComparisonProgress:
    """Shows the progress of a comparison or search: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        # How a run is described in the bar and in a line; a search sets its own.
        self.short: Callable[[Run], str] = lambda run: f"{run.method} on {run.task}"
        self.long: Callable[[Run], str] = lambda run: f"{run.method} on {run.task}, {run.size} rows, seed {run.seed}"

    def info(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)

    def warning(self, text: str) -> None:
        """Print a warning above the bar."""
        self._console.print(f"warning: {text}", markup=False, style="yellow")

    def start(self, total: int) -> None:
        """Show the bar, if standard error is a terminal."""
        if not self._console.is_terminal or self._console.quiet:
            return
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed}/{task.total} runs"),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, facts="", left="")
        self._bar.start()

    def update(self, done: int, total: int, *, failed: int, running: Sequence[Run], left: float | None) -> None:
        """Move the bar."""
        if self._bar is None or self._task is None:
            return
        names = [self.short(run) for run in running[:3]] + (["..."] if len(running) > 3 else [])
        facts = (f"{failed} failed  " if failed else "") + ("running: " + ", ".join(names) if names else "")
        time_left = "" if left is None else f"{as_duration(left)} left"
        self._bar.update(self._task, completed=done, total=total, facts=facts, left=time_left)

    def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
        """Print a line for a finished run."""
        run = record.run
        what = self.long(run)
        if not record.is_done:
            reason = " ".join(str((record.error or {}).get("message", "")).split()) or (record.error or {}).get("kind")
            log = self.warning if record.status == "failed" else self.info
            log(f"{number} of {total}: {what}: {record.status}: {reason}")
            return
        score = "no score" if record.score is None else f"{record.metric} {record.score:.4f}"
        time_left = f"; {as_duration(left)} left" if left is not None and number < total else ""
        self.info(f"{number} of {total}: {what}: {score} ({record.wall_seconds:.0f} s{time_left})")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
