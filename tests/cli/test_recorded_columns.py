"""A run reads the columns that it was trained on, whatever other columns a file has."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

import attentune as library
from attentune.errors import DataError
from attentune.integrations.sklearn import AttentuneClassifier
from attentune.serving.backend import FileOptions, RunBackend
from helpers.samples import write_reviews

MOODS = {"bad": "neg", "good": "pos"}
NOTE = "Columns read: text 'What the customer wrote', label 'category'."
TEXT = "What the customer wrote"


def write(path: Path, rows: int, *, seed: int, decoys: bool) -> Path:
    """Write reviews under a header of four words; decoys are columns with the conventional names and other content."""
    source = list(csv.DictReader(write_reviews(path, rows, seed=seed).read_text().splitlines()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", TEXT, "label", "category"] if decoys else [TEXT, "category"])
        for row in source:
            own, other = MOODS[row["label"]], "neg" if row["label"] == "good" else "pos"
            writer.writerow(["order 700 shipped", row["text"], other, own] if decoys else [row["text"], own])
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a run that found its columns by itself, and files with decoys."""
    from attentune.cli.main import main

    home = tmp_path_factory.mktemp("columns")
    write(home / "train.csv", 60, seed=1, decoys=False)
    new = write(home / "new.csv", 40, seed=2, decoys=True)
    words = ["--preset", "tfidf-linear", "--output_dir", str(home / "run"), "--quiet"]
    assert main(["train", str(home / "train.csv"), *words]) == 0
    new.with_name("renamed.csv").write_text(new.read_text().replace(TEXT, "What the customers wrote"))
    rows = [json.dumps(row) for row in csv.DictReader(new.read_text().splitlines())]
    (home / "new.jsonl").write_text("\n".join(rows))
    return home


def accuracy(predicted: str) -> float:
    rows = list(csv.DictReader(io.StringIO(predicted)))
    return sum(row["label"] == row["prediction"] for row in rows) / len(rows)


@pytest.mark.parametrize(
    "line",
    [
        "predict run --input_file new.csv",
        "predict run --input_file new.jsonl",
        "evaluate run --test_file new.csv --format json",
        "evaluate run --test_file new.csv --format json --split test",
        "explain run --input_file new.csv --format json",
        "suggest run --input_file new.csv --count 3",
    ],
)
def test_commands_read_the_columns_of_the_run(home, attentune, monkeypatch, line):
    monkeypatch.chdir(home)
    out, err = attentune.done(*line.split())
    assert NOTE in err.splitlines()[:2]
    assert "shipped" not in out
    if line.startswith("predict"):
        assert accuracy(out) == 1.0
    if line.startswith("evaluate"):
        assert json.loads(out)["test"]["accuracy"] == 1.0


def test_parts_read_the_columns_of_the_run(home, attentune, tmp_path):
    words = ("predict", home / "run", "--input_file", home / "new.csv", "--output_dir", tmp_path / "out")
    _, err = attentune.done(*words)
    assert f"Columns read: text {TEXT!r}, label 'category'." in err
    found = pd.concat(map(pd.read_parquet, (tmp_path / "out").glob("*.parquet")))
    assert list(found["prediction"]) == list(pd.read_csv(home / "new.csv")["category"])


def test_the_page_reads_the_columns_of_the_run(home):
    backend = RunBackend(library.Predictor.load(home / "run"), name="run")
    rows = backend.read_file((home / "new.csv").read_bytes(), FileOptions("new.csv"), 1000)
    assert accuracy(backend.file_answer(rows, [backend.score(rows, words=False)])["csv"]) == 1.0


def test_python_reads_the_columns_of_the_run(home):
    frame = pd.read_csv(home / "new.csv")
    assert list(library.predict(home / "run", frame)["prediction"]) == list(frame["category"])
    explained = library.explain_texts(home / "run", frame.head(2))
    assert [one.text for one in explained] == list(frame[TEXT][:2])
    with pytest.raises(DataError, match="no column 'What the customer wrote'.*Did you mean 'What the customers wrote'"):
        library.predict(home / "run", pd.read_csv(home / "renamed.csv"))


def test_estimators_read_the_columns_of_fit(home):
    frame = pd.read_csv(home / "new.csv")
    model = AttentuneClassifier(preset="tfidf-linear").fit(frame[[TEXT]], frame["category"])
    assert list(model.predict(frame)) == list(frame["category"])
    with pytest.raises(ValueError, match="no column 'What the customer wrote', which was fitted on"):
        model.predict(frame[["text"]])


@pytest.mark.parametrize(
    "words", [("predict", "--input_file"), ("explain", "--input_file"), ("evaluate", "--test_file")]
)
def test_a_file_without_the_column_is_refused(home, attentune, words):
    err = attentune.refused(words[0], home / "run", words[1], home / "renamed.csv")
    for part in ("no column 'What the customer wrote'", "Did you mean 'What the customers wrote'", "--text_column"):
        assert part in err


@pytest.mark.integration
def test_an_ensemble_reads_the_columns_that_auto_found(home, attentune, tmp_path):
    words = ("--portfolio", "majority,tfidf-linear", "--folds", 2, "--time_limit", "60s", "--jobs", 1)
    assert attentune("auto", home / "train.csv", *words, "--output_dir", tmp_path / "best")[0] == 0
    status, out, err = attentune("predict", tmp_path / "best", "--input_file", home / "new.csv")
    assert (status, err.splitlines()[1]) == (0, NOTE)
    assert accuracy(out) == 1.0


# Several columns as one text


@pytest.fixture(scope="module")
def joined(home: Path) -> Path:
    """A run on the columns `title` and `the, body`, of which each row has one or both."""
    from attentune.cli.main import main

    texts = [row["text"] for row in csv.DictReader(io.StringIO(write_reviews(home / "r.csv", 60, seed=3).read_text()))]
    labels = [row["label"] for row in csv.DictReader(io.StringIO((home / "r.csv").read_text()))]
    rows = [
        (text, "") if n % 3 == 0 else ("", text) if n % 3 == 1 else ("A film", text) for n, text in enumerate(texts)
    ]
    with (home / "joined.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("title", "the, body", "label"), *((*r, y) for r, y in zip(rows, labels, strict=True))]
        )
    words = ["--text_column", "title,the, body", "--preset", "tfidf-linear", "--output_dir", str(home / "joined")]
    assert main(["train", str(home / "joined.csv"), *words, "--quiet"]) == 0
    return home


def test_a_run_reads_the_same_columns_again_wherever_rows_are_read(joined: Path, attentune) -> None:
    rows = list(csv.DictReader((joined / "joined.csv").open(newline="")))
    texts = ["\n".join(f"{name}: {row[name]}" for name in ("title", "the, body") if row[name]) for row in rows]
    expected = [one["prediction"] for one in library.predict(joined / "joined", texts)]
    frame = pd.read_csv(joined / "joined.csv")
    assert library.predict(joined / "joined", frame)["prediction"].tolist() == expected
    (joined / "joined.jsonl").write_text("\n".join(json.dumps({k: v for k, v in row.items() if v}) for row in rows))
    for name in ("joined.csv", "joined.jsonl"):
        status, out, err = attentune("predict", joined / "joined", "--input_file", joined / name)
        assert (status, "Columns read: text 'title', 'the, body', label 'label'." in err) == (0, True), err
        assert [row["prediction"] for row in csv.DictReader(io.StringIO(out))] == expected
    words = ("--input_file", joined / "joined.jsonl", "--output_dir", joined / "parts", "--format", "csv")
    assert attentune("predict", joined / "joined", *words)[0] == 0
    (part,) = (joined / "parts").glob("*.csv")
    assert [row["prediction"] for row in csv.DictReader(part.open(newline=""))] == expected
    status, out, err = attentune("evaluate", joined / "joined", "--validation_file", joined / "joined.csv")
    assert status == 0, err
    content = (joined / "joined.csv").read_bytes()
    backend = RunBackend(library.Predictor.load(joined / "joined"), name="run")
    served = backend.read_file(content, FileOptions("new.csv"), 100)
    assert list(served.texts) == texts


def test_a_column_that_is_missing_or_a_second_text_is_refused(joined: Path, attentune) -> None:
    (joined / "no_title.csv").write_text("the, body,label\n".replace("the, body", '"the, body"') + "so good,good\n")
    status, _, err = attentune("predict", joined / "joined", "--input_file", joined / "no_title.csv")
    assert (status, "there is no column 'title,the, body'" in err) == (2, True)
    with pytest.raises(DataError, match="no column 'title,the, body'"):
        library.predict(joined / "joined", pd.DataFrame({"the, body": ["so good"]}))
    words = ("--text_column", "title,the, body", "--text_pair_column", "label", "--output_dir", joined / "pair")
    status, _, err = attentune("train", joined / "joined.csv", *words)
    assert (status, "expected one column for each text of a pair" in err) == (2, True), err
