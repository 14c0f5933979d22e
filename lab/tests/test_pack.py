"""Packed comparisons: the same report when they are unpacked, and the same files when they are packed again."""

import gzip
import json
from pathlib import Path

import pytest

from attentune.errors import CheckpointError, ConfigError
from attentune.report.contents import make_report
from attentune.report.document import Report
from attentune.report.load import collect
from attentune.report.writing import render_markdown
from attentune.runs.records import RecordStore, Run
from attentune_lab.pack import pack_records, unpack_records
from helpers.made_records import write_comparison, write_record


def report_of(folder: Path) -> Report:
    return make_report(collect([str(folder)]))


def test_a_packed_comparison_gives_the_same_report(tmp_path):
    write_comparison(tmp_path / "c", {"bert": 0.6, "ssa": 0.7}, tasks=("rte", "sst2"), sizes=(250, 1000))
    methods = {name: {"tasks": {"sst2": {}, "rte": {}}} for name in ("ssa", "bert")}
    (tmp_path / "c/compare.json").write_text(json.dumps({"format": 1, "id": "x", "methods": methods}))
    assert pack_records(tmp_path / "c", tmp_path / "packed") == len(RecordStore(tmp_path / "c").records()) == 24
    names = {"runs.jsonl.gz", "predictions.jsonl.gz", "compare.json"}
    assert {path.name for path in (tmp_path / "packed").iterdir()} == names
    unpack_records(tmp_path / "packed", tmp_path / "unpacked")
    pages = []
    for name in ("c", "unpacked"):
        report = report_of(tmp_path / name)
        # Titles are escaped and name the folder.
        pages.append(render_markdown(report, {}).replace(f"/{name}\n", "/FOLDER\n"))
    assert pages[0] == pages[1]
    assert pack_records(tmp_path / "unpacked", tmp_path / "again") == 24
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "packed" / name).read_bytes()


def test_packed_predictions_are_those_of_the_files(tmp_path):
    classes = [["id", "label", "prediction", "p_no", "p_yes"], ["a", "yes", "no", "0.6", "0.4"]]
    scores = [["id", "label", "prediction"], ["a", "0.1", "0.123456"], ["b", "nan", "3"]]
    several = [["id", "labels", "predictions", "p_x", "p_y"], ["a", "x|y", "", "0.1", "0.2"], ["b", "", "y", "0", "1"]]
    for task, rows in (("rte", classes), ("stsb", scores), ("own", several)):
        for seed in (1, 2):
            write_record(tmp_path / "c", Run(task, 250, "bert", seed), rows, error={"message": "a\u2028b"})
    write_record(tmp_path / "c", Run("rte", None, "bert", 1), None, status="failed", scores={}, score=None)
    pack_records(tmp_path / "c", tmp_path / "packed")
    unpack_records(tmp_path / "packed", tmp_path / "unpacked")
    kept, unpacked = (collect([str(tmp_path / name)]).runs for name in ("c", "unpacked"))
    assert [one.record for one in unpacked] == [one.record for one in kept]
    for before, after in zip(kept, unpacked, strict=True):
        ours, theirs = before.predictions(), after.predictions()
        if ours is None:
            assert theirs is None
            assert before.record.status == "failed"
            continue
        assert (ours.ids, ours.names) == (theirs.ids, theirs.names)
        for one, other in ((ours.labels_N, theirs.labels_N), (ours.predictions_N, theirs.predictions_N)):
            assert one.dtype == other.dtype
            assert one.tobytes() == other.tobytes()
    assert gzip.decompress((tmp_path / "packed/predictions.jsonl.gz").read_bytes()).decode().count('"ids"') == 3


def test_what_cannot_be_packed_or_unpacked_is_refused(tmp_path):
    write_comparison(tmp_path / "c", {"bert": 0.7})
    with pytest.raises(ConfigError, match="not empty"):
        pack_records(tmp_path / "c", tmp_path / "c")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no records of a comparison"):
        pack_records(tmp_path / "empty", tmp_path / "p")
    pack_records(tmp_path / "c", tmp_path / "p")
    text = gzip.decompress((tmp_path / "p/runs.jsonl.gz").read_bytes()).decode()
    (tmp_path / "p/runs.jsonl.gz").write_bytes(gzip.compress(text.replace('"format":1,', "").encode()))
    with pytest.raises(CheckpointError, match=r"runs\.jsonl\.gz, line 1: is no record of a run \(of another format"):
        unpack_records(tmp_path / "p", tmp_path / "u")
