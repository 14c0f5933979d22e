"""`predict --output_dir OUT --shard I/N`: many rows, in parts that are whole or not there."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.config.schema import TokenGateConfig
from attentune.data import unlabelled as data_parts
from attentune.data.tables import ChunkLimit
from attentune.models.saving import save_model
from helpers.doc_blocks import ROOT, blocks
from helpers.interrupted import Disk
from helpers.samples import write_reviews
from helpers.tiers import leading
from helpers.tiny_models import build

SETTINGS = "training: {per_device_eval_batch_size: 64, precision: fp32, use_cpu: true}\n"


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A saved run with a token gate over a random encoder."""
    folder = tmp_path_factory.mktemp("shards") / "run"
    folder.mkdir()
    save_model(*build(tiny("bert", layers=1, hidden=16), token_gate=TokenGateConfig(kind="ssa")), folder)
    (folder / "config.yaml").write_text(SETTINGS)
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of eight rows, in this process only."""
    monkeypatch.setattr(data_parts, "BLOCK_ROWS", 8)
    monkeypatch.setattr(data_parts, "BLOCK", ChunkLimit(8, 1 << 20, 8))


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
    """Return the content of the written parts."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def table_of(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


@leading("count", [2, 5])
def test_any_number_of_parts_has_the_rows_of_one_bit_for_bit(run, tmp_path, attentune, count):
    corpus = write_corpus(tmp_path / "corpus", 700, first=4200)
    words = ["predict", run, "--input_file", corpus, "--keep_columns", "text", "--output_dir"]
    status, out, err = attentune(*words, tmp_path / "one")
    assert (status, out) == (0, ""), err
    assert err.splitlines()[0] == "This model sorts a text into bad or good."
    assert err.splitlines()[-1] == f"5,600 of 5,600 rows written to {tmp_path}/one/part-00001-of-00001.parquet"
    for number in range(1, count + 1):
        attentune.done(*words, tmp_path / "parts", "--shard", f"{number}/{count}")
    whole = table_of(tmp_path / "one")
    names = [f"part-0000{number}-of-0000{count}.parquet" for number in range(1, count + 1)]
    assert list(parts(tmp_path / "parts")) == names
    assert table_of(tmp_path / "parts").equals(whole)
    assert whole.column_names == ["id", "label", "prediction", "p_bad", "p_good", "text"]
    assert whole["id"].to_pylist() == [
        f"{file}r{n}" for file, rows in (("", 4200), ("b", 700), ("c", 700)) for n in range(rows)
    ]
    # As a single file of one chunk, within the last digits.
    attentune.done("predict", run, "--input_file", corpus / "c.parquet", "--output_file", tmp_path / "c.csv")
    with (tmp_path / "c.csv").open() as file:
        single = list(csv.DictReader(file))
    for name in ("label", "prediction"):
        assert [row[name] for row in single] == whole[name].to_pylist()[4900:]
    assert [float(row["p_bad"]) for row in single] == pytest.approx(whole["p_bad"].to_pylist()[4900:], abs=2e-6)


def test_formats_ids_and_columns(run, tmp_path, attentune, small_blocks):
    corpus = write_corpus(tmp_path / "corpus", 20)
    words = ["predict", run, "--input_file", f"{corpus}/[bc].*", "--text_column", "text"]
    tables = {}
    for kind in ("parquet", "json", "csv"):
        out = tmp_path / kind
        attentune.done(*words, "--output_dir", out, "--format", kind, "--keep_columns", "all")
        (path,) = out.glob("part-*")
        if kind == "parquet":
            tables[kind] = pq.read_table(path).to_pylist()
        elif kind == "json":
            tables[kind] = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            with path.open(newline="") as file:
                tables[kind] = list(csv.DictReader(file))
    for rows in tables.values():
        assert list(rows[0]) == ["id", "label", "prediction", "p_bad", "p_good", "text"]
        for name in ("id", "prediction", "text", "label"):
            assert [row[name] for row in rows] == [row[name] for row in tables["parquet"]]
        for row, other in zip(rows, tables["parquet"], strict=True):
            assert float(row["p_bad"]) == pytest.approx(other["p_bad"], abs=1e-6)
    # Without an id column, rows are counted over all files; fewer blocks than parts leave parts without rows.
    pq.write_table(pa.table({"text": [f"so {n}" for n in range(11)], "nr": range(11)}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"text": ["so fine"], "nr": [7]}), tmp_path / "e.parquet")
    out = tmp_path / "o"
    words = ["predict", run, "--input_file", tmp_path / "[de].*", "--output_dir", out, "--keep_columns", "nr"]
    for number in range(1, 6):
        attentune.done(*words, "--shard", f"{number}/5")
    found = table_of(out)
    assert found["id"].to_pylist() == [str(n) for n in range(12)]
    assert found["nr"].to_pylist() == [*map(str, range(11)), "7"]
    assert 0 in [pq.read_metadata(path).num_rows for path in out.glob("part-*")]


def test_parts_of_the_same_call_are_skipped_and_of_others_refused(run, tmp_path, attentune, small_blocks):
    own, corpus, out = tmp_path / "run", write_corpus(tmp_path / "corpus", 10), tmp_path / "out"
    own.mkdir()
    for file in run.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    words = ["predict", own, "--output_dir", out]
    given = ["--input_file", f"{corpus}/*", "--shard", "1/2"]

    def refused(*more: object) -> str:
        err = attentune.refused(*words, *more)
        assert f"attentune: {out}/parts.json: --output_dir has parts of another call, which differs" in err
        return err

    assert "there is no column 'lable'" in attentune(*words, *given, "--keep_columns", "lable")[2]
    assert not out.exists()  # a mistake records nothing
    assert attentune(*words, *given)[0] == 0
    (own / "log.jsonl").write_text("")  # changes nothing
    status, _, err = attentune(*words, *given)
    assert (status, err.splitlines()[-1]) == (0, f"{out}/part-00001-of-00002.parquet is already written.")
    assert "differs in format. " in refused(*given, "--format", "csv")
    assert "differs in precision. " in refused(*given, "--precision", "bf16")
    assert "differs in keep_columns. " in refused(*given, "--keep_columns", "all")
    assert "differs in explain. " in refused(*given, "--explain")
    assert "differs in parts. " in refused(*given[:-1], "1/3")
    assert "differs in data. " in refused(*given, "--id_column", "label")
    assert "differs in input. " in refused("--input_file", f"{corpus}/[ab]*", *given[2:])
    before = (corpus / "a.csv").read_text()
    (corpus / "a.csv").write_text(before + "r,so,bad\n")
    assert "differs in input. " in refused(*given)
    (corpus / "a.csv").write_text(before)
    (own / "config.yaml").write_text(SETTINGS.replace("64", "32"))
    assert "differs in run, input. " in refused(*given)  # the time of the file too
    for content in ("[", "[1]"):
        (out / "parts.json").write_text(content)
        assert "parts.json: is not the record of parts" in attentune.refused(*words, *given)


def test_predictions_with_explanations(run, tmp_path, attentune, small_blocks):
    path = write_reviews(tmp_path / "rows.csv", 12)
    words = ["predict", run, "--input_file", path, "--explain", "--output_dir", tmp_path / "p"]
    assert attentune(*words)[0] == 0
    table = table_of(tmp_path / "p")
    assert table.column_names == ["id", "label", "prediction", "p_bad", "p_good", "explanation"]
    assert json.loads(table["explanation"][0].as_py())["tokens"][0].keys() == {"text", "start", "end", "score"}


def test_a_kept_column_that_would_hide_the_labels_is_refused(tmp_path, attentune):
    rows = "".join(f"a {'fine' if n % 2 else 'dull'} film,{'pos' if n % 2 else 'neg'},mine\n" for n in range(20))
    (tmp_path / "rows.csv").write_text(f"text,stars,label\n{rows}")
    words = ("--label_column", "stars", "--preset", "tfidf-linear", "--output_dir", tmp_path / "run")
    attentune.done("train", tmp_path / "rows.csv", *words)
    words = ("predict", tmp_path / "run", "--input_file", tmp_path / "rows.csv", "--output_dir", tmp_path / "p")
    status, _, err = attentune(*words, "--label_column", "stars", "--keep_columns", "all")
    assert (status, "'label', as the output has, for the labels in 'stars'" in err) == (2, True), err
    attentune.done(*words, "--label_column", "stars", "--keep_columns", "text")


def test_several_label_columns(tmp_path, attentune):
    for name, count in (("train.csv", 60), ("new.csv", 9)):
        rows = "".join(f"{'slow' if n % 2 else 'quick'} {n} {'nasty' if n % 3 else ''},{n % 2},{int(n % 3 > 0)}\n"
                       for n in range(count))  # fmt: skip
        (tmp_path / name).write_text(f"comment,late,rude\n{rows},0,1\n")
    run = tmp_path / "run"
    words = ("--label_column", "late,rude", "--preset", "tfidf-linear", "--output_dir", run)
    attentune.done("train", tmp_path / "train.csv", *words)
    words = ("predict", run, "--input_file", tmp_path / "new.csv", "--keep_columns", "late,rude,comment")
    attentune.done(*words, "--output_file", tmp_path / "o.csv")
    attentune.done(*words, "--output_dir", tmp_path / "p", "--format", "csv")
    (part,) = parts(tmp_path / "p").values()
    whole = list(csv.reader((tmp_path / "o.csv").read_text().splitlines()))
    assert part.decode() == "".join(f"{','.join([row[0], *row[2:]])}\n" for row in whole)


def test_urls_and_files_that_are_read_as_a_whole(run, tmp_path, attentune, small_blocks):
    corpus, memory = write_corpus(tmp_path / "corpus", 20), fsspec.filesystem("memory")
    frame = pandas.read_csv(corpus / "a.csv", dtype=str)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv.gz", index=False)
    frame.to_json(tmp_path / "a.json", orient="records")
    frame.to_csv(tmp_path / "u.csv", index=False, encoding="utf-16")
    with pandas.ExcelWriter(tmp_path / "a.xlsx") as writer:
        frame.head(2).to_excel(writer, sheet_name="old", index=False)
        frame.to_excel(writer, sheet_name="new", index=False)
    for name in ("a.parquet", "a.csv.gz", "a.json"):
        memory.pipe_file(f"/in/{name}", (tmp_path / name).read_bytes())
    expected = None
    for number, (source, out, *more) in enumerate(
        [
            (corpus / "a.csv", tmp_path / "0"),
            (tmp_path / "a.csv.gz", tmp_path / "1"),
            (tmp_path / "a.parquet", tmp_path / "2"),
            (tmp_path / "a.xlsx", tmp_path / "3", "--sheet", "new"),
            (tmp_path / "u.csv", tmp_path / "4"),
            ("memory://in/*.parquet", f"file://{tmp_path}/5"),
            ("memory://in/a.csv.gz", tmp_path / "6"),
            ("memory://in/a.json", tmp_path / "7"),
            (f"file://{tmp_path}/a.parquet", "memory://parts-out"),
        ]
    ):
        words = ["predict", run, "--input_file", source, "--output_dir", out, "--keep_columns", "text", *more]
        for part in ("1/2", "2/2", "2/2"):
            _, err = attentune.done(*words, "--shard", part)
        assert "is already written" in err
        if out == "memory://parts-out":
            memory.get("/parts-out", str(tmp_path / str(number)), recursive=True)
        found = table_of(tmp_path / str(number)).to_pylist()
        assert [row["text"] for row in found] == frame["text"].tolist()
        expected = expected or found
        assert found == expected, source


def test_columns_beside_the_predictions_of_one_file(run, tmp_path, attentune):
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n, "text": f"so {n}", "more": [n], "note": 'a "b"\n' if n else None} for n in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    out, _ = attentune.done("predict", run, "--input_file", path, "--keep_columns", "all")
    found = list(csv.DictReader(out.splitlines(keepends=True)))
    assert list(found[0]) == ["id", "prediction", "p_bad", "p_good", "text", "more", "note"]
    assert [row["text"] for row in found] == ["so 0", "so 1", "so 2"]
    assert [json.loads(row["more"]) for row in found] == [["0"], ["1"], ["2"]]
    assert [row["note"] for row in found] == ["", 'a "b"\n', 'a "b"\n']
    out, _ = attentune.done("predict", run, "--input_file", path, "--keep_columns", "note", "--explain")
    assert list(csv.DictReader(out.splitlines(keepends=True)))[1]["note"] == 'a "b"\n'


def test_a_full_disk_ends_the_command(run, tmp_path, attentune):
    corpus, disk = write_corpus(tmp_path / "corpus", 3000), Disk(tmp_path / "disk", 96)
    try:
        words = ["predict", run, "--input_file", corpus, "--keep_columns", "all", "--output_dir", disk.folder]
        err = attentune.refused(*words)
        assert "could not be written: the disk is full; free some space." in err
        assert [path.name for path in disk.folder.iterdir()] == ["parts.json"]
    finally:
        disk.remove()


@pytest.mark.integration
def test_a_part_that_is_stopped_or_killed_is_not_there(run, tmp_path, attentune):
    corpus, out = write_corpus(tmp_path / "corpus", 20_000), tmp_path / "out"
    words = ["predict", run, "--input_file", corpus, "--output_dir", out, "--shard", "2/2"]
    command = [sys.executable, "-m", "attentune", *map(str, words)]
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 300
        while not list(out.glob(".part-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert not parts(out)
        if number == signal.SIGINT:
            assert process.returncode == 130, err
            assert err.rstrip().endswith("Resume with:\n  attentune " + " ".join(map(str, words)))
            assert not list(out.glob(".part-*"))
    assert attentune(*words)[0] == 0
    assert (len(table_of(out)), len(list(out.iterdir()))) == (31_808, 2)  # of 60,000: after whole blocks


@pytest.mark.integration
def test_the_job_of_the_documentation_writes_the_part_of_its_task(run, tmp_path):
    (script,) = [
        block.text for block in blocks(ROOT / "docs/several-processes.md") if block.text.startswith("#!/bin/bash\n")
    ]
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
    assert list(parts(tmp_path / "predicted")) == ["part-00032-of-00064.parquet"]
