"""A folder of text files by class has a row for each file."""

from pathlib import Path

import pytest

from attentune.config import DataConfig
from attentune.data.files import read_table
from attentune.data.load import load_data
from attentune.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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


def test_the_rows(folder: Path) -> None:
    data = load_data(DataConfig(train_file=str(folder), validation_file=str(folder)), seed=0)
    rows = data.splits["train"]
    assert rows.texts == ("so dull", "so fine\nand more", "Größe passt, schöne Farbe, nur für mich")
    assert [data.label_space.names[label] for label in rows.labels] == ["bad", "good", "good"]
    assert any("3 text files are read, some of them as cp1252" in note for note in data.notes)
    assert read_table(folder, keep=["file"]).columns == {"file": ("bad/2.txt", "good/1.txt", "good/10.txt")}


def test_what_is_no_text_is_refused(folder: Path) -> None:
    (folder / "bad" / "3.txt").write_bytes(b"\x00\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bad/3.txt: byte 2 is 0xff, which is not UTF-8"):
        read_table(folder)
    with pytest.raises(DataError, match=r"reviews: its files hold more than the 10 bytes"):
        read_table(folder, max_bytes=10)


def test_another_folder_is_no_file(folder: Path) -> None:
    with pytest.raises(DataError, match="this is a folder, expected a file"):
        read_table(folder / "good")
