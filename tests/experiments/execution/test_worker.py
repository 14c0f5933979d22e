"""One worker process: how many runs it does, and that it ends with whoever started it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from attentune.experiments.comparison.grid import plan_grid
from attentune.experiments.comparison.manifest import open_comparison
from attentune.experiments.comparison.methods import Method
from attentune.experiments.execution.queue import RunQueue
from attentune.experiments.execution.queue_storage import StorageConfig
from attentune.experiments.execution.worker import STOPPED, WorkerTask
from helpers.comparisons import WAIT_S, checkpointed, wait_for
from helpers.samples import settings

pytestmark = pytest.mark.integration


def started(
    folder: Path, encoder: Path, *, one_run: bool, **changes: object
) -> tuple[subprocess.Popen[bytes], RunQueue]:
    """A worker with two runs to do, and their queue."""
    values = settings(folder, encoder, **changes)
    del values["training.output_dir"]
    grid = plan_grid(tasks=None, methods=[Method("bert", "bert")], seeds=[1, 2], overrides=values)
    storage_config = StorageConfig(str(folder / "comparison"), open_comparison(folder / "comparison", grid))
    queue = RunQueue(storage_config)
    queue.refill(grid.runs)
    runs = [dataclasses.asdict(run) for run in grid.runs]
    task = WorkerTask(dataclasses.asdict(storage_config), runs, grid.configs, one_run=one_run)
    process = subprocess.Popen(
        [sys.executable, "-m", "attentune.experiments.execution.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(task.to_line())
    process.stdin.flush()
    return process, queue


@pytest.mark.parametrize(("one_run", "done"), [(True, 1), (False, 2)])
def test_it_does_one_run_or_all_that_wait(tiny, tmp_path, one_run, done):
    process, queue = started(tmp_path, tiny("bert"), one_run=one_run, training__num_train_epochs=1)
    assert process.wait(WAIT_S) == 0
    records = queue.record_store.records()
    assert [record.status for record in records] == ["done"] * done
    assert not list((tmp_path / "comparison").glob("runs/*/*/*/*"))


def test_it_saves_and_ends_when_whoever_started_it_is_gone(tiny, tmp_path):
    process, queue = started(tmp_path, tiny("bert"), one_run=False, training__num_train_epochs=500)
    run = wait_for(checkpointed(tmp_path / "comparison"), "checkpoint")[0]
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(WAIT_S) == STOPPED
    assert (run / "config.yaml").is_file()
    assert list(run.glob("checkpoint-*"))
    assert queue.record_store.records() == []
