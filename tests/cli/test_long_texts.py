"""Long texts in windows through the command line: trained, scored, predicted and explained to their ends."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from transformers import pipeline

from attentune.inference.predictor import Predictor, predict
from helpers.samples import BAD, FILLER, GOOD

FLAGS = ("--per_device_train_batch_size", "8", "--max_length", "16", "--use_cpu", "--precision", "fp32", "--quiet")
WINDOWS = ("--long_texts", "windows", "--stride", "4", "--max_windows", "5")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 30 words whose telling ones are the last three."""
    folder, draw = tmp_path_factory.mktemp("long"), random.Random(3)
    for name, rows in (("train", 64), ("dev", 24)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "label"])
            for number in range(rows):
                label = draw.choice(["bad", "good"])
                telling = draw.choices(GOOD if label == "good" else BAD, k=3)
                writer.writerow([f"r{number}", " ".join([*draw.choices(FILLER, k=27), *telling]), label])
    return folder


def data_flags(files: Path, tiny) -> tuple[object, ...]:
    own = ("--train_file", files / "train.csv", "--validation_file", files / "dev.csv")
    return (*own, "--model_name_or_path", tiny("bert"), *FLAGS)


@pytest.fixture(scope="module")
def trained(files: Path, tiny) -> Path:
    from attentune.cli.main import main

    learnt = ("--preset", "ssa-hybrid", "--learning_rate", "3e-3", "--num_train_epochs", "5")
    words = ("train", *data_flags(files, tiny), *WINDOWS, *learnt, "--output_dir", files / "run")
    assert main([str(word) for word in words]) == 0
    return files / "run"


@pytest.mark.integration
def test_the_ends_of_texts_are_learnt(attentune, tiny, files: Path, trained: Path) -> None:
    scores = json.loads((trained / "metrics.json").read_text())["validation"]
    assert scores["accuracy"] >= 0.75
    cut = ("--preset", "ssa-hybrid", "--num_train_epochs", "1", "--output_dir", files / "cut")
    assert attentune("train", *data_flags(files, tiny), *cut)[0] == 0
    texts = [row["text"] for row in csv.DictReader((files / "dev.csv").open())]
    swapped = [" ".join([*text.split()[:-3], "dull", "dull", "dull"]) for text in texts]
    assert predict(files / "cut", texts) == predict(files / "cut", swapped), "what is cut is not seen"
    assert predict(trained, texts) != predict(trained, swapped)


@pytest.mark.integration
def test_every_way_in_reads_windows(attentune, files: Path, trained: Path) -> None:
    config = Predictor.load(trained).model.config
    assert (config.window, config.window_stride, config.max_seq_length) == (16, 4, 16 + 4 * 10)
    scores = json.loads((trained / "metrics.json").read_text())["validation"]
    status, out, _ = attentune("evaluate", trained, "--format", "json")
    assert (status, json.loads(out)["validation"]) == (0, pytest.approx(scores))
    texts = [row["text"] for row in csv.DictReader((files / "dev.csv").open())][:6]
    classify = pipeline("text-classification", model=str(trained))
    for answer, wanted in zip(classify(texts, top_k=None, truncation=True), predict(trained, texts), strict=True):
        found = {part["label"]: part["score"] for part in answer}
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("method", ["ssa", "gradient", "leave-one-out"])
def test_words_beyond_the_first_window_are_scored(attentune, files: Path, trained: Path, method: str) -> None:
    text = next(csv.DictReader((files / "dev.csv").open()))["text"]
    status, out, err = attentune("explain", trained, "--text", text, "--method", method, "--format", "json")
    assert status == 0, err
    scores = [token["score"] for token in json.loads(out)["tokens"]]
    assert len(scores) == 30
    assert np.abs(scores[-3:]).max() > 0
