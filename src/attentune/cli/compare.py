"""`attentune compare`: compare methods on tasks over several seeds."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attentune.cli.early_checks import check_files_of_rows, check_output_folder
from attentune.cli.flags import (
    MOST_USED,
    Parser,
    add_config_flags,
    add_executor_flags,
    add_train_file,
    executor_options,
    names_in,
    overrides_of,
    seed_numbers,
    whole_number,
)
from attentune.errors import ConfigError

if TYPE_CHECKING:
    from attentune.runs.grid import RunGrid
    from attentune.runs.progress import ComparisonProgress

_EXAMPLES = """examples:
  attentune compare --tasks cola,rte --presets bert,ssa-hybrid,sesame --seeds 5 --output_dir comparisons/first
  attentune compare --tasks sst2 --presets bert,sesame --train_size 250,1000,all --output_dir comparisons/sizes
  attentune compare --train_file reviews.csv --presets bert,bert-mean --seeds 3 --output_dir comparisons/reviews
  attentune compare --train_file small.csv --presets bert,ssa-co --folds 10 --output_dir comparisons/folds
  attentune compare --tasks cola --settings methods.yaml --output_dir comparisons/methods
  attentune compare runs/bert runs/ssa           (trained runs, row by row: see attentune compare RUN RUN --help)

Below the table are verdicts: which preset is better than the baseline, and by how much; attentune report makes a page
of them. After an interruption, the same command resumes. Flags of settings apply to all presets; a --settings file has
settings of single methods: NAME: {preset: PRESET, set: {section.key: value}, tasks: {TASK: {...}}}."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune compare",
        usage="attentune compare --presets NAME,NAME --output_dir DIR [flags]",
        description="Train every preset on every task with every seed, in parallel, and write one record for each run.",
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "--presets", metavar="NAME,NAME", help="presets or methods of --settings (default: all of --settings)"
    )
    made.add_argument("--settings", metavar="FILE", help="a YAML file of methods: presets with further settings")
    made.add_argument(
        "--seeds",
        help="their number, or a list: 3,7,11 (default: 5, seeds 1 to 5); with --folds, repetitions (default: 1)",
    )
    made.add_argument("--train_size", metavar="N,N", help="numbers of training rows, such as 250,1000,all")
    made.add_argument("--plan", action="store_true", help="print the number of runs and the expected hours, and end")
    made.add_argument("--retry_failed", action="store_true", help="repeat runs that are recorded as failed")
    made.add_argument("--keep_runs", action="store_true", help="keep the folders of finished runs, with their weights")
    made.add_argument(
        "--keep_best",
        action="store_true",
        help="keep the folder of each preset's best run, for attentune predict --best and others",
    )
    add_executor_flags(made)
    made.add_argument(
        "--baseline", metavar="NAME", help="the method that the others are compared with (default: the first)"
    )
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the table")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    add_train_file(made)
    add_config_flags(made, first=MOST_USED)
    return made


def run(arguments: Sequence[str]) -> int:
    """Compare; return the exit status."""
    parsed, problems = parser().parse(arguments)
    options = _settings(parsed, problems)
    where = executor_options(parsed, problems)
    folder = options["overrides"].pop("training.output_dir", None)
    if folder is None:
        problems.append("--output_dir: is missing; name the comparison's folder: --output_dir comparisons/first")
    _check_baseline(parsed.baseline, options, problems)
    if problems:
        raise ConfigError(problems)
    check_files_of_rows(options["overrides"])
    check_output_folder(folder, "compare.json", "comparison")
    # Imported late, so that errors in flags are reported without delay.
    from attentune.runs.compare import CompareSettings, ComparisonStopped, compare
    from attentune.runs.progress import ComparisonProgress

    display = ComparisonProgress(quiet=parsed.quiet)
    if parsed.plan:
        print(_plan_text(folder, CompareSettings(**options).grid(folder), where.jobs, display), end="")
        return 0
    try:
        records = compare(
            folder,
            executor=where,
            keep_runs=parsed.keep_runs,
            keep_best=parsed.keep_best,
            retry_failed=parsed.retry_failed,
            display=display,
            **options,
        )
    except ComparisonStopped as stop:
        again = shlex.join(["attentune", "compare", *arguments])
        print(f"attentune: {stop} Resume with:\n  {again}", file=sys.stderr)
        return 130
    _print(records, folder, parsed)
    failed = [record for record in records if not record.is_done]
    if failed:
        print(
            f"attentune: {len(failed)} of {len(records)} runs failed; their records under"
            f" {folder}/records have the reasons. The same command with --retry_failed repeats them.",
            file=sys.stderr,
        )
        return 2
    return 0


def _plan_text(folder: str, grid: RunGrid, jobs: int | None, display: ComparisonProgress) -> str:
    """Format the planned runs of each task, size and method, with their expected time."""
    from attentune.cli.output import table
    from attentune.execution.executor import default_slots
    from attentune.runs.timing import planned_runs, time_left

    planned = planned_runs(Path(folder), grid, display.info)
    rows = [
        (one.task, one.size, one.method, str(one.runs), str(one.done), f"{one.seconds:,.0f}", f"{one.hours:,.2f}")
        for one in planned
    ]
    header = ("task", "rows", "preset", "runs", "done", "seconds", "hours left")
    flat = [one for by_task in grid.configs.values() for one in by_task.values()]
    left = time_left(planned, default_slots(flat, jobs).count)
    return f"{table(header, rows, right=range(3, 7))}\n\n{left}\n"


def _check_baseline(baseline: str | None, options: dict[str, Any], problems: list[str]) -> None:
    """Check, before anything is trained, that the baseline is one of the methods."""
    if baseline is None or problems:
        return
    from attentune.config.parse import did_you_mean
    from attentune.runs.grid import methods_named

    methods = [method.name for method in methods_named(options["presets"], options["settings"])]
    if baseline not in methods:
        hint = did_you_mean(baseline, methods)
        problems.append(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")


def _print(records: Sequence[Any], folder: str, parsed: Any) -> None:
    """Print the table of scores, and the verdicts below it."""
    from attentune.report.analysis import compare_methods
    from attentune.report.answer import answer_of
    from attentune.report.load import recorded_runs, with_task_names
    from attentune.results import to_json

    cells = cells_of(records)
    # Before the predictions are read, so that the table appears even if a file of them is damaged.
    if parsed.format == "text":
        print(_text(cells), end="", flush=True)
    verdicts = (
        compare_methods(with_task_names(recorded_runs(Path(folder), records)), parsed.baseline) if records else None
    )
    if parsed.format == "json":
        empty = {"baseline": parsed.baseline, "comparisons": [], "notes": []}
        answer = [] if verdicts is None else answer_of(verdicts)
        print(
            to_json({"answer": answer, "cells": cells, **(empty if verdicts is None else verdicts.to_dict())}), end=""
        )
    elif verdicts is not None:
        print("\n" + "\n".join([*answer_of(verdicts), verdicts.text()]), end="")


def _settings(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Return the fields of `CompareSettings`; append errors to `problems`."""
    overrides = overrides_of(parsed, problems)
    folds = overrides.pop("data.folds", None)
    if parsed.preset is not None:
        problems.append("--preset: is for single runs; name the presets to compare with --presets.")
    if parsed.train_size is not None and "data.max_train_samples" in overrides:
        problems.append("--max_train_samples and --train_size: choose one; expected --train_size.")
    return {
        "presets": [] if parsed.presets is None else _names("--presets", parsed.presets, problems),
        "settings": parsed.settings,
        "seeds": None if parsed.seeds is None else seed_numbers(parsed.seeds, problems),
        "folds": None if folds is None else whole_number("--folds", str(folds), problems, minimum=2),
        "train_sizes": None if parsed.train_size is None else _sizes(parsed.train_size, problems),
        "config": parsed.config,
        "overrides": overrides,
    }


def _names(flag: str, text: str, problems: list[str]) -> list[str]:
    names = names_in(text)
    if not names:
        problems.append(f"{flag}: got {text!r}, expected comma-separated names.")
    return names


def _sizes(text: str, problems: list[str]) -> list[int | None]:
    return [None if part == "all" else whole_number("--train_size", part, problems) for part in names_in(text)]


def cells_of(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Return mean and standard deviation (n - 1) over the scored seeds, for each task, size and method."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for record in records:
        groups.setdefault((record.task_name, record.run.size, record.run.method), []).append(record)
    tasks = list(dict.fromkeys(record.task_name for record in records))
    cells = []
    for (task, size, method), group in sorted(groups.items(), key=lambda item: _place(item[1][0], tasks)):
        scores = [record.score for record in group if record.is_done and record.score is not None]
        cells.append(
            {
                "task": task,
                "train_size": size,
                "method": method,
                "metric": next((record.metric for record in group if record.metric), None),
                "mean": statistics.fmean(scores) if scores else None,
                "std": statistics.stdev(scores) if len(scores) > 1 else None,
                "n": len(scores),
                "failed": sum(not record.is_done for record in group),
                "scores": {str(record.run.seed): record.score for record in group if record.is_done},
            }
        )
    return cells


def _place(record: Any, tasks: list[str]) -> tuple[Any, ...]:
    return (tasks.index(record.task_name), record.run.train_size is None, record.run.train_size or 0)


def _text(cells: Sequence[dict[str, Any]]) -> str:
    """Format the table."""
    from attentune.cli.output import number, table

    header = ("task", "rows", "preset", "metric", "mean", "std", "n", "failed")
    rows = [
        (
            cell["task"],
            cell["train_size"],
            cell["method"],
            cell["metric"] or "-",
            "-" if cell["mean"] is None else number(cell["mean"]),
            "-" if cell["std"] is None else number(cell["std"]),
            str(cell["n"]),
            str(cell["failed"] or "-"),
        )
        for cell in cells
    ]
    return table(header, rows, right=(1, 4, 5, 6, 7)) + "\n"
