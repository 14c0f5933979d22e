"""Rows of many files, read in ranges: each row once, in the same chunks, in any number of shards; and what is wrong."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import math
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data import ranges
from attentune.data.ranges import RowRange, RowSource, SourceScan, divide, find_sources, read_range, scan, schema_of
from attentune.data.readers import streams
from attentune.data.readers.table import ChunkLimit, RowStart
from attentune.errors import ConfigError, DataError

BLOCK = 5
ROWS = 33
KINDS = ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "csv.gz", "jsonl.gz", "parquet.gz", "db", "feather")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BLOCK_ROWS", BLOCK)
    monkeypatch.setattr(ranges, "BLOCK", ChunkLimit(BLOCK, 200, BLOCK))


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    """Rows with line ends, quotes, separators and other scripts in the texts, some of them long."""
    signs = ('say "hi"\nnew, line', '5" disk', "tab\there", "\u2028 and a return\r", "日本語 🙂", "", "long " * 30)
    return [{"id": f"r{n}", "text": f"{signs[n % len(signs)]}{n}", "stars": n} for n in range(count)]


def write(path: Path, content: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of the file's name."""
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[-1]
    plain = path.with_name(path.name.removesuffix(".gz"))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(list(content)), plain, row_group_size=7)
    elif kind in ("jsonl", "ndjson"):
        lines = [json.dumps(row) + ("\n\n" if n % 4 == 0 else "\n") for n, row in enumerate(content)]
        plain.write_text("\n" + "".join(lines))
    elif kind == "db":
        with contextlib.closing(sqlite3.connect(plain)) as database:
            database.execute("CREATE TABLE rows (id TEXT, text TEXT, stars)")
            database.execute("CREATE INDEX backwards ON rows (text DESC)")
            database.executemany("INSERT INTO rows VALUES (?, ?, ?)", [tuple(row.values()) for row in content])
            database.commit()
    elif kind == "feather":
        feather.write_feather(pa.Table.from_pylist(list(content)), plain, chunksize=7)
    elif kind == "json":
        plain.write_text(json.dumps(content))
    else:
        with plain.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            writer.writerow(content[0])
            writer.writerows(row.values() for row in content)
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def read(sources: Sequence[RowSource], shards: int) -> tuple[list[tuple[Any, ...]], list[tuple[str, int, int]]]:
    """Read all shards; return the rows, and where each chunk begins and how many rows it has."""
    found, chunks = [], []
    for shard in divide([scan(source) for source in sources], shards):
        for part in shard:
            for chunk in read_range(sources[part.source], part, ["text"], ["id", "stars"]):
                kept = chunk.kept.to_pylist()
                texts = chunk.table.columns["text"]
                found += [(row["id"], text, row["stars"]) for row, text in zip(kept, texts, strict=True)]
                chunks.append((chunk.table.source, chunk.table.first_row, len(chunk.table)))
    return found, chunks


blocks = st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=8)


@given(sizes=blocks, shards=st.integers(1, 20))
def test_shards_have_each_row_once_in_order_and_begin_at_blocks(sizes: list[tuple[int, bool]], shards: int) -> None:
    scans = [
        SourceScan(("text",), count, tuple(RowStart(row, 10 * row, row + 1) for row in range(0, count, step)))
        for count, is_divisible in sizes
        for step in [BLOCK if is_divisible else count]
    ]
    divided = divide(scans, shards)
    assert len(divided) == shards
    covered = [(part.source, part.start.row + row) for shard in divided for part in shard for row in range(part.rows)]
    assert covered == [(number, row) for number, one in enumerate(scans) for row in range(one.rows)]
    assert all(part.start in scans[part.source].starts for shard in divided for part in shard)
    # Apart from the last block, which may be large, a shard has no more than its share.
    total, largest = sum(one.rows for one in scans), max(count if not small else BLOCK for count, small in sizes)
    assert all(sum(part.rows for part in shard) <= math.ceil(total / shards) + largest for shard in divided)


@pytest.mark.parametrize("kind", KINDS)
def test_each_format_gives_the_same_rows_and_chunks_in_any_number_of_shards(tmp_path: Path, kind: str) -> None:
    (source,) = sources = find_sources(str(write(tmp_path / f"rows.{kind}", rows())))
    has_types = kind.startswith("parquet")
    expected = [(row["id"], row["text"], row["stars"] if has_types else str(row["stars"])) for row in rows()]
    found, chunks = read(sources, 1)
    assert found == expected
    assert max(size for *_, size in chunks) <= BLOCK
    for shards in (2, 3, 7, 12):
        assert read(sources, shards) == (found, chunks)
    parts = [part for shard in divide([scan(source)], 4) for part in shard]
    assert len(parts) == (4 if source.is_divisible else 1)
    assert schema_of(source, ["stars"]).field("stars").type == (pa.int64() if has_types else pa.string())


def test_a_dataset_is_divided_too(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        id=datasets.Value("string"), text=datasets.Value("string"), stars=datasets.ClassLabel(names=["no", "yes"])
    )
    made = datasets.Dataset.from_list([{**row, "stars": row["stars"] % 2} for row in rows()], features=features)
    datasets.DatasetDict(validation=made).save_to_disk(tmp_path / "set")
    source = ranges.dataset_source(str(tmp_path / "set"), None, "validation")
    found, chunks = read([source], 1)
    assert found == [(row["id"], row["text"], ("no", "yes")[row["stars"] % 2]) for row in rows()]
    assert read([source], 3) == (found, chunks)
    with pytest.raises(DataError, match="has no split 'test', but validation. Name one with --split."):
        ranges.dataset_source(str(tmp_path / "set"), None, "test")


def test_files_of_a_folder_a_pattern_and_a_url(tmp_path: Path) -> None:
    for number, kind in enumerate(("csv", "jsonl", "parquet")):
        write(tmp_path / f"{number}.{kind}", rows(9))
    for name in ("_SUCCESS", ".hidden.csv", "readme.md", "shards.json"):
        (tmp_path / name).write_text("text\nno\n")
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "3.csv", rows(4))

    def names(pattern: str) -> list[str]:
        return [Path(one.path).name for one in find_sources(pattern, leave_out=["shards.json"])]

    assert names(str(tmp_path)) == ["0.csv", "1.jsonl", "2.parquet"]
    assert names(f"file://{tmp_path}") == ["0.csv", "1.jsonl", "2.parquet"]
    assert names(str(tmp_path / "[01].*")) == names(f"file://{tmp_path}/[01].*") == ["0.csv", "1.jsonl"]
    assert names(str(tmp_path / "**" / "*.csv")) == ["0.csv", "3.csv"]
    found, _ = read(find_sources(str(tmp_path / "[012].*")), 4)
    assert [text for _, text, _ in found] == 3 * [row["text"] for row in rows(9)]
    memory = fsspec.filesystem("memory")
    for file in sorted(tmp_path.glob("[012].*")):
        memory.pipe_file(f"/ranges/{file.name}", file.read_bytes())
    assert read(find_sources("memory://ranges/*"), 4)[0] == found
    assert read(find_sources("memory://ranges"), 3)[0] == found


def test_a_file_in_memory_that_is_larger_than_the_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BLOCK_ROWS", 4096)
    draw = random.Random(0)
    texts = [f"{draw.getrandbits(2000):x}" for _ in range(12_000)]
    pq.write_table(pa.table({"id": texts, "text": texts, "stars": range(12_000)}), tmp_path / "rows.parquet")
    fsspec.filesystem("memory").put_file(str(tmp_path / "rows.parquet"), "/large/rows.parquet")
    found, _ = read(find_sources("memory://large/rows.parquet"), 2)
    assert found == list(zip(texts, texts, range(12_000), strict=True))


def test_what_cannot_be_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.txt").write_text("so")
    cases = {
        str(tmp_path / "*.csv"): "names no file",
        str(tmp_path / "empty"): "is a folder without files that end in .csv",
        str(tmp_path / "rows.txt"): "its name ends in none of .csv",
        "memory://none/*.csv": "names no file",
    }
    for pattern, message in cases.items():
        with pytest.raises(DataError, match=message):
            find_sources(pattern)
    with pytest.raises(ConfigError, match="nonsense://x: "):
        find_sources("nonsense://x")


def test_errors_name_the_file_and_the_row(tmp_path: Path) -> None:
    def outcome(name: str, content: str | bytes, shards: int = 3) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(DataError) as caught:
            read(find_sources(str(path)), shards)
        return str(caught.value).removeprefix(str(tmp_path))

    lines = "".join(f"r{n},so {n},{n}\n" for n in range(17))
    assert outcome("a.csv", f"id,text,stars\n{lines}r17,so\n").startswith("/a.csv:19: 2 fields, expected 3")
    assert outcome("b.csv", f'id,text,stars\n{lines}r17,"so').startswith("/b.csv:19: the row that begins here opens a")
    assert outcome("c.csv", f"id,text,stars\n{lines}".encode() + b"r17,\xff,1\n").startswith("/c.csv:19: byte 5 of")
    assert outcome("d.csv", f"id,text,stars\n{lines}\nr17,a,1\n").startswith("/d.csv:19: a blank line between rows")
    objects = "".join(f'{{"text": "so {n}"}}\n\n' for n in range(17))
    assert outcome("a.jsonl", objects + '{"text": so}\n').startswith("/a.jsonl:35: not valid JSON at column 10")
    kept = objects + '{"text": "so", "id": "\\ud83d"}\n'
    assert outcome("b.jsonl", kept).startswith("/b.jsonl:35: column 'id' holds a NUL character or half of a surrogate")
    assert outcome("c.jsonl", "\n").startswith("/c.jsonl: holds no rows")
    assert outcome("e.csv", "").startswith("/e.csv: the file is empty")
    assert outcome("a.parquet", b"PAR1 and not more").startswith("/a.parquet: not a whole Parquet file")
    assert outcome("a.csv.gz", gzip.compress(lines.encode())[:-9]).startswith("/a.csv.gz: cannot be unpacked")


def test_a_text_that_is_missing_names_its_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join('{"text": "so"}\n' for _ in range(5)) + '{"id": 1}\n')
    pq.write_table(pa.table({"text": [*["so"] * 5, None]}), tmp_path / "rows.parquet")
    for name, place in (("rows.jsonl", "rows.jsonl:6: "), ("rows.parquet", "rows.parquet: row 5: ")):
        (source,) = find_sources(str(tmp_path / name))
        (last,) = read_range(source, RowRange(0, scan(source).starts[1], 1), ["text"], [])
        with pytest.raises(DataError, match=f"{place}column 'text' has no text here"):
            last.table.texts("text")


def test_bombs_are_refused_and_long_files_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BOMB_BYTES", 1 << 16)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"id,text,stars\n" + b"a,b,1\n" * 100_000))
    pq.write_table(pa.table({"text": ["so long " * 10_000] * 500}), tmp_path / "bomb.parquet")
    for name in ("bomb.csv.gz", "bomb.parquet"):
        with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
            read(find_sources(str(tmp_path / name)), 2)
    monkeypatch.setattr(ranges, "MAX_BYTES", 100)
    for kind in ("csv", "jsonl", "csv.gz", "parquet"):
        assert len(read(find_sources(str(write(tmp_path / f"long.{kind}", rows()))), 2)[0]) == ROWS
    with pytest.raises(DataError, match="holds more than the 100 bytes that are read"):
        read(find_sources(str(write(tmp_path / "long.json", rows()))), 2)


def test_a_file_with_fewer_rows_than_were_counted(tmp_path: Path) -> None:
    (source,) = find_sources(str(write(tmp_path / "rows.csv", rows())))
    (((part,)),) = divide([scan(source)], 1)
    write(tmp_path / "rows.csv", rows(20))
    with pytest.raises(DataError, match="has changed while it was read"):
        list(read_range(source, part, ["text"], []))
