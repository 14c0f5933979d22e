"""A file read in parts gives what it gives at once: rows, places, decisions, and the same words about what is wrong."""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import DataConfig
from attentune.data import files as read
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_chunks, read_table
from attentune.data.tables import CHUNK, WHOLE, ChunkLimit
from attentune.data.text_files import Dialect, parse_delimited
from attentune.data.unlabelled import read_unlabelled, unlabelled_chunks
from attentune.errors import DataError
from helpers.bad_files import BAD_FILES, KINDS, as_parquet, tables, written

CLASSES, SCORES = LabelSpace("classification", ("bad", "good")), LabelSpace("regression")
SEVERAL = LabelSpace("multi_label", ("a", "b"))
TWO_ROWS = ChunkLimit(2, 1 << 20)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


limits = st.builds(ChunkLimit, st.integers(1, 7), st.integers(1, 60))


@given(columns=tables(most=12), kind=st.sampled_from(KINDS), packed=st.booleans(), limit=limits)
def test_parts_together_are_the_table(tmp_path_factory, columns, kind, packed, limit):
    ending, content = written(kind, columns, packed=packed)
    path = write(tmp_path_factory.mktemp("parts"), f"rows.{ending}", content)
    whole, parts = read_table(path), list(read_chunks(path, limit=limit))
    assert [part.first_row for part in parts] == [sum(map(len, parts[:place])) for place in range(len(parts))]
    for name in whole.names:
        assert whole.texts(name) == tuple(cell for part in parts for cell in part.texts(name))
    if whole.lines is not None:
        assert whole.lines == tuple(line for part in parts for line in part.lines or ())
    if kind in ("csv", "tsv", "jsonl"):
        for part in parts:
            assert len(part) <= limit.rows
            assert len(part) == 1 or kind == "jsonl" or sum(map(len, sum(part.columns.values(), ()))) <= 60


def test_parts_are_as_full_as_they_may_be(tmp_path):
    path = write(tmp_path, "rows.csv", "text\n" + "so\n" * 7)
    assert [len(part) for part in read_chunks(path, limit=ChunkLimit(3, 99))] == [3, 3, 1]
    assert [len(part) for part in read_chunks(path, limit=ChunkLimit(7, 99))] == [7]
    assert [len(part) for part in read_chunks(path, limit=ChunkLimit(99, 4))] == [2, 2, 2, 1]
    assert [len(part) for part in read_chunks(path, limit=ChunkLimit(99, 1))] == [1] * 7
    many = pa.table({"text": [f"text {row % 3000}" for row in range(10_000)]})
    path = write(tmp_path, "rows.parquet", as_parquet(many, row_group_size=3000))
    assert [len(part) for part in read_chunks(path, limit=ChunkLimit(6000, 1 << 30))] == [6000, 4000]
    assert [len(part) for part in read_chunks(path)] == [10_000]
    assert [part.columns for part in read_chunks(path, keep=())] == [{}]


def test_dropped_lines_are_told_by_the_part_that_they_are_in():
    lines = ["a\tb\n", "1\n", "1\t2\n", "3\t4\n", "5\n", "6\t7\n", "8\n"]
    dialect = Dialect("\t", "none", skip_broken=True)
    parts = list(parse_delimited(lines, Path("rows.txt"), dialect, None, ChunkLimit(2, 99)))
    assert [(part.lines, [line for line, _, _ in part.left_out]) for part in parts] == [((3, 4), [2, 5]), ((6,), [7])]


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_in_the_same_words(tmp_path, name):
    bad = BAD_FILES[name]
    path = write(tmp_path, f"rows.{bad.ending}", bad.content)

    def outcome(limit: ChunkLimit) -> Any:
        try:
            rows = unlabelled_chunks(
                str(path), label_space=CLASSES, is_pair=False, config=DataConfig(text_column="text"), limit=limit
            )
            return [(part.texts, part.ids) for part in rows.read()]
        except DataError as error:
            return str(error)

    at_once, in_chunks = outcome(CHUNK), outcome(ChunkLimit(1, 1))
    if isinstance(at_once, str):
        assert in_chunks == at_once
    else:
        assert isinstance(in_chunks, list)
        for place in range(2):
            assert sum((part[place] for part in in_chunks), ()) == sum((part[place] for part in at_once), ())


# Decisions that need all rows


def both(path: Path, space: LabelSpace = CLASSES, *, is_pair: bool = False, **settings: Any) -> TextRows:
    """The rows, which are the same at once and in parts of two."""
    config = DataConfig(**settings)
    whole = read_unlabelled(str(path), label_space=space, is_pair=is_pair, config=config)
    rows = unlabelled_chunks(str(path), label_space=space, is_pair=is_pair, config=config, limit=TWO_ROWS)
    assert rows.num_rows == len(whole)
    for parts in (list(rows.read()), list(rows.read())):
        assert max(map(len, parts)) <= 2
        assert sum((part.ids for part in parts), ()) == whole.ids
        assert sum((part.texts for part in parts), ()) == whole.texts
        assert sum((part.pairs or () for part in parts), ()) == (whole.pairs or ())
        assert sum((part.lines or () for part in parts), ()) == (whole.lines or ())
        if whole.labels is None:
            assert all(part.labels is None for part in parts)
        else:
            assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
    return whole


def csv_of(folder: Path, header: str, *rows: str) -> Path:
    return write(folder, "rows.csv", "\n".join([header, *rows, ""]))


LEFT_OUT = "The labels are left out.*rows.csv"


@pytest.mark.parametrize(
    ("space", "labels", "expected", "told"),
    [
        (CLASSES, ["bad", "good", "bad", "bad", "good"], [0, 1, 0, 0, 1], ""),
        (CLASSES, ["bad", "good", "good\u200b", "bad"], [0, 1, 1, 0], r"'good\\u200b' is read as 'good' \(1 row\)"),
        (CLASSES, ["bad", "good", "bad", "bad", "odd"], None, f"{LEFT_OUT}:6: unknown labels: 'odd'"),
        (CLASSES, ["bad", "good", "Good", "bad"], None, f"{LEFT_OUT}:4: unknown labels: 'Good' .*Did you mean 'good'"),
        (CLASSES, ["", "", "", "", ""], None, ""),
        (CLASSES, ["bad", "good", "", "bad"], None, f"{LEFT_OUT}:4: column 'label' has no label here"),
        (CLASSES, ["", "", "bad", "bad", "good"], None, f"{LEFT_OUT}:2: column 'label' has no label here"),
        (CLASSES, ["", "", "odd", "bad", "good"], None, LEFT_OUT),
        (CLASSES, ["bad", "good", "-1", "-1", "bad"], None, LEFT_OUT),
        (SCORES, ["-1", "-1", "2", "-1", "-1"], [-1, -1, 2, -1, -1], ""),
        (SCORES, ["-1", "-1", "-1", "-1", "-1"], None, ""),
        (SCORES, ["1", "2", "3", "4", "much"], None, LEFT_OUT),
        (SEVERAL, ["", "", "a|b", "", "b"], [[0, 0], [0, 0], [1, 1], [0, 0], [0, 1]], ""),
        (SEVERAL, ["", "", "", "", ""], None, ""),
    ],
)
def test_labels_are_kept_if_all_parts_have_known_ones_or_told_in_one_line(tmp_path, space, labels, expected, told):
    path = csv_of(tmp_path, "text,label", *(f"so {n},{label}" for n, label in enumerate(labels)))
    found = both(path, space).labels
    assert (None if found is None else found.tolist()) == expected
    for limit in (WHOLE, TWO_ROWS):
        notes = unlabelled_chunks(str(path), label_space=space, is_pair=False, config=DataConfig(), limit=limit).notes
        assert len(notes) == bool(told)
        assert all(re.search(told, note) for note in notes), notes


def test_ids_are_copied_also_where_they_repeat(tmp_path):
    path = csv_of(tmp_path, "text,key,id", "so,7,a", "so,,b", "so,7,a")
    assert both(path).ids == ("a", "b", "a")
    assert both(path, id_column="key").ids == ("7", "", "7")
    assert both(csv_of(tmp_path, "text,note", "so,1", "so,2")).ids == ("0", "1")


def refused(path: Path, *, is_pair: bool = False, **settings: Any) -> str:
    """The message, the same at once and in parts of two."""
    said = []
    for limit in (CHUNK, TWO_ROWS):
        with pytest.raises(DataError) as caught:
            config = DataConfig(**settings)
            unlabelled_chunks(str(path), label_space=CLASSES, is_pair=is_pair, config=config, limit=limit)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def test_columns_of_json_lines_may_begin_late(tmp_path):
    lines = [{"text": "a"}, {"text": "b"}, {"text": "c"}, {"text": "d", "label": "bad", "text_pair": "e"}]
    path = write(tmp_path, "rows.jsonl", "\n\n".join(map(json.dumps, lines)))
    assert both(path).labels is None
    assert refused(path, is_pair=True).startswith(f"{path}:1: column 'text_pair' has no text here")
    lines = [{"text_pair": "z", "note": 1}, *lines[3:]]
    assert f"{path}:1: column 'text' has no text" in refused(
        write(tmp_path, "rows.jsonl", "\n".join(map(json.dumps, lines)))
    )


def test_a_broken_cell_of_a_later_part_is_told_with_its_place(tmp_path):
    path = write(tmp_path, "rows.parquet", as_parquet(pa.table({"text": ["so", "so", "so", None]})))
    assert "row 3: column 'text' has no text here" in refused(path)
    path = write(tmp_path, "rows.jsonl", '{"text": "so"}\n\n' * 4 + '{"text": ["so"]}\n')
    assert refused(path).startswith(f"{path}:9: column 'text' holds a list")


def test_a_file_that_changes_between_the_readings_is_an_error(tmp_path):
    path = csv_of(tmp_path, "text", *"abcde")
    rows = unlabelled_chunks(str(path), label_space=CLASSES, is_pair=False, config=DataConfig(), limit=TWO_ROWS)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a", b"x"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="has changed while it was read. Start again"):
        next(rows.read())


def test_only_files_that_are_held_in_memory_have_a_size_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "MAX_BYTES", 100)
    rows = "".join(f'{{"text": "so {row}"}}\n' for row in range(50))
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        path = write(tmp_path, name, gzip.compress(rows.encode()) if name.endswith(".gz") else rows)
        assert sum(map(len, read_chunks(path, limit=TWO_ROWS))) == 50
        with pytest.raises(DataError, match="holds more than the 100 bytes that are read"):
            list(read_chunks(path, limit=WHOLE))
    path = write(tmp_path, "rows.json", rows)
    with pytest.raises(DataError, match="holds more than the 100 bytes that are read"):
        list(read_chunks(path, limit=TWO_ROWS))


def test_columns_that_are_kept_are_copied_as_texts(tmp_path):
    path = write(
        tmp_path, "rows.jsonl", '{"text": "so", "n": [1, "a"], "r": "x\\ry"}\n{"text": "no", "label": "bad"}\n'
    )
    options: dict[str, Any] = {"label_space": CLASSES, "is_pair": False, "config": DataConfig(), "limit": TWO_ROWS}
    chunks = unlabelled_chunks(str(path), keep_columns=("r", "n"), **options)
    assert chunks.kept == ("r", "n")
    (rows,) = chunks.read()
    assert rows.kept == (("x\ry", ""), ('["1", "a"]', ""))
    assert rows.take([1]).kept == (("",), ("",))
    assert unlabelled_chunks(str(path), keep_columns=("all",), **options).kept == ("text", "n", "r", "label")
    assert unlabelled_chunks(str(path), **options).kept == ()
    with pytest.raises(DataError, match="there is no column 'm'.*Name the right one with --keep_columns"):
        unlabelled_chunks(str(path), keep_columns=("m",), **options)
