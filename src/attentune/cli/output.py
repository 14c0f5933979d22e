"""Plain-text tables, progress lines and the destination of results for the command line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attentune.cli.flags import TEXT_SETTINGS, Parser, add_config_flags, config_from, overrides_of
from attentune.errors import ConfigError


def add_text_flags(made: Parser) -> None:
    """Add the flags that select texts, and those of the data settings."""
    made.add_argument("--text", help="one text")
    made.add_argument("--text_pair", help="its second text, for a model of text pairs")
    made.add_argument(
        "--input_file", help="a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input"
    )
    made.add_argument("--split", default="test", help="with --task or --dataset_name: the split (default: test)")
    add_config_flags(made, only=TEXT_SETTINGS)


def check_text_flags(command: str, parsed: Any, problems: list[str]) -> Any:
    """Check that exactly one source of texts is given, and return the data settings."""
    named_data = {name for name in overrides_of(parsed, []) if name in ("data.task", "data.dataset_name")}
    sources = [name for name in ("text", "input_file") if getattr(parsed, name) is not None] + sorted(named_data)
    if len(sources) != 1:
        problems.append(
            f"{command}: got {' and '.join(sources) or 'no texts'}, expected one of --text, --input_file (- for"
            " standard input), --task, --dataset_name."
        )
    if parsed.text_pair is not None and parsed.text is None:
        problems.append("--text_pair: goes with --text.")
    data = config_from(parsed, problems).data
    if data.max_eval_samples is not None and data.task is None:
        raise ConfigError(f"--max_eval_samples: goes with --task; all rows of other sources are read by {command}.")
    return data


def read_texts(parsed: Any, data: Any, saved: Any) -> Any:
    """Read the rows that the flags select, all at once."""
    from attentune.data.tables import WHOLE

    chunks = read_text_chunks(parsed, data, saved, WHOLE)
    tell_notes(chunks)
    (rows,) = chunks.read()
    return rows


def read_file_rows(path: str, data: Any, saved: Any) -> Any:
    """Read the rows to predict of a file, all at once, and tell how it was read."""
    from attentune.data.tables import WHOLE
    from attentune.data.unlabelled import unlabelled_chunks

    config = saved.with_columns(data)
    chunks = unlabelled_chunks(path, label_space=saved.label_space, is_pair=saved.is_pair, config=config, limit=WHOLE)
    tell_notes(chunks)
    (rows,) = chunks.read()
    return rows


def read_text_chunks(parsed: Any, data: Any, saved: Any, limit: Any, *, keep_columns: Sequence[str] = ()) -> Any:
    """Read the rows that the flags select, a file in chunks."""
    from attentune.data.dataset import TextRows
    from attentune.data.unlabelled import RowChunks, unlabelled_chunks, unlabelled_table

    is_pair, space = saved.is_pair, saved.label_space
    if parsed.text is not None:
        if is_pair != (parsed.text_pair is not None):
            wanted = "pairs: add --text_pair" if is_pair else "single texts: leave out --text_pair"
            raise ConfigError(f"{parsed.run}: was trained on {wanted}.")
        pairs = None if parsed.text_pair is None else (parsed.text_pair,)
        return RowChunks.of(TextRows(("0",), (parsed.text,), pairs, None, "--text"))
    if parsed.input_file is not None:
        config = saved.with_columns(data)
        return unlabelled_chunks(
            parsed.input_file,
            label_space=space,
            is_pair=is_pair,
            config=config,
            limit=limit,
            keep_columns=keep_columns,
        )
    if data.dataset_name is not None:
        from attentune.data.hub import read_split

        # A split that the dataset has is read as a file is; others are made of train.
        table = read_split(data.dataset_name, data.dataset_config_name, parsed.split)
        if table is not None:
            config = saved.with_columns(data)
            return unlabelled_table(table, label_space=space, is_pair=is_pair, config=config)
    task_data = saved.data(data, (parsed.split,))
    return RowChunks.of(next(iter(task_data.splits.values())))


def tell_cut_texts(saved: Any) -> None:
    """Say on standard error how many texts were longer than the run reads."""
    if (note := saved.read.note()) is not None:
        print(note, file=sys.stderr)


def tell_job(saved: Any) -> None:
    """Say on standard error what the run does."""
    print(f"This model {saved.job}.", file=sys.stderr)


def tell_notes(chunks: Any) -> None:
    """Say on standard error what the reader of the rows has noted."""
    for note in chunks.notes:
        print(note, file=sys.stderr)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Format a table whose columns are padded to their widest entry."""
    lines = [list(header), *(list(row) for row in rows)]
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


def scores_table(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """Format scores as a table with one line per split and metric."""
    rows = [(split, name, number(value)) for split, metrics in scores.items() for name, value in metrics.items()]
    return table(("split", "metric", "value"), rows, right=(2,))


def baselines_table(baselines: Mapping[str, Any]) -> str:
    """Format the comparison with baselines in a run's record, with a line on its interval."""
    rows = [
        (
            one["name"],
            number(one["score"]),
            "" if one["low"] is None else f"{number(one['low'])} to {number(one['high'])}",
            number(one["seconds"], 1),
        )
        for one in baselines["methods"]
    ]
    lines = table(("method", baselines["metric"], "95 % interval", "seconds"), rows, right=(1, 3))
    return f"{lines}\n{baselines['split']}, {baselines['rows']:,} rows; {baselines['interval']} intervals over rows."


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
def destination(path: str | None) -> Iterator[Callable[[str], None]]:
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
