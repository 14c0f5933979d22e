"""Which texts to label next, by each kind of run."""

import csv
import io
import json

import numpy as np
import pytest

from attentune.baselines.registry import make_baseline
from attentune.config import ModelConfig
from attentune.errors import ConfigError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.labels.suggest import margins, suggest_texts
from attentune.metrics.metrics import probabilities_of
from attentune.seeding import numpy_generator
from helpers.tiny_models import rows_of
from helpers.tiny_runs import SPACES, saved_ensemble, saved_model

TEXTS = ["a fine film", "a dull story", "we saw it in town", "a fine film", "so very bad", "the train leaves"]


def random_shares(rows: int, classes: int = 3) -> np.ndarray:
    shares_NC = numpy_generator("suggest test").random((rows, classes)) ** 3
    return shares_NC / shares_NC.sum(axis=1, keepdims=True)


def test_margins_are_the_highest_probability_minus_the_second():
    shares_NC = random_shares(6)
    for row, margin in enumerate(margins(shares_NC)):
        highest, second = sorted(shares_NC[row], reverse=True)[:2]
        assert margin == pytest.approx(highest - second)


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    home = tmp_path_factory.mktemp("suggest")
    made = {
        "model": saved_model(home / "model", tiny("bert"), SPACES["classification"]),
        "ensemble": saved_ensemble(home / "ensemble", tiny, members={"bert": 2}),
        "regression": saved_model(home / "regression", tiny("bert"), SPACES["regression"]),
    }
    for name in ("frozen-linear", "tfidf-linear"):
        folder = home / name
        folder.mkdir()
        baseline = make_baseline(name, encoder=ModelConfig(name_or_path=str(tiny("bert"))), max_length=32, seed=1)
        baseline.fit(rows_of(TEXTS, labels=[1, 0, 1, 1, 0, 0]), SPACES["classification"]).save(folder)
        made[name] = folder
    return made


@pytest.mark.parametrize("kind", ["model", "ensemble", "frozen-linear", "tfidf-linear"])
def test_the_least_certain_text_comes_first_and_equal_texts_once(folders, kind):
    saved, rows = Predictor.load(folders[kind]), rows_of(TEXTS)
    found = suggest_texts(saved, rows, count=9)
    expected = margins(probabilities_of(predict_rows(saved, rows), saved.label_space))
    assert [one.row for one in found] == sorted({0, 1, 2, 4, 5}, key=lambda row: (expected[row], row))
    assert [one.margin for one in found] == pytest.approx(sorted(expected[[0, 1, 2, 4, 5]]), abs=1e-5)
    assert found[0].text == TEXTS[found[0].row]
    assert len(suggest_texts(saved, rows, count=2)) == 2


def test_runs_that_do_not_predict_one_class_are_refused(folders):
    with pytest.raises(ConfigError, match="expected a run that predicts one class a row"):
        suggest_texts(Predictor.load(folders["regression"]), rows_of(TEXTS), count=2)


def test_the_command_writes_rows_to_fill_in(attentune, folders, tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("\n".join(["id,text", *(f"n{number},{text}" for number, text in enumerate(TEXTS))]))
    words = ("suggest", folders["model"], "--input_file", file, "--count", 2)
    status, out, err = attentune(*words)
    assert (status, err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert list(lines[0]) == ["row", "id", "text", "label", "prediction", "probability", "margin"]
    assert [line["label"] for line in lines] == ["", ""]
    assert lines[0]["id"] == f"n{lines[0]['row']}"
    status, out, _ = attentune(*words, "--format", "json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == [line["text"] for line in lines]
    status, out, err = attentune(*words, "--output_file", tmp_path / "next.jsonl")
    assert (status, out, err) == (0, "", f"2 texts to label written to {tmp_path / 'next.jsonl'}\n")
    assert json.loads((tmp_path / "next.jsonl").read_text().splitlines()[0])["id"] == lines[0]["id"]
