"""A text has the same probability alone and in any batch, whichever way it is predicted."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from starlette.testclient import TestClient
from transformers import pipeline

from attentune import Predictor, evaluate, predict
from attentune.config import load_config
from attentune.integrations.onnx import export_run
from attentune.results import RESULT_FILE, RunResult
from attentune.serving.api import api_app
from attentune.serving.backend import RunBackend
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import FILLER, settings

Shares = Callable[[list[str]], list[float]]
WITHIN = 1e-4
# Long beside short, one of them twice.
_DRAW = random.Random(0)
TEXTS = [" ".join(_DRAW.choices((*FILLER, "good", "bad"), k=words)) for words in (1, 2, 3, 5, 8, 12, 20, 28) * 5]


@pytest.fixture(scope="module", params=["bert", pytest.param("distilbert", marks=pytest.mark.integration)])
def run(request: pytest.FixtureRequest, tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"training__precision": "bf16", "training__num_train_epochs": 6, "training__learning_rate": 3e-3}
    values = settings(folder, tiny(request.param), **changes)
    train(load_config(overrides=values), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def ways(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Shares]]:
    """Functions from a batch of texts to the probabilities of "good"."""
    saved = Predictor.load(run)
    app = api_app(RunBackend(saved, name="mine"), hosts=[])
    classify = pipeline("text-classification", model=str(run))
    exported = tmp_path_factory.mktemp("onnx")
    export_run(run, exported / "served")
    session = onnxruntime.InferenceSession(exported / "served" / "onnx" / "model.onnx")
    names = {entry.name for entry in session.get_inputs()}

    def by_file(texts: list[str]) -> list[float]:  # the page's upload
        answer = client.post("/file?name=texts.csv", content="\n".join(["text", *texts])).json()
        place = answer["csv"].split("\n")[0].split(",").index("p_good")
        return [float(line.split(",")[place]) for line in answer["csv"].split("\n")[1:-1]]

    def by_onnx(texts: list[str]) -> list[float]:
        tokens = classify.tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        logits_NC = session.run(None, {name: tokens[name].astype(np.int64) for name in names})[0].astype(np.float64)
        return (1 / (1 + np.exp(logits_NC[:, 0] - logits_NC[:, 1]))).tolist()

    def by_pipeline(texts: list[str]) -> list[float]:
        said = classify(texts, top_k=None, batch_size=len(texts), truncation=True)
        return [{entry["label"]: entry["score"] for entry in one}["good"] for one in said]

    def by_predictions(answers: list[dict[str, Any]]) -> list[float]:
        return [answer["probabilities"]["good"] for answer in answers]

    with TestClient(app, base_url="http://localhost") as client:
        yield {
            "predict": lambda texts: by_predictions(predict(saved, texts)),
            "serve": lambda texts: by_predictions(client.post("/predict", json={"texts": texts}).json()["predictions"]),
            "page": by_file,
            "pipeline": by_pipeline,
            "ONNX": by_onnx,
        }


def test_a_text_has_the_same_probability_in_any_batch_by_any_way(ways: dict[str, Shares]) -> None:
    alone = np.array([ways["predict"]([text])[0] for text in TEXTS])
    assert np.ptp(alone) > 0.05
    draw = random.Random(1)
    for size in (1, 3, 16, len(TEXTS)):
        order = draw.sample(range(len(TEXTS)), len(TEXTS))
        for start in range(0, len(order), size)[:3]:
            batch = order[start : start + size]
            for name, shares in ways.items():
                found = shares([TEXTS[place] for place in batch])
                np.testing.assert_allclose(found, alone[batch], atol=WITHIN, rtol=0, err_msg=f"{name}, {size} texts")


def test_a_run_that_was_trained_in_bf16_reports_the_scores_that_evaluate_gives(run: Path) -> None:
    assert RunResult.load(run / RESULT_FILE).scores == evaluate(run)
