"""Data files: invalid ones with what the message must contain (plain texts: bad_files.yaml), and random valid ones."""

import csv as csv_module
import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import strategies as st

HEADER = "text,label\n"
GOOD = HEADER + "the film was fine,good\na dull story,bad\n"
JSON = '{"text": "the film was fine", "label": "good"}\n'
MORE = '{"text": "a dull story", "label": "bad"}\n'


@dataclass(frozen=True)
class Bad:
    ending: str  # the file name extension
    content: bytes  # the bytes of the file
    line: int | None  # the line (from 1) that the message must name; None if it names no line
    says: tuple[str, ...]  # other texts that the message must contain: the cause and the remedy
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the data section to read the file with


def csv(content: str | bytes, line: int | None, *says: str, ending: str = "csv", **settings: Any) -> Bad:
    return Bad(ending, content if isinstance(content, bytes) else content.encode(), line, says, settings)


def lines(content: str | bytes, line: int | None, *says: str, ending: str = "jsonl", **settings: Any) -> Bad:
    return csv(content, line, *says, ending=ending, **settings)


def parquet(table: pa.Table | bytes, *says: str, **settings: Any) -> Bad:
    return Bad("parquet", table if isinstance(table, bytes) else as_parquet(table), None, says, settings)


def as_parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def columns(**values: Any) -> pa.Table:
    """Return a table of two rows; columns that are not given are valid."""
    return pa.table({"text": ["so fine", "so dull"], "label": ["good", "bad"]} | values)


def as_zip(name: str, content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def cut(content: bytes, share: float) -> bytes:
    return content[: int(len(content) * share)]


_SMALL = as_parquet(columns())
_MB = 2**20

ENCODINGS = {
    "few letters of another encoding": csv(
        (HEADER + "Grüße,good\nschöner Käse,good\n").encode() + b"Gr\xf6\xdfe,bad\n",
        4,
        "byte 3",
        "0xf6",
        "not UTF-8",
        "--encoding",
    ),
    "utf-16 json lines": lines((JSON + MORE).encode("utf-16"), 1, "UTF-16"),
    "utf-32": csv(GOOD.encode("utf-32"), 1, "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    "surrogate as utf-8": csv(HEADER.encode() + b"so \xed\xa0\xbd,good\n", 2, "byte 4", "0xed", "not UTF-8"),
    "cut character": csv(GOOD.encode() + "so fine é".encode()[:-1], 4, "byte 9", "0xc3", "not UTF-8"),
}
BYTES = {
    "nul in a text": csv(GOOD + "so\0fine,good\n", 4, "byte 3 is NUL", "UTF-8 text"),
    "nul in the header": csv("te\0xt,label\nx,good\n", 1, "byte 3 is NUL"),
    "only nuls": csv(b"\0" * 4096, 1, "byte 1 is NUL"),
    "a zip": csv(as_zip("train.csv", GOOD), 1, "zip", "Unpack it"),
    "a spreadsheet": csv(as_zip("xl/workbook.xml", "<x/>"), 1, "zip", "end in .xlsx"),
    "a gzip without its ending": csv(gzip.compress(GOOD.encode()), 1, "gzipped", ".gz"),
    "a parquet named csv": csv(_SMALL, 1, "Parquet", "end in .parquet"),
    "a pickle": csv(b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.", 1, "0x80|NUL"),
    "a depth bomb": lines(JSON + '{"text": ' + "[" * 100_000 + "\n", 2, "nested too deeply", "flat objects"),
    "a huge label": csv(GOOD + f"so so,{'x' * 50_000}\n", 4, "unknown labels", label_names=("bad", "good")),
}
PARQUETS = {
    "nested texts": parquet(columns(text=[["so"], ["fine"]]), "row 0", "holds a list", "one value a row"),
    "maps": parquet(
        columns(text=pa.array([[("en", "so")], []], pa.map_(pa.string(), pa.string()))), "row 0", "holds a list"
    ),
    "nested labels": parquet(columns(label=[["good"], ["bad"]]), "row 0", "'label' holds a list"),
    "bytes": parquet(columns(text=[b"so", b"\xff"]), "row 0", "holds a bytes", "expected a text"),
    "dates": parquet(columns(text=pa.array([0, 1], pa.date32())), "row 0", "holds a date", "expected a text"),
    "a null text": parquet(columns(text=["so", None]), "row 1", "no text here"),
    "a null label": parquet(columns(label=["good", None]), "row 1", "no label here"),
    "nan for a label": parquet(columns(label=[1.0, float("nan")]), "row 1", "no label", task_type="regression"),
    "a nul": parquet(columns(text=["so", "f\0"]), "row 1", "NUL character"),
    "a repeated name": parquet(
        as_parquet(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "text", "label"])),
        "'text' more than once",
    ),
    "no rows": parquet(columns(text=pa.array([], pa.string()), label=pa.array([], pa.string())), "no rows"),
    "no columns": parquet(pa.table({}), "no rows|no column"),
    "no text column": parquet(pa.table({"a": ["x"], "b": [Decimal("1.5")]}), "no column looks like", "'a', 'b'"),
    "cut": parquet(cut(_SMALL, 0.6), "not a whole Parquet file", "Write it again"),
    "two marks": parquet(b"PAR1PAR1", "not a whole Parquet file"),
    "a footer that is too long": parquet(_SMALL[:-8] + b"\xff\xff\xff\x7fPAR1", "not a whole Parquet file"),
    "an encrypted one": parquet(_SMALL[:-4] + b"PARE", "not a whole Parquet file"),
}
PACKED = {
    "cut": csv(gzip.compress(GOOD.encode() * 50)[:-20], None, "cannot be unpacked", "again", ending="csv.gz"),
    "a wrong sum": csv(gzip.compress(GOOD.encode())[:-8] + b"\0" * 8, None, "cannot be unpacked", ending="csv.gz"),
    "rubbish behind": csv(gzip.compress(GOOD.encode()) + b"rubbish", None, "cannot be unpacked", ending="csv.gz"),
    "nothing in it": csv(gzip.compress(b""), None, "the file is empty", ending="csv.gz"),
    "a bomb": csv(gzip.compress(b"\0" * _MB) * 80, None, "times its size", "Unpack it yourself", ending="csv.gz"),
    "a bomb of rows": lines(
        gzip.compress(json.dumps({"text": "x" * 1000, "label": "a"}).encode() * 1000) * 80,
        None,
        "times its size",
        ending="jsonl.gz",
    ),
    "a workbook": csv(
        as_zip("xl/workbook.xml", ""), None, "cannot be read as a spreadsheet", "save it again", ending="xlsx"
    ),
}

BINARY = {"encodings": ENCODINGS, "bytes": BYTES, "parquet": PARQUETS, "packed": PACKED}
BAD_FILES = {f"{group}: {name}": bad for group, files in BINARY.items() for name, bad in files.items()}
for _group, _files in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items():
    for _name, (_ending, _content, _line, _says, *_more) in _files.items():
        _settings = {key: tuple(value) if isinstance(value, list) else value for key, value in dict(*_more).items()}
        BAD_FILES[f"{_group}: {_name}"] = Bad(_ending, _content.encode(), _line, tuple(_says), _settings)


# Random texts and tables of Hypothesis, and a writer of tables in each file format.

KINDS = ("csv", "tsv", "jsonl", "json", "data", "parquet")

# All Unicode characters but NUL and surrogates, with more of those that are difficult for readers and tokenizers.
_ODD = (*'\u202e\u200d\ufeff\u2028\x85\x1b",\t\n\r😀א\u0301', "[SEP]", "<mask>")
letters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
texts = st.lists(st.one_of(st.text(letters, max_size=8), st.sampled_from(_ODD)), max_size=5).map("".join)
names = st.text(st.characters(categories=("L", "N"), include_characters="_ -"), min_size=1, max_size=12)


@st.composite
def tables(draw: st.DrawFn, *, least: int = 1, most: int = 6) -> dict[str, list[str]]:
    """Draw columns of texts by name; the first line does not start with a byte order mark."""
    columns = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(least, most))
    cells = st.lists(texts, min_size=rows, max_size=rows)
    return {name: draw(cells) for name in columns}


def written(kind: str, columns: dict[str, Sequence[str]], *, packed: bool = False) -> tuple[str, bytes]:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "parquet":
        content = as_parquet(pa.table({name: list(cells) for name, cells in columns.items()}))
    elif kind in ("csv", "tsv"):
        opened = io.StringIO(newline="")
        writer = csv_module.writer(opened, delimiter="," if kind == "csv" else "\t", quoting=csv_module.QUOTE_ALL)
        writer.writerows([tuple(columns), *(tuple(row.values()) for row in rows)])
        content = opened.getvalue().encode()
    elif kind == "jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    else:
        content = json.dumps(rows if kind == "json" else {"version": 1, "data": rows}).encode()
    ending = "json" if kind == "data" else kind
    return (f"{ending}.gz", gzip.compress(content)) if packed and kind != "parquet" else (ending, content)
