"""The list of likely label errors, a person's marks in it, and the corrected copy."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.config.schema import DataConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.load import load_data
from attentune.errors import AttentuneError, ConfigError, DataError
from attentune.labels.label_check import (
    Disagreement,
    LabelCheck,
    Mark,
    SuspectLabel,
    count_marks,
    read_marks,
    write_corrected,
    write_errors,
)

SPACE = LabelSpace("classification", ("bad", "good"))
LINES = 'when,note,mood\n2024,"a ""dull"", old\nfilm",good\n2025,fine,bad\n,so so,good\n'


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    (tmp_path / "mine.csv").write_text(LINES, encoding="utf-8")
    return DataConfig(train_file=str(tmp_path / "mine.csv"), text_column="note", label_column="mood")


def rows_of(config: DataConfig) -> TextRows:
    return load_data(config, seed=1, cut_validation=False).splits["train"]


def listed(rows: TextRows, places: list[int]) -> LabelCheck:
    suspects = []
    for row in places:
        label = int(rows.labels[row])
        names = SPACE.names[label], SPACE.names[1 - label]
        suspects.append(
            SuspectLabel(row, rows.ids[row], rows.where(row), rows.texts[row], None, *names, 0.1, 0.9, ("dull",))
        )
    return LabelCheck(len(rows), "a test", Disagreement(0.1, 0.0, 0.2, 3), 0.7, 0.6, tuple(suspects), ())


def marked(path: Path, change: Callable[[list[dict[str, str]]], None]) -> Path:
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    change(lines)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), delimiter=";")  # as a German spreadsheet saves it
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_only_marked_labels_and_rows_change(config: DataConfig, tmp_path: Path) -> None:
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [2, 0, 1]))

    def mark(lines: list[dict[str, str]]) -> None:
        assert [line["mark"] for line in lines] == ["", "", ""]
        assert lines[1]["words"] == "dull"
        lines[0]["mark"], lines[1]["mark"], lines[2]["mark"] = "remove", " Fix ", "keep"

    marks = read_marks(str(marked(tmp_path / "errors.csv", mark)), rows, SPACE)
    assert marks == [Mark(2, "remove"), Mark(0, "fix", "bad")]
    assert count_marks(marks) == "1 label changed, 1 row removed"
    assert write_corrected(str(tmp_path / "new.csv"), marks, rows, SPACE, config) == 2
    with (tmp_path / "new.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["when", "note", "mood"],
            ["2024", 'a "dull", old\nfilm', "bad"],
            ["2025", "fine", "bad"],
        ]
    assert Path(str(config.train_file)).read_text(encoding="utf-8") == LINES


def test_lines_that_are_no_labelled_rows_stay_as_they_are(tmp_path: Path) -> None:
    lines = LINES.replace("2025,fine,bad\n", "2025,fine,bad\n2026,odd,unsure\n")
    (tmp_path / "mine.csv").write_text(lines, encoding="utf-8")
    config = DataConfig(
        train_file=str(tmp_path / "mine.csv"), text_column="note", label_column="mood", ignore_labels=("unsure",)
    )
    rows = rows_of(config)
    assert len(rows) == 3
    made = tmp_path / "corrected.csv"
    assert write_corrected(str(made), [Mark(2, "fix", "bad"), Mark(1, "remove")], rows, SPACE, config) == 3
    wanted = lines.replace("2025,fine,bad\n", "").replace("so so,good", "so so,bad")
    assert list(csv.reader(made.open(newline=""))) == list(csv.reader(wanted.splitlines(keepends=True)))


def test_a_person_may_write_another_label(config: DataConfig, tmp_path: Path) -> None:
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines[0].update(mark="fix", suggested="bad"))
    assert read_marks(str(path), rows, SPACE) == [Mark(1, "fix", "bad")]


def test_the_corrected_copy_of_json_lines_keeps_other_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [{"text": "fine", "label": 0, "tags": ["a", 1], "n": None}, {"text": "no", "label": 1}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    config = DataConfig(train_file=str(file))
    data = load_data(config, seed=1, cut_validation=False)
    marks = [Mark(0, "fix", "1")]
    write_corrected(str(tmp_path / "new.jsonl"), marks, data.splits["train"], data.label_space, config)
    written = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert written == [{**lines[0], "label": 1}, lines[1]]


MISTAKES = {
    "nothing": ({}, "no row is marked. Write fix in the column 'mark'"),
    "unknown mark": ({"mark": "yes"}, "mark: got 'yes', expected keep, fix, remove or nothing."),
    "unknown label": ({"mark": "fix", "suggested": "goood"}, "got 'goood', expected one of the labels: bad, good."),
    "no such row": ({"mark": "fix", "row": "7"}, "row: got '7', expected a number from 0 to 2."),
    "another text": ({"mark": "fix", "text": "Fine"}, "row 1 has the text 'Fine' and the label 'bad' here, but 'fine'"),
    "another label": ({"mark": "fix", "label": "good"}, "Give the file that this list was made from"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_the_marks_are_refused(config: DataConfig, tmp_path: Path, case: str) -> None:
    rows, (changes, message) = rows_of(config), MISTAKES[case]
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines[0].update(changes))
    with pytest.raises(DataError) as error:
        read_marks(str(path), rows, SPACE)
    assert message in str(error.value)


def test_a_row_that_is_there_twice_and_a_file_without_marks_are_refused(config: DataConfig, tmp_path: Path) -> None:
    rows = rows_of(config)
    write_errors(str(tmp_path / "errors.csv"), listed(rows, [1]))
    path = marked(tmp_path / "errors.csv", lambda lines: lines.append({**lines[0], "mark": "fix"}))
    with pytest.raises(DataError, match="row 1 is there twice; expected each row once"):
        read_marks(str(path), rows, SPACE)
    with pytest.raises(DataError, match="there is no column 'mark'"):
        read_marks(str(config.train_file), rows, SPACE)


def test_the_rows_own_file_is_never_written_to(config: DataConfig, tmp_path: Path) -> None:
    rows, marks = rows_of(config), [Mark(0, "remove")]
    cases = {
        str(config.train_file): "the file of the rows itself, which is never changed",
        str(tmp_path / "new.xlsx"): "expected a name that ends in .csv, .tsv, .jsonl",
    }
    for path, message in cases.items():
        with pytest.raises(ConfigError) as error:
            write_corrected(path, marks, rows, SPACE, config)
        assert isinstance(error.value, AttentuneError)
        assert message in str(error.value)
    assert Path(str(config.train_file)).read_text(encoding="utf-8") == LINES
