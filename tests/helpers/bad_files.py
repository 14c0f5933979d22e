"""Data files: invalid ones with what the message must contain, and random valid ones in each file format."""

import csv as csv_module
import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

HEADER = "text,label\n"
GOOD = HEADER + "the film was fine,good\na dull story,bad\n"
JSON = '{"text": "the film was fine", "label": "good"}\n'
MORE = '{"text": "a dull story", "label": "bad"}\n'


@dataclass(frozen=True)
class Bad:
    """An invalid data file."""

    ending: str  # the file name extension
    content: bytes  # the bytes of the file
    line: int | None  # the line (from 1) that the message must name; None if it names no line
    says: tuple[str, ...]  # other texts that the message must contain: the cause and the remedy
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the data section to read the file with


def csv(content: str | bytes, line: int | None, *says: str, ending: str = "csv", **settings: Any) -> Bad:
    return Bad(ending, content if isinstance(content, bytes) else content.encode(), line, says, settings)


def tsv(content: str | bytes, line: int | None, *says: str, **settings: Any) -> Bad:
    return csv(content, line, *says, ending="tsv", **settings)


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
        (HEADER + "Grüße,good\nschöner Käse,good\n").encode() + b"Gr\xf6\xdfe,bad\n", 4, "byte 3", "0xf6", "not UTF-8",
        "--encoding",
    ),
    "utf-16 json lines": lines((JSON + MORE).encode("utf-16"), 1, "UTF-16"),
    "utf-32": csv(GOOD.encode("utf-32"), 1, "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    "surrogate as utf-8": csv(HEADER.encode() + b"so \xed\xa0\xbd,good\n", 2, "byte 4", "0xed", "not UTF-8"),
    "cut character": csv(GOOD.encode() + "so fine é".encode()[:-1], 4, "byte 9", "0xc3", "not UTF-8"),
    "two boms": csv("\ufeff\ufeff" + GOOD, 1, "byte order mark", "Take it out"),
}  # fmt: skip
BYTES = {
    "nul in a text": csv(GOOD + "so\0fine,good\n", 4, "byte 3 is NUL", "UTF-8 text"),
    "nul in the header": csv("te\0xt,label\nx,good\n", 1, "byte 3 is NUL"),
    "nul escaped in json": lines(JSON + '{"text": "so\\u0000fine", "label": "bad"}\n', 2, "NUL character", "Take it"),
    "only nuls": csv(b"\0" * 4096, 1, "byte 1 is NUL"),
    "bare carriage returns": csv(GOOD.replace("\n", "\r"), 1, "bare carriage return", "Unix or Windows line ends"),
    "carriage return in a row": csv(HEADER + "so\rfine,good\n", 2, "bare carriage return", "line ends"),
    "control characters as json": lines(
        JSON + '{"text": "a\x01b"}\n', 2, "not valid JSON at column", "Correct this line"
    ),
    "a zip": csv(as_zip("train.csv", GOOD), 1, "zip", "Unpack it"),
    "a spreadsheet": csv(as_zip("xl/workbook.xml", "<x/>"), 1, "zip", "end in .xlsx"),
    "a gzip without its ending": csv(gzip.compress(GOOD.encode()), 1, "gzipped", ".gz"),
    "a parquet named csv": csv(_SMALL, 1, "Parquet", "end in .parquet"),
    "a pickle": csv(b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.", 1, "0x80|NUL"),
    "html": csv(
        "<!DOCTYPE html>\n<html><body>Not, found</body></html>\n", 1, "this is an HTML page", "sign in", "as .csv"
    ),
}
ROWS = {
    "empty": csv("", None, "the file is empty", "expected rows"),
    "only a bom": csv("\ufeff", None, "holds", "expected"),
    "only line ends": csv("\n\r\n\n", None, "only blank lines", "expected a header"),
    "header only": csv(HEADER, None, "no rows", "Add rows"),
    "a row too long": csv(GOOD + "so, not fine,bad\n", 4, "3 fields, expected 2", "double quotes"),
    "a row too short": csv(GOOD + "so fine\n", 4, "1 field, expected 2", "Add what is missing"),
    "last row cut": csv(GOOD + "so fi", 4, "1 field, expected 2"),
    "a tab too many": tsv("text\tlabel\nso fine\t\tgood\n", 2, "3 fields, expected 2", "tab"),
    "a blank line between": csv(HEADER + "so fine,good\n\nso dull,bad\n", 3, "blank line", "Delete it"),
    "blank crlf between": csv("text,label\r\nso fine,good\r\n\r\nso dull,bad\r\n", 3, "blank line", 'or write ""'),
    "blank line at the begin": csv("\n" + GOOD, 1, "blank line", "Delete it"),
    "semicolons in a part of the rows": csv("text;label\nso fine;good\nso dull\n", None, "semicolons", "as many"),
    "commas in a tsv's header": tsv("text,label\nso fine\tgood\n", 2, "commas", "as many"),
    "a repeated name": csv("text,text,label\na,b,good\n", 1, "'text' more than once", "its own name"),
    "no header": csv("the film was fine,good\na dull story,bad\n", 1, "reads like a row", "--no_header"),
    "a second header": csv(GOOD + HEADER + "so so,bad\n", 4, "unknown labels: 'label'", "Correct the rows",
                           label_names=("bad", "good")),
}  # fmt: skip
QUOTES = {
    "never closed": csv(GOOD + '"so fine,good\nso dull,bad\n', 4, "never closed", "double each quote"),
    "not doubled": csv(HEADER + '"he said "no" twice",bad\n', 2, "do not pair up", '""no""'),
    "backslash": csv(HEADER + '"he said \\"no\\"",bad\n', 2, "do not pair up"),
    "single ones": csv(HEADER + "'so, fine',good\n", 2, "3 fields, expected 2", "double quotes"),
}
JSONS = {
    "a broken line": lines(JSON + '{"text": "so dull", "label"}\n' + MORE, 2, "not valid JSON at column 28", "Correct"),
    "a cut last line": lines(JSON + MORE[:-9], 2, "not valid JSON at column", "Correct this line"),
    "two objects a line": lines(JSON.strip() + JSON, 1, "not valid JSON", "Extra data"),
    "single quotes": lines("{'text': 'so fine', 'label': 'good'}\n", 1, "not valid JSON at column 2", "double quotes"),
    "a list": lines(JSON + '["so dull", "bad"]\n', 2, "a list, expected an object"),
    "a number": lines(JSON + "7\n", 2, "a str, expected an object|a number, expected an object"),
    "a repeated key": lines(JSON + '{"text": "a", "text": "b", "label": "bad"}\n', 2, "'text' more than once"),
    "a repeated key further in": lines(JSON + '{"x": {"a": 1, "a": 2}}\n', 2, "'a' more than once"),
    "a depth bomb": lines(JSON + '{"text": ' + "[" * 100_000 + "\n", 2, "nested too deeply", "flat objects"),
    "a text missing": lines(JSON + '{"label": "bad"}\n', 2, "no text here", "take the row out"),
    "a text null": lines(JSON + '{"text": null, "label": "bad"}\n', 2, "no text here", 'Write "" for'),
    "a text list": lines(JSON + '{"text": ["a", "b"], "label": "bad"}\n', 2, "holds a list", "one value a row"),
    "a text object": lines(JSON + '{"text": {"en": "a"}, "label": "bad"}\n', 2, "holds a dict", "expected a text"),
    "a label list": lines(JSON + '{"text": "a", "label": ["bad"]}\n', 2, "holds a list", "one label"),
    "half a pair": lines(JSON + '{"text": "a \\ud83d", "label": "bad"}\n', 2, "half of a surrogate pair", "Take it"),
    "only blank lines": lines("\n\n", None, "holds no rows", "at least one object"),
    "a text as a whole": lines('"so fine"', 1, "expected a list of objects", ending="json"),
    "an empty list": lines("[]", None, "holds no rows", ending="json"),
    "a broken list": lines('[{"text": "a", "label": "x"},\n {"text": "b" "label": "y"}]', 2,
                           "not valid JSON at column 15", ending="json"),
    "a list among objects": lines('[{"text": "a", "label": "x"},\n["b", "y"]]', 2, "a list, expected an object",
                                  ending="json"),
    "data that is none": lines('{"data": [1, 2]}', 1, "expected an object", ending="json"),
}  # fmt: skip
LABELS = {
    "one class": csv(HEADER + "a,good\nb,good\n", None, "only the label 'good'", "Add rows of another class"),
    "no label at all": csv(HEADER + "a,\nb,\n", None, "no labels", "at least two classes"),
    "one missing": csv(GOOD + "so so,\n", 4, "no label here", "take the row out"),
    "another case": csv(GOOD + "so so,Good\n", 4, "unknown labels: 'Good'", "Did you mean 'good'",
                        label_names=("bad", "good")),
    "mixed kinds": csv(HEADER + "a,1\nb,2.5\nc,good\n", 4, "label 'good'", "finite number", task_type="regression"),
    "a comma for a point": csv(HEADER + 'a,1\nb,"2,5"\n', 3, "label '2,5'", "with a point", task_type="regression"),
    "nan": csv(HEADER + "a,1\nb,nan\n", 3, "label 'nan'", "finite number", task_type="regression"),
    "too large": csv(HEADER + "a,1\nb,1e999\n", 3, "label '1e999'", "finite number", task_type="regression"),
    "arabic digits": csv(HEADER + "a,1\nb,٣\n", 3, "label '٣'", "finite number", task_type="regression"),
    "no order": csv(GOOD, None, "lowest first", "label_names", task_type="ordinal"),
    "a huge one": csv(GOOD + f"so so,{'x' * 50_000}\n", 4, "unknown labels", label_names=("bad", "good")),
}  # fmt: skip
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
    "not packed": csv(GOOD, None, "cannot be unpacked", "whole gzip file", ending="csv.gz"),
    "cut": csv(gzip.compress(GOOD.encode() * 50)[:-20], None, "cannot be unpacked", "again", ending="csv.gz"),
    "a wrong sum": csv(gzip.compress(GOOD.encode())[:-8] + b"\0" * 8, None, "cannot be unpacked", ending="csv.gz"),
    "rubbish behind": csv(gzip.compress(GOOD.encode()) + b"rubbish", None, "cannot be unpacked", ending="csv.gz"),
    "nothing in it": csv(gzip.compress(b""), None, "the file is empty", ending="csv.gz"),
    "a bomb": csv(gzip.compress(b"\0" * (80 * _MB)), None, "times its size", "Unpack it yourself", ending="csv.gz"),
    "a bomb of rows": lines(
        gzip.compress(json.dumps({"text": "x" * 1000, "label": "a"}).encode() * 80_000),
        None, "times its size", ending="jsonl.gz",
    ),
    "a bomb in parquet": Bad("parquet.gz", gzip.compress(b"PAR1" + b"\0" * (80 * _MB)), None, ("times its size",)),
    "no known ending": csv(GOOD, None, "'.txt', expected one of .csv", "Rename it", ending="txt"),
    "a workbook": csv(as_zip("xl/workbook.xml", ""), None, "cannot be read as a spreadsheet", "save it again",
                      ending="xlsx"),
    "packed otherwise": csv(GOOD, None, "'.xz', expected one of", ending="csv.xz"),
}  # fmt: skip

GROUPS = {
    "encodings": ENCODINGS,
    "bytes": BYTES,
    "rows": ROWS,
    "quotes": QUOTES,
    "json": JSONS,
    "labels": LABELS,
    "parquet": PARQUETS,
    "packed": PACKED,
}
BAD_FILES = {f"{group}: {name}": bad for group, files in GROUPS.items() for name, bad in files.items()}


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
    """Return the file name extension and the content of a file with these columns."""
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
    return (f"{ending}.gz", gzip.compress(content)) if packed else (ending, content)
