"""Spreadsheets and Feather files give the rows that they show."""

import datetime
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from attentune.config import DataConfig
from attentune.data.files import read_table
from attentune.data.load import load_data
from attentune.data.text_formats import FileOptions
from attentune.errors import DataError

pytest.importorskip("python_calamine")
openpyxl = pytest.importorskip("openpyxl")


def book(path: Path, *sheets: list[list[object]]) -> Path:
    made = openpyxl.Workbook()
    for number, rows in enumerate(sheets):
        sheet = made.active if number == 0 else made.create_sheet()
        for row in rows:
            sheet.append(row)
    made.save(path)
    return path


ROWS = [
    ["text", "stars", "day", "liked", None],
    ["so fine; “really”, 日本\ntwo lines", 5, datetime.date(2024, 2, 1), True, None],
    ["so dull", 2.5, datetime.date(2024, 2, 3), False, None],
    [None, 1, None, None, None],
]


def test_cells_are_texts(tmp_path: Path) -> None:
    table = read_table(book(tmp_path / "rows.xlsx", ROWS))
    assert table.names == ("text", "stars", "day", "liked")
    assert table.columns["text"] == ("so fine; “really”, 日本\ntwo lines", "so dull", "")
    assert table.columns["stars"] == ("5", "2.5", "1")
    assert [day[:10] for day in table.columns["day"]] == ["2024-02-01", "2024-02-03", ""]
    assert table.columns["liked"] == ("true", "false", "")
    assert table.lines == (2, 3, 4)
    assert read_table(tmp_path / "rows.xlsx", keep=["stars"]).columns.keys() == {"stars"}


def test_the_first_sheet_with_rows_is_read_and_told(tmp_path: Path) -> None:
    path = book(tmp_path / "rows.xlsx", [], [[], ["text", "label"], ["so fine", "good"], ["so dull", "bad"]], ROWS)
    data = load_data(DataConfig(train_file=str(path), validation_file=str(path)), seed=0)
    assert data.splits["train"].texts == ("so fine", "so dull")
    assert f"{path}: the sheet 'Sheet1' is read, of 'Sheet1', 'Sheet2'; --sheet names another." in data.notes


def test_a_sheet_is_read_by_its_name(tmp_path: Path) -> None:
    path = book(tmp_path / "rows.xlsx", [["text"], ["so fine"]], [], ROWS)
    assert read_table(path, options=FileOptions(sheet="Sheet2")).names == ("text", "stars", "day", "liked")
    assert read_table(path, options=FileOptions(sheet="Sheet")).columns == {"text": ("so fine",)}
    data = load_data(
        DataConfig(train_file=str(path), label_column="stars", sheet="Sheet2", task_type="ordinal"), seed=0
    )
    assert not any("sheet" in note for note in data.notes)
    with pytest.raises(DataError, match=r"'Shet2' is not there\. Did you mean 'Sheet2'\? .*rows: 'Sheet', 'Sheet2'"):
        read_table(path, options=FileOptions(sheet="Shet2"))
    with pytest.raises(DataError, match="'Sheet1' is empty. Sheets with rows: 'Sheet', 'Sheet2'"):
        read_table(path, options=FileOptions(sheet="Sheet1"))


@pytest.mark.parametrize(
    ("rows", "line", "says"),
    [
        ([], None, "has no rows"),
        ([["text", "label"]], None, "a header but no rows"),
        ([["text", "text"], ["a", "b"]], 1, "'text' more than once"),
        ([["text", "label"], ["a", "b"], [], ["c", "d"]], 3, "an empty row between rows"),
    ],
)
def test_a_bad_sheet_is_refused(tmp_path: Path, rows: list[list[object]], line: int | None, says: str) -> None:
    path = book(tmp_path / "rows.xlsx", rows)
    with pytest.raises(DataError, match=says) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_what_is_no_spreadsheet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_text("text,label\na,b\n")
    with pytest.raises(DataError, match=r"rows.xlsx: cannot be read as a spreadsheet .* save it again"):
        read_table(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b"\0" * 100_000_000)
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        read_table(path)
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(DataError, match=r"pip install .*\[excel\]'"):
        read_table(path)


@pytest.mark.parametrize("ending", ["feather", "arrow"])
def test_feather(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    feather.write_feather(pa.table({"text": ["so fine", "so dull"], "stars": [5, 2], "n": [None, 1.5]}), str(path))
    table = read_table(path)
    assert {name: tuple(cells) for name, cells in table.columns.items()} == {
        "text": ("so fine", "so dull"),
        "stars": ("5", "2"),
        "n": (None, "1.5"),
    }
    assert read_table(path, keep=["text"]).columns.keys() == {"text"}
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a whole Feather file"):
        read_table(path)
    feather.write_feather(pa.table({"text": ["x" * 1_000_000] * 300, "label": ["a"] * 300}), str(path), "zstd")
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        read_table(path)
