"""Flags that choose where runs are executed."""

from __future__ import annotations

from typing import Any

import yaml

from attentune.cli.flags import Parser, whole_number
from attentune.errors import ConfigError
from attentune.execution.executor import EXECUTORS, ExecutorOptions


def add_executor_flags(made: Parser) -> None:
    """Add the flags of the executor."""
    made.add_argument(
        "--executor",
        metavar="|".join(EXECUTORS),
        default="local",
        help="execute runs in processes of this machine, on a Ray cluster or as SLURM jobs (default: local)",
    )
    made.add_argument("--jobs", metavar="N", help="runs at a time (default: one per core, or one per GPU)")
    made.add_argument(
        "--ray_address",
        metavar="HOST:PORT",
        help="with --executor ray: the cluster (default: the one of RAY_ADDRESS, else a new one on this machine)",
    )
    made.add_argument("--cpus_per_run", metavar="N", default="1", help="with ray or slurm: cores of each (default: 1)")
    made.add_argument(
        "--gpus_per_run",
        metavar="N",
        default="0",
        help="with ray or slurm: GPUs of each; with ray also 0.25 (default: 0)",
    )
    made.add_argument(
        "--processes_per_run",
        metavar="N",
        default="1",
        help="with ray or slurm: processes that train a run together, by torchrun (default: 1)",
    )
    made.add_argument(
        "--slurm",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="with --executor slurm: a parameter of submitit: partition=gpu, timeout_min=120, mem_gb=8 (repeatable)",
    )


def executor_options(parsed: Any, problems: list[str]) -> ExecutorOptions:
    """Return the options that the flags give; append errors to `problems`."""
    try:
        gpus = float(parsed.gpus_per_run)
    except ValueError:
        gpus = 0.0
        problems.append(f"--gpus_per_run: got {parsed.gpus_per_run!r}, expected a number such as 1 or 0.25.")
    slurm = []
    for text in parsed.slurm:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            problems.append(f"--slurm: got {text!r}, expected NAME=VALUE such as partition=gpu.")
        else:
            slurm.append((name, yaml.safe_load(value) if value else ""))
    options = ExecutorOptions(
        executor=parsed.executor,
        jobs=whole_number("--jobs", parsed.jobs, problems),
        ray_address=parsed.ray_address,
        cpus_per_run=whole_number("--cpus_per_run", parsed.cpus_per_run, problems) or 1,
        gpus_per_run=gpus,
        processes_per_run=whole_number("--processes_per_run", parsed.processes_per_run, problems) or 1,
        slurm=tuple(slurm),
    )
    try:
        options.check()
    except ConfigError as error:
        problems += error.problems
    return options
