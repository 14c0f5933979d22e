"""Tables for standard output, plain enough for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence


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
