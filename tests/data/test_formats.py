"""Separators and encodings that people have are found; UTF-8 with the separator of the extension is read as it was."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import DataConfig
from attentune.data.files import read_table
from attentune.data.text_formats import FileOptions
from attentune.errors import ConfigError, DataError

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


def written(texts: tuple[str, ...], mark: str, encoding: str = "utf-8") -> bytes:
    opened = io.StringIO(newline="")
    rows = [(text, ("bad", "good")[number % 2]) for number, text in enumerate(texts)]
    csv.writer(opened, delimiter=mark).writerows([("text", "label"), *rows])
    return opened.getvalue().encode(encoding)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("encoding", SENTENCES)
def test_an_encoding_is_found_and_told(tmp_path: Path, encoding: str, count: int) -> None:
    path, texts = tmp_path / "rows.csv", (SENTENCES[encoding] * 40)[:count]
    path.write_bytes(written(texts, ",", encoding))
    table = read_table(path)
    assert tuple(table.columns["text"]) == texts
    (note,) = table.notes
    assert note.startswith(f"{path}: read as ")
    assert "--encoding" in note


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
@pytest.mark.parametrize("mark", MARKS)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")), min_size=2))
def test_a_separator_is_found(
    tmp_path_factory: pytest.TempPathFactory, mark: str, ending: str, texts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"rows.{ending}"
    content = written(tuple(texts), mark)
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    table = read_table(path)
    assert list(table.columns["text"]) == texts
    assert bool(table.notes) == (mark != ("\t" if ending == "tsv" else ","))


def test_what_the_extension_says_comes_first(tmp_path: Path) -> None:
    """A header with the extension's separator is read by it, whatever else is in the rows."""
    path = tmp_path / "rows.csv"
    path.write_text("a;b,label\nso;fine,good\nso;dull,bad\n")
    assert read_table(path).names == ("a;b", "label")
    path.write_text("text\nso;fine\nso|dull\n")  # one column
    assert read_table(path).columns["text"] == ("so;fine", "so|dull")
    path.write_text("text;label|more\nso;fine|x\n")  # two separators fit
    assert read_table(path).names == ("text;label|more",)


def test_what_is_given_is_used(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a;b,label\nso;fine,good\n")
    assert read_table(path, options=FileOptions(delimiter=";")).names == ("a", "b,label")
    path.write_bytes("text,label\nżółw,good\n".encode("iso8859-2"))
    table = read_table(path, options=FileOptions(encoding="iso8859-2"))
    assert table.columns["text"] == ("żółw",)
    path.write_text("text,label\nżółw,good\n")  # UTF-8 is never read as something else
    assert read_table(path, options=FileOptions(encoding="iso8859-2")).columns["text"] == ("żółw",)
    path.write_bytes(b"text,label\n" + b"so fine,good\n" * 100_000 + "żółw,good\n".encode("iso8859-2"))
    assert read_table(path, options=FileOptions(encoding="iso8859-2")).columns["text"][-1] == "żółw"
    with pytest.raises(DataError, match=r"rows.csv:100002: byte 1 of the line is 0xbf, which is not UTF-8.*--encoding"):
        read_table(path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"delimiter": ";;"}, r"--delimiter: got ';;', expected one character"),
        ({"delimiter": '"'}, r"--delimiter: got .*not a quote"),
        ({"encoding": "windows"}, r"--encoding: got 'windows', which Python does not know"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        FileOptions.of(DataConfig(**settings))


@pytest.mark.parametrize(("used", "given", "name"), [(";", ",", "semicolon"), (",", ";", "comma")])
def test_a_separator_that_the_file_does_not_have_is_told(tmp_path: Path, used: str, given: str, name: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(written(("so fine", "so dull"), used, "utf-8"))
    (note,) = read_table(path, options=FileOptions(delimiter=given)).notes
    assert f"read as {name}-separated, since its first line has no '{given}', which --delimiter gives." in note
