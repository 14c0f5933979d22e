"""The page on how the papers are read names a test for each of its rows; these and all others that it names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_of_the_54_rows_has_a_test_that_exists():
    page = (ROOT / "lab" / "docs" / "how-we-read-the-papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| `([^`]+)::([^`]+)` \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 55))
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) >= len(rows)
    for file, name in named:
        (path,) = [folder / file for folder in (ROOT / "tests", ROOT / "lab/tests") if (folder / file).is_file()]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, (file, name)
