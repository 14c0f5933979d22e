"""Plain-text tables, progress lines, and where results go: standard output carries nothing else."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attentune.data.tables import visible


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Format a table whose columns are padded to their widest entry, with control characters made visible."""
    lines = [[visible(entry, one_line=True) for entry in line] for line in (header, *rows)]
    column_widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [
        "  ".join(
            entry.rjust(width) if column in right else entry.ljust(width)
            for column, (entry, width) in enumerate(zip(line, column_widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * width for width in column_widths), *padded[1:]])


def number(value: float | None, digits: int = 4) -> str:
    """Format a number for a table; "undefined" for None and NaN."""
    return "undefined" if value is None or value != value else f"{value:.{digits}f}"


def short(text: str, characters: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def scores_table(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    rows = [(split, name, number(value)) for split, metrics in scores.items() for name, value in metrics.items()]
    return table(("split", "metric", "value"), rows, right=(2,))


def tell_next(folder: object, rows: Any) -> None:
    """Say on standard error what to do with a new run: two commands, with a text of its rows (`TextRows`)."""
    row = next((row for row, text in enumerate(rows.texts) if text.strip()), 0)
    given = [("--text", rows.texts[row])] + ([] if rows.pairs is None else [("--text_pair", rows.pairs[row])])
    # A text that begins like a flag has to be joined to its own.
    words = [(flag, short(text, 60)) for flag, text in given]
    texts = [part for flag, text in words for part in ([f"{flag}={text}"] if text.startswith("-") else [flag, text])]
    commands = (shlex.join(["attentune", command, str(folder), *texts]) for command in ("predict", "explain"))
    print("next:", *commands, sep="\n  ", file=sys.stderr)


def stopped(why: object, command: str, arguments: Sequence[str], *, resume: bool = False) -> int:
    """Print why a command was stopped and the command that goes on; return the exit status."""
    again = ["attentune", command, *(_resumed(arguments) if resume else arguments)]
    print(f"attentune: {why} Resume with:\n  {shlex.join(again)}", file=sys.stderr)
    return 130


def _resumed(arguments: Sequence[str]) -> list[str]:
    """Add `--resume`, and leave out `--overwrite_output_dir`, which does not go with it."""
    kept: list[str] = []
    may_be_value = False
    for word in arguments:
        if word.split("=")[0].replace("-", "_") in ("__resume", "__overwrite_output_dir"):
            may_be_value = "=" not in word
            continue
        if word.startswith("-") or not may_be_value:
            kept.append(word)
        may_be_value = False
    return [*kept, "--resume"]


def progress_lines() -> Callable[[str, int, int], None]:
    """Return a callback (name, rows of the batch, all rows) that prints a line to standard error at each 10 %."""
    done: dict[str, int] = {}

    def report(name: str, rows: int, total: int) -> None:
        before = done.get(name, 0)
        done[name] = before + rows
        if before * 10 // total != done[name] * 10 // total:
            print(f"{name}: {done[name]:,} of {total:,} rows", file=sys.stderr)

    return report


@contextlib.contextmanager
def destination(path: str | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes a text in pieces to a file, atomically, or to standard output."""
    from attentune.io.files import atomic_write

    if path is None:
        yield _put
        return
    with atomic_write(path) as add:
        yield lambda text: add(text.encode("utf-8"))


def _put(text: str) -> None:
    """Write to standard output and flush, so that the reader gets it at once and a full disk gives a single message."""
    from attentune.io.files import storage_errors

    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python would try to write the rest of the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with storage_errors("standard output"):
            raise error


@contextlib.contextmanager
def row_bar(total: int, *, least: int) -> Iterator[Callable[[int], None]]:
    """Yield a callback (rows of the batch) that shows progress, speed and remaining time on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        report = progress_lines()
        yield (lambda rows: report("predicted", rows, total)) if total >= least else lambda rows: None
        return
    columns = (BarColumn(), TextColumn("{task.completed:,} of {task.total:,} rows"), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("predicting", total=total, speed="")

        def advance(rows: int) -> None:
            bar.advance(task, rows)
            seconds = bar.tasks[0].elapsed or 0.0
            if seconds > 0:
                bar.update(task, speed=f"{bar.tasks[0].completed / seconds:,.0f} rows/s")

        yield advance
