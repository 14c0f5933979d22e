"""Columns are taken as named, else by their usual names; nothing is taken in silence."""

from typing import Any

import pytest

from attentune.config.schema import DataConfig
from attentune.data.columns import Columns, choose_columns, row_ids
from attentune.data.tables import Table
from attentune.errors import DataError


def table(**columns: list[Any]) -> Table:
    num_rows = len(next(iter(columns.values())))
    return Table("rows.csv", tuple(columns), columns, num_rows, tuple(range(2, 2 + num_rows)))


GUESSES = [
    (["text", "label"], Columns("text", None, "label")),
    (["label", "Sentence"], Columns("Sentence", None, "label")),
    (["id", "sentence1", "sentence2", "label"], Columns("sentence1", "sentence2", "label")),
    (["premise", "hypothesis", "gold_label"], Columns("premise", "hypothesis", "gold_label")),
    (["question1", "question2", "is_duplicate"], Columns("question1", "question2", "is_duplicate")),
    (["question", "sentence", "label"], Columns("question", "sentence", "label")),
    (["text", "text_pair", "labels"], Columns("text", "text_pair", "labels")),
    (["idx", "utterance", "label"], Columns("utterance", None, "label")),
]


@pytest.mark.parametrize(("names", "expected"), GUESSES, ids=[",".join(names) for names, _ in GUESSES])
def test_usual_names_are_guessed_and_said(names: list[str], expected: Columns) -> None:
    columns, notes = choose_columns(names, DataConfig(), "rows.csv")
    assert columns == expected
    assert len(notes) == 1
    assert all(repr(name) in notes[0] for name in (expected.text, expected.pair, expected.label) if name)


def test_of_two_usual_names_the_other_is_said_too() -> None:
    names = ["text", "review", "label", "sentiment", "date"]
    columns, notes = choose_columns(names, DataConfig(), "rows.csv")
    assert columns == Columns("text", None, "label")
    assert notes == (
        "Columns chosen by their names: text 'text' (not 'review'), label 'label' (not 'sentiment'). If that is wrong,"
        " give --text_column or --label_column.",
    )
    _, notes = choose_columns(names, DataConfig(text_column="review"), "rows.csv")
    assert "text" not in notes[0].split(".")[0]


def test_the_label_is_not_read_as_the_text() -> None:
    config = DataConfig(text_column="stars", label_column="stars")
    with pytest.raises(DataError, match="column 'stars' is given as the text and as the label"):
        choose_columns(["text", "stars"], config, "rows.csv")
    assert choose_columns(["text", "stars"], config, "rows.csv", want_label=False)[0].text == "stars"


def test_named_columns_are_taken_without_a_note() -> None:
    config = DataConfig(text_column="b", text_pair_column="a", label_column="c", id_column="d")
    assert choose_columns(["a", "b", "c", "d"], config, "rows.csv") == (Columns("b", "a", "c", "d"), ())


def test_a_named_text_column_means_a_single_text() -> None:
    config = DataConfig(text_column="sentence1")
    columns, _ = choose_columns(["sentence1", "sentence2", "label"], config, "rows.csv")
    assert columns == Columns("sentence1", None, "label")


def test_the_text_is_guessed_by_a_named_pair() -> None:
    config = DataConfig(text_pair_column="hypothesis")
    columns, _ = choose_columns(["text", "premise", "hypothesis", "label"], config, "rows.csv")
    assert columns == Columns("premise", "hypothesis", "label")


@pytest.mark.parametrize("setting", ["text_column", "text_pair_column", "label_column", "id_column"])
def test_a_named_column_that_is_missing(setting: str) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(["text", "labels", "id"], DataConfig(**{setting: "lable"}), "rows.csv")
    message = str(caught.value)
    assert message.startswith("rows.csv: there is no column 'lable'. Did you mean 'labels'?")
    assert "Columns here: 'text', 'labels', 'id'" in message
    assert f"--{setting}" in message


def test_nothing_to_guess_by() -> None:
    with pytest.raises(DataError, match=r"no column looks like the label .* Name it with --label_column"):
        choose_columns(["text", "other"], DataConfig(), "rows.csv")
    with pytest.raises(DataError, match=r"no column looks like the text .* Name it with --text_column"):
        choose_columns(["alpha", "beta", "label"], DataConfig(), "rows.csv")
    columns, _ = choose_columns(["text", "other"], DataConfig(), "rows.csv", want_label=False)
    assert columns.label is None


@pytest.mark.parametrize(
    ("header", "hint"),
    [("text\tlabel", "tabs"), ("text,label", "commas"), ("text;label", "semicolons"), ("text|label", "vertical bars")],
)
def test_a_wrong_separator_is_told(header: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint):
        choose_columns([header], DataConfig(), "rows.csv")


@pytest.mark.parametrize("name", ["id", "idx", "index"])
def test_default_ids(name: str) -> None:
    assert row_ids(table(**{name: ["x", "z", "y"]}), None) == (("x", "z", "y"), None)


def test_rows_are_numbered_without_a_usable_id() -> None:
    assert row_ids(table(text=["a", "b"]), None) == (("0", "1"), None)
    for values in (["x", "x"], ["x", ""], ["x", None], ["x", ["y"]]):
        ids, note = row_ids(table(id=values), None)
        assert ids == ("0", "1")
        assert note is not None
        assert "numbered from 0" in note
    assert row_ids(table(id=["x", "x"], idx=["7", "8"]), None) == (("7", "8"), None)


def test_an_asked_id_column_must_name_each_row_once() -> None:
    with pytest.raises(DataError, match=r"^rows.csv:4: id 'x' in column 'key' was used before \(rows.csv:2\)"):
        row_ids(table(key=["x", "y", "x"]), "key")
    with pytest.raises(DataError, match=r"^rows.csv:3: column 'key' has no id here"):
        row_ids(table(key=["x", "", "z"]), "key")
    assert row_ids(table(key=["x", "x"]), "key", strict=False)[0] == ("0", "1")
