"""Columns with names that say nothing are chosen by what they hold, where only one can be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentune.config import DataConfig
from attentune.data.dataset import LabelSpace
from attentune.data.load import load_data
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import DataError

SPACE = LabelSpace("classification", ("gut", "schlecht"))


def rows(count: int = 40, header: str = "nr,bewertungstext,sterne") -> str:
    lines = [
        f"{number},das war der Film mit der Nummer {number},{('gut', 'schlecht')[number % 2]}"
        for number in range(count)
    ]
    return "\n".join([header, *lines]) + "\n"


def load(path: Path, **settings: str):
    return load_data(DataConfig(train_file=str(path), validation_file=str(path), **settings), seed=0)


def test_the_only_text_and_the_only_label_are_chosen_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(rows())
    data = load(path)
    assert data.splits["train"].texts[3] == "das war der Film mit der Nummer 3"
    assert data.label_space.names == ("gut", "schlecht")
    (note,) = [note for note in data.notes if "what they hold" in note]
    assert "label 'sterne', text 'bewertungstext'" in note
    assert "--text_column" in note
    found = read_unlabelled(str(path), label_space=SPACE, is_pair=False, config=DataConfig())
    assert found.texts == data.splits["train"].texts


def test_names_come_first(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(rows(header="text,bewertungstext,label"))  # "text" holds numbers
    data = load(path)
    assert data.splits["train"].texts[:2] == ("0", "1")
    assert not [note for note in data.notes if "what they hold" in note]
    assert load(path, text_column="bewertungstext").splits["train"].texts[0].startswith("das war")


@pytest.mark.parametrize("what", ["label", "text"])
def test_nothing_is_chosen_where_two_could_be_meant(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rows.csv"
    lines = rows().splitlines()
    more = "region" if what == "label" else "antwort"
    cells = [("nord", "süd")[n % 3 % 2] if what == "label" else f"und die Antwort war {n} von 3" for n in range(40)]
    path.write_text("\n".join([f"{lines[0]},{more}", *(f"{a},{b}" for a, b in zip(lines[1:], cells, strict=True))]))
    other = "sterne" if what == "label" else "bewertungstext"
    with pytest.raises(DataError, match=rf"2 could be it .*'{other}', '{more}'. Name it with --{what}_column"):
        load(path)


def test_few_rows_and_other_columns_are_no_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(rows(8))
    with pytest.raises(DataError, match="no column looks like the label by its name"):
        load(path)
    path.write_text("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(40)))
    with pytest.raises(DataError, match="no column looks like the label by its name"):
        load(path)
