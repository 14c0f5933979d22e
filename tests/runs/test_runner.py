"""Comparisons from Python, and those that the disk or the kernel stops."""

from __future__ import annotations

from pathlib import Path

import pytest

import attentune
from attentune.errors import StorageError
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore
from helpers.comparisons import (
    checkpointed,
    command,
    finish,
    is_alive,
    kill,
    start,
    times_done,
    wait_for,
    worker_at,
    workers_of,
)
from helpers.samples import settings


def overrides(folder: Path, encoder: Path) -> dict[str, object]:
    values = settings(folder, encoder, training__num_train_epochs=1)
    return {name: value for name, value in values.items() if name != "training.output_dir"}


@pytest.mark.integration
def test_compare_from_python_and_a_disk_that_refuses(tiny, tmp_path):
    folder, given = tmp_path / "comparison", overrides(tmp_path, tiny("bert"))
    methods = {"bert": {"preset": "bert"}, "careful": {"preset": "bert", "set": {"training.learning_rate": 1e-6}}}
    quiet = {"display": ComparisonProgress(quiet=True), "jobs": 1, "overrides": given, "settings": methods}
    first = attentune.compare(folder, presets=["bert"], seeds=[4], **quiet)
    assert [(record.run.method, record.seed, record.is_done) for record in first] == [("bert", 4, True)]
    # Where runs should be trained there is a file.
    (folder / "runs").write_text("in the way")
    with pytest.raises(StorageError, match=r"runs.*: is a file, so no run folder can be made there"):
        attentune.compare(folder, seeds=[4], **quiet)
    assert len(RecordStore(folder).records()) == 1  # that is no failure of the run
    (folder / "runs").unlink()
    # Where its records should go, too.
    blocked = RecordStore(folder).file(first[0].run).parent.parent / "careful"
    blocked.write_text("in the way")
    with pytest.raises(StorageError, match=r"careful.* could not be written"):
        attentune.compare(folder, seeds=[4], **quiet)
    assert not workers_of(folder)
    blocked.unlink()
    both = attentune.compare(folder, seeds=[4], **quiet)
    assert [record.run.method for record in both] == ["bert", "careful"]
    assert both[0] == first[0]
    assert both[1].config["training"]["learning_rate"] == 1e-6
    assert set(times_done(folder).values()) == {1}  # what was trained was not trained again


@pytest.mark.slow
def test_a_run_whose_workers_are_killed_again_and_again_is_recorded_as_failed(tiny, tmp_path):
    flags = ("--presets", "bert", "--seeds", "1", "--jobs", "1")
    words = command(tmp_path, tiny("bert"), *flags, training__num_train_epochs=2000, training__save_steps=1)
    folder = tmp_path / "comparison"
    process = start(words)
    before = 0
    for _ in range(3):
        run = wait_for(checkpointed(folder), "checkpoint", process)[0]
        victim = wait_for(
            lambda run=run: [pid for pid in workers_of(folder) if pid == worker_at(folder, run)], "worker"
        )
        assert victim[0] != before
        before = victim[0]
        kill(before)
        wait_for(lambda pid=before: not is_alive(pid), "end of the killed worker")
    status, _, errors = finish(process)
    assert status == 2
    assert "1 of 1 runs failed" in errors
    record = RecordStore(folder).records()[0]
    assert record.error is not None
    assert record.error["kind"] == "WorkerKilled"
    assert "was killed by signal 9, 3 times in all; if memory ran out, give fewer --jobs" in record.error["message"]
