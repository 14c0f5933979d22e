"""Columns: as named, else by their usual names, else by what they hold, never in silence; first lines that are rows."""

from pathlib import Path
from typing import Any

import pandas
import pytest

from attentune.config import DataConfig
from attentune.data.columns import Columns, choose_columns, header_note, read_extra_columns, row_ids
from attentune.data.dataset import LabelSpace
from attentune.data.files import read_table
from attentune.data.load import frame_table, load_data
from attentune.data.tables import Table
from attentune.data.unlabelled import read_unlabelled, unlabelled_chunks
from attentune.errors import DataError


def table(**columns: list[Any]) -> Table:
    num_rows = len(next(iter(columns.values())))
    return Table("rows.csv", tuple(columns), columns, num_rows, tuple(range(2, 2 + num_rows)))


def chosen(names: str, **settings: str) -> tuple[Columns, tuple[str, ...]]:
    want_label = settings.pop("want_label", True)
    return choose_columns(
        Table("rows.csv", tuple(names.split()), {}, 0), DataConfig(**settings), want_label=bool(want_label)
    )


def load(path: Path, **settings: Any) -> Any:
    return load_data(DataConfig(train_file=str(path), validation_file=str(path), **settings), seed=0)


# By their names


@pytest.mark.parametrize(
    ("names", "settings", "expected"),
    [
        ("text label", {}, Columns("text", None, "label")),
        ("label Sentence", {}, Columns("Sentence", None, "label")),
        ("id sentence1 sentence2 label", {}, Columns("sentence1", "sentence2", "label")),
        ("premise hypothesis gold_label", {}, Columns("premise", "hypothesis", "gold_label")),
        ("question1 question2 is_duplicate", {}, Columns("question1", "question2", "is_duplicate")),
        ("question sentence label", {}, Columns("question", "sentence", "label")),
        ("idx utterance label", {}, Columns("utterance", None, "label")),
        *(
            (f"id text other {name}", {}, Columns("text", None, name))
            for name in ("intent", "Intents", "emotion", "gold")
        ),
        *(
            (f"id text other {name}", {}, Columns("text", None, name))
            for name in ("stance", "topic", "tag", "Category")
        ),
        ("sentence1 sentence2 label", {"text_column": "sentence1"}, Columns("sentence1", None, "label")),
        (
            "text premise hypothesis label",
            {"text_pair_column": "hypothesis"},
            Columns("premise", "hypothesis", "label"),
        ),
        ("text other", {}, "no column looks like the label .* Name it with --label_column"),
        ("alpha beta label", {}, "no column looks like the text .* Name it with --text_column"),
        ("a stars", {"text_column": "stars", "label_column": "stars"}, "'stars' is given as the text and as the label"),
        ("text,label", {}, "commas"),
        ("text;label", {}, "semicolons"),
        ("text|label", {}, "vertical bars"),
    ],
)
def test_usual_names_are_guessed_and_said_or_the_columns_refused(names, settings, expected):
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            chosen(names, **settings)
        return
    columns, (note,) = chosen(names, **settings)
    assert columns == expected
    guessed = {expected.text, expected.pair, expected.label} - {None, *settings.values()}
    assert all(repr(name) in note for name in guessed)


def test_of_two_usual_names_the_other_is_said_too():
    columns, notes = chosen("text review label sentiment date")
    assert columns == Columns("text", None, "label")
    assert notes == (
        "Columns chosen by their names: text 'text' (not 'review'), label 'label' (not 'sentiment'). If that is wrong,"
        " give --text_column or --label_column.",
    )
    named = {"text_column": "b", "text_pair_column": "a", "label_column": "c", "id_column": "d"}
    assert chosen("a b c d", **named) == (Columns("b", "a", "c", "d"), ())
    assert chosen("text other", want_label="")[0].label is None


def test_ids_name_each_row_once_or_rows_are_numbered():
    for name in ("id", "idx", "index"):
        assert row_ids(table(**{name: ["x", "z", "y"]}), None) == (("x", "z", "y"), None)
    assert row_ids(table(text=["a", "b"]), None) == (("0", "1"), None)
    for values in (["x", "x"], ["x", ""], ["x", None], ["x", ["y"]]):
        ids, note = row_ids(table(id=values), None)
        assert (ids, "numbered from 0" in (note or "")) == (("0", "1"), True)
    assert row_ids(table(id=["x", "x"], idx=["7", "8"]), None) == (("7", "8"), None)
    assert row_ids(table(key=["x", "x"]), "key", strict=False)[0] == ("0", "1")
    with pytest.raises(DataError, match=r"^rows.csv:4: id 'x' in column 'key' was used before \(rows.csv:2\)"):
        row_ids(table(key=["x", "y", "x"]), "key")
    with pytest.raises(DataError, match=r"^rows.csv:3: column 'key' has no id here"):
        row_ids(table(key=["x", "", "z"]), "key")


# By what they hold


def german(count: int = 40, header: str = "nr,bewertungstext,sterne", more: list[str] | None = None) -> str:
    lines = [f"{n},das war der Film mit der Nummer {n},{('gut', 'schlecht')[n % 2]}" for n in range(count)]
    if more is not None:
        lines = [f"{line},{cell}" for line, cell in zip(lines, more, strict=True)]
    return "\n".join([header, *lines]) + "\n"


def test_the_only_text_and_the_only_label_are_chosen_and_told(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(german())
    data = load(path)
    assert data.splits["train"].texts[3] == "das war der Film mit der Nummer 3"
    assert data.label_space.names == ("gut", "schlecht")
    (note,) = [note for note in data.notes if "what they hold" in note]
    assert "label 'sterne', text 'bewertungstext'" in note
    assert "--text_column" in note
    found = read_unlabelled(str(path), label_space=data.label_space, is_pair=False, config=DataConfig())
    assert found.texts == data.splits["train"].texts
    path.write_text(german(header="text,bewertungstext,label"))  # names come first, though "text" holds numbers
    data = load(path)
    assert data.splits["train"].texts[:2] == ("0", "1")
    assert not [note for note in data.notes if "what they hold" in note]
    assert load(path, text_column="bewertungstext").splits["train"].texts[0].startswith("das war")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            german(header="nr,bewertungstext,sterne,region", more=[("nord", "süd")[n % 3 % 2] for n in range(40)]),
            "2 could be it .*'sterne', 'region'.* Name it with --label_column",
        ),
        (
            german(header="nr,bewertungstext,sterne,antwort", more=[f"und es war {n} von 3" for n in range(40)]),
            "2 could be it .*'bewertungstext', 'antwort'.* Name it with --text_column",
        ),
        (german(8), "no column looks like the label by its name"),
        ("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(40)), "no column looks like the label by its name"),
    ],
)
def test_nothing_is_chosen_where_two_could_be_meant_or_none(tmp_path, content, says):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=says):
        load(path)


# First lines that are rows


def rows(count: int = 24, labels: tuple[str, ...] = ("good", "bad")) -> str:
    return "".join(f"so this was film number {n} for us,{labels[n % len(labels)]}\n" for n in range(count))


@pytest.mark.parametrize("labels", [("good", "bad"), ("3", "1"), tuple(f"{n / 7:.3f}" for n in range(24))])
@pytest.mark.parametrize("count", [4, 24])
def test_rows_that_would_be_names_are_refused_and_read_on_request(tmp_path, labels, count):
    path = tmp_path / "rows.csv"
    path.write_text(rows(count, labels))
    with pytest.raises(DataError, match=r"rows.csv:1: the first line .* reads like a row: .* give --no_header"):
        load(path)
    with pytest.raises(DataError, match="reads like a row"):
        load(path, text_column="text", label_column="label")
    if count == 24 and len(labels) == 2:  # enough rows to tell the columns by what they hold
        data = load(path, header=False)
        assert data.splits["train"].texts[0] == "so this was film number 0 for us"
        assert data.splits["train"].lines == tuple(range(1, count + 1))
        assert any("label 'column_2'" in note for note in data.notes)
    kind = "regression" if len(labels) == 24 else "classification"
    named = load(path, header=False, text_column="column_1", label_column="column_2", task_type=kind)
    assert len(named.splits["train"]) == count


def test_a_validation_file_and_a_spreadsheet_without_a_header(tmp_path):
    import pandas

    (tmp_path / "train.csv").write_text("text,label\n" + rows())
    (tmp_path / "dev.csv").write_text(rows(6))
    files = {"train_file": str(tmp_path / "train.csv"), "validation_file": str(tmp_path / "dev.csv")}
    for names in ({}, {"text_column": "text", "label_column": "label"}):
        with pytest.raises(DataError, match=r"dev.csv:1: the first line .* reads like a row"):
            load_data(DataConfig(**files, **names), seed=0)
    path = tmp_path / "rows.xlsx"
    pandas.DataFrame([line.split(",") for line in rows().splitlines()]).to_excel(path, header=False, index=False)
    with pytest.raises(DataError, match="reads like a row"):
        load(path)
    assert load(path, header=False).splits["train"].lines == tuple(range(1, 25))


def test_long_names_over_longer_texts_or_other_kinds_are_names(tmp_path):
    path = tmp_path / "rows.csv"
    for header, cells in (
        ("What the customer wrote,Which team has to answer", lambda n: ("good", "bad")[n % 2]),
        ("Please tell us in a few words what went wrong with us,How do you rate it", lambda n: str(n % 5)),
        ("What the customer wrote,When the customer wrote it", lambda n: f"2024-01-{n + 1:02}"),
    ):
        path.write_text(header + "\n" + "".join(f"so this was film number {n} for us,{cells(n)}\n" for n in range(24)))
        table = read_table(path)
        assert header_note(table, DataConfig()) is None
        with pytest.raises(DataError, match="there is no column 'review'"):  # of a run, for instance
            choose_columns(table, DataConfig(text_column="review"), want_label=False)
    path.write_text("This is about films\n" + "".join(f"so this was film number {n} for us\n" for n in range(24)))
    assert "may be a row" in str(header_note(read_table(path), DataConfig()))


@pytest.mark.parametrize("name", ["rows.csv", "rows.xlsx"])
def test_files_for_a_run_without_names_have_none_unless_they_are_there(tmp_path, name):
    import pandas

    path, texts = tmp_path / name, [f"so this was film number {n} for us" for n in range(6)]
    options: dict[str, Any] = {"label_space": LabelSpace("classification", ("bad", "good")), "is_pair": False}
    for header, count in ((None, 6), ("column_1", 6), ("review", None)):
        table = pandas.DataFrame({header: texts})
        if name.endswith("csv"):
            table.to_csv(path, index=False, header=header is not None)
        else:
            table.to_excel(path, index=False, header=header is not None)
        if count is None:
            with pytest.raises(DataError, match="there is no column 'column_1'"):
                read_unlabelled(str(path), config=DataConfig(text_column="column_1"), **options)
        else:
            rows = read_unlabelled(str(path), config=DataConfig(text_column="column_1"), **options)
            assert rows.texts == tuple(texts)


def test_names_that_are_given_or_usual_or_numbers_are_names(tmp_path):
    path = tmp_path / "rows.csv"
    for header in ("what did you like about it?,good", "text,3", "0,1", "Kommentar,Sterne"):
        path.write_text(f"{header}\n{rows(labels=('3', '1'))}")
        assert len(load(path).splits["train"]) == 24
    path.write_text(rows())
    given = load(path, text_column="so this was film number 0 for us", label_column="good")
    assert len(given.splits["train"]) == 23


def test_one_column_of_texts_is_read_as_before_and_told(tmp_path):
    path, first = tmp_path / "texts.csv", "what a lovely and quiet film"
    path.write_text(f"{first}\n" + "".join(f"film {n} was dull\n" for n in range(15)))
    options: dict[str, Any] = {"label_space": LabelSpace("classification", ("bad", "good")), "is_pair": False}
    chunks = unlabelled_chunks(str(path), config=DataConfig(), **options)
    assert chunks.num_rows == 15
    (note,) = [note for note in chunks.notes if "--no_header" in note]
    assert f"may be a row: '{first}'. If it is one, give --no_header" in note
    assert read_unlabelled(str(path), config=DataConfig(header=False), **options).texts[0] == first
    with pytest.raises(DataError, match="reads like a row"):  # the run has a column of another name
        read_unlabelled(str(path), config=DataConfig(text_column="text"), **options)


@pytest.mark.parametrize(
    "page",
    [
        "<!DOCTYPE html>\n<html><body>Sign in</body></html>",
        "\n  <html lang='en'>",
        "\ufeff<!-- made by us --><HTML>",
        "<table><tr><td>so fine</td></tr></table>",
    ],
)
def test_a_page_is_called_a_page(tmp_path, page):
    for name in ("rows.csv", "rows.jsonl", "rows.json", "rows.xls", "rows.xlsx", "rows.parquet"):
        (tmp_path / name).write_text(page)
        with pytest.raises(DataError, match=r"this is an HTML page.* open it in a browser"):
            read_table(tmp_path / name)
    (tmp_path / "rows.csv").write_text('text,label\n<html> is a tag,good\n"<table>",bad\n')
    assert len(read_table(tmp_path / "rows.csv")) == 2


def test_booleans_are_the_same_in_a_table_and_in_a_file_that_pandas_wrote(tmp_path):
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "vip": [True, False, True]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    of_file, of_frame = read_table(str(tmp_path / "rows.csv")), frame_table(frame)
    assert (of_file.columns["vip"][0], of_frame.columns["vip"][0]) == ("True", "true")
    read = [read_extra_columns(table, ("vip:category",))[0]["vip"] for table in (of_file, of_frame)]
    assert read[0] == read[1] == ("true", "false", "true")
