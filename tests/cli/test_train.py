"""`attentune train` from the command line: real tasks, extra rows, SSA, long texts, several labels, pairs."""

import csv
import functools
import io
import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import pipeline

from attentune import __version__
from attentune.cli.output import tell_next
from attentune.config import load_config
from attentune.data.dataset import TextRows
from attentune.demo.run import run_demo
from attentune.inference.predictor import Predictor, predict
from attentune.token_labels.plan import LABELS_FILE, load_labels
from helpers.samples import BAD, FILLER, GOOD, write_reviews

TINY_RUN = ("--num_train_epochs", "1", "--max_length", "32", "--learning-rate", "1e-3", "--use_cpu")
REAL_TASKS = {
    "cola": ("glue_data", ["matthews_correlation"]),
    "rte": ("glue_data", ["accuracy"]),
    "mrpc": ("glue_data", ["f1", "accuracy"]),
    "STS-B": ("glue_data", ["pearson", "spearmanr"]),
    "sst2": ("glue_data", ["accuracy"]),
    "qnli": ("glue_data", ["accuracy"]),
    "wnli": ("glue_data", ["accuracy"]),
    "sst5": ("cs224n", ["accuracy"]),
    "sts": ("cs224n", ["pearson"]),
    "quora": ("cs224n", ["accuracy"]),
    "sick": ("sick", ["accuracy"]),
}


@pytest.mark.integration
@pytest.mark.parametrize("task", REAL_TASKS)
def test_every_real_task_trains_evaluates_and_predicts(attentune, tiny, tmp_path, data_dir, task):
    folder, metrics = REAL_TASKS[task]
    run = tmp_path / "run"
    data = ("--task", task, "--data-dir", data_dir / folder, "--max-eval-samples", "40")
    attentune.done(
        "train", *data, "--max_train_samples=64", "--model_name_or_path", tiny("bert"), "--output_dir", run, *TINY_RUN
    )
    written = json.loads((run / "metrics.json").read_text())
    assert list(written["validation"]) == metrics
    assert written["train"]["tokens"] > 0
    out, _ = attentune.done("evaluate", run, "--format", "json")
    assert json.loads(out) == {"validation": written["validation"]}
    # The same rows through predict: the same file, byte for byte.
    out, _ = attentune.done("predict", run, *data, "--split", "validation")
    assert out == (run / "predictions_validation.csv").read_text()


def test_the_written_config_runs_again_to_the_same_weights(attentune, tiny, tmp_path):
    train = write_reviews(tmp_path / "train.csv")
    flags = ("--train_file", train, "--model_name_or_path", tiny("roberta"), *TINY_RUN)
    out, err = attentune.done("train", *flags, "--preset", "bert-mean", "--output_dir", tmp_path / "a")
    # Without a terminal too the user sees the run go on, what was saved, and two commands that work.
    assert re.findall(r"^step (\d+) of 3: loss", err, re.MULTILINE) == ["1", "2", "3"]
    assert "last weights (step 3) saved in" in err
    assert "best so far" not in err
    assert re.search(r"^Expected calibration error: validation 0\.\d{4}\.$", out, re.MULTILINE)
    for command in err.rpartition("next:\n")[2].splitlines():
        attentune.done(*shlex.split(command)[1:])
    again = ("--config", tmp_path / "a" / "config.yaml", "--output_dir", tmp_path / "b")
    assert attentune("train", *again)[0] == 0
    a, b = (tmp_path / name / "model.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert load_config(tmp_path / "a" / "config.yaml").model.head.kind == "mean"


def test_the_next_commands_work_whatever_the_folder_and_the_texts(attentune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = write_reviews(tmp_path / "my file.csv", 40).read_text().splitlines()
    (tmp_path / "my file.csv").write_text("\n".join([rows[0], *(f"-{row}" for row in rows[1:])]))
    folder = "it's $HOME (1)"
    _, err = attentune.done("train", "my file.csv", "--preset", "tfidf-linear", "--output_dir", folder)
    lines = err.rpartition("next:\n")[2].splitlines()
    # The shell makes of each line the words that were meant.
    told = [subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True) for line in lines]
    words = [one.stdout.splitlines() for one in told]
    assert [one[:3] for one in words] == [["attentune", name, folder] for name in ("predict", "explain")]
    for one in words:
        out, _ = attentune.done(*one[1:])
        assert re.search(r"\b(good|bad)\b", out)


def test_the_next_commands_have_a_text_that_is_not_empty(capsys):
    tell_next("run", TextRows(("0", "1"), (" ", "so fine"), ("so", "dull"), None, "rows.csv"))
    assert "attentune predict run --text 'so fine' --text_pair dull\n" in capsys.readouterr().err


def test_tracker_early_stopping_and_best_weights(attentune, tiny, tmp_path):
    train, run = write_reviews(tmp_path / "train.csv", 64), tmp_path / "run"
    out, err = attentune.done(
        "train", "--train_file", train, "--model_name_or_path", tiny("bert"), "--output_dir", run, "--use_cpu",
        "--num_train_epochs", "30", "--early_stopping_patience", "2", "--report_to", "tensorboard",
        "--class_weights", "balanced", "--label_smoothing_factor", "0.1", "--learning_rate", "1e-3", "--format", "json",
    )  # fmt: skip
    assert list(run.rglob("events.out.tfevents*"))
    record = json.loads((run / "run.json").read_text())
    assert record["train"]["stopped_early"]
    best = re.findall(r"^step (\d+) of .*\(best so far\)$", err, re.MULTILINE)[-1]
    assert f"best weights (step {best}) saved in" in err
    assert int(best) == record["train"]["final_step"]
    assert record["train"]["final_step"] == record["best"]["step"] < record["train"]["steps"]
    assert record["scores"]["validation"]["accuracy"] == record["best"]["value"]
    assert json.loads(out)["validation"] == record["scores"]["validation"]
    kept = {path.name for path in run.glob("checkpoint-*")}
    assert len(kept) <= 2
    assert f"checkpoint-{record['best']['step']}" in kept


@pytest.mark.integration
def test_the_demo_prints_its_leaderboard_and_goes_on_where_it_was(attentune, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("demo")  # relative, as its default is
    small: dict[str, Any] = {"train_size": 40, "time_limit_s": 30.0, "max_steps": 2}
    run = functools.partial(run_demo, methods=("majority", "bert", "auto"), **small)
    monkeypatch.setattr("attentune.demo.run.run_demo", run)
    command = ("demo", "--model_name_or_path", tiny("bert"), "--output_dir", folder)
    out, err = attentune.done(*command)
    assert "2 of 2:" in err
    lines = out.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("---")) + 1
    board = lines[begin : begin + 3]
    assert sorted(line.split()[0] for line in board) == ["auto", "bert", "majority"]
    assert "This movie was kind of long" in out
    page = (folder / "report.html").read_text()
    for wanted in ("Leaderboard", "held out", "films", "An explained sentence", "Accuracy on both test sets"):
        assert wanted in page
    made = [folder / "auto" / "run.json", *sorted(folder.glob("comparison/runs/*/*/*/*/*.safetensors"))]
    before = [file.stat().st_mtime_ns for file in made]
    assert len(before) == 3
    again, _ = attentune.done(*command)
    assert [file.stat().st_mtime_ns for file in made] == before
    assert again.splitlines()[: begin + 3] == lines[: begin + 3]
    folders = {"auto": folder / "auto"}
    folders |= {file.parts[-3]: file.parent for file in folder.glob("comparison/runs/*/*/*/*/predictions_test.csv")}
    assert sorted(folders) == ["auto", "bert", "majority"]
    for line in board:
        with (folders[line.split()[0]] / "predictions_test.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 1000
        correct = sum(row["label"] == row["prediction"] for row in rows)
        assert f" {correct / 1000:.3f}  " in line.partition(" to ")[2]
    fused = json.loads((folder / "auto/auto/leaderboard.json").read_text())["leaderboard"]
    (sentence,) = [line for line in lines if line.startswith("auto: one model")]
    for row in fused:
        if row["weight"] is not None and row["kind"] != "fusion":
            assert row["name"] in sentence
    assert lines[0] == "Which model is best for these texts?"
    assert lines[-1].startswith("Your own file: attentune auto --train_file ")


def test_what_is_listed_and_the_version(attentune):
    tasks = json.loads(attentune("list", "tasks", "--format", "json")[1])
    assert {"cola", "hans", "sick"} <= {task["name"] for task in tasks}
    assert "bert-cls-mean" in attentune("list", "presets")[1]
    assert attentune("list", "presets", "bert-mask")[1].count("masked-rows") == 1
    assert attentune()[0] == 2
    words = [sys.executable, "-m", "attentune", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0] == __version__


def test_settings_are_listed_by_section_or_name(attentune):
    out, _ = attentune.done("list", "settings", "labels", "training.seed", "--format", "json")
    facts = {one["name"]: one for one in json.loads(out)}
    assert set(facts) > {"labels.ratio", "training.seed"}
    assert {name.split(".")[0] for name in facts} == {"labels", "training"}
    assert (facts["training.seed"]["default"], facts["labels.generator"]["choices"][0]) == (42, "none")
    status, _, err = attentune("list", "settings", "lables")
    assert (status, "Did you mean 'labels'?" in err, len(err) < 400) == (2, True, True)


# Extra files mixed into train, through the command line: train, doctor, compare, search, label


QUICK = ("--num_train_epochs", "1", "--per_device_train_batch_size", "8", "--max_length", "24", "--use_cpu", "--quiet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_reviews(tmp_path / "train.csv", 40, seed=1)
    write_reviews(tmp_path / "dev.csv", 20, seed=2)
    write_reviews(tmp_path / "silver.csv", 16, seed=3)
    write_reviews(tmp_path / "other.csv", 8, seed=4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(tiny, *more: str) -> tuple[object, ...]:
    return ("--train_file", "train.csv", "--validation_file", "dev.csv", "--model_name_or_path", tiny("bert"), *more)


MIXED = ("--extra_train_files", "silver.csv,other.csv", "--extra_train_weights", "0.5,0.25")


def test_a_run_says_where_its_rows_are_from(attentune, tiny, folder):
    words = ("train", *data(tiny, *MIXED), "--preset", "ssa-co", *QUICK, "--output_dir", "run")
    attentune.done(*words)
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["train"]["rows"] == 64
    assert record["train"]["rows_from"] == [
        {"source": "train.csv", "rows": 40, "weight": 1.0},
        {"source": "silver.csv", "rows": 16, "weight": 0.5},
        {"source": "other.csv", "rows": 8, "weight": 0.25},
    ]
    assert "Mixed into the 40 rows of train: 16 of silver.csv, each with weight 0.5." in record["notes"]
    card = (folder / "run" / "README.md").read_text()
    assert "| silver.csv | 16 | 0.5 |" in card
    assert "extra_train" not in card
    assert len((folder / "run" / "predictions_validation.csv").read_text().splitlines()) == 21
    # Only train needs the files.
    (folder / "silver.csv").unlink()
    assert attentune("evaluate", "run")[0] == 0
    err = attentune.refused("evaluate", "run", "--split", "train")
    assert "silver.csv" in err
    assert "These data are named in run/config.yaml" in err


@pytest.mark.slow
def test_a_comparison_of_silver_rows(attentune, tiny, folder):
    """Methods may differ in their extra files: they share main rows, sizes and dev, and are paired."""
    (folder / "methods.yaml").write_text(
        "plain: {preset: bert}\n"
        "silver: {preset: bert, set: {data.extra_train_files: silver.csv, data.extra_train_weights: 0.5}}\n"
    )
    words = ("compare", *data(tiny), "--settings", "methods.yaml", "--train_size", "20", *QUICK, "--output_dir", "c")
    out, err = attentune.done(*words, "--seeds", "2", "--jobs", "1", "--format", "json")
    assert "were not trained and scored on the same rows" not in err
    assert [cell["n"] for cell in json.loads(out)["cells"]] == [2, 2]
    rows = {
        method: json.loads((folder / f"c/records/own/20/{method}/seed-1.json").read_text())["train"]["rows"]
        for method in ("plain", "silver")
    }
    assert rows == {"plain": 20, "silver": 36}
    write_reviews(folder / "silver.csv", 16, seed=8)
    err = attentune.refused(*words, "--seeds", "3", "--jobs", "1")
    assert "the rows of silver.csv changed since it was begun" in err


# Self-Supervised Attention from the command line, on every type of task: what is logged, said and refused


EPOCHS = 3
LABEL_FACTS = {"probed", "correct", "flipped", "ones", "zeros", "seconds"}
TOKEN_FACTS = {"token_loss", "token_accuracy", "majority_accuracy"}
TASKS: dict[str, tuple[str, ...]] = {
    "classification": (),
    "pair": ("--text_pair_column", "second"),
    # So coarse that the tiny model, which says nearly the same of all texts, is right on some of them.
    "regression": ("--label_column", "score", "--task_type", "regression", "--set", "labels.tolerance=1.2"),
    "ordinal": ("--label_column", "stars", "--task_type", "ordinal", "--seed", "1"),
}


@pytest.fixture
def flags(tiny, tmp_path):
    """A tiny run on rows with a label, a score from 0 to 5, stars from 1 to 3 and a second text."""
    draw = random.Random(3)
    for name, seed in (("train", 1), ("validation", 2)):
        rows = list(csv.DictReader(write_reviews(tmp_path / "reviews.csv", 48, seed=seed).open()))
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "second", "label", "score", "stars"])
            for row in rows:
                high = row["label"] == "good"
                second = draw.choice(rows)["text"]
                score = round(draw.uniform(3, 5) if high else draw.uniform(0, 2), 2)
                writer.writerow([row["id"], row["text"], second, row["label"], score, 1 + high + draw.randint(0, 1)])
    return (
        "--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "validation.csv",
        "--text_column", "text", "--label_column", "label", "--model_name_or_path", tiny("bert"),
        "--output_dir", tmp_path / "run", "--num_train_epochs", EPOCHS, "--max_length", 48, "--use_cpu",
        "--learning_rate", "3e-4", "--per_device_train_batch_size", 8,
    )  # fmt: skip


def label_lines(run: Path) -> list[dict[str, Any]]:
    """What the log says of each epoch's labels."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "labels" in line]
    assert [(line["epoch"], line["step"]) for line in lines] == [(epoch, 6 * (epoch + 1)) for epoch in range(EPOCHS)]
    return [line["labels"] for line in lines]


def check_labelled(facts: dict[str, Any]) -> None:
    """What an epoch with labels tells, and how its numbers hang together."""
    assert set(facts) == LABEL_FACTS | TOKEN_FACTS
    assert facts["probed"] == 48
    assert 0 <= facts["flipped"] <= facts["correct"] <= facts["probed"]
    assert facts["correct"] > 0
    count = facts["ones"] + facts["zeros"]
    assert count > 10
    assert facts["majority_accuracy"] == max(facts["ones"], facts["zeros"]) / count
    assert facts["token_accuracy"] * count == pytest.approx(round(facts["token_accuracy"] * count), abs=1e-6)
    assert 0.01 < facts["token_loss"] < 3
    assert facts["seconds"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("task", TASKS)
def test_a_run_tells_of_each_epochs_labels(attentune, flags, tmp_path, task):
    run = tmp_path / "run"
    _, err = attentune.done("train", "--preset", "ssa-co", *flags, *TASKS[task])
    first, *others = label_lines(run)
    assert first == {"reason": "no labels exist before the first epoch ends", "seconds": first["seconds"]}
    for epoch, facts in enumerate(others, start=2):
        check_labelled(facts)
        assert f"epoch {epoch}: labels: 48 probed, {facts['correct']} correct, {facts['flipped']} flipped; " in err
    assert task == "regression" or sum(facts["flipped"] for facts in others) > 0
    assert "no token is labelled" not in err
    record = json.loads((run / "run.json").read_text())
    assert record["train"]["label_seconds"] == pytest.approx(sum(facts["seconds"] for facts in others), abs=0.01)
    values = load_file(run / "labels.safetensors")["values"]
    assert [(values >= 0.5).sum(), ((values >= 0) & (values < 0.5)).sum()] == [others[-1]["ones"], others[-1]["zeros"]]


def test_without_a_label_generator_nothing_is_said_of_labels(attentune, flags, tmp_path):
    _, err = attentune.done("train", "--preset", "ssa-co", *flags, "--set", "labels.generator=none")
    assert "labels:" not in err
    assert "no token is labelled" not in err
    assert '"labels"' not in (tmp_path / "run" / "log.jsonl").read_text()
    assert not (tmp_path / "run" / "labels.safetensors").exists()


# Long texts in windows through the command line: trained, scored, predicted and explained to their ends


LONG_FLAGS = ("--per_device_train_batch_size", "8", "--max_length", "16", "--use_cpu", "--precision", "fp32", "--quiet")
WINDOWS = ("--long_texts", "windows", "--stride", "4", "--max_windows", "5")


@pytest.fixture(scope="module")
def long_files(tmp_path_factory):
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


def long_flags(long_files: Path, tiny) -> tuple[object, ...]:
    own = ("--train_file", long_files / "train.csv", "--validation_file", long_files / "dev.csv")
    return (*own, "--model_name_or_path", tiny("bert"), *LONG_FLAGS)


@pytest.fixture(scope="module")
def long_run(long_files, tiny):
    from attentune.cli.main import main

    learnt = ("--preset", "ssa-hybrid", "--learning_rate", "3e-3", "--num_train_epochs", "5")
    words = ("train", *long_flags(long_files, tiny), *WINDOWS, *learnt, "--output_dir", long_files / "run")
    assert main([str(word) for word in words]) == 0
    return long_files / "run"


@pytest.mark.integration
def test_the_ends_of_texts_are_learnt(attentune, tiny, long_files, long_run):
    scores = json.loads((long_run / "metrics.json").read_text())["validation"]
    assert scores["accuracy"] >= 0.75
    cut = ("--preset", "ssa-hybrid", "--num_train_epochs", "1", "--output_dir", long_files / "cut")
    assert attentune("train", *long_flags(long_files, tiny), *cut)[0] == 0
    texts = [row["text"] for row in csv.DictReader((long_files / "dev.csv").open())]
    swapped = [" ".join([*text.split()[:-3], "dull", "dull", "dull"]) for text in texts]
    assert predict(long_files / "cut", texts) == predict(long_files / "cut", swapped), "what is cut is not seen"
    assert predict(long_run, texts) != predict(long_run, swapped)


@pytest.mark.integration
def test_every_way_in_reads_windows(attentune, long_files, long_run):
    config = Predictor.load(long_run).model.config
    assert (config.window, config.window_stride, config.max_seq_length) == (16, 4, 16 + 4 * 10)
    scores = json.loads((long_run / "metrics.json").read_text())["validation"]
    status, out, _ = attentune("evaluate", long_run, "--format", "json")
    assert (status, json.loads(out)["validation"]) == (0, pytest.approx(scores))
    texts = [row["text"] for row in csv.DictReader((long_files / "dev.csv").open())][:6]
    classify = pipeline("text-classification", model=str(long_run))
    for answer, wanted in zip(classify(texts, top_k=None, truncation=True), predict(long_run, texts), strict=True):
        found = {part["label"]: part["score"] for part in answer}
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("method", ["ssa", "gradient", "leave-one-out"])
def test_words_beyond_the_first_window_are_scored(attentune, long_files, long_run, method):
    text = next(csv.DictReader((long_files / "dev.csv").open()))["text"]
    out, _ = attentune.done("explain", long_run, "--text", text, "--method", method, "--format", "json")
    scores = [token["score"] for token in json.loads(out)["tokens"]]
    assert len(scores) == 30
    assert np.abs(scores[-3:]).max() > 0


# Several labels a row through the command line: trained, scored, predicted, explained, compared, exported


TOPICS = {"food": ("soup", "rice"), "music": ("music", "song"), "sport": ("game", "team"), "sky": ("rain", "snow")}
PLAIN = ("the", "we", "was", "very", "a", "and", "so", "in")
TOPIC_FLAGS = ("--per_device_train_batch_size", "8", "--max_length", "24", "--use_cpu", "--precision", "fp32")


def write_topics(path: Path, rows: int, seed: int) -> Path:
    """JSON lines of texts whose words name their topics: none, one or several."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for number in range(rows):
            topics = sorted(draw.sample(sorted(TOPICS), draw.choice((0, 1, 1, 2, 3))))
            words = [draw.choice(TOPICS[topic]) for topic in topics] + draw.choices(PLAIN, k=4)
            draw.shuffle(words)
            file.write(json.dumps({"id": f"r{number}", "text": " ".join(words), "topics": topics}) + "\n")
    return path


@pytest.fixture(scope="module")
def topic_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    write_topics(folder / "train.jsonl", 160, 1)
    write_topics(folder / "dev.jsonl", 40, 2)
    return folder


def topic_flags(topic_files: Path, tiny) -> tuple[object, ...]:
    own = ("--train_file", topic_files / "train.jsonl", "--validation_file", topic_files / "dev.jsonl")
    return (*own, "--task_type", "multi_label", "--label_column", "topics", "--model_name_or_path", tiny("bert"))


def rows_of(topic_files: Path) -> list[dict]:
    return [json.loads(line) for line in (topic_files / "dev.jsonl").read_text().splitlines()]


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
def topic_run(topic_files, tiny):
    """A run with token labels of its own, which is trained once."""
    from attentune.cli.main import main

    run = topic_files / "ssa"
    flags = ("--preset", "ssa-hybrid", "--num_train_epochs", "15", "--learning_rate", "3e-3", "--output_dir", run)
    words = ["train", *topic_flags(topic_files, tiny), *TOPIC_FLAGS, *flags]
    assert main([str(word) for word in words]) == 0
    return run


@pytest.mark.integration
def test_a_run_with_token_labels_learns_and_says_what_it_scored(attentune, topic_files, topic_run):
    config = json.loads((topic_run / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "food", "1": "music", "2": "sky", "3": "sport"}
    table = list(csv.DictReader((topic_run / "predictions_validation.csv").open()))
    assert list(table[0]) == ["id", "labels", "predictions", "p_food", "p_music", "p_sky", "p_sport"]
    gold, said = ([set(filter(None, row[name].split("|"))) for row in table] for name in ("labels", "predictions"))
    assert gold == [set(row["topics"]) for row in rows_of(topic_files)]
    scores = json.loads((topic_run / "metrics.json").read_text())["validation"]
    assert scores == pytest.approx(plain_scores(gold, said))
    assert scores["f1_micro"] > 0.6
    for row, own in zip(table, said, strict=True):
        assert own == {name for name in TOPICS if float(row[f"p_{name}"]) >= 0.5}
    labels = [json.loads(line) for line in (topic_run / "log.jsonl").read_text().splitlines() if "probed" in line]
    assert labels
    assert labels[-1]["labels"]["correct"] > 0
    assert labels[-1]["labels"]["ones"] > 0
    status, out, _ = attentune("evaluate", topic_run, "--format", "json")
    assert (status, json.loads(out)["validation"]) == (0, pytest.approx(scores))


@pytest.mark.integration
def test_every_way_to_predict_says_the_same(attentune, topic_files, topic_run):
    texts = [row["text"] for row in rows_of(topic_files)][:10]
    expected = predict(topic_run, texts)
    assert all(isinstance(one["prediction"], list) for one in expected)
    out, _ = attentune.done("predict", topic_run, "--input_file", topic_files / "dev.jsonl")
    table = list(csv.DictReader(io.StringIO(out)))
    saved = list(csv.DictReader((topic_run / "predictions_validation.csv").open()))
    assert [(row["id"], row["labels"], row["predictions"]) for row in table] == [
        (row["id"], row["labels"], row["predictions"]) for row in saved
    ]
    assert [row["predictions"].split("|") if row["predictions"] else [] for row in table[:10]] == [
        one["prediction"] for one in expected
    ]
    classify = pipeline("text-classification", model=str(topic_run))
    for answer, wanted in zip(classify(texts, top_k=None), expected, strict=True):
        found = {part["label"]: part["score"] for part in answer}
        assert found == pytest.approx(wanted["probabilities"], abs=1e-5)


@pytest.mark.integration
def test_explanations_name_the_likeliest_label(attentune, topic_run):
    for method in ("leave-one-out", "gradient", "ssa"):
        words = ("explain", topic_run, "--text", "the soup was a song", "--method", method, "--format", "json")
        out, _ = attentune.done(*words)
        line = json.loads(out)
        shares = predict(topic_run, ["the soup was a song"])[0]
        likeliest = max(shares["probabilities"], key=shares["probabilities"].get)
        assert line["label"] == likeliest
        assert line["probability"] == pytest.approx(shares["probabilities"][likeliest], abs=1e-5)
        assert line["prediction"] == "|".join(shares["prediction"])
    status, out, _ = attentune(*words[:-4], "--method", "leave-one-out", "--target", "sky", "--format", "json")
    assert (status, json.loads(out)["label"]) == (0, "sky")


@pytest.mark.integration
def test_each_label_gets_a_threshold_of_its_own(attentune, tiny, topic_files, tmp_path):
    more = ("--calibrate", "temperature", "--thresholds", "f1", "--calibration_share", "0.3", "--num_train_epochs", "6")
    words = ("train", *topic_flags(topic_files, tiny), *TOPIC_FLAGS, *more, "--learning_rate", "3e-3")
    attentune.done(*words, "--output_dir", tmp_path / "run")
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


# Task-specific attention from the command line: Quora, STS and SST-5, saved, loaded, explained, resumed


PAIR_FLAGS = ("--num_train_epochs", "1", "--max_length", "32", "--learning_rate", "1e-3", "--use_cpu")
# Everything at once: blurred, re-weighted layers under a token gate whose labels ask the model, and cross-attention.
ALL = (
    "--set=model.blur.where=context", "--set=model.blur.sigma=0.5", "--set=model.layer_mix.squeeze=true",
    "--set=model.layer_mix.kind=weighted",
    "--set=model.token_gate.kind=ssa", "--set=labels.generator=flip", "--set=labels.mask_share=0.6",
)  # fmt: skip


def cs224n(task: str, data_dir: Path, rows: int = 48) -> tuple[object, ...]:
    return ("--max_train_samples", rows, "--task", task, "--data_dir", data_dir / "cs224n", "--max_eval_samples", 24)


def test_ssa_over_blurred_re_weighted_layers_over_cross_attention(attentune, tiny, tmp_path, data_dir):
    run, data = tmp_path / "run", cs224n("quora", data_dir)
    flags = ("--preset", "task-attention", "--model_name_or_path", tiny("bert"), "--output_dir", run, *ALL)
    attentune.done("train", *data, *flags, *PAIR_FLAGS, "--num_train_epochs", 3)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any(line.get("labels", {}).get("token_loss") for line in log)
    assert attentune("evaluate", run)[0] == 0
    tensors, _ = load_labels(run / LABELS_FILE)
    assert set(np.unique(tensors["values"])) >= {0.0, 1.0}


def test_doctor_counts_each_text_of_a_pair(attentune, tiny, tmp_path):
    train = tmp_path / "train.csv"
    long, short = "film " * 20, "a film"
    train.write_text("sentence1,sentence2,label\n" + f"{long},{short},good\n{short},{long},bad\n" * 6)
    flags = ("--train_file", train, "--model_name_or_path", tiny("bert"), "--format", "json", "--max_length", 30)
    cuts = []
    for extra in ((), ("--pair_encoding", "bi-encoder")):
        out, _ = attentune.done("doctor", *flags, *extra)
        cuts.append(json.loads(out)["splits"]["train"]["tokens"]["longest"])
    assert cuts[0] > cuts[1] == 22
