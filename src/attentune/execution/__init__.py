"""Executes picklable tasks somewhere: in processes of this machine, on a Ray cluster, or as jobs of SLURM.

`executor` has the interface and its options; `local`, `ray_cluster` and `slurm` implement it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attentune.execution.executor import Executor, ExecutorOptions, default_slots


def make_executor(options: ExecutorOptions, logs: Path, configs: Iterable[dict[str, Any]]) -> Executor:
    """Return the executor that the checked options name, for runs with these settings."""
    if options.executor == "ray":
        from attentune.execution.ray_cluster import RayExecutor

        return RayExecutor(options, logs)
    if options.executor == "slurm":
        from attentune.execution.slurm import SlurmExecutor

        return SlurmExecutor(options, logs)
    from attentune.execution.local import LocalExecutor

    slots = default_slots(configs, options.jobs)
    # On a GPU each fresh process would have to start CUDA.
    return LocalExecutor(slots, logs, reuse=bool(slots.devices))
