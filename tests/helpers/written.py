"""Hypothesis strategies for texts and tables, and a writer of tables in each file format."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import strategies as st

from helpers.bad_files import as_parquet

KINDS = ("csv", "tsv", "jsonl", "json", "data", "parquet")

# All Unicode characters but NUL and surrogates, with more of those that are difficult for readers and tokenizers.
_ODD = (
    "\u202e",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\x85",
    "\x1b",
    '"',
    ",",
    "\t",
    "\n",
    "\r",
    "[SEP]",
    "<mask>",
    "😀",
    "א",
    "\u0301",
)
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
        writer = csv.writer(opened, delimiter="," if kind == "csv" else "\t", quoting=csv.QUOTE_ALL)
        writer.writerows([tuple(columns), *(tuple(row.values()) for row in rows)])
        content = opened.getvalue().encode()
    elif kind == "jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    else:
        content = json.dumps(rows if kind == "json" else {"version": 1, "data": rows}).encode()
    ending = "json" if kind == "data" else kind
    return (f"{ending}.gz", gzip.compress(content)) if packed else (ending, content)
