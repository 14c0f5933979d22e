"""Many rows: the flags of `predict`, `explain` and `evaluate` that write shards, and their execution."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attentune.cli.executor_flags import add_executor_flags, executor_options
from attentune.cli.flags import Parser, config_from, names_in, overrides_of, whole_number
from attentune.cli.text_rows import tell_job
from attentune.errors import ConfigError

# Seconds between lines of progress where there is no terminal.
_REPORT_S = 30.0


def add_keep_columns(made: Parser) -> None:
    """Add `--keep_columns`."""
    made.add_argument(
        "--keep_columns",
        metavar="all|NAME,NAME",
        help="with --input_file: columns to copy to the output (default: none)",
    )


def add_shard_flags(made: Parser, *, formats: Sequence[str] = ("parquet", "jsonl", "csv")) -> None:
    """Add the flags of shards and of the executor."""
    group: Any = made.add_argument_group(
        "many rows", "--input_file may also be a folder, a quoted pattern ('corpus/*.parquet') or a URL (s3://...)"
    )
    group.add_argument("--output_dir", help="a folder or URL for the output, in shards that are skipped once written")
    group.add_argument("--shards", metavar="N", help="number of shards (default: about one per 65,536 rows)")
    group.add_argument("--shard", metavar="I", help="write only this shard, from 0, in this process: for job arrays")
    group.add_argument(
        "--output_format", choices=formats, help=f"format of the shards: {', '.join(formats)} (default: {formats[0]})"
    )
    add_executor_flags(group, what="shards")


def check_shard_flags(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Check the flags of shards; return the number of shards, the single shard and the executor's options."""
    shards = whole_number("--shards", parsed.shards, problems)
    shard = whole_number("--shard", parsed.shard, problems, minimum=0)
    given = {"shards": shards, "shard": shard, "executor": executor_options(parsed, problems)}
    names = ["shards", "shard", "output_format"]
    several = parsed.input_file is not None and _is_several(parsed.input_file)
    if parsed.output_dir is None:
        problems += [f"--{name}: goes with --output_dir." for name in names if getattr(parsed, name) is not None]
        if several:
            problems.append(
                f"--input_file: got {parsed.input_file}, expected one file. Folders, patterns and URLs are read with"
                " --output_dir."
            )
        return given
    if parsed.input_file == "-":
        problems.append(
            "--input_file: got -, which is standard input, but shards are read again, also by other processes. Save it"
            " to a file, or leave --output_dir out."
        )
    for name in ("text", "output_file", "errors_file"):
        if getattr(parsed, name, None) is not None and not (name == "errors_file" and parsed.shard is None):
            problems.append(f"--{name}: does not go with --output_dir{' --shard' if name == 'errors_file' else ''}.")
    if "data.skip_broken_rows" in overrides_of(parsed, []):
        problems.append(
            "--skip_broken_rows: does not go with --output_dir, whose shards have a line for each row of the input."
            " Correct the rows (attentune doctor names them), or leave --output_dir out."
        )
    if "data.task" in overrides_of(parsed, []):
        problems.append("--task: does not go with --output_dir; name its file with --input_file.")
    if shards and shard is not None and shard >= shards:
        problems.append(f"--shard: got {shard}, expected a number from 0 to {shards - 1}.")
    return given


def _is_several(path: str) -> bool:
    there = Path(path).expanduser()
    return "://" in path or there.is_dir() or (bool(re.search(r"[*?\[]", path)) and not there.exists())


def check_input(command: str, parsed: Any, problems: list[str]) -> Any:
    """Check that `--input_file` or `--dataset_name` is given; return the data settings."""
    named = "data.dataset_name" in overrides_of(parsed, [])
    if named == (parsed.input_file is not None):
        got = "both" if named else "neither"
        problems.append(f"{command} --output_dir: got {got} of --input_file and --dataset_name, expected one of them.")
    return config_from(parsed, problems).data


def columns_to_keep(parsed: Any) -> tuple[str, ...]:
    """Return the names of `--keep_columns`."""
    return tuple(names_in(parsed.keep_columns))


def run_shards_of(
    command: str,
    arguments: Sequence[str],
    parsed: Any,
    given: dict[str, Any],
    *,
    saved: Any,
    data: Any,
    kind: Any,
    task: Callable[..., Any],
    options: dict[str, Any],
) -> tuple[int, Any, Any]:
    """Plan the shards and execute them."""
    from attentune.data.ranges import dataset_source, find_sources
    from attentune.data.readers.formats import FileOptions
    from attentune.execution.executor import default_slots
    from attentune.experiments.shards.plan import PLAN_FILE, ShardRequest, make_plan, run_fingerprint
    from attentune.io.urls import OutputFolder, is_url

    folder = parsed.output_dir if is_url(parsed.output_dir) else str(Path(parsed.output_dir).expanduser().absolute())
    output = OutputFolder(folder)
    config = saved.with_columns(data)
    if parsed.input_file is not None:
        sources = find_sources(parsed.input_file, (PLAN_FILE,), FileOptions.of(config))
    else:
        sources = [dataset_source(config.dataset_name, config.dataset_config_name, parsed.split)]
    run = str(Path(saved.folder).absolute())
    output_format = parsed.output_format or "parquet"
    fingerprint, keep = run_fingerprint(saved), columns_to_keep(parsed)
    request = ShardRequest(command, run, fingerprint, tuple(sources), config, keep, output_format, options)
    executor = given["executor"]
    divided_here = given["shard"] is None and executor.executor == "local"
    if command == "predict":
        tell_job(saved)
    plan = make_plan(
        output,
        request,
        saved,
        kind.columns(saved, options),
        shards=given["shards"],
        processes=default_slots([{}], executor.jobs).count if divided_here else 1,
        reads_labels=kind.reads_labels,
        log=lambda text: print(text, file=sys.stderr),
    )
    if given["shard"] is not None:
        status = _one_shard(output, plan, given["shard"], task)
    else:
        status = _all_shards(output, plan, executor, task)
    if status == 130:
        again = shlex.join(["attentune", command, *arguments])
        done = len(plan.shards) - len(plan.missing(output))
        print(
            f"attentune: stopped with {done} of {len(plan.shards)} shards written. Go on with:\n  {again}",
            file=sys.stderr,
        )
    return status, output, plan


def _one_shard(output: Any, plan: Any, shard: int, task: Callable[..., Any]) -> int:
    from attentune.training.signals import stop_on_signal

    if shard >= len(plan.shards):
        raise ConfigError(f"--shard: got {shard}, expected a number from 0 to {len(plan.shards) - 1}.")
    name = plan.file_name(shard)
    if name in output.names():
        print(f"{output.place(name)} is already written.", file=sys.stderr)
        return 0
    with stop_on_signal() as stop:
        read = task(output.path, shard, stop=stop)
    if read is None:
        return 130
    print(f"{read.rows:,} rows written to {output.place(name)}", file=sys.stderr)
    _tell_cut(read)
    return 0


def _all_shards(output: Any, plan: Any, options: Any, task: Callable[..., Any]) -> int:
    from attentune.execution import make_executor
    from attentune.experiments.shards.driver import ShardsStopped, run_shards
    from attentune.runs.driver import only_driver
    from attentune.training.signals import stop_on_signal

    logs = Path(output.path) / "logs" if output.is_local else Path("attentune-logs")
    with only_driver(Path(output.path), Path(".lock")) if output.is_local else contextlib.nullcontext():
        missing = plan.missing(output)
        if len(missing) < len(plan.shards):
            print(
                f"{len(plan.shards) - len(missing)} of {len(plan.shards)} shards are already written.", file=sys.stderr
            )
        if missing:
            from attentune.inference.predictor import TextsRead

            every = TextsRead()
            with stop_on_signal() as stop, _progress(plan, missing) as count:

                def written(shard: int, read: TextsRead) -> None:
                    nonlocal every
                    every += read
                    count(shard, read.rows)

                executor = make_executor(options, logs, [{}], reuse=True)
                try:
                    run_shards(task, output, plan, executor, stop=stop, written=written)
                except ShardsStopped:
                    return 130
                finally:
                    _tell_cut(every)
    print(f"{plan.rows:,} rows in {len(plan.shards)} shards written to {output.path}", file=sys.stderr)
    return 0


def _tell_cut(read: Any) -> None:
    if (note := read.note()) is not None:
        print(note, file=sys.stderr)


@contextlib.contextmanager
def _progress(plan: Any, missing: Sequence[int]) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (shard, rows) that shows finished shards and rows, rows per second and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    to_do = sum(plan.rows_of(shard) for shard in missing)
    before, began = plan.rows - to_do, time.monotonic()
    done = {"rows": 0, "shards": 0, "reported": began}

    def state() -> str:
        seconds = time.monotonic() - began
        rate = done["rows"] / seconds
        left = (to_do - done["rows"]) / rate if rate else 0.0
        shards = len(plan.shards) - len(missing) + done["shards"]
        return (
            f"{shards:,} of {len(plan.shards):,} shards, {before + done['rows']:,} of {plan.rows:,} rows,"
            f" {rate:,.0f} rows/s, {_duration(left)} left"
        )

    def count(rows: int) -> None:
        done["rows"] += rows
        done["shards"] += 1

    if not console.is_terminal:

        def report(shard: int, rows: int) -> None:
            count(rows)
            now = time.monotonic()
            if now - done["reported"] >= _REPORT_S or done["shards"] == len(missing):
                done["reported"] = now
                print(state(), file=sys.stderr)

        yield report
        return
    with Progress(BarColumn(), TextColumn("{task.fields[state]}"), console=console, transient=True) as bar:
        shown = bar.add_task("shards", total=plan.rows, completed=before, state="")

        def advance(shard: int, rows: int) -> None:
            count(rows)
            bar.update(shown, completed=before + done["rows"], state=state())

        yield advance


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
