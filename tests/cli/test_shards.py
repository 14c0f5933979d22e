"""`--output_dir`: `predict`, `explain` and `evaluate` on many rows, in shards that are whole or not there."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.config.schema import TokenGateConfig
from attentune.data import ranges
from attentune.data.dataset import LabelSpace
from attentune.data.readers.table import ChunkLimit
from attentune.experiments.shards import plan
from attentune.models.saving import save_model
from helpers.disks import Disk
from helpers.doc_blocks import ROOT, blocks
from helpers.samples import write_reviews
from helpers.tiny_models import build

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
SETTINGS = "training: {per_device_eval_batch_size: 64, precision: fp32, use_cpu: true}\n"


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run with a token gate over a random encoder."""
    folder = tmp_path_factory.mktemp("shards") / "run"
    folder.mkdir()
    save_model(*build(tiny("bert", layers=1, hidden=16), token_gate=TokenGateConfig(kind="ssa")), folder)
    (folder / "config.yaml").write_text(SETTINGS)
    return folder


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of eight rows, in this process only."""
    for module in (ranges, plan):
        monkeypatch.setattr(module, "BLOCK_ROWS", 8)
    monkeypatch.setattr(ranges, "BLOCK", ChunkLimit(8, 1 << 20, 8))


def write_corpus(folder: Path, rows: int, *, first: int | None = None) -> Path:
    """Write a folder of three files of so many rows each: CSV (which may have more), JSON lines and Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    write_reviews(folder / "a.csv", first or rows, seed=1)
    with (folder / "a.csv").open(newline="") as file:
        reviews = list(csv.DictReader(file))[:rows]
    lines = [json.dumps({**row, "id": f"b{row['id']}", "text": f"{row['text']}\nyes"}) for row in reviews]
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")
    table = pa.Table.from_pylist([{**row, "id": f"c{row['id']}"} for row in reviews])
    pq.write_table(table, folder / "c.parquet", row_group_size=max(rows // 3, 1))
    return folder


def parts(folder: Path) -> dict[str, bytes]:
    """Return the content of the written shards."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def table_of(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def test_shards_of_processes_are_those_of_one_process_bit_for_bit(
    run: Path, tmp_path: Path, attentune: Command
) -> None:
    corpus = write_corpus(tmp_path / "corpus", 700, first=4200)
    words = ["predict", run, "--input_file", corpus, "--keep_columns", "text,label"]
    status, out, err = attentune(*words, "--output_dir", tmp_path / "three", "--shards", 3, "--jobs", 2)
    assert (status, out) == (0, ""), err
    assert "5,600 rows in 3 sources, 3 shards." in err
    assert re.search(r"3 of 3 shards, 5,600 of 5,600 rows, [\d,]+ rows/s, 0 s left", err)
    assert list(parts(tmp_path / "three")) == [f"part-0000{n}-of-00003.parquet" for n in range(3)]
    for shard in (0, 2):
        assert attentune(*words, "--output_dir", tmp_path / "alone", "--shards", 3, "--shard", shard)[0] == 0
    assert parts(tmp_path / "alone").items() <= parts(tmp_path / "three").items()
    assert len(parts(tmp_path / "alone")) == 2
    assert attentune(*words, "--output_dir", tmp_path / "one", "--shards", 1, "--shard", 0)[0] == 0
    whole = table_of(tmp_path / "one")
    assert table_of(tmp_path / "three").equals(whole)
    assert whole.column_names == ["id", "prediction", "p_bad", "p_good", "text", "label"]
    assert whole["id"].to_pylist() == [
        f"{file}r{n}" for file, rows in (("", 4200), ("b", 700), ("c", 700)) for n in range(rows)
    ]
    # As a single file of one chunk, within the last digits.
    status, _, err = attentune(
        "predict", run, "--input_file", corpus / "c.parquet", "--output_file", tmp_path / "c.csv"
    )
    assert status == 0, err
    with (tmp_path / "c.csv").open() as file:
        single = list(csv.DictReader(file))
    assert [row["prediction"] for row in single] == whole["prediction"].to_pylist()[4900:]
    assert [float(row["p_bad"]) for row in single] == pytest.approx(whole["p_bad"].to_pylist()[4900:], abs=2e-6)


def test_formats_ids_and_columns(run: Path, tmp_path: Path, attentune: Command, small_blocks: None) -> None:
    corpus = write_corpus(tmp_path / "corpus", 20)
    words = ["predict", run, "--input_file", f"{corpus}/[bc].*", "--text_column", "text", "--shards", 1, "--shard", 0]
    tables = {}
    for kind in ("parquet", "jsonl", "csv"):
        out = tmp_path / kind
        status, _, err = attentune(*words, "--output_dir", out, "--output_format", kind, "--keep_columns", "all")
        assert status == 0, err
        (path,) = out.glob("part-*")
        if kind == "parquet":
            tables[kind] = pq.read_table(path).to_pylist()
        elif kind == "jsonl":
            tables[kind] = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            with path.open(newline="") as file:
                tables[kind] = list(csv.DictReader(file))
    for rows in tables.values():
        assert list(rows[0]) == ["id", "prediction", "p_bad", "p_good", "text", "label"]
        for name in ("id", "prediction", "text", "label"):
            assert [row[name] for row in rows] == [row[name] for row in tables["parquet"]]
        for row, other in zip(rows, tables["parquet"], strict=True):
            assert float(row["p_bad"]) == pytest.approx(other["p_bad"], abs=1e-6)
    # Without an id column, rows are counted over all files.
    pq.write_table(pa.table({"text": [f"so {n}" for n in range(11)]}), tmp_path / "d.parquet")
    (tmp_path / "e.csv").write_text("text\nso fine\n")
    status, _, err = attentune(
        "predict", run, "--input_file", tmp_path / "[de].*", "--output_dir", tmp_path / "o", "--shards", 3, "--shard", 2
    )
    assert status == 0, err
    assert table_of(tmp_path / "o")["id"].to_pylist() == ["8", "9", "10", "11"]
    assert "1 of the shards have no rows" in err


def test_written_shards_are_skipped(run: Path, tmp_path: Path, attentune: Command) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", 30), tmp_path / "out"
    words = ["predict", run, "--input_file", corpus, "--output_dir", out, "--shards", 3]
    assert attentune(*words, "--jobs", 1)[0] == 0
    before, times = parts(out), {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    (out / "part-00001-of-00003.parquet").unlink()
    status, _, err = attentune(*words, "--jobs", 2)
    assert status == 0
    assert "2 of 3 shards are already written." in err
    assert parts(out) == before
    changed = [path.name for path in out.glob("part-*") if path.stat().st_mtime_ns != times[path.name]]
    assert changed == ["part-00001-of-00003.parquet"]
    status, _, err = attentune(*words, "--shard", 1)
    assert (status, err.splitlines()[-1]) == (0, f"{out}/part-00001-of-00003.parquet is already written.")


def test_other_input_runs_and_settings_are_refused(
    run: Path, tmp_path: Path, attentune: Command, small_blocks: None
) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", 10), tmp_path / "out"
    words = ["predict", run, "--output_dir", out, "--shard", 0]

    def refused(*more: object) -> str:
        status, printed, err = attentune(*words, *more)
        assert (status, printed) == (2, "")
        assert err.splitlines()[1].startswith(
            f"attentune: {out}/shards.json: --output_dir has the shards of another call, which differs"
        )
        assert "Repeat that call to go on with it, or name another --output_dir." in err
        return err

    given = ["--input_file", f"{corpus}/*", "--shards", 2]
    assert attentune(*words, *given)[0] == 0
    assert attentune(*words, *given)[0] == 0
    assert "in output_format: now 'csv', before 'parquet'" in refused(*given, "--output_format", "csv")
    assert "in precision: now 'int8', before None" in refused(*given, "--precision", "int8")
    assert "in keep_columns: now ['all'], before []" in refused(*given, "--keep_columns", "all")
    assert "in --shards: now 3, before 2" in refused("--input_file", f"{corpus}/*", "--shards", 3)
    assert "in data: now {'id_column': 'label'}, before {}" in refused(*given, "--id_column", "label")
    assert re.search("in the input: before .*/c.parquet: ", refused("--input_file", f"{corpus}/[ab]*", "--shards", 2))
    status, _, err = attentune("explain", *words[1:], *given)
    assert status == 2
    assert "in command: now 'explain', before 'predict'" in err
    (corpus / "a.csv").write_text((corpus / "a.csv").read_text() + "r,so,bad\n")
    assert re.search(r"in the input: now .*/a.csv: \d+ bytes, \d+, before .*/a.csv", refused(*given))
    (out / "shards.json").unlink()
    status, _, err = attentune(*words, *given)
    assert status == 2
    assert "has files named part-..., but no shards.json" in err


def test_a_run_or_input_that_changes_between_shards_is_refused(
    run: Path, tmp_path: Path, attentune: Command, tiny: Tiny, small_blocks: None
) -> None:
    own = tmp_path / "run"
    own.mkdir()
    for file in run.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    corpus, out = write_corpus(tmp_path / "corpus", 10), tmp_path / "out"
    words = ["predict", own, "--input_file", corpus, "--output_dir", out, "--shards", 2]
    assert attentune(*words, "--shard", 0)[0] == 0
    (own / "log.jsonl").write_text("")  # changes nothing
    assert attentune(*words, "--shard", 1)[0] == 0
    (own / "config.yaml").write_text(SETTINGS.replace("64", "32"))
    status, _, err = attentune(*words, "--shard", 1)
    assert status == 2
    assert f"in the run's weights or settings: now {own}, before {own} as it was." in err


def test_mistakes(run: Path, tmp_path: Path, attentune: Command, small_blocks: None) -> None:
    corpus = write_corpus(tmp_path / "corpus", 10)
    into = ["--output_dir", tmp_path / "out"]

    def said(*words: object) -> str:
        status, out, err = attentune(*words)
        assert (status, out) == (2, ""), err
        return err

    file = ["predict", run, "--input_file", corpus / "a.csv"]
    assert "--shards: goes with --output_dir." in said(*file, "--shards", 3)
    assert "--shard: got 3, expected a number from 0 to 2." in said(*file, *into, "--shards", 3, "--shard", 3)
    assert "--output_file: does not go with --output_dir." in said(*file, *into, "--output_file", "x.csv")
    assert "got neither of --input_file and --dataset_name" in said("predict", run, *into)
    assert "--task: does not go with --output_dir" in said("predict", run, "--task", "cola", *into)
    assert "read with --output_dir." in said("predict", run, "--input_file", corpus)
    assert "read with --output_dir." in said("predict", run, "--input_file", f"{corpus}/*.csv")
    assert "there is no column 'lable'. Did you mean 'label'?" in said(*file, *into, "--keep_columns", "lable")
    assert "there is no column 'lable'" in said(*file, "--keep_columns", "lable")
    assert "--keep_columns: goes with --input_file." in said("predict", run, "--text", "so", "--keep_columns", "all")
    (tmp_path / "p.csv").write_text("text,prediction\nso,good\n")
    same = ["predict", run, "--input_file", tmp_path / "p.csv", "--keep_columns", "all"]
    assert "--keep_columns: the input has 'prediction', as the output has." in said(*same, *into)
    assert "--keep_columns: the input has 'prediction', as the output has." in said(*same)
    assert not (tmp_path / "out" / "shards.json").exists()
    (corpus / "d.csv").write_text("sentence\nso\n")
    assert "d.csv: there is no column 'text'" in said("predict", run, "--input_file", corpus, *into)
    assert "--input_file: goes with --output_dir" in said("evaluate", run, "--input_file", corpus)
    assert "--layer: does not go with --output_dir." in said("explain", *file[1:], *into, "--layer", "1")
    assert "--executor: got 'spark', expected one of local, ray, slurm." in said(*file, *into, "--executor", "spark")


def test_a_bad_row_is_named_and_stops_only_its_shard(run: Path, tmp_path: Path, attentune: Command) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", 30), tmp_path / "out"
    lines = (corpus / "b.jsonl").read_text().splitlines()
    (corpus / "b.jsonl").write_text("\n".join([*lines[:20], '{"text": null}', *lines[20:]]) + "\n")
    words = ["predict", run, "--input_file", corpus, "--output_dir", out, "--shards", 3, "--jobs", 2]
    status, printed, err = attentune(*words)
    assert (status, printed) == (2, "")
    assert f"attentune: {corpus}/b.jsonl:21: column 'text' has no text here" in err
    assert f"1 of the shards (1) were not written to {out}, the others are." in err
    assert list(parts(out)) == ["part-00000-of-00003.parquet", "part-00002-of-00003.parquet"]


def test_explanations_in_shards(run: Path, tmp_path: Path, attentune: Command, small_blocks: None) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    path.write_text(write_reviews(path, 12).read_text().replace("label", "stars", 1))
    methods = ["--method", "ssa,leave-one-out", "--seed", "1"]
    words = ["explain", run, "--input_file", path, "--output_dir", out, *methods, "--keep_columns", "stars"]
    for shard in (0, 1):
        status, _, err = attentune(*words, "--shards", 2, "--shard", shard, "--output_format", "jsonl")
        assert status == 0, err
    found = [json.loads(line) for file in sorted(out.glob("part-*")) for line in file.read_text().splitlines()]
    status, printed, err = attentune("explain", run, "--input_file", path, *methods, "--format", "json")
    assert status == 0, err
    expected = [json.loads(line) for line in printed.splitlines()]
    stars = [row["stars"] for row in csv.DictReader(path.open())]
    assert len(found) == len(expected) == 24
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one["id"], one["stars"]) == (f"r{place // 2}", stars[place // 2])
        for name in ("text", "method", "signed", "level", "unit", "prediction"):
            assert one[name] == other[name]
        assert [token["text"] for token in one["tokens"]] == [token["text"] for token in other["tokens"]]
        scores = [[token["score"] for token in row["tokens"]] for row in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    explained = ["predict", run, "--input_file", path, "--explain", "--output_dir", tmp_path / "p", "--shard", 0]
    assert attentune(*explained, "--keep_columns", "stars")[0] == 0
    table = table_of(tmp_path / "p")
    assert table.column_names == ["id", "prediction", "p_bad", "p_good", "explanation", "stars"]
    assert table["stars"].to_pylist() == stars
    assert json.loads(table["explanation"][0].as_py())["tokens"][0].keys() == {"text", "start", "end", "score"}


@pytest.mark.integration
def test_evaluation_in_shards(run: Path, tmp_path: Path, attentune: Command) -> None:
    path = write_reviews(tmp_path / "rows.csv", 60)
    status, expected, err = attentune("evaluate", run, "--validation_file", path)
    assert status == 0, err
    words = ["evaluate", run, "--input_file", path, "--output_dir", tmp_path / "out"]
    errors = tmp_path / "errors.csv"
    status, found, err = attentune(*words, "--jobs", 1, "--errors_file", errors)
    assert (status, found) == (0, expected), err
    assert errors.read_text().startswith("split,id,label,prediction,error,text\nvalidation,r")
    status, found, _ = attentune(*words, "--shard", 0)
    assert (status, found) == (0, "")
    status, details, _ = attentune(*words, "--format", "json", "--details")
    assert json.loads(details)["details"]["validation"]["rows"] == 60
    (tmp_path / "bad.csv").write_text("text,label\nso,bad\nso,no\n")
    status, _, err = attentune("evaluate", run, "--input_file", tmp_path / "bad.csv", "--output_dir", tmp_path / "b")
    assert status == 2
    assert f"{tmp_path}/bad.csv:3: " in err


def test_rows_left_out_for_their_label_are_those_of_one_process(run: Path, tmp_path: Path, attentune: Command) -> None:
    path = tmp_path / "rows.jsonl"
    labels = ["bad", "-", "good", "", "good", "-"]
    rows = [{"id": f"r{n}", "text": f"so {n}", "label": labels[n % 6], "more": n} for n in range(24)]
    path.write_text("\n".join(map(json.dumps, rows)))
    flags = ("--ignore_labels=['-', '']",)
    status, expected, err = attentune("evaluate", run, "--validation_file", path, *flags)
    assert status == 0, err
    words = ["evaluate", run, "--input_file", path, *flags, "--keep_columns", "more", "--jobs", 1]
    status, found, err = attentune(*words, "--output_dir", tmp_path / "out")
    assert (status, found) == (0, expected), err
    assert "12 of 24 rows are left out" in err
    written = table_of(tmp_path / "out")
    kept = [row for row in rows if row["label"] in ("bad", "good")]
    assert written["id"].to_pylist() == [row["id"] for row in kept]
    assert written["more"].to_pylist() == [str(row["more"]) for row in kept]
    status, _, err = attentune(*words[:4], "--output_dir", tmp_path / "o", "--skip_broken_rows")
    assert (status, "does not go with --output_dir" in err) == (2, True), err


def test_several_label_columns_in_shards(tmp_path: Path, attentune: Command) -> None:
    for name, count in (("train.csv", 60), ("new.csv", 9)):
        rows = "".join(f"{'slow' if n % 2 else 'quick'} {n} {'nasty' if n % 3 else ''},{n % 2},{int(n % 3 > 0)}\n"
                       for n in range(count))  # fmt: skip
        (tmp_path / name).write_text(f"comment,late,rude\n{rows},0,1\n")
    run = tmp_path / "run"
    words = ("--label_column", "late,rude", "--preset", "tfidf-linear", "--output_dir", run)
    status, _, err = attentune("train", tmp_path / "train.csv", *words)
    assert status == 0, err
    status, expected, err = attentune("evaluate", run, "--validation_file", tmp_path / "new.csv")
    assert status == 0, err
    assert "label 'late', 'rude'" in err
    words = ("--input_file", tmp_path / "new.csv", "--jobs", 1)
    status, found, err = attentune("evaluate", run, *words, "--output_dir", tmp_path / "e")
    assert (status, found) == (0, expected), err
    assert table_of(tmp_path / "e")["label"].to_pylist()[:3] == [["rude"][:0], ["late", "rude"], ["rude"]]
    # Without shards: the same rows, texts without words too, and the same text of each cell.
    keep = ("--keep_columns", "late,rude,comment")
    status, _, err = attentune(
        "predict", run, "--input_file", tmp_path / "new.csv", *keep, "--output_file", tmp_path / "o.csv"
    )
    assert status == 0, err
    status, _, err = attentune("predict", run, *words, *keep, "--output_dir", tmp_path / "p", "--output_format", "csv")
    assert status == 0, err
    (shard,) = parts(tmp_path / "p").values()
    whole = list(csv.reader((tmp_path / "o.csv").read_text().splitlines()))
    assert shard.decode() == "".join(f"{','.join([row[0], *row[2:]])}\n" for row in whole)


def test_datasets_and_urls(run: Path, tmp_path: Path, attentune: Command, small_blocks: None) -> None:
    import datasets

    corpus = write_corpus(tmp_path / "corpus", 20)
    datasets.Dataset.from_parquet(str(corpus / "c.parquet"), cache_dir=str(tmp_path / "cache")).save_to_disk(
        tmp_path / "set"
    )
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/corpus/c.parquet", (corpus / "c.parquet").read_bytes())
    options = ["--shards", 2, "--shard", 1, "--keep_columns", "label"]
    for number, source in enumerate(
        (
            ["--input_file", corpus / "c.parquet", "--output_dir", tmp_path / "0"],
            ["--dataset_name", tmp_path / "set", "--split", "train", "--output_dir", tmp_path / "1"],
            ["--input_file", "memory://corpus/*.parquet", "--output_dir", f"file://{tmp_path}/2"],
            ["--input_file", f"file://{corpus}/c.parquet", "--output_dir", "memory://shards-out"],
        )
    ):
        status, _, err = attentune("predict", run, *source, *options)
        assert status == 0, err
        if number == 3:
            memory.get("/shards-out", str(tmp_path / "3"), recursive=True)
        assert table_of(tmp_path / str(number)).to_pylist() == table_of(tmp_path / "0").to_pylist()
        if number < 2:  # without columns to keep
            bare = [*source[:-1], tmp_path / f"bare-{number}", "--shard", 0]
            assert attentune("predict", run, *bare)[0] == 0
            assert table_of(tmp_path / f"bare-{number}").column_names == ["id", "prediction", "p_bad", "p_good"]


def test_a_database_and_a_spreadsheet(
    run: Path, tmp_path: Path, attentune: Command, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "corpus", 20)
    frame = pandas.read_csv(corpus / "a.csv", dtype=str)
    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        frame.to_sql("reviews", connection, index=False)
        connection.execute("CREATE TABLE users (who)")
        connection.commit()
    with pandas.ExcelWriter(tmp_path / "rows.xlsx") as writer:
        frame.head(2).to_excel(writer, sheet_name="old", index=False)
        frame.to_excel(writer, sheet_name="new", index=False)
    frame.to_feather(tmp_path / "rows.feather")
    status, _, err = attentune("predict", run, "--input_file", tmp_path / "rows.db", "--output_dir", tmp_path / "none")
    assert status == 2
    assert "holds 2 tables: 'reviews', 'users'. Name the one to read with --table" in err
    expected = None
    for number, words in enumerate(
        (["a.csv"], ["rows.db", "--table", "reviews"], ["rows.xlsx", "--sheet", "new"], ["rows.feather"])
    ):
        path = corpus / "a.csv" if number == 0 else tmp_path / words[0]
        out = tmp_path / f"out{number}"
        source = ["--input_file", path, *words[1:], "--keep_columns", "text,label", "--output_dir", out, "--shards", 2]
        for shard in (0, 1):
            status, _, err = attentune("predict", run, *source, "--shard", shard)
            assert status == 0, err
        found = table_of(out).to_pylist()
        assert [row["text"] for row in found] == frame["text"].tolist()
        expected = expected or found
        assert found == expected
    status, _, err = attentune("predict", run, "--input_file", "memory://rows.db", "--output_dir", tmp_path / "none")
    assert status == 2


def test_columns_of_shards_are_chosen_by_what_they_hold(run: Path, tmp_path: Path, attentune: Command) -> None:
    import datasets

    rows = {"nr": list(range(20)), "kommentar": [f"so war der Film {number}" for number in range(20)]}
    table = datasets.Dataset.from_dict(rows)
    table.save_to_disk(tmp_path / "set")
    table.to_csv(tmp_path / "rows.csv")
    (tmp_path / "headless.csv").write_text("\n".join(f"{n / 7:.3f},so war der Film {n}" for n in range(20)))
    for number, source in enumerate(
        (["--dataset_name", tmp_path / "set", "--split", "train"], ["--input_file", tmp_path / "rows.csv"])
    ):
        out = tmp_path / f"out{number}"
        status, _, err = attentune("predict", run, *source, "--output_dir", out, "--shard", 0, "--keep_columns", "all")
        assert status == 0, err
        assert "Columns chosen by what they hold: text 'kommentar'" in err
        assert table_of(out).num_rows == 20
        single = attentune("predict", run, *source)
        assert single[0] == 0, single[2]
        assert "Columns chosen by what they hold: text 'kommentar'" in single[2]
        assert len(single[1].splitlines()) == 21
    words = ("predict", run, "--input_file", tmp_path / "headless.csv", "--output_dir", tmp_path / "none")
    status, _, err = attentune(*words)
    assert status == 2
    assert "reads like a row" in err
    status, _, err = attentune(*words, "--no_header", "--shard", 0)
    assert status == 0, err
    assert table_of(tmp_path / "none").num_rows == 20


@pytest.mark.parametrize("name", ["out.db", "out.xlsx", "out.parquet"])
def test_a_file_that_would_hold_something_else_than_its_name_says(
    run: Path, tmp_path: Path, attentune: Command, name: str
) -> None:
    status, _, err = attentune("predict", run, "--text", "so", "--output_file", tmp_path / name)
    assert status == 2
    assert "predictions are written as CSV. Name it .csv; --output_dir writes Parquet" in err
    assert not list(tmp_path.iterdir())


def test_columns_beside_the_predictions_of_one_file(run: Path, tmp_path: Path, attentune: Command) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n, "text": f"so {n}", "more": [n], "note": 'a "b"\n' if n else None} for n in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    status, out, err = attentune("predict", run, "--input_file", path, "--keep_columns", "all")
    assert status == 0, err
    found = list(csv.DictReader(out.splitlines(keepends=True)))
    assert list(found[0]) == ["id", "label", "prediction", "p_bad", "p_good", "text", "more", "note"]
    assert [row["text"] for row in found] == ["so 0", "so 1", "so 2"]
    assert [json.loads(row["more"]) for row in found] == [["0"], ["1"], ["2"]]
    assert [row["note"] for row in found] == ["", 'a "b"\n', 'a "b"\n']
    status, out, _ = attentune("predict", run, "--input_file", path, "--keep_columns", "note", "--explain")
    assert list(csv.DictReader(out.splitlines(keepends=True)))[1]["note"] == 'a "b"\n'


KINDS = {
    "pairs": (LabelSpace("classification", ("no", "maybe", "yes")), ["no", "yes", "maybe"]),
    "regression": (LabelSpace("regression"), ["0.5", "-1", "2e3"]),
    "multi_label": (LabelSpace("multi_label", ("a", "b", "c")), ["a|b", "", "c"]),
    "ordinal": (LabelSpace("ordinal", ("low", "high"), "expected-value"), ["low", "high", "low"]),
    "baseline": (None, ["bad", "good", "good"]),
}


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_predicts_evaluates_and_explains_as_without_shards(
    kind: str, tiny: Tiny, tmp_path: Path, attentune: Command
) -> None:
    space, labels = KINDS[kind]
    second = ",title" if kind == "pairs" else ""
    lines = [f"r{n},so {'fine ' * n}film{',a film' if second else ''},{labels[n % 3]}" for n in range(12)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([f"id,text{second},stars", *lines]) + "\n")
    columns = ["--text_column", "text", "--label_column", "stars", *(["--text_pair_column", "title"] if second else [])]
    run = tmp_path / "run"
    if space is None:
        made = ["train", "--preset", "tfidf-linear", "--train_file", path, "--validation_file", path, *columns]
        assert attentune(*made, "--output_dir", run, "--quiet")[0] == 0
    else:
        run.mkdir()
        save_model(*build(tiny("bert", layers=1, hidden=16), label_space=space, is_pair=bool(second)), run)
        (run / "config.yaml").write_text(SETTINGS)
    given = [run, "--input_file", path, *columns]
    into = ["--shard", 0, "--keep_columns", "stars", "--output_dir"]
    status, plain, err = attentune("predict", *given)
    assert status == 0, err
    assert attentune("predict", *given, *into, tmp_path / "csv", "--output_format", "csv")[0] == 0
    (part,) = (tmp_path / "csv").glob("part-*")
    with part.open(newline="") as file:
        found, expected = list(csv.DictReader(file)), list(csv.DictReader(plain.splitlines()))
    assert [row["stars"] for row in found] == [labels[n % 3] for n in range(12)]
    for one, other in zip(found, expected, strict=True):
        numbers = [name for name in other if name.startswith("p_") or (name == "prediction" and kind == "regression")]
        for name in (name for name in other if not name.startswith("label")):
            if name in numbers:
                assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-5, abs=1e-6)
            else:
                assert one[name] == other[name]
    status, scores, err = attentune("evaluate", run, *columns, "--validation_file", path)
    assert status == 0, err
    status, found_scores, err = attentune("evaluate", *given, "--output_dir", tmp_path / "scored", "--jobs", 1)
    assert (status, found_scores) == (0, scores), err
    status, printed, _ = attentune("explain", *given, "--method", "leave-one-out", "--format", "json")
    assert attentune("explain", *given, *into, tmp_path / "why", "--method", "leave-one-out")[0] == 0
    explained = table_of(tmp_path / "why").to_pylist()
    for one, other in zip(explained, map(json.loads, printed.splitlines()), strict=True):
        assert {"id", "stars", *other} - set(one) <= {"seconds", "pair"}
        assert [one["label"], one["method"], one["passes"]] == [other["label"], other["method"], other["passes"]]
        assert [token["text"] for token in one["tokens"]] == [token["text"] for token in other["tokens"]]


def test_a_full_disk_ends_the_command(run: Path, tmp_path: Path, attentune: Command) -> None:
    corpus, disk = write_corpus(tmp_path / "corpus", 3000), Disk(tmp_path / "disk", 96)
    try:
        words = ["predict", run, "--input_file", corpus, "--shards", 3, "--jobs", 2, "--keep_columns", "all"]
        status, printed, err = attentune(*words, "--output_dir", disk.folder)
        assert (status, printed) == (2, "")
        assert "could not be written: the disk is full; free some space." in err
        assert not list(disk.folder.glob(".part-*"))
        for path in disk.folder.glob("part-*"):
            assert pq.read_table(path).num_rows == 3000
    finally:
        disk.remove()


def program(*words: object) -> subprocess.Popen[str]:
    """Start the command line as a program."""
    command = [sys.executable, "-m", "attentune", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.integration
def test_ctrl_c_says_how_to_go_on(run: Path, tmp_path: Path, attentune: Command) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", 60_000), tmp_path / "out"
    words = ["predict", run, "--input_file", corpus, "--output_dir", out, "--shards", 12, "--jobs", 2]
    process = program(*words)
    wait_for(lambda: parts(out), process)
    process.send_signal(signal.SIGINT)
    printed, err = process.communicate(timeout=120)
    assert (process.returncode, printed) == (130, ""), err
    written = len(parts(out))
    assert 0 < written < 12
    assert f"attentune: stopped with {written} of 12 shards written." in err
    assert err.rstrip().endswith("Go on with:\n  attentune " + " ".join(map(str, words)))
    assert not list(out.glob(".part-*"))
    first = parts(out)
    assert attentune(*words)[0] == 0
    assert first.items() <= parts(out).items()
    assert len(table_of(out)) == 180_000


@pytest.mark.integration
def test_the_job_of_the_documentation_writes_the_shard_of_its_task(run: Path, tmp_path: Path) -> None:
    (script,) = [block.text for block in blocks(ROOT / "docs/many-rows.md") if block.text.startswith("#!/bin/bash\n")]
    write_corpus(tmp_path / "corpus", 30)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run)
    (tmp_path / "attentune").write_text(f'#!/bin/bash\nexec {sys.executable} -m attentune "$@"\n')
    (tmp_path / "attentune").chmod(0o755)
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "32"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert list(parts(tmp_path / "by-array")) == ["part-00032-of-00064.parquet"]


@pytest.mark.slow
def test_ten_kills_lose_at_most_the_shards_at_work(run: Path, tmp_path: Path, attentune: Command) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", 60_000), tmp_path / "out"
    options = ["--shards", 20, "--keep_columns", "label"]
    assert attentune("predict", run, "--input_file", corpus, "--output_dir", tmp_path / "whole", *options)[0] == 0
    words = ["predict", run, "--input_file", corpus, "--output_dir", out, *options, "--jobs", 2]
    draw, kills = random.Random(0), 0
    process = program(*words)
    while kills < 10:
        before = parts(out)
        wait_for_a_shard(out, len(before), process)
        time.sleep(draw.uniform(0, 1))
        workers = workers_of(process.pid)
        is_driver = kills % 2 == 0 or not workers
        os.kill(process.pid if is_driver else draw.choice(workers), signal.SIGKILL)
        kills += 1
        if is_driver:
            process.wait(60)
            assert before.items() <= parts(out).items()
            process = program(*words)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert kills == 10
    assert parts(out) == parts(tmp_path / "whole")
    assert not list(out.glob(".part-*"))


def wait_for_a_shard(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    wait_for(lambda: len(parts(out)) > count, process)


def workers_of(parent: int) -> list[int]:
    """Return the ids of the worker processes of a driver: the children of its fork server, which is its child."""

    def children(pid: int) -> list[int]:
        task = Path(f"/proc/{pid}/task/{pid}/children")
        return [int(one) for one in task.read_text().split()] if task.exists() else []

    return [worker for child in children(parent) for worker in children(child)]
