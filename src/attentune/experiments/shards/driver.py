"""Executes the shards of a plan that are not there yet, on any executor."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any

from attentune.errors import CheckpointError, DataError
from attentune.execution.executor import MAX_KILLS, Executor, WorkerKilled, resident_bytes
from attentune.experiments.shards.plan import ShardPlan
from attentune.inference.predictor import TextsRead
from attentune.io.urls import OutputFolder
from attentune.training.signals import StopRequest

# Seconds between looks at stop requests; and how long workers have to end after one.
_POLL_S, _WAIT_S = 0.2, 30.0
# A shard is not repeated after so many workers were asked to stop during it.
_MAX_STOPS = 20
# A task of an executor: (folder, shard, stop=...) -> rows that were read, or None after a stop request.
ShardTask = Callable[..., TextsRead | None]
# Called with a shard and the rows that were read once its file is written.
Written = Callable[[int, TextsRead], None]


class ShardsStopped(Exception):
    """A stop was requested; finished shards are written, and the same call does the others."""


class BadShards(DataError):
    """Some shards have invalid rows; all others are written."""


def run_shards(
    task: ShardTask, output: OutputFolder, plan: ShardPlan, executor: Executor, *, stop: StopRequest, written: Written
) -> None:
    """Execute all shards whose files are missing.

    A shard whose worker is killed or stopped is repeated. One with invalid rows does not stop the others.
    """
    waiting = deque(plan.missing(output))
    running: dict[Future[Any], int] = {}
    kills: Counter[int] = Counter()
    stops: Counter[int] = Counter()
    bad: dict[int, DataError] = {}
    try:
        while waiting or running:
            if stop.requested:
                raise ShardsStopped
            # A worker needs about the memory of this process, which has the run too.
            count = min(len(waiting), executor.room(resident_bytes(os.getpid()))) if waiting else 0
            if count > 0:
                shards = [waiting.popleft() for _ in range(count)]
                running |= zip(executor.submit(task, [(output.path, shard) for shard in shards]), shards, strict=True)
            done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                shard = running.pop(future)
                try:
                    read = future.result()
                except WorkerKilled as error:
                    kills[shard] += 1
                    if kills[shard] >= MAX_KILLS:
                        raise _killed_often(output, plan, shard, error) from error
                    waiting.appendleft(shard)
                except CancelledError:
                    waiting.appendleft(shard)
                except DataError as error:
                    bad[shard] = error
                else:
                    if read is not None:
                        written(shard, read)
                    elif stop.requested:
                        raise ShardsStopped
                    else:  # its job was pre-empted, or has reached its time limit
                        stops[shard] += 1
                        if stops[shard] >= _MAX_STOPS:
                            raise _stopped_often(output, plan, shard)
                        waiting.appendleft(shard)
    finally:
        executor.shutdown(wait_s=_WAIT_S)
    if bad:
        raise _bad_shards(output, bad)


def _killed_often(output: OutputFolder, plan: ShardPlan, shard: int, error: WorkerKilled) -> CheckpointError:
    return CheckpointError(
        f"{output.place(plan.file_name(shard))}: its worker was killed {MAX_KILLS} times ({error}), as happens if"
        " memory runs out. Finished shards are kept; go on with fewer --jobs, or look into the log of the worker."
    )


def _stopped_often(output: OutputFolder, plan: ShardPlan, shard: int) -> CheckpointError:
    return CheckpointError(
        f"{output.place(plan.file_name(shard))}: its worker was stopped {_MAX_STOPS} times before it was done, as"
        " happens if a job's time limit is too short. Finished shards are kept; start again with more --shards in"
        " another --output_dir, or raise the limit (--slurm timeout_min=...)."
    )


def _bad_shards(output: OutputFolder, bad: dict[int, DataError]) -> BadShards:
    messages = list(dict.fromkeys(str(bad[shard]) for shard in sorted(bad)))
    more = f"\n... and {len(messages) - 10} more" if len(messages) > 10 else ""
    numbers = ", ".join(map(str, sorted(bad)[:10])) + (", ..." if len(bad) > 10 else "")
    return BadShards(
        "\n".join(messages[:10])
        + more
        + f"\n{len(bad)} of the shards ({numbers}) were not written to {output.path}, the others are. Correct these"
        " rows and start again with another --output_dir."
    )
