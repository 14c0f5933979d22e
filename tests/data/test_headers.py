"""Files without a header: the first row is not taken for names without a word, and --no_header reads it as a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace
from attentune.data.files import read_table
from attentune.data.load import load_data
from attentune.data.unlabelled import read_unlabelled, unlabelled_chunks
from attentune.errors import DataError

SPACE = LabelSpace("classification", ("bad", "good"))


def rows(count: int = 24, labels: tuple[str, ...] = ("good", "bad")) -> str:
    return "".join(f"so this was film number {n} for us,{labels[n % len(labels)]}\n" for n in range(count))


def load(path: Path, **settings: object):
    return load_data(DataConfig(train_file=str(path), validation_file=str(path), **settings), seed=0)


@pytest.mark.parametrize("labels", [("good", "bad"), ("3", "1"), tuple(f"{n / 7:.3f}" for n in range(24))])
@pytest.mark.parametrize("count", [4, 24])
def test_rows_that_would_be_names_are_refused_and_read_on_request(
    tmp_path: Path, labels: tuple[str, ...], count: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(rows(count, labels))
    with pytest.raises(DataError, match=r"rows.csv:1: the first line .* reads like a row: .* give --no_header"):
        load(path)
    with pytest.raises(DataError, match="reads like a row"):
        load(path, text_column="text", label_column="label")
    if count == 24 and len(labels) == 2:  # enough rows to tell the columns by what they hold
        data = load(path, header=False)
        assert len(data.splits["train"]) == count
        assert data.splits["train"].texts[0] == "so this was film number 0 for us"
        assert data.splits["train"].lines == tuple(range(1, count + 1))
        assert any("label 'column_2'" in note for note in data.notes)
    kind = "regression" if len(labels) == 24 else "classification"
    named = load(path, header=False, text_column="column_1", label_column="column_2", task_type=kind)
    assert len(named.splits["train"]) == count


def test_a_validation_file_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + rows())
    (tmp_path / "dev.csv").write_text(rows(6))
    files = {"train_file": str(tmp_path / "train.csv"), "validation_file": str(tmp_path / "dev.csv")}
    for names in ({}, {"text_column": "text", "label_column": "label"}):
        with pytest.raises(DataError, match=r"dev.csv:1: the first line .* reads like a row"):
            load_data(DataConfig(**files, **names), seed=0)


def test_names_that_are_given_or_usual_or_numbers_are_names(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for header in ("what did you like about it?,good", "text,3", "0,1", "Kommentar,Sterne"):
        path.write_text(f"{header}\n{rows(labels=('3', '1'))}")
        assert len(load(path).splits["train"]) == 24
    path.write_text(rows())
    given = load(path, text_column="so this was film number 0 for us", label_column="good")
    assert len(given.splits["train"]) == 23


def test_one_column_of_texts_is_read_as_before_and_told(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("what a lovely and quiet film\n" + "".join(f"film {n} was dull\n" for n in range(15)))
    options = {"label_space": SPACE, "is_pair": False}
    chunks = unlabelled_chunks(str(path), config=DataConfig(), **options)
    assert chunks.num_rows == 15
    (note,) = [note for note in chunks.notes if "--no_header" in note]
    assert "may be a row: 'what a lovely and quiet film'. If it is one, give --no_header" in note
    assert (
        read_unlabelled(str(path), config=DataConfig(header=False), **options).texts[0]
        == "what a lovely and quiet film"
    )
    with pytest.raises(DataError, match="reads like a row"):  # the run has a column of another name
        read_unlabelled(str(path), config=DataConfig(text_column="text"), **options)


def test_a_spreadsheet_without_a_header(tmp_path: Path) -> None:
    import pandas

    path = tmp_path / "rows.xlsx"
    cells = [line.split(",") for line in rows().splitlines()]
    pandas.DataFrame(cells).to_excel(path, header=False, index=False)
    with pytest.raises(DataError, match="reads like a row"):
        load(path)
    data = load(path, header=False)
    assert data.splits["train"].texts[0] == "so this was film number 0 for us"
    assert data.splits["train"].lines == tuple(range(1, 25))


PAGES = (
    "<!DOCTYPE html>\n<html><body>Sign in</body></html>",
    "\n  <html lang='en'>",
    "\ufeff<!-- made by us --><HTML>",
    "<table><tr><td>so fine</td></tr></table>",
)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.json", "rows.xls", "rows.xlsx", "rows.parquet"])
def test_a_page_is_called_a_page(tmp_path: Path, name: str, page: str) -> None:
    (tmp_path / name).write_text(page)
    with pytest.raises(DataError, match=r"this is an HTML page.* open it in a browser"):
        read_table(tmp_path / name)


def test_a_text_about_a_page_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('text,label\n<html> is a tag,good\n"<table>",bad\n')
    assert len(read_table(tmp_path / "rows.csv")) == 2
