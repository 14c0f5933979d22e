"""A bad file gives one message with its path, the line, the cause and the cure; never a traceback."""

import os
import re
import resource

import pyarrow as pa
import pytest

from attentune.config import DataConfig
from attentune.data.load import load_data
from attentune.errors import AttentuneError, DataError
from helpers.bad_files import BAD_FILES, GOOD, as_parquet, as_zip, written


def test_there_are_many():
    assert len(BAD_FILES) >= 80


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_place_cause_and_cure(tmp_path, name):
    bad = BAD_FILES[name]
    path, validation = tmp_path / f"rows.{bad.ending}", tmp_path / "dev.csv"
    path.write_bytes(bad.content)
    validation.write_text(GOOD)
    with pytest.raises(AttentuneError) as caught:
        load_data(DataConfig(**{"train_file": str(path), "validation_file": str(validation), **bad.settings}), seed=0)
    message = str(caught.value)
    if bad.line is not None:
        assert message.startswith(f"{path}:{bad.line}: "), message
    elif "label_names: an ordinal" not in message:
        assert message.startswith(f"{path}:"), message
    for part in bad.says:
        assert any(one in message for one in part.split("|")), (part, message)
    assert len(message) < 2000, "a message is no copy of the file"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", message), "what a terminal could obey"


def test_the_command_line_says_it_and_ends_with_2(tmp_path, attentune):
    for number, bad in enumerate(BAD_FILES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"rows.{bad.ending}"
        path.write_bytes(bad.content)
        flags = [
            word
            for name, value in bad.settings.items()
            for word in (f"--{name}", ",".join(value) if name == "label_names" else value)
        ]
        err = attentune.refused("doctor", "--train_file", path, *flags)
        assert "Traceback" not in err
        assert err.startswith("attentune: ")


# What is odd and right: every row comes back, in its place, letter for letter.

LONG = "so fine and " * 8_334  # 100,008 characters
ODD = {
    "right to left": ("שלום עולם", "مرحبا بالعالم", "\u202egnp.exe\u202c", "abc אבג 123"),
    "emoji": ("👍🏽", "👩‍👩‍👧‍👦 family", "🏳️‍🌈", "🇩🇪", "😀" * 500),
    "long": (LONG, LONG[::-1], "x" * 100_000, "日" * 100_000, "😀" * 100_000),
    "special tokens": ("[MASK] [SEP]", "[CLS] so [PAD] fine", "</s><s><mask>", "<|endoftext|>", "[UNK]"),
    "spaces": (" so fine ", "\u00a0", "\u3000so", "a\u200bb", "tab\there", "  "),
    "marks": ("e\u0301\u0301\u0301", "Z̷̛͚a̶lgo", "\u0000".replace("\0", "\u0001"), "\u2028\u2029\u0085", "\ufffd\uffff"),
    "names of nothing": ("None", "NA", "nan", "null", "NULL", "#N/A", "true", "-inf", "1e5", "007"),
    "formulas": ("=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0"),
    "markup": ("<script>alert(1)</script>", "&amp;", "{{7*7}}", "\\n", "%s %d", "${HOME}", "'; DROP TABLE x;--"),
    "quotes and lines": ('he said "no"', "a,b", "two\nlines", "three\r\nlines", '"', '""', "'"),
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("name", ODD)
def test_odd_texts_are_texts(tmp_path, name, kind):
    path = tmp_path / f"rows.{kind}"
    texts = ODD[name]
    labels = [("bad", "good")[number % 2] for number in range(len(texts))]
    path.write_bytes(written(kind, {"text": texts, "label": labels})[1])
    data = load_data(DataConfig(train_file=str(path), validation_file=str(path)), seed=0)
    assert data.splits["train"].texts == texts
    assert [data.label_space.names[label] for label in data.splits["train"].labels] == labels
    assert data.splits["train"].ids == tuple(map(str, range(len(texts))))


def test_a_parquet_file_of_one_text_many_times_is_a_bomb(tmp_path):
    """The file has 200 kB; its texts would have 100 GB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), ["x" * 500_000])
    path = tmp_path / "rows.parquet"
    path.write_bytes(as_parquet(pa.table({"text": text, "label": ["a"] * 200_000}), store_schema=False))
    assert path.stat().st_size < 600_000
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"rows.parquet: unpacks to more than 200 times its size"):
        load_data(DataConfig(train_file=str(path)), seed=0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 200 * 1024  # kilobytes


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for name in ("rows.csv", "zero.csv"):
        with pytest.raises(DataError, match=rf"{name}: this is a pipe or a device, expected a file"):
            load_data(DataConfig(train_file=str(tmp_path / name)), seed=0)


def test_a_file_that_changes_its_kind_is_read_by_its_ending(tmp_path):
    """No content makes another reader of it: an archive is never opened, whatever its name."""
    for ending in ("csv", "jsonl", "parquet", "csv.gz"):
        path = tmp_path / f"rows.{ending}"
        path.write_bytes(as_zip("../../outside.csv", GOOD))
        with pytest.raises(DataError):
            load_data(DataConfig(train_file=str(path)), seed=0)
    assert not (tmp_path.parent / "outside.csv").exists()
