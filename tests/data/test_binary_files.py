"""Spreadsheets and Parquet files: read as they show, or refused by name if they are damaged."""

import base64
import datetime
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from attentune.config import DataConfig
from attentune.data import binary_files
from attentune.data.files import read_table
from attentune.data.load import load_data, read_split
from attentune.data.unlabelled import find_sources
from attentune.errors import DataError

openpyxl = pytest.importorskip("openpyxl")
pytest.importorskip("python_calamine")

# A Parquet file in whose metadata one byte is wrong.
HISTOGRAM = (
    "c-oCpL2DCH5Pq9(w=s#3h;P{^i|ip?dPv*dY_m-y2PbW6s)=qEOBE`(Ntakj+n7Y_K|OgA@gV9!M5G515&wV(@jvv~gXlre{({cijY*3l4tz7S"
    "^Jc!8d2gLBu1Q6@FVSz2Ds?D1LCD9kv_uH$`*-`AL1V;3WDyo(4v|CHh<QYw#>B!zYF#u97AGbmi?9%Lh#ZUW?SA^T_x#@SgV~>JPqqGMVq<(B"
    "k!NwXh1vfH>)$Y}{KW5(tpX(!cgf&7Nh(oEwaJte92Jz%8mSa!>(3&n9YKnp)e?)ITG`E1zZac!?XrLE%G=GgANQ|MJz3v)jrVhsDpfT6c4BD("
    "t30k6*yt2JeWa1lPy{caKW>EdLi{}!DzajZC{nL^!{79%NN8d*rigr=Nm5lY6$24vyzMpo_8=lVOl29Js5HTHL`t$SpGIUyei4=5i29>3J^J_k"
    "ScVTwBLr0vO;LU&GKuNL;j15_3_Av#4+Z(Lpzn+NJMr)?e^NO^Ci&$t+0mo&hjGGGB>}E`Y4uFFqw-al<zfSuI)rioU<XPqSORFlLMw=sN&q$P"
    "EC4JAfsuvK4ZT2LyoscFbjnNRAQ+I8VJIs+*t@!VzTM!TwIII^r8?(72hfDY0okyqz7ot=IWp>?U&U?vl{$<{M(0G)I$rnIZNER=>~yBRZg+b}"
    "yW@9z8{1o2)}AqDOqRiy<c}%f@8E!I9svCZw9E"
)
TEXTS = [f"visit {number} was warm for the clerk" for number in range(60)]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"good.{kind}"
    table = pa.table({"text": TEXTS, "label": ["pos", "neg"] * 30, "list": [[1, 2], [3]] * 30})
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        book = openpyxl.Workbook()
        for row in [("text", "label"), *((text, "pos") for text in TEXTS)]:
            book.active.append(row)
        book.save(path)
    return path


def ends(*code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", *code], capture_output=True, text=True)


def test_metadata_that_ends_pyarrow_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode(HISTOGRAM)))
    code = "import sys; from attentune.data.files import read_table; read_table(sys.argv[1])"
    ended = ends(code, str(path))
    assert ended.returncode == 1, ended.stderr  # by the error, not by a signal
    assert f"DataError: {path}: not a whole Parquet file (Definition level" in ended.stderr
    (source,) = find_sources(str(path), DataConfig())
    with pytest.raises(DataError, match=f"{path}: not a whole Parquet file"):
        list(source.blocks(0, source.scanned().rows, ["text"]))


def test_text_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": TEXTS, "label": TEXTS}), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"visit 7 was", b"visit \xff was"))
    with pytest.raises(DataError, match=r"rows.parquet: "):
        read_table(path)


def test_a_damaged_data_set_of_a_folder_is_refused(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"text": TEXTS, "label": ["pos", "neg"] * 30}).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    whole = file.read_bytes()
    offsets = struct.pack("<3i", 0, *(sum(map(len, TEXTS[:count])) for count in (1, 2)))
    for damaged in (
        whole.replace(offsets, offsets[:8] + struct.pack("<i", 2**30)),
        whole.replace(b"visit 7 was", b"visit \xff was"),
    ):
        assert damaged != whole
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"saved, split train: a file is damaged"):
            read_split(str(tmp_path / "saved"), None, "train")


def test_a_cell_far_out_ends_no_process(tmp_path, monkeypatch):
    """The sheet would have 2 ** 34 cells."""
    book = openpyxl.Workbook()
    book.active.append(("text", "label"))
    book.active["XFD1048576"] = "far"
    book.save(tmp_path / "rows.xlsx")
    with pytest.raises(DataError, match=r"rows.xlsx: cannot be read .*takes all memory.*a cell far from the others"):
        read_table(tmp_path / "rows.xlsx")
    monkeypatch.setattr(binary_files, "_SECONDS", 0.001)
    with pytest.raises(DataError, match=r"good.xlsx: cannot be read .*reading it took more than 0.001 seconds"):
        read_table(written(tmp_path, "xlsx"))


def test_a_directory_of_an_archive_that_is_damaged_is_refused(tmp_path):
    path = written(tmp_path, "xlsx")
    whole = bytearray(path.read_bytes())
    for place, byte in ((0, 0), (6, 255)):  # the mark of an entry; the version that it needs
        damaged = whole.copy()
        damaged[whole.index(b"PK\x01\x02") + place] = byte
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"good.xlsx: cannot be read as a spreadsheet"):
            read_table(path)


FUZZ = """
import sys, random
from pathlib import Path
from attentune.data import binary_files
from attentune.data.files import read_table
from attentune.errors import DataError
good, endings = Path(sys.argv[1]), {"read": 0, "refused": 0}
whole, chance = good.read_bytes(), random.Random(0)
path = good.with_stem("damaged")
for _ in range(200):
    damaged = bytearray(whole)
    if chance.random() < 0.1:
        damaged = damaged[: chance.randrange(1, len(whole))]
    for _ in range(chance.choice([1, 2, 4, 16])):
        damaged[chance.randrange(len(damaged))] = chance.choice([0, 127, 128, 255, chance.randrange(256)])
    path.write_bytes(damaged)
    try:
        read_table(path)
        endings["read"] += 1
    except DataError as error:
        assert str(error).startswith(f"{path}: "), error
        endings["refused"] += 1
print(*endings.values())
"""


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["parquet", "xlsx"])
def test_no_damage_ends_the_process(tmp_path, kind):
    ended = ends(FUZZ, str(written(tmp_path, kind)))
    assert ended.returncode == 0, ended.stderr
    read, refused = map(int, ended.stdout.split())
    assert read + refused == 200
    assert refused > 20


# Spreadsheets give the rows that they show


pytest.importorskip("python_calamine")


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


def test_cells_are_texts(tmp_path):
    table = read_table(book(tmp_path / "rows.xlsx", ROWS))
    assert table.names == ("text", "stars", "day", "liked")
    assert table.columns["text"] == ("so fine; “really”, 日本\ntwo lines", "so dull", "")
    assert table.columns["stars"] == ("5", "2.5", "1")
    assert [day[:10] for day in table.columns["day"]] == ["2024-02-01", "2024-02-03", ""]
    assert table.columns["liked"] == ("true", "false", "")
    assert table.lines == (2, 3, 4)


def test_the_first_sheet_with_rows_is_read_and_told(tmp_path):
    path = book(tmp_path / "rows.xlsx", [], [[], ["text", "label"], ["so fine", "good"], ["so dull", "bad"]], ROWS)
    data = load_data(DataConfig(train_file=str(path), validation_file=str(path)), seed=0)
    assert data.splits["train"].texts == ("so fine", "so dull")
    assert f"{path}: the sheet 'Sheet1' is read, of 'Sheet1', 'Sheet2'; --sheet names another." in data.notes


def test_a_sheet_is_read_by_its_name(tmp_path):
    path = book(tmp_path / "rows.xlsx", [["text"], ["so fine"]], [], ROWS)
    assert read_table(path, config=DataConfig(sheet="Sheet2")).names == ("text", "stars", "day", "liked")
    assert read_table(path, config=DataConfig(sheet="Sheet")).columns == {"text": ("so fine",)}
    data = load_data(
        DataConfig(train_file=str(path), label_column="stars", sheet="Sheet2", task_type="ordinal"), seed=0
    )
    assert not any("sheet" in note for note in data.notes)
    with pytest.raises(DataError, match=r"'Shet2' is not there\. Did you mean 'Sheet2'\? .*rows: 'Sheet', 'Sheet2'"):
        read_table(path, config=DataConfig(sheet="Shet2"))
    with pytest.raises(DataError, match="'Sheet1' is empty. Sheets with rows: 'Sheet', 'Sheet2'"):
        read_table(path, config=DataConfig(sheet="Sheet1"))


@pytest.mark.parametrize(
    ("rows", "line", "says"),
    [
        ([], None, "has no rows"),
        ([["text", "label"]], None, "a header but no rows"),
        ([["text", "text"], ["a", "b"]], 1, "'text' more than once"),
        ([["text", "label"], ["a", "b"], [], ["c", "d"]], 3, "a blank line between rows"),
    ],
)
def test_a_bad_sheet_is_refused(tmp_path, rows, line, says):
    path = book(tmp_path / "rows.xlsx", rows)
    with pytest.raises(DataError, match=says) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_what_is_no_spreadsheet_is_refused(tmp_path):
    path = tmp_path / "rows.xlsx"
    path.write_text("text,label\na,b\n")
    with pytest.raises(DataError, match=r"rows.xlsx: cannot be read as a spreadsheet .* save it again"):
        read_table(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b"\0" * 100_000_000)
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        read_table(path)
