"""What spreadsheets, notebooks and public data sets write: read right and told, or refused with all places."""

import gzip
import json
import math
from pathlib import Path

import openpyxl
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace
from attentune.data.files import read_table
from attentune.data.load import load_data
from attentune.data.tables import ChunkLimit
from attentune.data.unlabelled import find_sources, unlabelled_chunks
from attentune.errors import DataError, LabelError

TEXTS = [f"visit {number} was fine for the clerk" for number in range(24)]
LABELS = ["pos", "neg"] * 12


def write(path: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lines(mark: str, texts: list[str] = TEXTS, labels: list[str] = LABELS) -> list[str]:
    return [f"text{mark}label", *(f"{text}{mark}{label}" for text, label in zip(texts, labels, strict=True))]


def notes_of(path: Path, **settings: object) -> str:
    return "\n".join(load_data(DataConfig(train_file=str(path), **settings), seed=0).notes)


def texts_by_ranges(path: Path) -> list[str]:
    (source,) = find_sources(str(path), DataConfig())
    blocks = source.blocks(0, source.scanned().rows, ["text"])
    return [text for table in blocks for text in table.columns["text"]]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("kind", "mark"), [("tsv", "\t"), ("csv", ";"), ("csv", "|"), ("csv", ",")])
def test_quotes_that_hold_rows_together_are_plain(tmp_path, kind, mark, ending):
    rows = lines(mark)
    rows[10] = f'"We shall not come back, said aunt May{mark}pos'.replace(mark, " ", mark == ",")
    rows[20] = f'the screen had 15"{mark}neg'
    path = write(tmp_path / f"rows.{kind}{ending}", "\n".join(rows) + "\n")
    table = read_table(path)
    assert len(table) == 24
    assert table.columns["text"][9].startswith('"We shall')
    assert table.columns["text"][19] == 'the screen had 15"'
    assert any("quotes are read as plain characters" in note for note in table.notes)
    assert texts_by_ranges(path) == list(table.columns["text"])


def test_rows_inside_of_a_quote_are_told_where_other_fields_are_quoted(tmp_path):
    rows = lines(",")
    rows[3] = '"fine, really",pos'
    rows[10] = '"We shall not come back said aunt May,pos'
    rows[20] = 'the screen had 15",neg'
    path = write(tmp_path / "rows.csv", "\n".join(rows) + "\n")
    assert len(read_table(path)) == 14
    assert f"{path}: the lines 11 to 21 are one row each" in notes_of(path)


def test_rows_inside_of_a_quote_are_told_whatever_is_beside_them(tmp_path):
    """Other quoted fields in its first line; a column of scores or ids instead of classes; a chunk before the last."""
    rows = [f"a{number},{number / 7:.2f},{text}" for number, text in enumerate(TEXTS)]
    rows[9:10] = ['a9,1.29,"We shall not come back']
    rows[14] = 'a14,2.00,the screen had 15"'
    rows[20] = 'a20,2.86,"fine, really"'
    (note,) = read_table(write(tmp_path / "rows.csv", "\n".join(["id,score,body", *rows]))).notes
    assert "the lines 11 to 16 are one row each" in note
    rows = lines(",")
    rows[3] = '"fine, really",pos'
    rows = [row if number == 0 else f"x,{row}" for number, row in enumerate(rows)]
    rows[0] = "kind,text,label"
    rows[10] = '"x, y","We shall not come back,pos'
    rows[16] = 'x,the screen had 15",neg'
    path = write(tmp_path / "more.csv", "\n".join(rows))
    assert "the lines 11 to 17 are one row each" in read_table(path).notes[-1]
    found = unlabelled_chunks(
        str(path),
        label_space=LabelSpace("classification", ("neg", "pos")),
        is_pair=False,
        config=DataConfig(),
        limit=ChunkLimit(12, 10**6),
    )
    assert any("the lines 11 to 17" in note for note in found.notes)
    (source,) = find_sources(str(path), DataConfig())
    assert any("the lines 11 to 17" in note for note in source.scanned().notes)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_quotes_of_a_tsv_may_be_plain(tmp_path, ending):
    rows = lines("\t", ['"Never" said the guest', *TEXTS[:-2], '"Good," he said, "so good"'])
    path = write(tmp_path / f"rows.tsv{ending}", "\n".join(rows) + "\n")
    table = read_table(path)
    assert table.columns["text"][0] == '"Never" said the guest'
    assert len(table.notes) == 1
    assert texts_by_ranges(path) == list(table.columns["text"])


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_excels_line_names_the_separator(tmp_path, mark, encoding, ending):
    texts = ["the café was très bon, même", *TEXTS[1:]]
    content = "\r\n".join([f"sep={mark}", *lines(mark, [text.replace(mark, " ") for text in texts])]) + "\r\n"
    path = write(tmp_path / f"rows.csv{ending}", content.encode(encoding))
    table = read_table(path)
    assert table.names == ("text", "label")
    assert (len(table), table.lines[0]) == (24, 3)
    assert table.columns["label"] == tuple(LABELS)
    assert len(read_table(path, config=DataConfig(header=False))) == 25
    if encoding != "utf-16":
        assert texts_by_ranges(path) == list(table.columns["text"])


def test_a_given_separator_is_kept_where_the_encoding_is_not_found(tmp_path):
    head = "ref;review;label\n" + '1;"so fine; really,\nall of it";pos\n' * 20
    path = write(tmp_path / "rows.csv", head.encode() + "2;Größe, très;neg\n".encode() * 5 + b"3;\xff;neg\n")
    with pytest.raises(DataError, match=r"0xff, which is not UTF-8.*--encoding"):
        read_table(path, config=DataConfig(delimiter=";"))
    few = 'ref;review;label\n1;"so fine; really,\nall of it";pos\n' * 1 + "2;été;neg\n"
    table = read_table(write(tmp_path / "few.csv", few.encode("cp1252")), config=DataConfig(delimiter=";"))
    assert table.columns["review"] == ("so fine; really,\nall of it", "été")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("kind", ["jsonl", "json", "jsonl.gz", "parquet"])
def test_numbers_that_are_none_are_missing_labels(tmp_path, kind, value):
    labels = [1.0, 0.0, value, 1.0, 0.0, value, 1.0, 0.0]
    path = tmp_path / f"rows.{kind}"
    records = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=False)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": TEXTS[:8], "label": pa.array(labels, pa.float64())}), path)
    else:
        text = json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records))
        write(path, text)
    missing = [row for row, label in enumerate(read_table(path).columns["label"]) if label is None]
    assert missing == [2, 5]
    with pytest.raises(LabelError, match="no label here, and in 1 more row"):
        load_data(DataConfig(train_file=str(path)), seed=0)


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "jsonl", "json", "parquet"])
def test_a_repeated_header_is_told_and_can_be_left_out(tmp_path, kind):
    texts, labels = [*TEXTS[:12], "text", *TEXTS[12:]], [*LABELS[:12], "label", *LABELS[12:]]
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts, "label": labels}), path)
    elif "json" in kind:
        records = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        write(path, json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records)))
    else:
        write(path, "\n".join(lines("\t" if kind == "tsv" else ",", texts, labels)))
    place = {"jsonl": "line 13", "json": "line 1", "parquet": "row 12"}.get(kind, "line 14")
    assert f"the names of the columns are repeated in {place}, read as a row." in notes_of(path)
    told = notes_of(path, skip_broken_rows=True)
    assert "1 row is left out" in told
    assert "2 classes" in told
    (entry,) = map(json.loads, (tmp_path / f"{path.name}.left_out.jsonl").read_text().splitlines())
    assert entry["cells"] == ["text", "label"]


def test_headers_that_are_repeated_are_told_in_the_plural(tmp_path):
    path = write(tmp_path / "rows.csv", "\n".join([*lines(","), "text,label", *lines(",")[1:], "text,label"]))
    assert "are repeated in lines 26, 51, read as rows." in notes_of(path)


@pytest.mark.parametrize("again", ["\ufefftext,label", "Text, Label"])
def test_a_header_that_is_written_otherwise_is_told_too(tmp_path, again):
    path = write(tmp_path / "rows.csv", "\n".join([*lines(","), again, *lines(",")[1:]]))
    assert "the names of the columns are repeated in line 26" in notes_of(path)


@pytest.mark.parametrize(("kind", "mark"), [("csv", "|"), ("csv", ","), ("tsv", "\t"), ("csv.gz", ";")])
def test_all_broken_rows_are_told_and_can_be_left_out(tmp_path, kind, mark):
    rows = lines(mark)
    for number in (5, 9, 12, 15, 18, 20):
        rows[number] = f"visit {number}{mark}was fine{mark}pos"
    rows = [*rows[:2], *rows[1:] * 3]
    path = write(tmp_path / f"rows.{kind}", "\n".join(rows) + "\n")
    with pytest.raises(DataError) as caught:
        read_table(path, config=DataConfig(delimiter=mark))
    message = str(caught.value)
    assert message.startswith(f"{path}:7: 3 fields, expected 2 (text, label). 18 rows have another number of fields")
    assert "lines 11 (3), 14 (3), 17 (3), 20 (3), and 13 more" in message
    assert "--skip_broken_rows" in message
    told = notes_of(path, delimiter=mark, skip_broken_rows=True)
    assert "18 rows are left out, line 7 (3 fields, expected 2), 11" in told
    written = [json.loads(line) for line in (tmp_path / f"{path.name}.left_out.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in written][:2] == [7, 11]
    assert written[0]["cells"] == ["visit 5", "was fine", "pos"]


def test_a_separator_is_found_where_some_texts_have_it(tmp_path):
    rows = lines("|")
    rows[9] = "visit 9|was fine|pos"
    path = write(tmp_path / "rows.csv", "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"rows.csv:10: 3 fields, expected 2 \(text, label\)"):
        read_table(path)


def test_all_rows_without_a_label_are_told_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "rows.csv", "\n".join(lines(",", labels=["", *LABELS[1:8], "", "", *LABELS[10:]])))
    with pytest.raises(LabelError, match=r"rows.csv:2: .*2 more rows \(line 10, 11\).*--skip_broken_rows"):
        load_data(DataConfig(train_file=str(path)), seed=0)
    data = load_data(DataConfig(train_file=str(path), skip_broken_rows=True), seed=0)
    assert sum(map(len, data.splits.values())) == 21
    assert "3 rows are left out, line 2 (no label), 10 (no label), 11 (no label)" in "\n".join(data.notes)


def test_rows_that_come_from_no_file_are_left_out_without_writing_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pandas.DataFrame({"text": TEXTS, "label": ["", *LABELS[1:]]})
    data = load_data(DataConfig(skip_broken_rows=True), seed=0, frame=frame)
    assert any(note.endswith("1 row is left out, row 0 (no label).") for note in data.notes), data.notes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_shapes_that_pandas_writes_in_json_are_read(tmp_path, ending, indent):
    records = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    columns = {"text": TEXTS, "label": LABELS}
    shapes = {
        "list": columns,
        "default": {name: {str(row): cell for row, cell in enumerate(cells)} for name, cells in columns.items()},
        "named": {name: {f"r{row}": cell for row, cell in enumerate(cells)} for name, cells in columns.items()},
        "index": {str(row): record for row, record in enumerate(records)},
        "by_id": {f"p{row}": record for row, record in enumerate(records)},
        "split": {"columns": ["text", "label"], "index": list(range(24)), "data": [[*row.values()] for row in records]},
        "table": {"schema": {"fields": []}, "data": records},
    }
    for name, shape in shapes.items():
        path = write(tmp_path / f"{name}.json{ending}", json.dumps(shape, indent=indent))
        table = read_table(path)
        assert (list(table.columns["text"]), list(table.columns["label"])) == (TEXTS, LABELS), name
        assert len(table.notes) == (name != "table")
    assert read_table(tmp_path / f"by_id.json{ending}").columns["id"][3] == "p3"
    one = write(tmp_path / f"one.json{ending}", json.dumps({"text": "so fine", "labels": ["a", "b"]}, indent=indent))
    assert len(read_table(one)) == 1


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_splits_in_one_object_are_named(tmp_path, kind):
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    part = rows if kind == "rows" else {"text": TEXTS, "label": LABELS}
    path = write(tmp_path / "rows.json", json.dumps({"train": part, "test": part}))
    with pytest.raises(DataError, match=r"one object with rows under 'train', 'test'.*--test_file"):
        read_table(path)
    uneven = write(tmp_path / "uneven.json", json.dumps({"text": TEXTS, "label": LABELS[1:]}))
    with pytest.raises(DataError, match=r"lists of different lengths.*'text' \(24\), 'label' \(23\)"):
        read_table(uneven)


def test_the_sheet_with_text_and_label_is_read_or_the_sheets_are_named(tmp_path):
    def book(name: str, **sheets: list[list[str]]) -> Path:
        made = openpyxl.Workbook()
        made.remove(made.active)
        for title, rows in sheets.items():
            sheet = made.create_sheet(title)
            for row in rows:
                sheet.append(row)
        made.save(tmp_path / name)
        return tmp_path / name

    places, rows = [["ID", "Name"], ["1", "Bern"]], [["text", "label"], *map(list, zip(TEXTS, LABELS, strict=True))]
    path = book("survey.xlsx", Places=places, Texts=[["comment"], ["so"]], Comments=rows)
    table = read_table(path)
    assert (table.names, len(table)) == (("text", "label"), 24)
    assert "the sheet 'Comments' is read, of 'Places', 'Texts', 'Comments'" in table.notes[0]
    assert read_table(path, config=DataConfig(text_column="Name")).names == ("ID", "Name")
    assert read_table(path, config=DataConfig(sheet="Places")).names == ("ID", "Name")
    other = book("other.xlsx", Places=places, More=[["ID", "Town"], ["1", "Basel"]])
    with pytest.raises(DataError, match=r"the sheet 'Places' is read, of 'Places', 'More'; --sheet names another"):
        load_data(DataConfig(train_file=str(other)), seed=0)


def test_rows_are_left_out_of_extra_files_and_told(tmp_path):
    path = write(tmp_path / "rows.csv", "\n".join(lines(",")))
    extra = write(tmp_path / "extra.csv", "text,label\nso fine,pos\nso, dull,neg\nso so,\ntext,label\n")
    told = notes_of(path, extra_train_files=(str(extra),), skip_broken_rows=True)
    assert "extra.csv: 3 rows are left out, line 3 (3 fields, expected 2), 4 (no label), 5 (repeats the names" in told
    empty = write(tmp_path / "empty.csv", "text,label\nso fine,\nso dull,\n")
    with pytest.raises(LabelError, match="no label"):
        notes_of(empty, skip_broken_rows=True)
