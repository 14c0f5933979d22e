"""From the command line as a user types it, on real rows and on a user's own files."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attentune import __version__
from attentune.config import load_config
from helpers.samples import write_reviews

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
    status, out, err = attentune(
        "train", *data, "--max_train_samples=64", "--model_name_or_path", tiny("bert"), "--output_dir", run, *TINY_RUN
    )
    assert status == 0, err
    written = json.loads((run / "metrics.json").read_text())
    assert list(written["validation"]) == metrics
    assert written["train"]["tokens"] > 0
    status, out, _ = attentune("evaluate", run, "--format", "json")
    assert status == 0
    assert json.loads(out) == {"validation": written["validation"]}
    # The same rows through predict: the same file, byte for byte.
    status, out, err = attentune("predict", run, *data, "--split", "validation")
    assert status == 0, err
    assert out == (run / "predictions_validation.csv").read_text()


def test_the_written_config_runs_again_to_the_same_weights(attentune, tiny, tmp_path):
    train = write_reviews(tmp_path / "train.csv")
    flags = ("--train_file", train, "--model_name_or_path", tiny("roberta"), *TINY_RUN)
    status, out, err = attentune("train", *flags, "--preset", "bert-mean", "--output_dir", tmp_path / "a")
    assert status == 0
    # Without a terminal too the user sees the run go on, what was saved, and two commands that work.
    assert re.findall(r"^step (\d+) of 3: loss", err, re.MULTILINE) == ["1", "2", "3"]
    assert "last weights (step 3) saved in" in err
    assert "best so far" not in err
    assert re.search(r"^Expected calibration error: validation 0\.\d{4}\.$", out, re.MULTILINE)
    for command in err.rpartition("next:\n")[2].splitlines():
        status, _, err = attentune(*shlex.split(command)[1:])
        assert status == 0, err
    again = ("--config", tmp_path / "a" / "config.yaml", "--output_dir", tmp_path / "b")
    assert attentune("train", *again)[0] == 0
    a, b = (tmp_path / name / "model.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert load_config(tmp_path / "a" / "config.yaml").model.head.kind == "mean"


def test_tracker_early_stopping_and_best_weights(attentune, tiny, tmp_path):
    train, run = write_reviews(tmp_path / "train.csv", 64), tmp_path / "run"
    status, out, err = attentune(
        "train", "--train_file", train, "--model_name_or_path", tiny("bert"), "--output_dir", run, "--use_cpu",
        "--num_train_epochs", "30", "--early_stopping_patience", "2", "--report_to", "tensorboard",
        "--class_weights", "balanced", "--label_smoothing_factor", "0.1", "--learning_rate", "1e-3", "--format", "json",
    )  # fmt: skip
    assert status == 0, err
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
    flags = ("--model_name_or_path", tiny("bert"), "--train_size", "40", "--num_train_epochs", "1")
    command = ("demo", "--presets", "majority,bert,auto", "--time_limit", "120s", *flags, "--output_dir", folder)
    status, out, err = attentune(*command)
    assert status == 0, err
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
    status, again, err = attentune(*command, "--format", "json")
    assert status == 0
    assert [file.stat().st_mtime_ns for file in made] == before
    content = json.loads(again)
    for line, shown in zip(content["leaderboard"], board, strict=True):
        assert line["method"] == shown.split()[0]
        for test_set, rows in (("held out", 400), ("films", 1000)):
            score = line["scores"][test_set]
            assert score["rows"] == rows
            assert f"{score['accuracy']:.3f}" in shown
            assert score["interval"][0] < score["accuracy"] < score["interval"][1]
        with (Path(line["folder"]) / "predictions_test.csv").open() as file:
            rows = list(csv.DictReader(file))
        correct = sum(row["label"] == row["prediction"] for row in rows)
        assert line["scores"]["films"]["accuracy"] == correct / 1000
    assert content["explanation"]["of"] == content["leaderboard"][0]["method"]
    assert content["report"] == str(folder / "report.html")


def test_what_is_listed_and_the_version(attentune):
    tasks = json.loads(attentune("list", "tasks", "--format", "json")[1])
    assert {"cola", "hans", "sick"} <= {task["name"] for task in tasks}
    assert "bert-cls-mean" in attentune("list", "presets")[1]
    assert attentune("list", "presets", "bert-mask")[1].count("masked-rows") == 1
    assert attentune()[0] == 2
    words = [sys.executable, "-m", "attentune", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0] == __version__


def test_settings_are_listed_by_section_or_name(attentune):
    status, out, _ = attentune("list", "settings", "labels", "training.seed", "--format", "json")
    assert status == 0
    facts = {one["name"]: one for one in json.loads(out)}
    assert set(facts) > {"labels.ratio", "training.seed"}
    assert {name.split(".")[0] for name in facts} == {"labels", "training"}
    assert (facts["training.seed"]["default"], facts["labels.generator"]["choices"][0]) == (42, "none")
    status, _, err = attentune("list", "settings", "lables")
    assert (status, "Did you mean 'labels'?" in err, len(err) < 400) == (2, True, True)
