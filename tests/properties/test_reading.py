"""Whatever the rows: they come back in their order, letter for letter, or an error names the line."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import read_table
from attentune.data.labels import LabelReader
from attentune.data.load import load_data
from attentune.errors import DataError, LabelError
from helpers.bad_files import KINDS, letters, names, tables, texts, written


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


@given(columns=tables(), kind=st.sampled_from(KINDS), packed=st.booleans())
def test_what_is_written_is_read(place: Path, columns: dict[str, list[str]], kind: str, packed: bool) -> None:
    ending, content = written(kind, columns, packed=packed)
    path = place / f"rows.{ending}"
    path.write_bytes(content)
    table = read_table(path)
    assert table.names == tuple(columns)
    assert {name: list(table.texts(name)) for name in columns} == columns


@given(content=st.binary(max_size=200), kind=st.sampled_from([*KINDS, "csv.gz", "parquet.gz", "ndjson"]))
def test_any_bytes_are_a_table_or_an_error_of_ours(place: Path, content: bytes, kind: str) -> None:
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
def test_a_damaged_file_is_a_table_or_an_error_of_ours(
    place: Path, columns: dict[str, list[str]], kind: str, packed: bool, data: st.DataObject
) -> None:
    ending, content = written(kind, columns, packed=packed)
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = place / f"damaged.{ending}"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    check_read_or_told(path)


@given(columns=tables(least=2), data=st.data())
def test_a_row_with_a_field_too_many_is_named_by_its_line(
    place: Path, columns: dict[str, list[str]], data: st.DataObject
) -> None:
    _, content = written("csv", {"text": columns[next(iter(columns))], "label": columns[next(iter(columns))]})
    whole = content.decode()  # with line ends inside of quotes, records and lines differ
    table_lines = read_lines(place, whole)
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


def read_lines(place: Path, whole: str) -> tuple[int, ...]:
    path = place / "whole.csv"
    path.write_bytes(whole.encode())
    found = read_table(path).lines
    assert found is not None
    return found


@given(count=st.integers(1, 8), data=st.data())
def test_what_is_no_utf_8_is_named_by_its_line(place: Path, count: int, data: st.DataObject) -> None:
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
def test_labels_are_found_mapped_and_told_again(place: Path, found: list[str], data: st.DataObject) -> None:
    labels = [*found, *data.draw(st.lists(st.sampled_from(found), max_size=6))]
    order = data.draw(st.permutations(range(len(labels))))
    rows = {"text": [f"row {number}" for number in order], "label": [labels[number] for number in order]}
    ending, content = written(data.draw(st.sampled_from(KINDS)), rows)
    path = place / f"labels.{ending}"
    path.write_bytes(content)
    data_found = load_data(DataConfig(train_file=str(path), validation_file=str(path)), seed=0)
    train, space = data_found.splits["train"], data_found.label_space
    assert set(space.names) == set(found)
    assert train.texts == tuple(rows["text"])
    assert [space.names[label] for label in train.labels] == rows["label"]


@given(found=classes, stranger=names.map(str.strip).filter(bool), data=st.data())
def test_a_label_that_nobody_knows_is_named_by_its_line(
    place: Path, found: list[str], stranger: str, data: st.DataObject
) -> None:
    assume(stranger not in found)
    labels = data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=6))
    row = data.draw(st.integers(0, len(labels)))
    labels.insert(row, stranger)
    _, content = written("jsonl", {"text": ["x"] * len(labels), "label": labels})
    path = place / "strange.jsonl"
    path.write_bytes(content)
    with pytest.raises(LabelError, match="unknown labels") as caught:
        LabelReader(LabelSpace("classification", tuple(found))).read(read_table(path), "label")
    assert caught.value.line == row + 1


@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=6), data=st.data())
def test_a_fingerprint_tells_every_change(rows: list[tuple[str, str]], data: st.DataObject) -> None:
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
