"""Which texts to label next: the formulas against plain loops, and each kind of run."""

import csv
import io
import json
import math

import numpy as np
import pytest

from attentune.baselines.registry import load_run, make_baseline
from attentune.config import ModelConfig
from attentune.errors import ConfigError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.labels.suggest import badge, disagreement, last_features, margins, suggest_texts
from attentune.metrics.metrics import probabilities_of
from attentune.seeding import numpy_generator
from helpers.tiny_models import rows_of
from helpers.tiny_runs import SPACES, saved_ensemble, saved_model

TEXTS = ["a fine film", "a dull story", "we saw it in town", "a fine film", "so very bad", "the train leaves"]


def random_shares(rows: int, classes: int = 3, *key: int) -> np.ndarray:
    shares_NC = numpy_generator("suggest test", *key).random((rows, classes)) ** 3
    return shares_NC / shares_NC.sum(axis=1, keepdims=True)


def test_margins_and_disagreement_are_their_formulas():
    by_model, weights = np.stack([random_shares(6, 3, seed) for seed in (1, 2)]), [3.0, 1.0]
    first = by_model[0]
    for row, margin in enumerate(margins(first)):
        highest, second = sorted(first[row], reverse=True)[:2]
        assert margin == pytest.approx(highest - second)
    for row, value in enumerate(disagreement(by_model, weights)):
        mean = [0.75 * by_model[0, row, c] + 0.25 * by_model[1, row, c] for c in range(3)]
        parts = [sum(p * math.log(p / m) for p, m in zip(own[row], mean, strict=True)) for own in by_model]
        assert value == pytest.approx(0.75 * parts[0] + 0.25 * parts[1])  # the mean divergence from the mean
    assert disagreement(np.stack([first, first]), weights) == pytest.approx(np.zeros(6), abs=1e-12)


def test_badge_is_k_means_plus_plus_on_gradient_embeddings():
    shares_NC = random_shares(40)
    features_NF = numpy_generator("features").normal(size=(40, 5)).astype(np.float32)
    embedded = []
    for row in range(40):
        error = shares_NC[row].copy()
        error[error.argmax()] -= 1.0
        embedded.append(np.outer(error, features_NF[row]).ravel())
    generator = numpy_generator("a draw")
    chosen = [max(range(40), key=lambda row: np.linalg.norm(embedded[row]))]
    while len(chosen) < 7:
        squares = [min(float(((embedded[row] - embedded[one]) ** 2).sum()) for one in chosen) for row in range(40)]
        squares = [0.0 if row in chosen else square for row, square in enumerate(squares)]
        chosen.append(int(generator.choice(40, p=np.array(squares) / sum(squares))))
    assert badge(shares_NC, features_NF, 7, numpy_generator("a draw")).tolist() == chosen


def test_badge_takes_each_row_once_also_if_all_are_alike():
    shares_NC, features_NF = np.full((4, 2), 0.5), np.ones((4, 3), np.float32)
    assert sorted(badge(shares_NC, features_NF, 9, numpy_generator("x")).tolist()) == [0, 1, 2, 3]


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


def test_badge_uses_what_the_last_layer_is_applied_to(folders):
    rows = rows_of(TEXTS)
    for kind in ("model", "frozen-linear"):
        saved = Predictor.load(folders[kind])
        features_NF = last_features(saved, rows)
        if kind == "model":
            linear = saved.model.classifier
            logits_NC = features_NF @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
            np.testing.assert_allclose(logits_NC, predict_rows(saved, rows), atol=1e-4)
        else:
            np.testing.assert_array_equal(features_NF, load_run(folders[kind]).baseline.frozen.features(rows))
        found = suggest_texts(saved, rows, count=3, strategy="badge", seed=5)
        assert len({one.row for one in found}) == 3
        assert found == suggest_texts(saved, rows, count=3, strategy="badge", seed=5)


def test_disagreement_compares_the_models_of_an_ensemble(folders):
    saved, rows = Predictor.load(folders["ensemble"]), rows_of(TEXTS)
    found = suggest_texts(saved, rows, count=3, strategy="disagreement")
    parts = list(saved.weighted_runs())
    by_model = np.stack([probabilities_of(predict_rows(run, rows), saved.label_space) for _, run in parts])
    expected = disagreement(by_model, [weight for weight, _ in parts])
    assert found[0].disagreement == pytest.approx(expected.max(), abs=1e-6)
    assert found[0].disagreement >= found[1].disagreement >= found[2].disagreement > 0


REFUSALS = {
    ("regression", "margin"): "expected a run that predicts one class a row",
    ("model", "disagreement"): "Use margin or badge, or make an ensemble with attentune auto.",
    ("tfidf-linear", "disagreement"): "(tfidf-linear baseline). Use margin, or make an ensemble with attentune auto.",
    ("ensemble", "badge"): "needs the last layer of one neural model, which",
    ("tfidf-linear", "badge"): "(tfidf-linear baseline). Use margin.",
    ("model", "margn"): "got 'margn', expected one of margin, badge, disagreement. Did you mean 'margin'?",
}


@pytest.mark.parametrize(("kind", "strategy"), REFUSALS)
def test_what_does_not_work_is_refused(folders, kind, strategy):
    with pytest.raises(ConfigError) as error:
        suggest_texts(Predictor.load(folders[kind]), rows_of(TEXTS), count=2, strategy=strategy)
    assert REFUSALS[kind, strategy] in str(error.value)


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
