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
from attentune.serving.backend import RunBackend
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
    rows = backend.read_file((home / "new.csv").read_bytes(), "new.csv", {}, 1000)
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
    served = backend.read_file(content, "new.csv", {}, 100)
    assert list(served.texts) == texts


def test_a_column_that_is_missing_or_a_second_text_is_refused(joined: Path, attentune) -> None:
    (joined / "no_title.csv").write_text("the, body,label\n".replace("the, body", '"the, body"') + "so good,good\n")
    status, _, err = attentune("predict", joined / "joined", "--input_file", joined / "no_title.csv")
    assert (status, "there are no columns 'title'" in err) == (2, True), err
    with pytest.raises(DataError, match="no column 'title', which"):
        library.predict(joined / "joined", pd.DataFrame({"the, body": ["so good"]}))
    words = ("--text_column", "title,the, body", "--text_pair_column", "label", "--output_dir", joined / "pair")
    status, _, err = attentune("train", joined / "joined.csv", *words)
    assert (status, "expected one column for each text of a pair" in err) == (2, True), err


# Columns beside the text


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with a fusion of texts, half of which say the label, and columns, which say the others."""
    from attentune.cli.main import main

    home = tmp_path_factory.mktemp("shop")
    texts = list(csv.DictReader(write_reviews(home / "r.csv", 120, seed=4).read_text().splitlines()))
    with (home / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "price", "zip", "rating"])
        for number, row in enumerate(texts):
            is_good, tells = row["label"] == "good", number % 2
            price = "" if tells else "12.50" if is_good else "900"
            writer.writerow(
                [row["text"] if tells else "It came", row["label"], price, 7, "cheap" if is_good else "dear"]
            )
    words = ["--portfolio", "columns-linear,tfidf-linear", "--folds", "3", "--time_limit", "90s", "--jobs", "1"]
    words += ["--extra_columns", "price,zip:category,rating", "--output_dir", str(home / "run")]
    assert main(["auto", str(home / "train.csv"), *words]) == 0
    return home


def predicted(out: str) -> list[tuple[str, str]]:
    return [(row["prediction"], row["p_good"]) for row in csv.DictReader(io.StringIO(out))]


def test_columns_beside_the_text_are_read_again_wherever_rows_are_read(shop: Path, attentune) -> None:
    kinds = ("price:number", "zip:category", "rating:category")
    assert library.Predictor.load(shop / "run").config.data.extra_columns == kinds
    assert json.loads((shop / "run" / "run.json").read_text())["config"]["data"]["extra_columns"] == list(kinds)
    rows = [
        {"text": "It came", "price": "12.5", "zip": 7, "rating": "cheap"},
        {"text": "It came", "price": "900", "zip": 7, "rating": "dear"},
        {"text": "It came", "price": "a lot", "zip": None, "rating": "free"},
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(shop / "new.csv", index=False)
    (shop / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))
    expected = list[tuple[str, str]]()
    for name in ("new.csv", "new.jsonl"):
        status, out, err = attentune("predict", shop / "run", "--input_file", shop / name)
        assert status == 0, err
        assert "1 of 3 cells of the column 'price' are no numbers and count as missing, first 'a lot'" in err
        assert "Column 'rating' has values that fewer than two training rows have, such as 'free'" in err
        expected = expected or predicted(out)
        assert predicted(out) == expected
    assert [label for label, _ in expected[:2]] == ["good", "bad"]
    assert library.predict(shop / "run", frame)["prediction"].tolist() == [label for label, _ in expected]
    words = ("--input_file", shop / "new.csv", "--output_dir", shop / "parts", "--format", "csv")
    assert attentune("predict", shop / "run", *words)[0] == 0
    (part,) = (shop / "parts").glob("*.csv")
    assert predicted(part.read_text()) == expected
    backend = RunBackend(library.Predictor.load(shop / "run"), name="run")
    cells = [{name: row[name] for name in ("price", "zip", "rating")} for row in rows]
    answers = backend.predict([(row["text"], None, one) for row, one in zip(rows, cells, strict=True)])
    shares = [float(share) for _, share in expected]
    assert [answer["probabilities"]["good"] for answer in answers] == pytest.approx(shares, abs=2e-6)
    assert list(backend.read_file((shop / "new.csv").read_bytes(), "new.csv", {}, 100).extra["price"][:2]) == [
        12.5,
        900.0,
    ]
    status, out, err = attentune("predict", shop / "run", "--text", "It came")
    assert (status, "also reads the columns price, zip, rating, which are missing here" in err) == (0, True)
    status, out, err = attentune("evaluate", shop / "run", "--validation_file", shop / "train.csv", "--format", "json")
    assert json.loads(out)["validation"]["accuracy"] > 0.95, err


def test_an_explanation_keeps_the_columns_of_its_row(shop: Path, attentune) -> None:
    words = ("--input_file", shop / "new.csv", "--method", "leave-one-out", "--format", "json")
    status, out, err = attentune("explain", shop / "run", *words)
    assert status == 0, err
    shares = [json.loads(line)["probability"] for line in out.splitlines()]
    answers = library.predict(shop / "run", pd.read_csv(shop / "new.csv"))
    assert shares == pytest.approx(answers[["p_bad", "p_good"]].max(axis=1).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict run --input_file no_price.csv", "there is no column 'price', which is read beside the text"),
        ("train train.csv --extra_columns price --output_dir x", "Use attentune auto --extra_columns"),
        (
            "compare --train_file train.csv --presets bert,columns-linear --extra_columns price --output_dir x",
            "bert: data.extra_columns: got price, but only the baseline columns-linear reads columns.",
        ),
        ("auto train.csv --extra_columns prise --output_dir x", "there is no column 'prise'"),
        (
            "auto train.csv --extra_columns label --label_column label --output_dir x",
            "also that of the text, the label",
        ),
        ("auto train.csv --extra_columns text --output_dir x", "'text' of --extra_columns is the text by its name"),
        ("auto train.csv --extra_columns price --deliver single --output_dir x", "one encoder reads no columns"),
        ("auto train.csv --extra_columns price --exclude columns-linear --output_dir x", "no member reads the columns"),
        ("auto train.csv --portfolio columns-linear --output_dir x", "Name some: --extra_columns"),
    ],
)
def test_mistakes_with_columns_beside_the_text(shop: Path, attentune, monkeypatch, line: str, message: str) -> None:
    (shop / "no_price.csv").write_text("text,zip,rating\nIt came,7,dear\n")
    monkeypatch.chdir(shop)
    status, _, err = attentune(*line.split())
    assert (status, message in err) == (2, True), err


def test_the_server_reads_columns_of_a_request_and_refuses_others(shop: Path) -> None:
    from starlette.testclient import TestClient

    from attentune.serving.api import api_app

    app = api_app(RunBackend(library.Predictor.load(shop / "run"), name="run"), hosts=[])
    with TestClient(app, base_url="http://localhost") as client:
        body = {"texts": ["It came"] * 2, "columns": {"price": [12.5, 900], "rating": ["cheap", "dear"]}}
        answers = client.post("/predict", json=body).json()["predictions"]
        assert [answer["prediction"] for answer in answers] == ["good", "bad"]
        for columns in ({"price": [1]}, {"prise": [1, 2]}):
            answer = client.post("/predict", json={**body, "columns": columns})
            assert (answer.status_code, "expected a cell for each text of any of price, zip" in answer.text) == (
                422,
                True,
            )
