"""Tables for standard output, plain enough for a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns padded to their widest entry.

    Args:
        header: the columns' names.
        rows: the entries.
        right: numbers of the columns that are flush right.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [
        "  ".join(
            entry.rjust(width) if column in right else entry.ljust(width)
            for column, (entry, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * width for width in widths), *padded[1:]])


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table; "undefined" where there is none."""
    return "undefined" if value is None or value != value else f"{value:.{digits}f}"


def scores_table(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """Scores, one line a split and metric."""
    rows = [(split, name, number(value)) for split, metrics in scores.items() for name, value in metrics.items()]
    return table(("split", "metric", "value"), rows, right=(2,))


def progress_lines() -> Callable[[str, int, int], None]:
    """A callback (what is scored, rows done in a batch, all rows): a line on standard error for each tenth of them."""
    done: dict[str, int] = {}

    def report(name: str, rows: int, total: int) -> None:
        before = done.get(name, 0)
        done[name] = before + rows
        if before * 10 // total != done[name] * 10 // total:
            print(f"{name}: {done[name]:,} of {total:,} rows", file=sys.stderr)

    return report


@contextlib.contextmanager
def destination(path: str | None) -> Iterator[Callable[[str], None]]:
    """What takes a text piece by piece: a file, which stands there whole at the end or not at all, or standard output.

    Raises:
        StorageError: it could not be written.
        BrokenPipeError: whoever reads standard output has had enough.
    """
    from attentune.io.files import atomic_write

    if path is None:
        yield _put
        return
    with atomic_write(path) as add:
        yield lambda text: add(text.encode("utf-8"))


def _put(text: str) -> None:
    """Write to standard output now, so that a reader has it and a full disk is told in one message."""
    from attentune.io.files import storage_errors

    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would be tried once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with storage_errors("standard output"):
            raise error


@contextlib.contextmanager
def row_bar(total: int, *, least: int) -> Iterator[Callable[[int], None]]:
    """A callback (rows done in a batch) that shows on standard error how far all rows are, how fast and how long yet.

    Args:
        total: the number of rows.
        least: where standard error is no terminal, lines are printed for no fewer rows than these.
    """
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
