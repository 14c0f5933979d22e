"""Several labels a row through the command line: trained, scored, predicted, explained, compared, exported."""

import csv
import io
import json
import random
from pathlib import Path

import pytest
from transformers import pipeline

from attentune.inference.predictor import predict

TOPICS = {"food": ("soup", "rice"), "music": ("music", "song"), "sport": ("game", "team"), "sky": ("rain", "snow")}
FILLER = ("the", "we", "was", "very", "a", "and", "so", "in")
QUICK = ("--per_device_train_batch_size", "8", "--max_length", "24", "--use_cpu", "--precision", "fp32", "--quiet")


def write_topics(path: Path, rows: int, seed: int) -> Path:
    """JSON lines of texts whose words name their topics: none, one or several."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for number in range(rows):
            topics = sorted(draw.sample(sorted(TOPICS), draw.choice((0, 1, 1, 2, 3))))
            words = [draw.choice(TOPICS[topic]) for topic in topics] + draw.choices(FILLER, k=4)
            draw.shuffle(words)
            file.write(json.dumps({"id": f"r{number}", "text": " ".join(words), "topics": topics}) + "\n")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topics")
    write_topics(folder / "train.jsonl", 160, 1)
    write_topics(folder / "dev.jsonl", 40, 2)
    return folder


def data_flags(files: Path, tiny) -> tuple[object, ...]:
    own = ("--train_file", files / "train.jsonl", "--validation_file", files / "dev.jsonl")
    return (*own, "--task_type", "multi_label", "--label_column", "topics", "--model_name_or_path", tiny("bert"))


def rows_of(files: Path) -> list[dict]:
    return [json.loads(line) for line in (files / "dev.jsonl").read_text().splitlines()]


def plain_scores(gold: list[set[str]], said: list[set[str]]) -> dict[str, float]:
    """The metrics in plain loops."""
    pairs = list(zip(gold, said, strict=True))
    counts = {name: [sum(name in g and name in s for g, s in pairs), 0, 0] for name in TOPICS}
    for name, count in counts.items():
        count[1], count[2] = sum(name in g for g in gold), sum(name in s for s in said)
    f1 = {name: 2 * hit / (had + told) if had + told else 0.0 for name, (hit, had, told) in counts.items()}
    hit, had, told = (sum(count[place] for count in counts.values()) for place in range(3))
    return {
        "f1_micro": 2 * hit / (had + told),
        "f1_macro": sum(f1.values()) / len(f1),
        "subset_accuracy": sum(g == s for g, s in pairs) / len(pairs),
    }


@pytest.fixture(scope="module")
def trained(files: Path, tiny) -> Path:
    """A run with token labels of its own, which is trained once."""
    from attentune.cli.main import main

    run = files / "ssa"
    flags = ("--preset", "ssa-hybrid", "--num_train_epochs", "15", "--learning_rate", "3e-3", "--output_dir", run)
    words = ["train", *data_flags(files, tiny), *QUICK, *flags]
    assert main([str(word) for word in words]) == 0
    return run


@pytest.mark.integration
def test_a_run_with_token_labels_learns_and_says_what_it_scored(attentune, files: Path, trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "food", "1": "music", "2": "sky", "3": "sport"}
    table = list(csv.DictReader((trained / "predictions_validation.csv").open()))
    assert list(table[0]) == ["id", "labels", "predictions", "p_food", "p_music", "p_sky", "p_sport"]
    gold, said = ([set(filter(None, row[name].split("|"))) for row in table] for name in ("labels", "predictions"))
    assert gold == [set(row["topics"]) for row in rows_of(files)]
    scores = json.loads((trained / "metrics.json").read_text())["validation"]
    assert scores == pytest.approx(plain_scores(gold, said))
    assert scores["f1_micro"] > 0.6
    for row, own in zip(table, said, strict=True):
        assert own == {name for name in TOPICS if float(row[f"p_{name}"]) >= 0.5}
    labels = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines() if "probed" in line]
    assert labels
    assert labels[-1]["labels"]["correct"] > 0
    assert labels[-1]["labels"]["ones"] > 0
    status, out, _ = attentune("evaluate", trained, "--format", "json")
    assert (status, json.loads(out)["validation"]) == (0, pytest.approx(scores))


@pytest.mark.integration
def test_every_way_to_predict_says_the_same(attentune, files: Path, trained: Path) -> None:
    texts = [row["text"] for row in rows_of(files)][:10]
    expected = predict(trained, texts)
    assert all(isinstance(one["prediction"], list) for one in expected)
    status, out, _ = attentune("predict", trained, "--input_file", files / "dev.jsonl")
    assert status == 0
    table = list(csv.DictReader(io.StringIO(out)))
    saved = list(csv.DictReader((trained / "predictions_validation.csv").open()))
    assert [(row["id"], row["labels"], row["predictions"]) for row in table] == [
        (row["id"], row["labels"], row["predictions"]) for row in saved
    ]
    assert [row["predictions"].split("|") if row["predictions"] else [] for row in table[:10]] == [
        one["prediction"] for one in expected
    ]
    classify = pipeline("text-classification", model=str(trained))
    for answer, wanted in zip(classify(texts, top_k=None), expected, strict=True):
        found = {part["label"]: part["score"] for part in answer}
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)


@pytest.mark.integration
def test_explanations_name_the_likeliest_label(attentune, trained: Path) -> None:
    for method in ("leave-one-out", "gradient", "ssa"):
        words = ("explain", trained, "--text", "the soup was a song", "--method", method, "--format", "json")
        status, out, err = attentune(*words)
        assert status == 0, err
        line = json.loads(out)
        shares = predict(trained, ["the soup was a song"])[0]
        likeliest = max(shares["probabilities"], key=shares["probabilities"].get)
        assert line["label"] == likeliest
        assert line["probability"] == pytest.approx(shares["probabilities"][likeliest], abs=1e-5)
        assert line["prediction"] == "|".join(shares["prediction"])
    status, out, err = attentune(*words[:-4], "--method", "leave-one-out", "--target", "sky", "--format", "json")
    assert (status, json.loads(out)["label"]) == (0, "sky")


@pytest.mark.integration
def test_each_label_gets_a_threshold_of_its_own(attentune, tiny, files: Path, tmp_path: Path) -> None:
    more = ("--calibrate", "temperature", "--thresholds", "f1", "--calibration_share", "0.3", "--num_train_epochs", "6")
    words = (
        "train",
        *data_flags(files, tiny),
        *QUICK,
        *more,
        "--learning_rate",
        "3e-3",
        "--output_dir",
        tmp_path / "run",
    )
    assert attentune(*words)[0] == 0
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())["train"]["calibration"]
    assert list(facts["thresholds"]) == sorted(TOPICS)
    assert len(set(facts["thresholds"].values())) > 1
    table = list(csv.DictReader((tmp_path / "run" / "predictions_validation.csv").open()))
    for row in table:
        near = any(abs(float(row[f"p_{name}"]) - facts["thresholds"][name]) < 1e-5 for name in TOPICS)
        own = {name for name in TOPICS if float(row[f"p_{name}"]) >= facts["thresholds"][name]}
        assert near or set(filter(None, row["predictions"].split("|"))) == own
    status, out, _ = attentune("evaluate", tmp_path / "run", "--format", "json")
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["validation"]
    assert (status, json.loads(out)["validation"]) == (0, pytest.approx(scores))
