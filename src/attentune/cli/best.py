"""`--best`: the best run in the folder of a comparison or search."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_best_flag(made: argparse.ArgumentParser, *, with_task: bool = False) -> None:
    """Add `--best`, and `--task` to a command that has no flags of data."""
    made.add_argument(
        "--best",
        action="store_true",
        help="RUN is the folder of a comparison or search: use its best run (by the mean validation score)",
    )
    if with_task:
        made.add_argument("--task", metavar="NAME", help="with --best: the task, if the comparison has several")


def use_best(parsed: Any, *, names_rows: bool = False) -> None:
    """With `--best`, replace `parsed.run` by the best run in that folder, and say on standard error which it is."""
    if not parsed.best:
        return
    from attentune.report.best_run import best_run, tasks_of

    name = "data.task" if "data.task" in vars(parsed) else "task"
    task = getattr(parsed, name)
    best = best_run(parsed.run, task)
    if task is not None and names_rows and len(tasks_of(parsed.run)) > 1:
        setattr(parsed, name, None)
    print(f"attentune: {best.sentence}", file=sys.stderr)
    parsed.run = str(best.folder)
