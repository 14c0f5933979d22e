"""Comparisons from Python, and those that the disk or the kernel stops."""

from pathlib import Path

import pytest

import attentune
from attentune.errors import StorageError
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore
from helpers.comparisons import (
    times_done,
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
