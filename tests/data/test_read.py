"""The readers give back every row, character for character, or say where they cannot."""

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from attentune.config import DataConfig
from attentune.data import files
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_delimited, read_table
from attentune.data.labels import LabelReader
from attentune.data.load import load_data
from attentune.data.text_files import Dialect
from attentune.data.unlabelled import find_sources
from attentune.errors import ConfigError, DataError, LabelError
from helpers.bad_files import KINDS, as_parquet, letters, names, tables, texts
from helpers.bad_files import written as table_file


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


FILES = yaml.safe_load(Path(__file__).with_name("files.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("about", FILES)
def test_a_file_is_read(tmp_path, about, packed):
    case, wanted = FILES[about], FILES[about].get
    for text in case["content"] if isinstance(case["content"], list) else [case["content"]]:
        content = text.encode(wanted("encoding", "utf-8"))
        name = f"{wanted('name', 'rows.csv')}{'.gz' if packed else ''}"
        path, options = write(tmp_path, name, gzip.compress(content) if packed else content), wanted("options", {})
        if "error" in case:
            with pytest.raises(DataError) as caught:
                read_table(path, config=DataConfig(**options))
            assert all(part in str(caught.value) for part in case["error"]), str(caught.value)
            continue
        table = read_table(path, config=DataConfig(**options))
        assert table.names == tuple(wanted("names", table.names))
        assert table.lines == tuple(wanted("lines", table.lines))
        assert {name: list(table.values(name)) for name in wanted("columns", ())} == wanted("columns", {})
        assert all(any(part in note for note in table.notes) for part in wanted("notes", ())), table.notes
        assert wanted("notes") != [] or table.notes == ()
        if "text" in wanted("columns", ()):
            (source,) = find_sources(str(path), DataConfig(**options))
            blocks = source.blocks(0, source.scanned().rows, ["text"])
            assert [text for block in blocks for text in block.columns["text"]] == case["columns"]["text"]


def test_a_byte_of_another_encoding_is_told_far_into_a_file(tmp_path):
    rows = b"text,label\n" + b"so fine,good\n" * 100_000 + "żółw,good\n".encode("iso8859-2")
    path = write(tmp_path, "rows.csv", rows)
    assert read_table(path, config=DataConfig(encoding="iso8859-2")).columns["text"][-1] == "żółw"
    with pytest.raises(DataError, match=r"rows.csv:100002: byte 1 of the line is 0xbf, which is not UTF-8.*--encoding"):
        read_table(path)


def test_values_that_are_no_texts_keep_their_spelling(tmp_path):
    columns = pa.table(
        {"a": [1], "b": [1.5], "c": [True], "d": pa.array([float("nan")]), "e": pa.array([None], pa.string())}
    )
    table = read_table(write(tmp_path, "rows.parquet", as_parquet(columns)))
    assert [table.values(name)[0] for name in "abcde"] == ["1", "1.5", "true", None, None]


def test_only_asked_columns_are_kept_but_all_are_named(tmp_path):
    columns = as_parquet(pa.table({"a": [1], "b": [2], "c": [3]}))
    for kind, content in (("csv", b"a,b,c\n1,2,3\n"), ("parquet", columns)):
        (table,) = files.read_chunks(write(tmp_path, f"rows.{kind}", content), keep={"c", "a"})
        assert (set(table.columns), table.names, table.texts("c")) == ({"a", "c"}, ("a", "b", "c"), ("3",))


def test_a_huge_field_is_read_and_the_csv_limit_is_put_back(tmp_path):
    csv.field_size_limit(131072)  # the standard library's own
    table = read_table(write(tmp_path, "rows.csv", f'text,label\n"{"x" * 300_000}",1\n'))
    assert len(table.texts("text")[0]) == 300_000
    assert csv.field_size_limit() == 131072


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.jsonl.gz", "rows.parquet"])
def test_unpacked_size_is_bounded(tmp_path, monkeypatch, name):
    text = "x" * 200_000
    content = {"csv": f"text\n{text}\n".encode(), "jsonl": json.dumps({"text": text}).encode()}.get(name.split(".")[1])
    content = content or as_parquet(pa.table({"text": [text, text]}))
    path = write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    monkeypatch.setattr(files, "MAX_BYTES", 500_000)
    assert len(read_table(path)) == (2 if name == "rows.parquet" else 1)
    monkeypatch.setattr(files, "MAX_BYTES", 100_000)
    with pytest.raises(DataError, match="more than the 100000 bytes that are read"):
        read_table(path)


def test_without_quoting_a_quote_is_a_character(tmp_path):
    path = write(tmp_path, "rows.txt", 'a\tb\n"x\ty\n""\t"z" and\r\n')
    table = read_delimited(path, Dialect("\t", "none"))
    assert table.texts("a") == ('"x', '""')
    assert table.texts("b") == ("y", '"z" and')


@pytest.mark.parametrize("name", ["rows.db", "rows.csv"])
def test_a_database_is_refused_with_the_command_that_exports_it(tmp_path, name):
    (tmp_path / name).write_bytes(b"SQLite format 3\0" + b"text,label\n" * 20)
    with pytest.raises(DataError, match=rf"{name}.* sqlite3 FILE -header -csv|{name}.*\(sqlite3 FILE"):
        read_table(tmp_path / name)


# Separators and encodings that people have are found; UTF-8 with the separator of the extension is read as it was


SENTENCES = {
    "cp1252": (
        "Le café était très bon, même délicieux",
        "Größe passt nicht, schöne Farbe",
        "“so fine”",
        "naïve façade",
        "it’s a lovely room",
        "“so fine” – really…",
    ),
    "cp1250": ("Książka była naprawdę świetna, polecam każdemu", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    "cp1254": ("Bu ürün çok güzel ve kaliteli, teşekkürler", "Kargo çok geç geldi, hiç beğenmedim"),
    "cp1251": ("Очень хороший фильм, рекомендую всем", "Плохое качество, не покупайте"),
    "koi8-r": ("Очень хороший фильм, рекомендую всем", "Плохое качество, не покупайте"),
    "cp1253": ("Πολύ καλό προϊόν το συνιστώ", "Δεν μου άρεσε καθόλου"),
    "shift_jis": ("この映画はとても面白かったです", "この製品はお勧めしません"),
    "gb18030": ("这个产品非常好，我很喜欢", "质量很差，不推荐购买"),
    "big5": ("這個產品非常好，我很喜歡", "品質很差"),
    "euc-kr": ("이 영화는 정말 재미있었어요", "별로예요"),
    "utf-16": ("so fine", "Größe", "日本"),
    "utf-16-le": ("so fine", "Größe", "日本"),
    "utf-16-be": ("so fine", "Größe", "日本"),
}
MARKS = (",", ";", "\t", "|")


def delimited(texts: tuple[str, ...], mark: str, encoding: str = "utf-8") -> bytes:
    opened = io.StringIO(newline="")
    rows = [(text, ("bad", "good")[number % 2]) for number, text in enumerate(texts)]
    csv.writer(opened, delimiter=mark).writerows([("text", "label"), *rows])
    return opened.getvalue().encode(encoding)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("encoding", SENTENCES)
def test_an_encoding_is_found_and_told(tmp_path, encoding, count):
    path, texts = tmp_path / "rows.csv", (SENTENCES[encoding] * 40)[:count]
    path.write_bytes(delimited(texts, ",", encoding))
    table = read_table(path)
    assert tuple(table.columns["text"]) == texts
    (note,) = table.notes
    assert note.startswith(f"{path}: read as ")
    assert "--encoding" in note


@pytest.mark.parametrize("least", [1, 32, 128])
def test_bytes_of_no_encoding_are_told(tmp_path, least):
    draw = random.Random(least)
    path = write(tmp_path, "rows.csv", bytes(draw.randint(least, 255) for _ in range(200)))
    with pytest.raises(DataError, match=r"rows.csv:1: byte \d+ of the line is 0x.., which is not UTF-8"):
        read_table(path)


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
@pytest.mark.parametrize("mark", MARKS)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")), min_size=2))
def test_a_separator_is_found(tmp_path_factory, mark, ending, texts):
    path = tmp_path_factory.getbasetemp() / f"rows.{ending}"
    content = delimited(tuple(texts), mark)
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    table = read_table(path)
    assert list(table.columns["text"]) == texts
    assert bool(table.notes) == (mark != ("\t" if ending == "tsv" else ","))


# A folder of text files by class has a row for each file


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "good/1.txt": b"so fine\r\nand more\r\n",
        "good/10.txt": "Größe passt, schöne Farbe, nur für mich".encode("cp1252"),
        "bad/2.txt": "\ufeffso dull".encode(),
        "bad/notes.md": b"left out",
        "readme.txt": b"left out",
    }.items():
        (tmp_path / "reviews" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reviews" / name).write_bytes(text)
    return tmp_path / "reviews"


def test_the_rows(folder):
    data = load_data(DataConfig(train_file=str(folder), validation_file=str(folder)), seed=0)
    rows = data.splits["train"]
    assert rows.texts == ("so dull", "so fine\nand more", "Größe passt, schöne Farbe, nur für mich")
    assert [data.label_space.names[label] for label in rows.labels] == ["bad", "good", "good"]
    assert any("3 text files are read, some of them as cp1252" in note for note in data.notes)
    assert read_table(folder).columns["file"] == ("bad/2.txt", "good/1.txt", "good/10.txt")


def test_what_is_no_text_is_refused(folder, monkeypatch):
    (folder / "bad" / "3.txt").write_bytes(b"\x00\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bad/3.txt:1: byte 1 is NUL, expected UTF-8 text"):
        read_table(folder)
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    with pytest.raises(DataError, match=r"reviews: its files hold more than the 10 bytes"):
        read_table(folder)


# Whatever the rows: they come back in their order, letter for letter, or an error names the line


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("properties")


@given(columns=tables(), kind=st.sampled_from(KINDS), packed=st.booleans())
def test_what_is_written_is_read(place, columns, kind, packed):
    ending, content = table_file(kind, columns, packed=packed)
    path = place / f"rows.{ending}"
    path.write_bytes(content)
    table = read_table(path)
    assert table.names == tuple(columns)
    assert {name: list(table.texts(name)) for name in columns} == columns


@given(content=st.binary(max_size=200), kind=st.sampled_from([*KINDS, "csv.gz", "parquet.gz", "ndjson"]))
def test_any_bytes_are_a_table_or_an_error_of_ours(place, content, kind):
    path = place / f"bytes.{kind.replace('data', 'json')}"
    path.write_bytes(content)
    check_read_or_told(path)


def check_read_or_told(path: Path) -> None:
    """There is a table with all of its cells, or a message of ours."""
    told = f"{path}:"
    try:
        table = read_table(path)
        assert {len(table.values(name)) for name in table.names} <= {len(table)}
    except DataError as error:
        told = str(error)
    assert told.startswith(f"{path}:")


@given(columns=tables(), kind=st.sampled_from(KINDS), packed=st.booleans(), data=st.data())
def test_a_damaged_file_is_a_table_or_an_error_of_ours(place, columns, kind, packed, data):
    ending, content = table_file(kind, columns, packed=packed)
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = place / f"damaged.{ending}"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    check_read_or_told(path)


@given(columns=tables(least=2), data=st.data())
def test_a_row_with_a_field_too_many_is_named_by_its_line(place, columns, data):
    _, content = table_file("csv", {"text": columns[next(iter(columns))], "label": columns[next(iter(columns))]})
    whole = content.decode()  # with line ends inside of quotes, records and lines differ
    (place / "whole.csv").write_bytes(content)
    table_lines = read_table(place / "whole.csv").lines
    row = data.draw(st.integers(0, len(table_lines) - 1))
    places = [*table_lines, whole.count("\n") + 1]
    physical = whole.split("\n")
    end = places[row + 1] - 2
    physical[end] = physical[end].removesuffix("\r") + ',"more"\r'
    path = place / "ragged.csv"
    path.write_bytes("\n".join(physical).encode())
    with pytest.raises(DataError, match=r"3 fields, expected 2") as caught:
        read_table(path)
    assert caught.value.line == table_lines[row]


@given(count=st.integers(1, 8), data=st.data())
def test_what_is_no_utf_8_is_named_by_its_line(place, count, data):
    lines = [json.dumps({"text": f"row {number}"}).encode() for number in range(count)]
    row = data.draw(st.integers(0, count - 1))
    bad = data.draw(st.sampled_from([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe9", b"\x80", b"\0"]))
    lines[row] = lines[row].replace(b"row", b"r" + bad + b"w")
    path = place / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError) as caught:
        read_table(path)
    assert caught.value.line == row + 1


classes = st.lists(names.map(str.strip).filter(bool), min_size=2, max_size=5, unique=True)


@given(found=classes, data=st.data())
def test_labels_are_found_mapped_and_told_again(place, found, data):
    labels = [*found, *data.draw(st.lists(st.sampled_from(found), max_size=6))]
    order = data.draw(st.permutations(range(len(labels))))
    rows = {"text": [f"row {number}" for number in order], "label": [labels[number] for number in order]}
    ending, content = table_file(data.draw(st.sampled_from(KINDS)), rows)
    path = place / f"labels.{ending}"
    path.write_bytes(content)
    data_found = load_data(DataConfig(train_file=str(path), validation_file=str(path)), seed=0)
    train, space = data_found.splits["train"], data_found.label_space
    assert set(space.names) == set(found)
    assert train.texts == tuple(rows["text"])
    assert [space.names[label] for label in train.labels] == rows["label"]


@given(found=classes, stranger=names.map(str.strip).filter(bool), data=st.data())
def test_a_label_that_nobody_knows_is_named_by_its_line(place, found, stranger, data):
    assume(stranger not in found)
    labels = data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=6))
    row = data.draw(st.integers(0, len(labels)))
    labels.insert(row, stranger)
    _, content = table_file("jsonl", {"text": ["x"] * len(labels), "label": labels})
    path = place / "strange.jsonl"
    path.write_bytes(content)
    with pytest.raises(LabelError, match="unknown labels") as caught:
        LabelReader(LabelSpace("classification", tuple(found))).read(read_table(path), "label")
    assert caught.value.line == row + 1


@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=6), data=st.data())
def test_a_fingerprint_tells_every_change(rows, data):
    def of(pairs: list[tuple[str, str]]) -> str:
        ids = tuple(map(str, range(len(pairs))))
        first, second = tuple(one for one, _ in pairs), tuple(two for _, two in pairs)
        return TextRows(ids, first, second, None, "rows").fingerprint()

    assert of(rows) == of(list(rows))
    place, side, more = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.booleans()), data.draw(letters)
    changed = list(rows)
    one, two = changed[place]
    changed[place] = (one + more, two) if side else (one, more + two)
    assert of(changed) != of(rows)
    assert of(rows[::-1]) == of(rows) if rows == rows[::-1] else of(rows[::-1]) != of(rows)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.txt", "rows.json"])
def test_settings_of_files_are_checked_where_they_are_not_needed(tmp_path, name):
    content = {"rows.jsonl": '{"text": "fine"}\n', "rows.json": '[{"text": "fine"}]', "rows.txt": "fine\n"}[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=r"--delimiter: got ';;'") as caught:
        read_table(tmp_path / name, config=DataConfig(delimiter=";;", encoding="nonsense"))
    assert len(caught.value.problems) == 2
