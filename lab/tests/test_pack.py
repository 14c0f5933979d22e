"""Packed comparisons: the same report as from the folder, and refusals of damaged files."""

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest
import yaml

from attentune.errors import CheckpointError
from attentune.report.contents import make_report
from attentune.report.document import Report
from attentune.report.load import collect
from attentune.report.writing import render_csv, render_markdown
from attentune.runs.grid import RunGrid, open_comparison
from attentune.runs.records import Run, read_records
from attentune_lab.pack import pack_records
from helpers.made_records import write_comparison, write_record

DAMAGED = yaml.safe_load(Path(__file__).with_name("damaged.yaml").read_text("utf-8"))


def report_of(folder: Path) -> Report:
    return make_report(collect([str(folder)]))


def test_a_packed_comparison_gives_the_same_report(tmp_path):
    write_comparison(tmp_path / "c", {"bert": 0.6, "ssa": 0.7}, tasks=("rte", "sst2"), sizes=(250, 1000))
    methods = {name: {"tasks": {"sst2": {}, "rte": {}}} for name in ("ssa", "bert")}
    (tmp_path / "c/compare.json").write_text(json.dumps({"format": 1, "id": "x", "methods": methods}))
    assert pack_records(tmp_path / "c", tmp_path / "packed") == len(read_records(tmp_path / "c")) == 24
    names = {"runs.jsonl.gz", "predictions.jsonl.gz", "compare.json"}
    assert {path.name for path in (tmp_path / "packed").iterdir()} == names
    pages = []
    for name in ("c", "packed"):
        report = report_of(tmp_path / name)
        # Titles are escaped and name the folder.
        pages.append((render_csv(report) + render_markdown(report, {})).replace(f"/{name}\n", "/FOLDER\n"))
    assert pages[0] == pages[1]
    assert pack_records(tmp_path / "packed", tmp_path / "again") == 24
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
    kept, packed = (collect([str(tmp_path / name)]).runs for name in ("c", "packed"))
    assert [one.record for one in packed] == [one.record for one in kept]
    for before, after in zip(kept, packed, strict=True):
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


@pytest.mark.parametrize(("name", "old", "new", "message"), DAMAGED["packed"])
def test_a_damaged_packed_comparison_is_refused(tmp_path, name, old, new, message):
    write_comparison(tmp_path / "c", {"bert": 1.0}, seeds=2)
    for record, file in read_records(tmp_path / "c"):
        file.write_text(dataclasses.replace(record, predictions={"validation": "r.csv"}).to_json())
    for seed in (1, 2):
        csv_file = tmp_path / f"c/records/rte/all/bert/seed-{seed}.validation.csv"
        shutil.copy(csv_file, csv_file.with_name("r.csv"))
    pack_records(tmp_path / "c", tmp_path / "p")
    report_of(tmp_path / "p")
    text = gzip.decompress((tmp_path / "p" / name).read_bytes()).decode()
    if old == '"predictions":[1' and old not in text:
        old, new = old.replace("1", "0"), new.replace("1", "0")
    assert old in text
    (tmp_path / "p" / name).write_bytes(gzip.compress(text.replace(old, new).encode()))
    with pytest.raises(CheckpointError, match=message):
        report_of(tmp_path / "p")


def test_a_packed_comparison_is_no_link_and_only_read(tmp_path):
    write_comparison(tmp_path / "c", {"bert": 0.7})
    with pytest.raises(CheckpointError, match="is the folder of a comparison"):
        pack_records(tmp_path / "c", tmp_path / "c")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no records of a comparison"):
        pack_records(tmp_path / "empty", tmp_path / "p")
    pack_records(tmp_path / "c", tmp_path / "p")
    for name in ("predictions.jsonl.gz", "runs.jsonl.gz"):
        (tmp_path / "p" / name).rename(tmp_path / name)
        (tmp_path / "p" / name).symlink_to(tmp_path / name)
        with pytest.raises(CheckpointError, match=rf"{name}: cannot be read \(it is a link\)"):
            report_of(tmp_path / "p")
    # A packed comparison is only read.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    write_comparison(tmp_path / "c", {"bert": 0.6})
    pack_records(tmp_path / "c", tmp_path / "p")
    with pytest.raises(CheckpointError, match="holds a packed comparison, which is read only"):
        open_comparison(tmp_path / "p", RunGrid(configs={}, own={}, of_tasks=(), runs=()))
