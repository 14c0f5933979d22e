"""Outputs that the documentation shows are what the program says: messages to the letter, figures in their shape."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from attentune.cli.main import main
from helpers.doc_blocks import ROOT, blocks
from helpers.samples import write_reviews

BAD_FILES = {
    "ragged.csv": b"text,label\na fine film,good\na dull film, really,bad\n",
    "mixed.csv": "text,label\nein schöner Film,good\n".encode() + b"a caf\xe9 film,good\n",
    "train.csv": b"text,label\na fine film,good\na dull film,bad\n",
    "dev.csv": b"text,label\na fine story,good\na dull story,bda\n",
    "reviews.csv": b"text,label\na fine film,good\na dull film,bad\n",
}
BAD_COMMANDS = [
    ["--train_file", "ragged.csv"],
    ["--train_file", "mixed.csv"],
    ["--train_file", "train.csv", "--validation_file", "dev.csv"],
    ["--train_file", "reviews.csv", "--label_column", "lable"],
    ["--learning_rat", "1e-5", "--sed", "1", "--task_type", "foo"],
]


def shown(page: str, start: str) -> str:
    """The block of a page that begins so."""
    return next(block.text for block in blocks(ROOT / page) if block.text.startswith(start))


def shape(text: str) -> str:
    """The text with each number as #."""
    return re.sub(r"\d[\d,]*(\.\d+)?", "#", text)


def keys(value: Any) -> Any:
    """The names in a JSON value, without what they hold; of a list those of its first entry."""
    if isinstance(value, dict):
        return {name: keys(entry) for name, entry in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A folder in which the quick start's run was made with SSA's labels, and what training said."""
    folder, said = tmp_path_factory.mktemp("outputs"), io.StringIO()
    write_reviews(folder / "reviews.csv", 120)
    words = (
        "train --train_file reviews.csv --text_column text --label_column label --learning_rate 1e-3 --output_dir run"
    )
    words += f" --preset ssa-hybrid --model_name_or_path {tiny('bert')}"
    with contextlib.chdir(folder), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        assert main(words.split()) == 0
    return folder, said.getvalue()


@pytest.mark.integration
def test_what_training_says(run):
    said = {shape(line) for line in run[1].splitlines()}
    found = [line for line in shown("docs/quickstart.md", "Task type").splitlines() if shape(line) not in said]
    # Which class is more frequent is the file's own affair.
    assert [line for line in found if not line.startswith(("train: classes", "validation: always"))] == []
    assert any("always predicting" in line for line in said)
    (labels,) = shown("docs/ssa.md", "epoch 3: labels").splitlines()
    assert shape(labels) in said


@pytest.mark.integration
def test_predictions_metrics_tokens_and_explanations(run, attentune, monkeypatch):
    monkeypatch.chdir(run[0])
    header = attentune("predict", "run", "--text", "what is this?")[1].splitlines()[0]
    assert shown("docs/quickstart.md", "id,prediction").splitlines()[0] == header
    saved = Path("run/predictions_validation.csv").read_text().splitlines()[0]
    assert shown("docs/training.md", "id,label").splitlines()[0] == saved
    metrics = json.loads(Path("run/metrics.json").read_text())
    assert keys(json.loads(shown("docs/training.md", "{"))) == keys(metrics)
    words = ("explain", "run", "--text", "a dull film", "--method", "leave-one-out", "--format", "json")
    found, wanted = json.loads(attentune(*words)[1]), json.loads(shown("docs/explaining.md", '{"text"'))
    assert keys(wanted) == keys(found)
    places = [[(word["text"], word["start"], word["end"]) for word in one["tokens"]] for one in (found, wanted)]
    assert places[0] == places[1]


@pytest.mark.integration
def test_what_readme_shows_of_auto_and_of_an_explanation(attentune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv", 60)
    words = ("--portfolio", "majority,tfidf-linear", "--folds", 2, "--time_limit", "60s", "--jobs", 1)
    table, _ = attentune.done("auto", "reviews.csv", *words, "--output_dir", "best")
    why, _ = attentune.done("explain", "best", "--text", "a dull film")
    header, *rows, estimate, prediction, meaning = shown("README.md", "model ").splitlines()
    assert header.split() == table.splitlines()[0].split()
    assert all(re.fullmatch(r"\S+ +# +# to # +# +#  (delivered|in the fusion, weight #)", shape(row)) for row in rows)
    assert shape(estimate) in shape(table)
    assert re.sub(r"\w+ \(", "(", shape(prediction)) in re.sub(r"(good|bad) \(", "(", shape(why))
    plain = re.compile(r"“\w+”|[-+](?=#)|(?<=of )\w+(?= by)|p\(\w+\)|lowers|raises|falls|rises")
    assert plain.sub("", shape(meaning)) in plain.sub("", shape(why))


def test_messages_on_bad_data_and_flags(attentune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in BAD_FILES.items():
        (tmp_path / name).write_bytes(content)
    told = [block.text for block in blocks(ROOT / "docs/problems.md") if block.text.startswith("attentune: ")]
    assert len(told) == len(BAD_COMMANDS)
    for words, text in zip(BAD_COMMANDS, told, strict=True):
        error = attentune.refused("train", *words, "--output_dir", "run")
        assert [line for line in text.splitlines() if line not in error] == []


@pytest.mark.slow
def test_the_doctor_s_report_on_rte(attentune, data_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glue_data").symlink_to(data_dir / "glue_data")
    out, error = attentune.done("doctor", "--task", "rte", "--data_dir", "glue_data")
    wanted = shown("docs/data.md", "rte: classification").splitlines()  # the page leaves lines out
    assert [line for line in wanted if line not in (error + out).splitlines()] == []
