"""The progress of many runs on standard error."""

from collections.abc import Callable, Sequence

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from attentune.runs.records import Run, RunRecord
from attentune.training.callbacks import LiveDisplay


def as_duration(seconds: float | None) -> str:
    """Format seconds, such as "about 2 h 5 min" or "about 40 s"; an empty string for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"about {seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60} min"


class ComparisonProgress(LiveDisplay):
    unit = "runs"

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        # How a run is described in the bar and in a line; a search sets its own.
        self.task_name: Callable[[str], str] = str
        self.short: Callable[[Run], str] = lambda run: f"{run.method} on {self.task_name(run.task)}"
        self.long: Callable[[Run], str] = lambda run: f"{self.short(run)}, {run.size} rows, seed {run.seed}"

    @property
    def is_quiet(self) -> bool:
        return self._console.quiet

    def start(self, total: int) -> None:
        self._show_bar(
            BarColumn(),
            TextColumn("{task.completed}/{task.total} " + self.unit),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            total=total,
        )

    def update(self, done: int, total: int, *, failed: int, running: Sequence[Run], left: float | None) -> None:
        names = [self.short(run) for run in running[:3]] + (["..."] if len(running) > 3 else [])
        facts = (f"{failed} failed  " if failed else "") + ("running: " + ", ".join(names) if names else "")
        time_left = "" if left is None else f"{as_duration(left)} left"
        self._move(completed=done, total=total, facts=facts, left=time_left)

    def ended(self, record: RunRecord, number: int, total: int, left: float | None) -> None:
        what = self.long(record.run)
        if not record.is_done:
            reason = " ".join(str((record.error or {}).get("message", "")).split()) or (record.error or {}).get("kind")
            log = self.warning if record.status == "failed" else self.info
            log(f"{number} of {total}: {what}: {record.status}: {reason}")
            return
        score = "no score" if record.score is None else f"{record.metric} {record.score:.4f}"
        time_left = f"; {as_duration(left)} left" if left is not None and number < total else ""
        self.info(f"{number} of {total}: {what}: {score} ({record.wall_seconds:.0f} s{time_left})")
