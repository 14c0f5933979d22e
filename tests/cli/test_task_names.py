"""Custom data is named by its file in everything that is printed; "own" is only in names of folders."""

import re
from pathlib import Path
from typing import Any

import pytest

from attentune.report.contents import make_report
from attentune.report.load import collect
from attentune.report.writing import write_report
from helpers.made_records import Run, predictions, write_record


def write_run(folder: Path, file: str, method: str = "bert", *, fingerprint: str | None = None, **data: Any) -> None:
    rows = predictions(["no", "yes"] * 5, ["no", "yes"] * 4 + ["yes", "no"], ["no", "yes"])
    prints = {"train": f"train {fingerprint or file}", "validation": fingerprint or file}
    settings = {"data.train_file": file, **{f"data.{name}": value for name, value in data.items()}}
    run = Run("own", None, method, 1)
    write_record(folder, run, rows, score=0.8, settings=settings, data_fingerprint=prints)


def names_of(*folders: Path) -> list[str]:
    return [one.record.run.task for one in collect([str(folder) for folder in folders]).runs]


def test_the_name_is_that_of_the_file_or_data_set(tmp_path: Path) -> None:
    write_run(tmp_path / "file", "/data/private/reviews.csv")
    write_run(tmp_path / "set", "", dataset_name="some/set")
    assert names_of(tmp_path / "file") == ["reviews.csv"]
    assert names_of(tmp_path / "set") == ["some/set"]


def test_files_of_one_name_are_told_apart_if_their_rows_differ(tmp_path: Path) -> None:
    for name, file in {"1": "x/a/reviews.csv", "2": "/x/b/reviews.csv", "3": "c/tweets.csv"}.items():
        write_run(tmp_path / name, file)
    folders = [tmp_path / name for name in "123"]
    assert names_of(*folders) == ["a/reviews.csv", "b/reviews.csv", "tweets.csv"]
    # The same rows at another place are the same data.
    write_run(tmp_path / "4", "y/a/reviews.csv", "sesame", fingerprint="x/a/reviews.csv")
    assert names_of(tmp_path / "1", tmp_path / "4") == ["reviews.csv", "reviews.csv"]


@pytest.mark.parametrize("kind", ["html", "md", "tex", "csv"])
def test_reports_have_the_names(tmp_path: Path, kind: str) -> None:
    for folder in ("a", "b"):
        for method in ("bert", "sesame"):
            write_run(tmp_path / folder, f"{folder}/reviews.csv", method)
    file = tmp_path / f"report.{kind}"
    write_report(make_report(collect([str(tmp_path / "a"), str(tmp_path / "b")])), file)
    text = file.read_text(encoding="utf-8")
    assert "a/reviews.csv" in text
    assert not re.search(r"\bown(:| data|,|\")", text)
